"""What Spark needs on a machine: the packages of the extra `spark`, and Java.

`missing` is asked before anything of Spark is imported or started, so that whoever lacks something
reads one sentence about it instead of a traceback or of a JVM's last words.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

JAVA_MIN: Final = 17
PACKAGES: Final = ("pyspark", "pyarrow", "deltalake")
ASK_JAVA_LIMIT_S: Final = 60.0

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_HOW_TO_GET_JAVA = (
    f"install Java {JAVA_MIN} or newer (Debian and Ubuntu: `apt install default-jre-headless`, "
    "macOS: `brew install openjdk`) and see that `java` is on the PATH, or that JAVA_HOME names it"
)


class Missing(NamedTuple):
    """Something that Spark needs and this machine lacks."""

    what: str
    remedy: str


def missing() -> Missing | None:
    """The first thing that Spark lacks here; None if it can run."""
    absent = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        return Missing(
            f"Spark is not installed here ({', '.join(absent)} missing)",
            "`pip install 'tidemill[spark]'` brings it",
        )
    return _missing_java()


def _missing_java() -> Missing | None:
    """As Spark looks for it: JAVA_HOME goes before the path."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return Missing("Spark needs Java, and there is none here", _HOW_TO_GET_JAVA)
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ASK_JAVA_LIMIT_S
        )
    except OSError:
        return Missing(f"Spark needs Java, and {java} cannot be run", _HOW_TO_GET_JAVA)
    except subprocess.TimeoutExpired:
        return None  # A machine this busy may still have it; Spark will find out.
    version = _VERSION.search(said.stderr)
    if version is not None and int(version[1]) < JAVA_MIN:
        return Missing(
            f"Spark needs Java {JAVA_MIN} or newer, and {java} is {version[1]}", _HOW_TO_GET_JAVA
        )
    return None
