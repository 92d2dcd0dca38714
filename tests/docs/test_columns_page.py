"""The page about columns shows a program that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tidemill.client import blocking
from tidemill.client.admin_types import NewTopic
from tidemill.testing.process import BrokerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "columns.md"


def test_its_program_reads_what_it_has_written(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with BrokerProcess(tmp_path / "data") as broker:
        with blocking.Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic("clicks", 3, 1)]).raise_first()
        names: dict[str, Any] = {}
        exec(program.replace("127.0.0.1:9092", broker.bootstrap), names)
    assert sorted(names["pages"]) == [b"/", b"/about", b"/cart"]
    assert names["table"].column_names == ["user", "page"]
