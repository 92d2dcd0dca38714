"""`python -m tidemill.cli` is `tidemill`."""

from __future__ import annotations

import sys

from tidemill.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
