"""Pipeline files for tests: a small one that is right, and changes to it."""

from __future__ import annotations

from tidemill.spark.pipeline.check import check_parts
from tidemill.spark.pipeline.load import Problems, parse
from tidemill.spark.pipeline.model import Pipeline

PATH = "clicks.toml"

RIGHT = """\
name = "clicks"

[source.clicks]
topics = ["clicks"]

[source.clicks.decode]
format = "json"
schema = "id STRING, user STRING, page STRING, ms INT, at TIMESTAMP"
on_failure = "quarantine"

[table.users]
topic = "users"
key = "user_id"
decode = { format = "json", schema = "name STRING, country STRING", on_failure = "drop" }

[stage.clean]
from = "clicks"
where = "ms >= 0"

[stage.clean.columns]
page = "lower(page)"

[[stage.clean.expect]]
name = "has-user"
that = "user IS NOT NULL"
on_failure = "quarantine"

[stage.clean.watermark]
column = "at"
delay = "10 minutes"

[stage.clean.dedupe]
keys = ["id"]

[[stage.clean.join]]
table = "users"
on = "user"

[stage.views]
from = "clean"

[stage.views.aggregate]
by = ["page"]
window = { column = "at", size = "1 minute" }
columns = { views = "count(*)" }

[sink.clean]
from = "clean"
topic = "clicks.clean"

[sink.views]
from = "views"
table = "delta:/tables/views"
"""


def changed(old: str, new: str) -> str:
    """The right file with one thing changed, which has to be there once."""
    assert RIGHT.count(old) == 1, f"{old!r} is there {RIGHT.count(old)} times"
    return RIGHT.replace(old, new)


def checked(text: str) -> tuple[Pipeline | None, Problems]:
    """What `tidemill pipeline check` finds without a broker and without Spark."""
    pipeline, problems = parse(text, PATH)
    if pipeline is not None:
        check_parts(pipeline, problems)
    return pipeline, problems


def right(text: str = RIGHT) -> Pipeline:
    pipeline, problems = checked(text)
    assert pipeline is not None
    assert [str(each) for each in problems.found] == []
    return pipeline


def line_of(text: str, part: str) -> int:
    """The line on which something stands that is there once."""
    lines = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    assert len(lines) == 1, f"{part!r} is on the lines {lines}"
    return lines[0]
