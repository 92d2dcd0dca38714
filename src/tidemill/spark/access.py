"""Who may use a Spark cluster on this machine: whoever can read its secret, which is its user.

Every process of the machine can reach a port on 127.0.0.1, and who may submit a job to a master
runs code as its user. So a cluster has a secret in its `spark-defaults.conf`, which only this user
can read. Sessions on the same machine find that file by the master's port. Spark reads it by
itself: a setting of the session would be on the command line of a process, for all to see.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

DEFAULTS: Final = "spark-defaults.conf"
SECRET_BYTES: Final = 32


def write_secret(conf: Path) -> None:
    """A new secret for the cluster whose settings are in this folder."""
    conf.chmod(0o700)
    path = conf / DEFAULTS
    with suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write("spark.authenticate true\n")
        output.write(f"spark.authenticate.secret {secrets.token_hex(SECRET_BYTES)}\n")


def publish(master: str, conf: Path) -> None:
    """Let this user's sessions find the settings of the cluster of this master."""
    place = _place(master)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        place.unlink()
    place.symlink_to(conf)


def withdraw(master: str) -> None:
    with suppress(FileNotFoundError):
        _place(master).unlink()


def conf_of(master: str) -> Path | None:
    """Where the settings of a cluster on this machine are; None if it is none of ours."""
    place = _place(master)
    return place.resolve() if (place / DEFAULTS).is_file() else None


def _place(master: str) -> Path:
    from platformdirs import user_state_path

    return user_state_path("tidemill") / "spark-clusters" / master.rpartition(":")[2]
