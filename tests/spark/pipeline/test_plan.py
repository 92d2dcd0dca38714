"""The queries of a pipeline, and when they can go on from a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.spark.pipeline.files import RIGHT, changed, checked, right

from tidemill.spark.pipeline import graph, outputs
from tidemill.spark.pipeline.outputs import sink_options
from tidemill.spark.pipeline.plan import (
    Query,
    dead_letter_topics,
    fed_by,
    fingerprint,
    nodes_of,
    queries,
    table_of,
    why_not_continued,
)
from tidemill.spark.pipeline.run import (
    CannotContinueError,
    check_continues,
    read_again_words,
)
from tidemill.spark.pipeline.state import PipelineState

HERE = "127.0.0.1:9092"


def query_named(text: str, name: str) -> Query:
    return next(each for each in queries(right(text)) if each.name == name)


def test_every_sink_and_every_quarantine_is_a_query_with_a_group_of_its_own() -> None:
    found = queries(right())
    assert [(each.name, each.group) for each in found] == [
        ("clean", "clicks.clean"),
        ("views", "clicks.views"),
        ("dead-letters.clicks", "clicks.dead-letters.clicks"),
        ("dead-letters.clean", "clicks.dead-letters.clean"),
    ]
    assert [each.is_quarantine for each in found] == [False, False, True, True]


def test_groups_may_begin_with_another_name() -> None:
    text = changed('name = "clicks"', 'name = "clicks"\ngroup = "team.clicks"')
    assert query_named(text, "views").group == "team.clicks.views"


def test_a_query_reads_what_is_above_it_in_order() -> None:
    pipeline = right()
    sources, stages = nodes_of(pipeline, query_named(RIGHT, "views"))
    assert [each.name for each in sources] == ["clicks"]
    assert [each.name for each in stages] == ["clean", "views"]
    sources, stages = nodes_of(pipeline, query_named(RIGHT, "dead-letters.clean"))
    assert ([each.name for each in sources], stages) == (["clicks"], [])


def test_stages_come_after_what_they_read_wherever_they_stand() -> None:
    lines = RIGHT.split("[stage.views]")
    sinks = lines[1].index("[sink.clean]")
    text = lines[0].replace(
        "[stage.clean]", "[stage.views]" + lines[1][:sinks] + "[stage.clean]", 1
    )
    assert [each.name for each in graph.order(right(text + lines[1][sinks:]))] == ["clean", "views"]


def test_who_writes_what_a_query_reads() -> None:
    more = '[source.again]\ntopics = ["clicks.clean"]\ndecode = { format = "raw" }\n'
    text = RIGHT + more + '[sink.again]\nfrom = "again"\ntable = "parquet:/x"\n'
    assert fed_by(right(text), query_named(text, "again")) == {"clean"}
    assert fed_by(right(text), query_named(text, "clean")) == set()
    far = text + '[source.again.options]\n"kafka.bootstrap.servers" = "far:9092"\n'
    assert fed_by(right(far), query_named(far, "again")) == set(), "a topic of another cluster"


def test_topics_are_made_in_the_cluster_of_their_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, dict[str, int]] = {}
    monkeypatch.setattr(
        outputs, "_make_topics", lambda wanted, address, _: made.update({address: wanted})
    )
    text = changed('topic = "clicks.clean"', 'topic = "clicks.clean"\npartitions = 2')
    outputs.make_topics(right(text), "near:9092", {})
    assert made == {"near:9092": {"clicks.clean": 2, "clicks.dead-letters": 1}}
    text += '\n[sink.clean.options]\n"kafka.bootstrap.servers" = "far:9092"\n'
    outputs.make_topics(right(text), "near:9092", {})
    assert made == {"near:9092": {"clicks.dead-letters": 1}, "far:9092": {"clicks.clean": 2}}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('topic = "clicks.clean"', "pattern = 'clicks\\.cl.*'"),
        ('topic_from = "page"', 'topics = ["clicks.home"]'),
    ],
)
def test_who_may_write_what_a_query_reads(written: str, read: str) -> None:
    """With `once` a query has its turn after all of them, and finds what they wrote."""
    more = f'[source.again]\n{read}\ndecode = {{ format = "raw" }}\n'
    text = changed('topic = "clicks.clean"', written) + more
    text += '[sink.again]\nfrom = "again"\ntable = "parquet:/x"\n'
    pipeline, problems = checked(text)
    assert pipeline is not None
    assert all(each.is_warning for each in problems.found)
    (again,) = [each for each in queries(pipeline) if each.name == "again"]
    assert fed_by(pipeline, again) == {"clean"}
    (first,) = [each for each in queries(pipeline) if each.name == "clean"]
    assert fed_by(pipeline, first) == set()


def test_dead_letters_go_where_they_are_told() -> None:
    assert dead_letter_topics(right()) == {"clicks.dead-letters"}
    text = changed('that = "user IS NOT NULL"', 'that = "user IS NOT NULL"\ndead_letters = "x"')
    assert dead_letter_topics(right(text)) == {"clicks.dead-letters", "x"}


@pytest.mark.parametrize(
    ("query", "old", "new", "why"),
    [
        ("clean", 'keys = ["id"]', 'keys = ["id", "user"]',
         "stage.clean.dedupe was (keys id) and is (keys id, user)"),
        ("clean", '[stage.clean.dedupe]\nkeys = ["id"]\n', "", "stage.clean.dedupe is gone"),
        ("views", 'size = "1 minute"', 'size = "2 minutes"', "stage.views.aggregate was (by page; "
         "windows of 1 minute over at; views = count(*)) and is (by page; windows of 2 minutes"),
        ("views", 'views = "count(*)"', 'views = "count(*)", b = "max(ms)"', "b = max(ms)"),
        ("views", 'topics = ["clicks"]', 'topics = ["klicks"]', "no longer reads clicks"),
    ],
)  # fmt: skip
def test_changes_that_a_checkpoint_does_not_survive(
    query: str, old: str, new: str, why: str
) -> None:
    before = fingerprint(right(), query_named(RIGHT, query))
    text = changed(old, new)
    now = fingerprint(right(text), query_named(text, query))
    assert why in (why_not_continued(before, now) or "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('where = "ms >= 0"', 'where = "ms > 0"'),
        ('page = "lower(page)"', 'page = "upper(page)"'),
        ('delay = "10 minutes"', 'delay = "5 minutes"'),
        ('that = "user IS NOT NULL"', "that = \"user > 'a'\""),
        ('topics = ["clicks"]', 'topics = ["clicks", "more"]'),
        ('topic = "clicks.clean"', 'topic = "clicks.other"'),
        ('on = "user"', 'on = "lower(user)"'),
    ],
)
def test_changes_that_a_checkpoint_survives(old: str, new: str) -> None:
    text = changed(old, new)
    for query in queries(right()):
        before = fingerprint(right(), query)
        assert why_not_continued(before, fingerprint(right(text), query)) is None


def test_new_and_removed_sources() -> None:
    second = '[source.more]\ntopics = ["more"]\ndecode = { format = "raw" }\n\n[table.users]'
    text = changed("[table.users]", second)
    text = text.replace('from = "clicks"', 'from = ["clicks", "more"]')
    before = fingerprint(right(), query_named(RIGHT, "clean"))
    now = fingerprint(right(text), query_named(text, "clean"))
    assert why_not_continued(before, now) == "source.more is read, too"
    assert why_not_continued(now, before) == "source.more is no longer read"


def test_inputs_in_another_order_are_another_plan() -> None:
    """A checkpoint knows sources and states by their places."""
    second = '[source.more]\ntopics = ["more"]\ndecode = { format = "raw" }\n\n[table.users]'
    text = changed("[table.users]", second)
    one = text.replace('from = "clicks"', 'from = ["clicks", "more"]')
    other = text.replace('from = "clicks"', 'from = ["more", "clicks"]')
    before = fingerprint(right(one), query_named(one, "clean"))
    now = fingerprint(right(other), query_named(other, "clean"))
    assert why_not_continued(before, before) is None
    assert why_not_continued(before, now) == (
        "the order in which rows come together was "
        "(source.clicks, source.more, stage.clean.dedupe) and is "
        "(source.more, source.clicks, stage.clean.dedupe)"
    )


def test_states_in_another_order_are_another_plan() -> None:
    first = '[stage.first]\nfrom = "clicks"\ndedupe = { keys = ["id"] }\n'
    first += 'watermark = { column = "at", delay = "1 minute" }\n\n[stage.clean]'
    text = changed("[stage.clean]", first)
    one = text.replace('[stage.clean]\nfrom = "clicks"', '[stage.clean]\nfrom = "first"')
    other = text.replace('[stage.first]\nfrom = "clicks"', '[stage.first]\nfrom = "clean"')
    other = other.replace('[sink.clean]\nfrom = "clean"', '[sink.clean]\nfrom = "first"')
    before = fingerprint(right(one), query_named(one, "clean"))
    now = fingerprint(right(other), query_named(other, "clean"))
    assert (set(before["state"]), before["sources"]) == (set(now["state"]), now["sources"])
    assert "stage.clean.dedupe, stage.first.dedupe" in (why_not_continued(before, now) or "")


def test_a_relative_table_is_beside_the_file_wherever_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run from another folder would write the rest of the rows into another table."""
    text = changed('table = "delta:/tables/views"', 'table = "delta:./tables/views"')
    pipeline = replace(right(text), path="files/clicks.toml")
    monkeypatch.chdir(tmp_path)
    resolved = f"delta:{tmp_path}/files/tables/views"
    assert table_of(pipeline, pipeline.sink["views"]) == resolved
    assert sink_options(pipeline, pipeline.sink["views"], HERE, {})["table"] == resolved
    for absolute in ("delta:/x/y", "parquet:s3://bucket/x", "iceberg:local.db.views"):
        sink = replace(pipeline.sink["views"], table=absolute)
        assert table_of(pipeline, sink) == absolute


def test_another_table_is_not_taken_for_the_old_one() -> None:
    text = changed('table = "delta:/tables/views"', 'table = "delta:/tables/other"')
    before = fingerprint(right(), query_named(RIGHT, "views"))
    now = fingerprint(right(text), query_named(text, "views"))
    assert (why_not_continued(before, now) or "").startswith(
        "its table was delta:/tables/views and is delta:/tables/other"
    )


def test_what_has_rows_twice_after_a_reset_is_told() -> None:
    twice = "topic clicks.dead-letters, topic clicks.clean, table delta:/tables/views"
    assert read_again_words(right()) == f", after which there will be rows twice in {twice}"
    text = changed(
        'table = "delta:/tables/views"',
        'table = "delta:/tables/views"\nmode = "upsert"\nkeys = ["page", "window_start"]',
    )
    assert "delta" not in read_again_words(right(text))
    text = changed('topic = "clicks.clean"', "topic_from = \"concat('page-', page)\"")
    assert "the topics of sink.clean" in read_again_words(right(text))


def test_a_pipeline_that_cannot_continue_says_what_a_reset_does(tmp_path: Path) -> None:
    state = PipelineState(tmp_path, "clicks")
    before = fingerprint(right(), query_named(RIGHT, "views"))
    with state.held(lambda _: None):
        state.remember({"views": before | {"sources": {"gone": ["x"]}}})
    with pytest.raises(CannotContinueError, match=r"twice in .*table delta:/tables/views"):
        check_continues(right(), state)


def test_fingerprints_are_plain_json() -> None:
    import json

    for query in queries(right()):
        found = fingerprint(right(), query)
        assert json.loads(json.dumps(found)) == found
