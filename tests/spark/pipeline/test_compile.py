"""Spark judges every expression, without a broker, and the mistake has its line."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.pipeline.files import RIGHT, changed, checked

from tidemill.spark.pipeline.compile import compile_all
from tidemill.spark.pipeline.inputs import InputsToJudge, TopicInputs
from tidemill.spark.pipeline.keys import PipelineError

NOBODY = "127.0.0.1:9"
"""Nothing is read to compile, so nobody has to listen."""


@pytest.fixture(scope="module")
def inputs(spark: Any) -> InputsToJudge:
    return InputsToJudge(TopicInputs(spark, NOBODY, {}))


def mistakes(inputs: InputsToJudge, text: str) -> list[PipelineError]:
    pipeline, problems = checked(text)
    assert pipeline is not None
    assert not problems.found
    compile_all(pipeline, inputs, problems)
    return problems.found


def test_a_right_pipeline_compiles_to_one_frame_per_query(inputs: InputsToJudge) -> None:
    pipeline, problems = checked(RIGHT)
    assert pipeline is not None
    frames, tables = compile_all(pipeline, inputs, problems)
    assert problems.found == []
    columns = {query.name: frame.columns for query, frame in frames}
    assert columns["clean"] == ["key", "value"]
    assert columns["views"] == ["window_start", "window_end", "page", "views"]
    assert columns["dead-letters.clicks"] == ["topic", "value", "key", "headers"]
    assert columns["dead-letters.clean"] == ["topic", "value", "key", "headers"]
    assert tables["users"].columns == ["user_id", "name", "country"]
    assert all(frame.isStreaming for _, frame in frames)


@pytest.mark.parametrize(
    ("old", "new", "key", "message", "suggestion"),
    [
        ('where = "ms >= 0"', 'where = "mss >= 0"', "stage.clean.where",
         "there is no column `mss` here", "`ms`"),
        ('where = "ms >= 0"', 'where = "ms >= >= 0"', "stage.clean.where", "cannot be read at", ""),
        ('page = "lower(page)"', 'page = "lowr(page)"', "stage.clean.columns.page",
         "there is no function `lowr`", ""),
        ('that = "user IS NOT NULL"', 'that = "usr IS NOT NULL"', "stage.clean.expect[0].that",
         "there is no column `usr` here", "`user`"),
        ('column = "at"\ndelay', 'column = "page"\ndelay', "stage.clean.watermark.column", "", ""),
        ('on = "user"', 'on = "usre"', "stage.clean.join[0].on", "no column `usre`", "`user`"),
        ('on = "user"', 'on = "user"\ncolumns = { c = "contry" }',
         "stage.clean.join[0].columns.c", "no column `contry`", "`country`"),
        ('by = ["page"]', 'by = ["lower(pag) AS page"]', "stage.views.aggregate.by[0]",
         "no column `pag`", "`page`"),
        ('views = "count(*)"', 'views = "max(mms)"', "stage.views.aggregate.columns.views",
         "no column `mms`", "`ms`"),
        ('topic = "clicks.clean"', 'topic = "clicks.clean"\nkey = "uuser"', "sink.clean.key",
         "no column `uuser`", "`user`"),
        ('topic = "clicks.clean"', 'topic = "clicks.clean"\nheaders = { a = "b" }',
         "sink.clean.headers.a", "no column `b`", ""),
        ('topic = "clicks.clean"', 'topic = "clicks.clean"\nwhere = "nothing"',
         "sink.clean.where", "no column `nothing`", ""),
        ('schema = "id STRING, user STRING', 'schema = "id STRNG, user STRING',
         "source.clicks.decode.schema", "", ""),
    ],
)  # fmt: skip
def test_what_spark_refuses_is_told_once_at_the_key(
    inputs: InputsToJudge, old: str, new: str, key: str, message: str, suggestion: str
) -> None:
    found = mistakes(inputs, changed(old, new))
    assert [each.key for each in found] == [key], [str(each) for each in found]
    assert message in found[0].message
    assert suggestion in found[0].suggestion
    assert "SQLSTATE" not in str(found[0])
    assert "\n" not in str(found[0])
    line = changed(old, new).splitlines()[found[0].line - 1]
    assert key.rpartition(".")[2].partition("[")[0] in line


def test_a_function_of_the_users_own(inputs: InputsToJudge) -> None:
    text = changed('where = "ms >= 0"', 'function = "tests.spark.pipeline.test_compile:shout"')
    text = text.replace('by = ["page"]', 'by = ["shouted"]')
    assert mistakes(inputs, text) == []
    wrong = text.replace("test_compile:shout", "test_compile:whisper")
    (mistake,) = mistakes(inputs, wrong)
    assert mistake.key == "stage.clean.function"
    assert "cannot be imported" in mistake.message


def shout(frame: Any) -> Any:
    return frame.selectExpr("*", "upper(page) AS shouted")
