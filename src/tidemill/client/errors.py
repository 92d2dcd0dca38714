"""What a client raises: a protocol error code, a sentence, and a hint about what to do next.

Everything here is an `ApiError`, so `error.code` and `error.retriable` always exist; `error.hint`
is the advice that the command line prints under the error.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ApiError, ErrorCode, TidemillError

_HINTS: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "check the topic's name with `tidemill topic list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or delete the topic first",
    ErrorCode.INVALID_TOPIC_EXCEPTION: (
        "a topic's name has 1 to 249 letters, digits, dots, underscores and dashes"
    ),
    ErrorCode.INVALID_REPLICATION_FACTOR: "ask for at most as many replicas as there are brokers",
    ErrorCode.INVALID_PARTITIONS: "the number of partitions is at least 1 and can only grow",
    ErrorCode.MESSAGE_TOO_LARGE: (
        "raise `max.message.bytes` of the topic and `max.request.size` of the producer, "
        "or send smaller records"
    ),
    ErrorCode.RECORD_LIST_TOO_LARGE: "lower `batch.size`, or raise `segment.bytes` of the topic",
    ErrorCode.NOT_ENOUGH_REPLICAS: (
        "fewer replicas are in sync than `min.insync.replicas` asks for: start the missing brokers"
    ),
    ErrorCode.OFFSET_OUT_OF_RANGE: (
        "the records were deleted or never written: seek elsewhere, or set `auto.offset.reset`"
    ),
    ErrorCode.REQUEST_TIMED_OUT: "the broker is slow or stuck; `request.timeout.ms` is the limit",
    ErrorCode.NETWORK_EXCEPTION: "is a broker running? try `tidemill up`",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "ask for an ACL on this topic",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "ask for an ACL on the cluster",
    ErrorCode.TOPIC_DELETION_DISABLED: "set `delete.topic.enable=true` on the brokers",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old or too new for this request",
    ErrorCode.INVALID_TIMESTAMP: "see `message.timestamp.before.max.ms` and `...after.max.ms`",
    ErrorCode.INVALID_RECORD: "a compacted topic takes no record without a key",
    ErrorCode.KAFKA_STORAGE_ERROR: "the broker's log says what is wrong with its disk",
    ErrorCode.CORRUPT_MESSAGE: "the bytes changed on their way; sending again usually helps",
}

# What happened to a topic or partition, for brokers that answer with a bare code.
_PREDICATES: Mapping[ErrorCode, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "does not exist",
    ErrorCode.UNKNOWN_TOPIC_ID: "does not exist any more",
    ErrorCode.TOPIC_ALREADY_EXISTS: "exists already",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "cannot be: this is no valid name",
    ErrorCode.LEADER_NOT_AVAILABLE: "has no leader right now",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "is led by another broker by now",
    ErrorCode.OFFSET_OUT_OF_RANGE: "does not have the offset that was asked for",
    ErrorCode.MESSAGE_TOO_LARGE: "does not take batches that large",
    ErrorCode.KAFKA_STORAGE_ERROR: "cannot be used: its log directory failed or its disk is full",
    ErrorCode.NOT_ENOUGH_REPLICAS: "has too few replicas in sync",
    ErrorCode.REQUEST_TIMED_OUT: "did not answer in time",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "may not be used by you",
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members: stop them first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
        "is read by the group right now (GROUP_SUBSCRIBED_TO_TOPIC): stop its members first"
    ),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "has too long a note (`offset.metadata.max.bytes`)",
}


class ClientError(ApiError):
    """A request, a record or a partition failed; `hint` says what one can do about it."""

    def __init__(
        self, code: ErrorCode, message: str | None = None, *, hint: str | None = None
    ) -> None:
        super().__init__(code, message)
        self.hint = hint if hint is not None else _HINTS.get(code)

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; {self.hint}" if self.hint else text


class UnreachableError(ClientError):
    """No connection to a broker could be made, or the one there was broke."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message, hint=hint)

    def __str__(self) -> str:
        return _plain(self)


class UnknownBrokerError(ClientError):
    """A broker was named by an id that no broker of the cluster has."""

    def __init__(self, broker_id: int) -> None:
        super().__init__(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"broker {broker_id} is not part of the cluster",
            hint="check the id with `tidemill status` or `tidemill doctor`",
        )


class RequestTimeoutError(ClientError):
    """No answer came in time; whether the request took effect is not known."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message, hint=hint)

    def __str__(self) -> str:
        return _plain(self)


class UnsupportedError(ClientError):
    """The broker offers no version of this request that we speak."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message)


class BufferFullError(ClientError):
    """`send_soon` found the producer's memory taken; wait for room, or use `send`."""

    def __init__(self, needed_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{needed_bytes} more bytes do not fit into buffer.memory={limit_bytes}",
            hint="`await producer.wait_for_room()` before the next record, or `await send(...)`",
        )

    @property
    def retriable(self) -> bool:
        return True


class CommitFailedError(ClientError):
    """Offsets were not committed: this member is not what the group takes it for any more."""

    def __init__(self, code: ErrorCode, group_id: str) -> None:
        super().__init__(
            code,
            f"the offsets of group {group_id!r} were not committed: the group has moved on",
            hint="poll more often, raise `max.poll.interval.ms`, or fetch fewer records per poll; "
            "what was not committed will be read again",
        )


class OffsetResetError(ClientError):
    """A position is outside the log and `auto.offset.reset` says to report it."""


class OffsetsLost(ClientError):  # noqa: N818 - it says what happened
    """Records that were to be read are gone: the log starts after the first of them."""

    def __init__(self, topic: str, partition: int, start: int, earliest: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{topic}-{partition} has no offset {start} any more: its log starts at {earliest}",
            hint="retention deleted the records before they were read; read on from there",
        )
        self.topic = topic
        self.partition = partition
        self.start = start
        self.earliest = earliest


class LogTruncatedError(ClientError):
    """Records that were read already are gone from the log: an unclean election cut it."""


class SettingsError(TidemillError, ValueError):
    """A setting is unknown or has a value that cannot be; the message says what to write."""


class ClosedError(TidemillError, RuntimeError):
    """The client was closed, or never started; use it inside `async with`."""


def _plain(error: ClientError) -> str:
    """The message and the hint; the code's name would add nothing for whoever reads it."""
    return f"{error.message}; {error.hint}" if error.hint else str(error.message)


def from_code(code: int, message: str | None = None, *, hint: str | None = None) -> ClientError:
    """The error for a code as it came over the wire; a code nobody knows is a server error."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return ClientError(ErrorCode.UNKNOWN_SERVER_ERROR, message or f"error code {code}")
    return ClientError(known, message, hint=hint)


def failure_of(subject: str, code: int, said: str | None = None) -> ClientError:
    """The error of one topic or partition: what the broker said of it, or a sentence of our own."""
    if said:
        return from_code(code, said)
    error = from_code(code)
    predicate = _PREDICATES.get(error.code)
    sentence = f"{subject} {predicate}" if predicate else f"{subject} failed: {error.code.name}"
    return from_code(code, sentence)
