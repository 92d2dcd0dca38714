"""Dead letters: records that could not be used, as they came, with why and whence in their headers.

One table of header names for all that write such records: the source when it cannot decode a
value, pipelines when an expectation is not met. A header's value is text in UTF-8, numbers in
decimal. The record's own headers come first and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.wire.column_encoder import TIMESTAMP_MS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemill.spark.formats import Decoded

PREFIX: Final = "tidemill.dlq."
TOPIC: Final = f"{PREFIX}topic"
PARTITION: Final = f"{PREFIX}partition"
OFFSET: Final = f"{PREFIX}offset"
TIMESTAMP: Final = f"{PREFIX}timestamp"
STAGE: Final = f"{PREFIX}stage"
ERROR: Final = f"{PREFIX}error"
PIPELINE: Final = f"{PREFIX}pipeline"

MEANINGS: Final[Mapping[str, str]] = {
    TOPIC: "the topic that the record came from",
    PARTITION: "its partition there",
    OFFSET: "its offset there",
    TIMESTAMP: "its timestamp in milliseconds since 1970, -1 where it had none",
    STAGE: "what refused it: `decode` in a source, else the source or stage of a pipeline",
    ERROR: "why, in words",
    PIPELINE: "the pipeline's name, where a pipeline refused it",
}
"""Every header, in the order in which they are written."""

DECODING: Final = "decode"
"""The stage of values that a source could not decode."""


class Refused(NamedTuple):
    """What the headers of one dead letter say; None where one is not there or makes no sense."""

    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    stage: str | None
    error: str | None
    pipeline: str | None


class DeadLetters(NamedTuple):
    """Columns of records as a producer takes them."""

    keys: pa.BinaryArray
    values: pa.BinaryArray
    headers: pa.ListArray
    timestamps_ms: Any


def dead_letters(
    piece: Any, decoded: Decoded, *, topic: str, partition: int, pipeline: str | None = None
) -> DeadLetters:
    """The bad records of a piece that was read (a `wire.columns.ColumnBatch`), and why."""
    import numpy as np
    import pyarrow as pa

    rows = np.flatnonzero(decoded.bad)
    taken = pa.array(rows)
    own = None if piece.headers is None else piece.headers.take(taken).to_pylist()
    causes = [
        {
            TOPIC: topic,
            PARTITION: partition,
            OFFSET: offset,
            TIMESTAMP: timestamp_ms,
            STAGE: DECODING,
            ERROR: cause,
            PIPELINE: pipeline,
        }
        for offset, timestamp_ms, cause in zip(
            piece.offset[rows].tolist(),
            piece.timestamp_ms[rows].tolist(),
            decoded.causes,
            strict=True,
        )
    ]
    return DeadLetters(
        keys=piece.key.take(taken),
        values=piece.value.take(taken),
        headers=_headers(causes, own),
        timestamps_ms=_producible(piece.timestamp_ms[rows]),
    )


def _producible(timestamps_ms: Any) -> Any:
    """Times that a record may be produced with. What another producer wrote beside them, the header
    tells; the letter has none, and must not fail the task that sends it."""
    import numpy as np

    is_time = (timestamps_ms >= 0) & (timestamps_ms <= TIMESTAMP_MS_MAX)
    return np.where(is_time, timestamps_ms, -1)


def cause_headers(said: Mapping[str, object]) -> list[tuple[str, bytes]]:
    """The headers that say this; what is None is left out."""
    unknown = said.keys() - MEANINGS.keys()
    if unknown:
        raise ValueError(f"no headers of dead letters: {sorted(unknown)}")
    return [(name, str(said[name]).encode()) for name in MEANINGS if said.get(name) is not None]


def _headers(
    causes: Sequence[Mapping[str, object]], own: Sequence[list[dict[str, Any]] | None] | None
) -> pa.ListArray:
    """Each record's own headers and then those of its cause."""
    import pyarrow as pa

    kind = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
    before: Iterable[list[dict[str, Any]] | None] = [None] * len(causes) if own is None else own
    return pa.array(
        [
            [*(first or ()), *({"key": name, "value": text} for name, text in cause_headers(said))]
            for first, said in zip(before, causes, strict=True)
        ],
        kind,
    )


def refused(headers: Iterable[tuple[str, bytes | None]]) -> Refused:
    """What a dead letter's headers say; of a name that occurs twice the last counts, since a letter
    that was refused again has both."""
    said = {
        name: (value or b"").decode(errors="replace") for name, value in headers if name in MEANINGS
    }
    return Refused(
        topic=said.get(TOPIC),
        partition=_number(said.get(PARTITION)),
        offset=_number(said.get(OFFSET)),
        timestamp_ms=_number(said.get(TIMESTAMP)),
        stage=said.get(STAGE),
        error=said.get(ERROR),
        pipeline=said.get(PIPELINE),
    )


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
