"""docs/spark.md: its Python runs, its command shows what it says, its table has every option."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

from tests.cli.helpers import tidemill
from tests.spark.topics import create, fill

from tidemill.spark.options import SINK_OPTIONS, SOURCE_OPTIONS
from tidemill.spark.sessions import recommended_conf
from tidemill.testing.process import BrokerProcess

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(DOCUMENT.read_text()) if kind == language]


def test_everything_in_the_document_works(
    spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    """All blocks in their order, in one namespace; only port and folder are others."""
    create(broker.bootstrap, "clicks", partitions=2)
    fill(broker.bootstrap, "clicks", [b"/home", b"/cart"])
    create(broker.bootstrap, "orders")
    fill(broker.bootstrap, "orders", [b'{"id": 1, "item": "tea", "price": 2.5}', b"{"])
    namespace: dict[str, Any] = {}
    printed = io.StringIO()
    code = blocks("python")
    assert len(code) >= 5
    with contextlib.redirect_stdout(printed):
        for each in code:
            local = each.replace("127.0.0.1:9092", broker.bootstrap)
            local = local.replace('"pages', f'"{tmp_path}/pages')  # The JVM is elsewhere.
            exec(compile(local, str(DOCUMENT), "exec"), namespace)
    assert "/cart" in printed.getvalue()
    assert "tea" in printed.getvalue()
    assert spark.read.parquet(str(tmp_path / "pages")).count() == 2
    commands = [line for each in blocks("sh") for line in each.splitlines()]
    (command,) = [line for line in commands if line.startswith("tidemill ")]
    ran = tidemill(*command.split()[1:], variables={"TIDEMILL_BOOTSTRAP": broker.bootstrap})
    assert ran.status == 0, ran.err
    assert "clicks-to-pages" in ran.out


def test_the_document_names_every_option_and_setting() -> None:
    text = DOCUMENT.read_text()
    for option in SOURCE_OPTIONS:
        assert f"`{option}`" in text, option
    for setting in recommended_conf("spark://somewhere:7077"):
        assert setting in text or setting == "spark.ui.showConsoleProgress", setting
    assert SINK_OPTIONS
