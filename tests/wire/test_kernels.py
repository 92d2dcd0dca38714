"""The columnar kernels agree with `iter_records`, compiled or not, on sound and damaged input."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.wire.batch_strategies import LIMIT_BYTES, codecs, decode, record_lists, simple_records

from tidemill.errors import WireError
from tidemill.wire import kernels
from tidemill.wire.batch import BatchHeader, InvalidRecordError, TimestampType, read_header
from tidemill.wire.compression import Codec
from tidemill.wire.records import Record, build_batch, iter_records, records_body

SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["plain", "numba"])
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with the kernels as plain Python and as compiled code."""
    before = [each.compiled for each in kernels._KERNELS]
    if request.param == "numba":
        pytest.importorskip("numba")
        kernels.use_numba()
    else:
        for each in kernels._KERNELS:
            each.compiled = None
    yield str(request.param)
    for each, compiled in zip(kernels._KERNELS, before, strict=True):
        each.compiled = compiled


def _rows(body: bytes, columns: kernels.RecordColumns) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for i in range(len(columns.offsets)):
        rows.append(
            (
                int(columns.offsets[i]),
                int(columns.timestamps[i]),
                _cut(body, columns.key_pos[i], columns.key_len[i]),
                _cut(body, columns.value_pos[i], columns.value_len[i]),
                int(columns.header_count[i]),
            )
        )
    return rows


def _cut(body: bytes, pos: int, length: int) -> bytes | None:
    return None if length < 0 else body[pos : pos + length]


def _expected(records: list[Record]) -> list[tuple[object, ...]]:
    return [(*record[:4], len(record.headers)) for record in records]


@SHARED_FIXTURE
@given(record_lists(base_offset=3, gaps=True), codecs, st.sampled_from(list(TimestampType)))
def test_columns_hold_what_the_records_hold(
    engine: str, records: list[Record], codec: Codec, timestamps: TimestampType
) -> None:
    batch = build_batch(records, base_offset=3, codec=codec, timestamp_type=timestamps)
    header, decoded = decode(batch)
    body = records_body(batch, 0, header, limit_bytes=LIMIT_BYTES)
    assert _rows(body, kernels.locate(body, header)) == _expected(decoded)


def _outcome(header: BatchHeader, body: bytes) -> tuple[object, object]:
    """What plain iteration and the kernel make of a body: rows, or None for a refusal."""
    buffer = bytes(61) + body
    try:
        records = list(iter_records(buffer, 0, header, limit_bytes=LIMIT_BYTES))
        plain: object = _expected(records)
    except WireError:
        plain = None
    try:
        columns: object = _rows(body, kernels.locate(body, header))
    except WireError:
        columns = None
    return plain, columns


@SHARED_FIXTURE
@given(record_lists(size_max=4), st.data())
def test_both_refuse_the_same_damage(
    engine: str, records: list[Record], draw: st.DataObject
) -> None:
    """Rule 3.4.4: compiled code reads nothing outside its buffer and accepts nothing more."""
    batch = build_batch(records)
    body = bytearray(batch[61:])
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.integers(0, len(body) - 1))
        body[place] = draw.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(body)) | st.just(len(body)))
    header = read_header(batch)._replace(batch_length=49 + cut)
    plain, columns = _outcome(header, bytes(body[:cut]))
    assert plain == columns


@SHARED_FIXTURE
@given(
    st.integers(-(2**63), 2**63 - 1),
    st.binary(min_size=1, max_size=11),
    st.integers(0, 2**63 - 1),
)
def test_both_agree_on_extreme_numbers(engine: str, base: int, delta: bytes, offset: int) -> None:
    record = b"\x00" + delta + b"\x00\x01\x01\x00"
    body = bytes((2 * len(record),)) + record
    header = read_header(build_batch(simple_records(1)))._replace(
        base_offset=offset, base_timestamp=base, batch_length=49 + len(body), attributes=0
    )
    plain, columns = _outcome(header, body)
    assert plain == columns


def test_batches_can_share_columns(engine: str) -> None:
    columns = kernels.new_columns(8)
    batch = build_batch(simple_records(4))
    header = read_header(batch)
    kernels.locate_into(columns, 0, batch[61:], header)
    kernels.locate_into(columns, 4, batch[61:], header._replace(base_offset=100))
    assert list(columns.offsets) == [0, 1, 2, 3, 100, 101, 102, 103]
    for at in (-1, 5):
        with pytest.raises(InvalidRecordError, match="do not fit"):
            kernels.locate_into(columns, at, batch[61:], header)


def test_importing_the_wire_needs_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, tidemill.wire.kernels, tidemill.wire.legacy, tidemill.wire.control\n"
        "sys.exit(bool({'numba', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_kernel_is_a_plain_function() -> None:
    with pytest.raises(TypeError):
        kernels.kernel(len)
