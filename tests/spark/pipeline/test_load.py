"""Single keys of a pipeline file: unknown, missing, of the wrong kind; each told once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.spark.pipeline.files import PATH, RIGHT, changed, checked, line_of, right

from tidemill.spark.pipeline.keys import Kind, keys_of
from tidemill.spark.pipeline.load import FILE_BYTES_MAX, load, parse
from tidemill.spark.pipeline.model import InvalidPipelineError, Pipeline, PipelineError
from tidemill.spark.pipeline.reference import SECTIONS


def only_mistake(text: str) -> PipelineError:
    _, problems = checked(text)
    assert len(problems.found) == 1, [str(each) for each in problems.found]
    return problems.found[0]


def test_a_right_file_becomes_a_pipeline() -> None:
    pipeline = right()
    assert pipeline.name == "clicks"
    assert pipeline.path == PATH
    assert pipeline.source["clicks"].topics == ("clicks",)
    assert pipeline.source["clicks"].start == "earliest"
    assert pipeline.source["clicks"].decode.on_failure == "quarantine"
    assert pipeline.table["users"].refresh_ms == 60_000
    clean = pipeline.stage["clean"]
    assert clean.inputs == ("clicks",)
    assert clean.expect[0].that == "user IS NOT NULL"
    assert clean.watermark is not None
    assert clean.watermark.delay_ms == 600_000
    assert clean.join[0].kind == "left"
    views = pipeline.stage["views"].aggregate
    assert views is not None
    assert views.window is not None
    assert (views.window.size_ms, views.window.slide_ms) == (60_000, None)
    assert pipeline.dead_letter_topic == "clicks.dead-letters"
    assert clean.expect[0].at == ("stage", "clean", "expect", 0)


@pytest.mark.parametrize(
    ("old", "new", "key", "message", "suggestion"),
    [
        # Unknown keys.
        ('name = "clicks"', 'nmae = "x"\nname = "clicks"', "nmae", "no key `nmae`", "`name`"),
        ('topics = ["clicks"]', 'topics = ["clicks"]\ntopic = "a"', "source.clicks.topic",
         "[source.clicks] has no key `topic`", "did you mean `topics`?"),
        ('on_failure = "quarantine"\n\n[table', 'on_failure = "drop"\nxyz = 1\n\n[table',
         "source.clicks.decode.xyz", "no key `xyz`", "it has `format`"),
        ('size = "1 minute"', 'sise = "5s", size = "1 minute"', "stage.views.aggregate.window.sise",
         "no key `sise`", "did you mean `size`?"),
        ('[[stage.clean.join]]\n', '[[stage.clean.join]]\nkeys = 1\n', "stage.clean.join[0].keys",
         "[stage.clean.join[0]] has no key `keys`", "it has `table`, `on`"),
        # Missing keys.
        ('name = "clicks"\n', "", "", "the file has no `name`", 'name = "site-activity"'),
        ('topic = "users"\n', "", "table.users", "no `topic`", 'topic = "users"'),
        ('delay = "10 minutes"\n', "", "stage.clean.watermark", "no `delay`", '"10 minutes"'),
        # Wrong kinds.
        ('topics = ["clicks"]', 'topics = "clicks"', "source.clicks.topics",
         "is `clicks`, but has to be a list of texts", 'write topics = ["clicks"]'),
        ('topics = ["clicks"]', "topics = []", "source.clicks.topics", "a list with nothing", ""),
        ('delay = "10 minutes"', "delay = 10", "stage.clean.watermark.delay",
         "is a number, but has to be a duration", '"10 minutes"'),
        ('delay = "10 minutes"', 'delay = "10 mintues"', "stage.clean.watermark.delay",
         "is `10 mintues`, but has to be a duration", '"10 minutes"'),
        ('where = "ms >= 0"', "where = true", "stage.clean.where", "is true, but has to be", ""),
        ('where = "ms >= 0"', "where = 2026-11-15", "stage.clean.where", "is a date", ""),
        ('topic = "clicks.clean"', 'topic = "clicks.clean"\npartitions = 0',
         "sink.clean.partitions", "a whole number above 0", ""),
        ('topic = "clicks.clean"', 'topic = "clicks.clean"\npartitions = true',
         "sink.clean.partitions", "a whole number above 0", ""),
        ('topic = "clicks.clean"', 'topic = "not a topic"', "sink.clean.topic",
         "`not a topic` is no name", "letters"),
        ('on_failure = "quarantine"\n\n[table', 'on_failure = "quarantene"\n\n[table',
         "source.clicks.decode.on_failure", "`quarantene` is no on_failure", "`quarantine`"),
        ('format = "json"\nschema', 'format = "xml"\nschema', "source.clicks.decode.format",
         "`xml` is no format", "one of `json`"),
        ('columns = { views = "count(*)" }', "columns = {}", "stage.views.aggregate.columns",
         "a table with nothing in it", ""),
        ('columns = { views = "count(*)" }', "columns = { views = 1 }",
         "stage.views.aggregate.columns", "is a table, but has to be a table of SQL", ""),
        ('window = { column = "at", size = "1 minute" }', 'window = "1 minute"',
         "stage.views.aggregate.window", "is a text, but has to be a section", "[stage.views"),
        ('from = "views"', 'from = ""', "sink.views.from", "a text or a list of texts", ""),
        # Expressions, on the face of them.
        ('where = "ms >= 0"', 'where = "(ms >= 0"', "stage.clean.where", "`(` is never closed", ""),
        ('where = "ms >= 0"', "where = \"page = 'x\"", "stage.clean.where", "quote ' is never", ""),
        ('where = "ms >= 0"', 'where = "ms >="', "stage.clean.where", "nothing follows `=`", ""),
        ('where = "ms >= 0"', 'where = "a && b"', "stage.clean.where", "no SQL", "write AND"),
        ('page = "lower(page)"', 'page = "lower(page))"', "stage.clean.columns.page",
         "`)` closes nothing", ""),
    ],
)  # fmt: skip
def test_a_mistake_is_told_once_with_its_key_and_what_to_do(
    old: str, new: str, key: str, message: str, suggestion: str
) -> None:
    mistake = only_mistake(changed(old, new))
    assert mistake.key == key
    assert message in mistake.message
    assert suggestion in mistake.suggestion
    assert mistake.path == PATH
    assert str(mistake).startswith(f"{PATH}:{mistake.line}: {key}")


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ('delay = "10 minutes"', "delay = 10", "delay = 10"),
        ('[[stage.clean.join]]\n', '[[stage.clean.join]]\nkeys = 1\n', "keys = 1"),
        ('size = "1 minute"', 'sise = "5s", size = "1 minute"', "sise"),
        ('topic = "users"\n', "", "[table.users]"),
        ('page = "lower(page)"', 'page = "lower("', 'page = "lower('),
    ],
)  # fmt: skip
def test_the_line_is_that_of_the_key_or_of_what_it_is_missing_in(
    old: str, new: str, part: str
) -> None:
    text = changed(old, new)
    assert only_mistake(text).line == line_of(text, part)


def test_all_mistakes_of_a_file_are_told() -> None:
    text = RIGHT.replace('name = "clicks"', "nam = 1").replace('delay = "10 minutes"', "delay = 1")
    _, problems = checked(text)
    assert [each.key for each in problems.found] == ["nam", "", "stage.clean.watermark.delay"]


def test_sections_without_their_names() -> None:
    text = 'name = "x"\n[source]\ntopics = ["a"]\n[sink.y]\nfrom = "z"\ntopic = "t"\n'
    mistake = only_mistake(text)
    assert (mistake.key, mistake.line) == ("source.topics", 3)
    assert mistake.suggestion == "write [source.NAME]"
    source = 'name = "x"\n[source.z]\ntopics = ["a"]\ndecode = { format = "raw" }\n'
    assert only_mistake(f"{source}[sink]\ny = 1\n").suggestion == "write [sink.y]"


def test_a_single_section_where_a_list_has_to_be() -> None:
    mistake = only_mistake(changed("[[stage.clean.expect]]", "[stage.clean.expect]"))
    assert mistake.suggestion == "write [[stage.clean.expect]]"


def test_no_sources_and_no_sinks() -> None:
    _, problems = checked('name = "x"\n')
    assert [each.message for each in problems.found] == [
        "there is no [source.NAME]",
        "there is no [sink.NAME]",
    ]


def test_a_text_that_is_no_toml() -> None:
    mistake = only_mistake('name = "clicks\n[source.a]\n')
    assert mistake.line == 1
    assert "this is no TOML" in mistake.message


def test_files_that_are_no_text_or_too_long(tmp_path: Path) -> None:
    for content in (b"\xff\xfe\x00", b"#" * (FILE_BYTES_MAX + 1)):
        path = tmp_path / "x.toml"
        path.write_bytes(content)
        with pytest.raises(InvalidPipelineError, match=r"UTF-8|larger"):
            load(path)


def test_numbers_and_flags_are_settings_too() -> None:
    text = changed('name = "clicks"', 'name = "clicks"\nspark = { "a.b" = 8, c = true, d = "e" }')
    assert right(text).spark == {"a.b": "8", "c": "true", "d": "e"}


@pytest.mark.parametrize(("title", "section"), SECTIONS, ids=[title for title, _ in SECTIONS])
def test_the_example_of_every_key_is_of_its_kind(title: str, section: type) -> None:
    """What a message suggests to write has to be right."""
    from tidemill.spark.pipeline.load import Problems, _value
    from tidemill.spark.pipeline.toml_lines import read

    for name, field in keys_of(section).items():
        if field.metadata["example"]:
            given = read(f"x = {field.metadata['example']}")["x"]
            problems = Problems(PATH)
            assert _value(field.metadata, given, (name,), problems) is not None, name
            assert not problems.found


def test_every_section_of_the_model_is_documented() -> None:
    documented = {section for _, section in SECTIONS}
    reached = {Pipeline}
    waiting: list[type] = [Pipeline]
    while waiting:
        for field in dataclasses.fields(waiting.pop()):
            inner = field.metadata.get("section")
            if inner is not None and inner not in reached:
                reached.add(inner)
                waiting.append(inner)
    assert reached == documented
    assert all(
        field.metadata["kind"] in Kind for each in reached for field in keys_of(each).values()
    )


def test_parse_stops_at_nothing_it_is_given() -> None:
    for text in ("", "\n", "x = 1", "[source.a]\n", '"" = 1'):
        pipeline, problems = parse(text, PATH)
        assert pipeline is None
        assert problems.found


def test_the_example_is_right() -> None:
    path = Path(__file__).parents[3] / "src/tidemill/spark/pipeline/example.toml"
    pipeline = right(path.read_text())
    assert (list(pipeline.stage), list(pipeline.sink)) == (
        ["clean", "views"],
        ["clean", "slow", "views"],
    )
