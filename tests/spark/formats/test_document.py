"""docs/spark-formats.md: its code runs, and its tables are those of the code.

The two examples that need Spark are run in `test_spark.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.spark.formats import Limits
from tidemill.spark.formats.dead_letters import MEANINGS

TEXT = (Path(__file__).parents[3] / "docs" / "spark-formats.md").read_text()
READING, WRITING, WITHOUT_SPARK = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_example_without_spark() -> None:
    exec(compile(WITHOUT_SPARK, "docs/spark-formats.md", "exec"), {})


def test_the_headers_of_dead_letters() -> None:
    rows = re.findall(r"^\| `(tidemill\.dlq\.\w+)` \| (.*) \|$", TEXT, re.MULTILINE)
    assert dict(rows) == dict(MEANINGS)


def test_the_limits() -> None:
    limits = Limits()
    assert f"| one value | {limits.record_bytes_max >> 20} MiB" in TEXT
    assert (
        f"{limits.fields_max:,} fields, nested ones counted; {limits.depth_max} levels; "
        f"{limits.schema_bytes_max >> 20} MiB"
    ) in TEXT
    assert f"| a cause | {limits.cause_chars_max} characters |" in TEXT
