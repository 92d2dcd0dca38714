"""The `tidemill` command: `main` is what the installed script calls.

`tidemill up` is the broker process itself, so it goes around the command framework: no help
renderer, no completion engine in a server. The list of commands and the version need no framework
either, and come at once. Everything else goes through `app.build()`.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

# The global options by shape. `options.Common` declares them with their help, but importing that
# costs a broker the whole command framework; a test holds the two together.
TAKES_VALUE = frozenset({"--bootstrap", "-b", "--profile", "-X", "--format", "--timeout"})
IS_FLAG = frozenset({"--yes", "-y", "--verbose", "-v", "--no-color"})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if (text := _said_at_once(arguments)) is not None:
        sys.stdout.write(text)
        return 0
    if "up" in arguments and not {"--help", "-h"} & set(arguments):
        tokens = globals_last(arguments)
        if tokens[0] == "up":
            from tidemill.cli.serve import main as serve

            return serve(tokens[1:])
    return run(arguments)


def _said_at_once(arguments: list[str]) -> str | None:
    """The answer to `tidemill`, `tidemill --help` and `tidemill --version`."""
    words = [word for word in arguments if word not in IS_FLAG]
    if words in ([], ["--help"], ["-h"]):
        from tidemill.cli.root import render

        return render()
    if words == ["--version"]:
        from tidemill import __version__

        return f"{__version__}\n"
    return None


def run(arguments: list[str]) -> int:
    """Everything but `up`: build the table of commands, dispatch, report mistakes."""
    if "--no-color" in arguments:
        os.environ["NO_COLOR"] = "1"  # what help and progress bars look at, too
    from cyclopts import CycloptsError

    from tidemill.cli.app import build
    from tidemill.cli.exits import CommandError, ErrorReport, Exit

    try:
        tokens = _settings_asked(arguments) or globals_last(arguments)
        status = build()(tokens, exit_on_error=False, print_error=False, backend="asyncio")
    except CycloptsError as error:
        hint = "`tidemill --help` lists the commands; `tidemill COMMAND --help` explains one"
        return _usage(arguments, ErrorReport(_one_line(error), Exit.USAGE, hint=hint))
    except CommandError as error:
        return _usage(arguments, ErrorReport(error.message, error.exit_code, hint=error.hint))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    return status if isinstance(status, int) else Exit.OK


def _settings_asked(arguments: list[str]) -> list[str] | None:
    """`-X list`, wherever it stands, lists the settings that `-X` takes."""
    for word, following in itertools.pairwise(arguments):
        if word == "-X" and following in ("list", "help"):
            return ["help", "settings"]
    return None


def globals_last(arguments: list[str]) -> list[str]:
    """`tidemill -b HOST topic list` as `tidemill topic list -b HOST`: global options may come
    first, and each command knows them."""
    leading: list[str] = []
    rest = list(arguments)
    while rest:
        name, equals, _ = rest[0].partition("=")
        if name in IS_FLAG or (name in TAKES_VALUE and equals):
            leading.append(rest.pop(0))
        elif name in TAKES_VALUE and len(rest) > 1:
            leading += [rest.pop(0), rest.pop(0)]
        else:
            break
    if not rest:
        return arguments
    end = rest.index("--") if "--" in rest else len(rest)
    return rest[:end] + leading + rest[end:]


def _one_line(error: Exception) -> str:
    """The framework's message without its frame."""
    lines = [line.strip(" │╭╰─╮╯") for line in str(error).splitlines()]
    words = [line for line in lines if line and line != type(error).__name__]
    return " ".join(words) or type(error).__name__


def _usage(arguments: list[str], found: object) -> int:
    from tidemill.cli.command import print_error
    from tidemill.cli.exits import ErrorReport

    assert isinstance(found, ErrorReport)
    wants_json = any(
        word == "--format=json" or (word == "--format" and following == "json")
        for word, following in zip(arguments, [*arguments[1:], ""], strict=True)
    )
    print_error(found, "json" if wants_json else "table")
    return found.exit_code


if __name__ == "__main__":
    sys.exit(main())
