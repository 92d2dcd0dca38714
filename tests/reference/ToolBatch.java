import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs many of Kafka's commands in one JVM, because starting a JVM costs more than a command does.
 *
 * A line of input is a class name and its arguments, in base64, separated by tabs. A line of output
 * is the exit status, what went to stdout and what went to stderr, likewise.
 */
public class ToolBatch {
    static final class Ended extends Error {
        final int status;

        Ended(int status) {
            super("exit " + status, null, false, false);
            this.status = status;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        Exit.setExitProcedure((status, message) -> { throw new Ended(status); });
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] coded = line.split("\t");
            String[] words = Arrays.stream(coded).map(ToolBatch::plain).toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int status = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            System.out.flush();
            System.err.flush();
            answers.println(String.join(
                "\t", Integer.toString(status), coded(out.toByteArray()), coded(err.toByteArray())));
            answers.flush();
        }
        System.exit(0);
    }

    static int run(String name, String[] arguments) throws Exception {
        try {
            Class.forName(name).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return 0;
        } catch (InvocationTargetException wrapped) {
            if (wrapped.getCause() instanceof Ended) {
                return ((Ended) wrapped.getCause()).status;
            }
            wrapped.getCause().printStackTrace();
            return 1;
        }
    }

    static String plain(String word) {
        return new String(Base64.getDecoder().decode(word.substring(1)), StandardCharsets.UTF_8);
    }

    static String coded(byte[] text) {
        return "=" + Base64.getEncoder().encodeToString(text);
    }
}
