"""Exit codes, and the errors that carry one: what a script can rely on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tidemill.errors import ErrorCode, TidemillError


class Exit(IntEnum):
    """What the process's exit status says."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    UNREACHABLE = 5
    PARTLY_FAILED = 6
    INTERRUPTED = 130


MEANINGS: dict[Exit, str] = {
    Exit.OK: "Everything asked for was done.",
    Exit.FAILED: "The operation failed; the message says why.",
    Exit.USAGE: "The command line or a value on it is wrong; nothing was done.",
    Exit.NOT_FOUND: "The topic, partition, profile, key or file does not exist.",
    Exit.DENIED: "The cluster refused: authentication or authorization failed.",
    Exit.UNREACHABLE: "No broker answered in time.",
    Exit.PARTLY_FAILED: "Some of the things asked for were done and some failed.",
    Exit.INTERRUPTED: "Stopped by Ctrl-C before the end.",
}


class CommandError(TidemillError):
    """A failure that a command reports: one sentence, an exit code and, where known, a hint."""

    def __init__(self, message: str, exit_code: Exit = Exit.FAILED, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error in the shape that `--format json` prints on stderr."""

    error: str
    exit_code: int
    code: str | None = None
    hint: str | None = None


_NOT_FOUND = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.LOG_DIR_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
_UNREACHABLE = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
_USAGE = frozenset(
    {
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
    }
)


def exit_for_code(code: ErrorCode) -> Exit:
    """The exit status that says the same as a protocol error."""
    if code in _NOT_FOUND:
        return Exit.NOT_FOUND
    if code in _UNREACHABLE:
        return Exit.UNREACHABLE
    if code in _USAGE:
        return Exit.USAGE
    if "AUTHORIZATION" in code.name or "SASL" in code.name:
        return Exit.DENIED
    return Exit.FAILED
