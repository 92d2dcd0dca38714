import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.common.DirectoryId;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.server.common.MetadataVersion;

/**
 * Asks Kafka's controller for the next state of a partition, one question a line.
 *
 * A question is the state and what is wanted of it, in the order of the reads below; lists have
 * commas, "-" is an empty one. The answer is the next state, or "none".
 */
public class NextState {
    private static String[] words;
    private static int next;

    public static void main(String[] args) throws Exception {
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            words = line.split(" ");
            next = 0;
            System.out.println(answer());
        }
    }

    private static String answer() {
        int[] replicas = numbers();
        Uuid[] directories = new Uuid[replicas.length];
        Arrays.fill(directories, DirectoryId.UNASSIGNED);
        PartitionRegistration before = new PartitionRegistration.Builder()
            .setReplicas(replicas)
            .setDirectories(directories)
            .setIsr(numbers())
            .setElr(numbers())
            .setLastKnownElr(numbers())
            .setAddingReplicas(numbers())
            .setRemovingReplicas(numbers())
            .setLeader(number())
            .setLeaderRecoveryState(LeaderRecoveryState.of((byte) number()))
            .setLeaderEpoch(number())
            .setPartitionEpoch(number())
            .build();
        List<Integer> wantedReplicas = list();
        List<Integer> wantedIsr = list();
        List<Integer> wantedAdding = list();
        List<Integer> wantedRemoving = list();
        LeaderRecoveryState recovery = LeaderRecoveryState.of((byte) number());
        Set<Integer> alive = Set.copyOf(list());
        List<Integer> distrusted = list();
        int minIsr = number();
        boolean lastKnownLeader = number() == 1;
        PartitionChangeBuilder.Election election = PartitionChangeBuilder.Election.valueOf(words[next++]);
        return new PartitionChangeBuilder(
                before, Uuid.ONE_UUID, 0, alive::contains, MetadataVersion.latestProduction(), minIsr, true)
            .setTargetReplicas(wantedReplicas)
            .setTargetIsr(wantedIsr)
            .setTargetAdding(wantedAdding)
            .setTargetRemoving(wantedRemoving)
            .setTargetLeaderRecoveryState(recovery)
            .setUncleanShutdownReplicas(distrusted)
            .setUseLastKnownLeaderInBalancedRecovery(lastKnownLeader)
            .setElection(election)
            .setDefaultDirProvider(broker -> DirectoryId.UNASSIGNED)
            .build()
            .map(record -> shown(before.merge((PartitionChangeRecord) record.message())))
            .orElse("none");
    }

    private static String shown(PartitionRegistration state) {
        return String.join(" ",
            shown(state.replicas), shown(state.isr), shown(state.elr), shown(state.lastKnownElr),
            shown(state.addingReplicas), shown(state.removingReplicas), "" + state.leader,
            "" + state.leaderRecoveryState.value(), "" + state.leaderEpoch, "" + state.partitionEpoch);
    }

    private static String shown(int[] brokers) {
        String text = Arrays.stream(brokers).mapToObj(Integer::toString).collect(Collectors.joining(","));
        return text.isEmpty() ? "-" : text;
    }

    private static int number() {
        return Integer.parseInt(words[next++]);
    }

    private static List<Integer> list() {
        return Arrays.stream(numbers()).boxed().collect(Collectors.toList());
    }

    private static int[] numbers() {
        String word = words[next++];
        return word.equals("-") ? new int[0] : Arrays.stream(word.split(",")).mapToInt(Integer::parseInt).toArray();
    }
}
