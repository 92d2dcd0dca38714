"""`python -m tidemill.cli.member HOME DIRECTORY`: one of the brokers that `up` wrote down.

`launch.py` starts it. Settings come from the note in HOME alone, neither from the command line,
where others could read them, nor from the variables of whoever happens to start it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tidemill.cli import fleet as fleets
from tidemill.cli.exits import CommandError, Exit


def main(argv: Sequence[str]) -> int:
    home, directory = argv
    try:
        fleet = fleets.load(home)
        member = fleet.in_directory(directory) if fleet is not None else None
        if fleet is None or member is None:
            raise CommandError(f"no broker of {home} has the directory {directory}")
    except CommandError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return Exit.FAILED
    from tidemill.cli.serve import serve_settings

    return serve_settings(fleet.settings_of(member), fleet.log_levels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
