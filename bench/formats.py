"""How fast values are decoded: our columns beside a plain loop over rows, in one process.

`python -m bench.formats` prints rows per second of CPU time of both, and their ratio: JSON beside
`json.loads` and a list of dictionaries that Arrow turns into columns, for Avro beside fastavro's
reader, for Protobuf beside messages turned into dictionaries; for values of two sizes, and for a
piece in which some values are bad. The loops end with Arrow columns, too, since Spark wants those.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from google.protobuf.json_format import MessageToDict

from tidemill.spark.formats import FormatOptions, ValueFormat, value_format
from tidemill.spark.formats.descriptors import load_message

ROWS = 10_000
DDL = "id BIGINT, user STRING, page STRING, score DOUBLE, ok BOOLEAN"
AVRO: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "user", "type": "string"},
    {"name": "page", "type": ["null", "string"]},
    {"name": "score", "type": "double"},
    {"name": "ok", "type": "boolean"},
]
COLLECTIONS: list[dict[str, Any]] = [
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
]
PROTO = """syntax = "proto3";
message Click { int64 id = 1; string user = 2; string page = 3; double score = 4; bool ok = 5; }"""


class Case(NamedTuple):
    name: str
    values: pa.BinaryArray
    ours: ValueFormat
    plain: Callable[[pa.BinaryArray], pa.Array]


def rows(page_bytes: int) -> list[dict[str, Any]]:
    return [
        {"id": at, "user": f"user-{at % 997}", "page": f"/{at:0{page_bytes}}", "score": at / 7,
         "ok": at % 2 == 0}
        for at in range(ROWS)
    ]  # fmt: skip


def cases() -> Iterator[Case]:
    for page_bytes in (20, 900):
        made = rows(page_bytes)
        size = "100 B" if page_bytes == 20 else "1 KB"
        yield json_case(f"json {size}", made, bad_every=0)
        yield avro_case(f"avro {size}", made, AVRO)
        nested = [{**row, "tags": ["a", row["user"]], "counts": {"x": 1, "y": 2}} for row in made]
        yield avro_case(f"avro {size} and collections", nested, AVRO + COLLECTIONS)
        yield protobuf_case(f"protobuf {size}", made)
    yield json_case("json 100 B, 1 of 1000 bad", rows(20), bad_every=1000)
    yield json_case("json 100 B, 1 of 10 bad", rows(20), bad_every=10)


def json_case(name: str, made: list[dict[str, Any]], *, bad_every: int) -> Case:
    ours = value_format(FormatOptions("json", DDL))
    values = [json.dumps(row).encode() for row in made]
    if bad_every:
        values[::bad_every] = [value[:-1] for value in values[::bad_every]]

    def plain(values: pa.BinaryArray) -> pa.Array:
        decoded = []
        for value in values.to_pylist():
            try:
                decoded.append(json.loads(value))
            except ValueError:
                decoded.append(None)
        return pa.array(decoded, ours.schema())

    return Case(name, pa.array(values, pa.binary()), ours, plain)


def avro_case(name: str, made: list[dict[str, Any]], fields: list[dict[str, Any]]) -> Case:
    text = {"type": "record", "name": "Click", "fields": fields}
    ours = value_format(FormatOptions("avro", json.dumps(text)))
    schema = fastavro.parse_schema(text)

    def written(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        return out.getvalue()

    def plain(values: pa.BinaryArray) -> pa.Array:
        read = [fastavro.schemaless_reader(io.BytesIO(each), schema) for each in values.to_pylist()]
        for row in read:
            if "counts" in row:  # Arrow wants pairs
                row["counts"] = list(row["counts"].items())
        return pa.array(read, ours.schema())

    return Case(name, pa.array(map(written, made), pa.binary()), ours, plain)


def protobuf_case(name: str, made: list[dict[str, Any]]) -> Case:
    options = FormatOptions("protobuf", PROTO)
    ours, make = value_format(options), load_message(options).make

    def plain(values: pa.BinaryArray) -> pa.Array:
        read = [
            MessageToDict(make.FromString(each), preserving_proto_field_name=True)
            for each in values.to_pylist()
        ]
        for row in read:
            row["id"] = int(row.get("id", 0))  # JSON's mapping has large numbers as texts
        return pa.array(read, ours.schema())

    values = [make(**row).SerializeToString() for row in made]
    return Case(name, pa.array(values, pa.binary()), ours, plain)


def rows_per_second(work: Callable[[pa.BinaryArray], object], values: pa.BinaryArray) -> float:
    begin = time.process_time()
    work(values)
    return len(values) / (time.process_time() - begin)


def measured(case: Case, repeats: int) -> tuple[float, float]:
    """Medians of both, taken in turns after one round that does not count."""
    ours: list[float] = []
    plain: list[float] = []
    for number in range(repeats + 1):
        one = rows_per_second(case.ours.decode, case.values)
        other = rows_per_second(case.plain, case.values)
        if number:
            ours.append(one)
            plain.append(other)
    return statistics.median(ours), statistics.median(plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"{'case':28} {'ours rows/s':>12} {'loop rows/s':>12} {'ratio':>7}")
    for case in cases():
        ours, plain = measured(case, repeats)
        print(f"{case.name:28} {ours:12,.0f} {plain:12,.0f} {ours / plain:7.2f}")


if __name__ == "__main__":
    main()
