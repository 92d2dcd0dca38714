"""How a table is named and what may be said about it."""

from __future__ import annotations

import pytest

from tidemill.spark.option_values import OptionError
from tidemill.spark.options import SinkOptions
from tidemill.spark.tables.target import BatchId, TableOptions, parse_table


def parse(*, overwrite: bool = False, **options: str) -> TableOptions:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return TableOptions.parse(SinkOptions.parse(given), overwrite=overwrite)


def test_tables_are_named_by_kind_and_address() -> None:
    assert parse_table("delta:/lake/clicks") == ("delta", "/lake/clicks")
    assert parse_table("parquet:hdfs://nn:8020/lake") == ("parquet", "hdfs://nn:8020/lake")
    assert parse_table("iceberg:prod.db.clicks") == ("iceberg", "prod.db.clicks")
    for wrong in ("", "delta", "delta:", "hudi:/x", "iceberg:db.clicks", "iceberg:a..b"):
        with pytest.raises(OptionError):
            parse_table(wrong)


def test_everything_can_be_said() -> None:
    found = parse(
        table="iceberg:prod.db.clicks",
        mode="upsert",
        keys="user, day",
        table_orderBy="offset",
        table_tombstone="none",
        table_fileBytes="1000000",
        table_compression="snappy",
        table_historyDays="30",
        catalog_uri="sqlite:///x.db",
        storage_region="eu",
    )
    assert found.mode == "upsert"
    assert found.keys == ("user", "day")
    assert found.order_by == ("offset",)
    assert found.tombstone == "none"
    assert found.file_bytes_max == 1_000_000
    assert found.compression == "snappy"
    assert found.history_days == 30
    assert found.catalog == {"uri": "sqlite:///x.db"}
    assert found.storage == {"region": "eu"}


def test_overwriting_replaces() -> None:
    assert parse(overwrite=True, table="delta:/x").mode == "replace"
    with pytest.raises(OptionError, match="output mode update or append"):
        parse(overwrite=True, table="delta:/x", mode="upsert", keys="id")


def test_a_write_can_be_given_an_identity() -> None:
    found = parse(table="delta:/x", table_txnAppId="nightly", table_txnVersion="7")
    assert found.once == BatchId("nightly", 7)
    with pytest.raises(OptionError, match=r"goes together with `table\.txnVersion`"):
        parse(table="delta:/x", table_txnAppId="nightly")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"catalog_uri": "x"}, "only Iceberg tables have a catalog"),
        ({"table_orderBy": "offset"}, "is for `mode` = upsert"),
        ({"table_orderby_": "x"}, "is unknown"),
        ({"table_orderByy": "x"}, r"did you mean `table\.orderBy`"),
        ({"table_historyDays": "7"}, "is for Iceberg tables"),
        ({"table_compression": "rar"}, "must be one of zstd"),
    ],
)
def test_mistakes_are_explained(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(**{"table": "delta:/x", **options})  # type: ignore[arg-type]
