"""A pipeline's parts taken together: references, circles, rules, columns, topics."""

from __future__ import annotations

import pytest
from tests.spark.pipeline.files import RIGHT, changed, checked, line_of, right

from tidemill.spark.pipeline.check import check_topics
from tidemill.spark.pipeline.keys import PipelineError

SESSION = 'session = { column = "at", gap = "30 minutes" }'
WINDOW = 'window = { column = "at", size = "1 minute" }'
TO_TABLE = 'table = "delta:/tables/views"'
TO_TOPIC = 'topic = "clicks.clean"'


def only_mistake(text: str) -> PipelineError:
    _, problems = checked(text)
    assert len(problems.found) == 1, [str(each) for each in problems.found]
    return problems.found[0]


@pytest.mark.parametrize(
    ("old", "new", "key", "message", "suggestion"),
    [
        # References.
        ('from = "clean"\n\n[stage', 'from = "claen"\n\n[stage', "stage.views.from",
         "there is no source or stage `claen`", "did you mean `clean`?"),
        ('from = "views"', 'from = "nowhere"', "sink.views.from", "no source or stage", "there is"),
        ('from = "views"', 'from = "users"', "sink.views.from", "`users` is a table", "join"),
        ('from = "views"', 'from = "clicks.bad"', "sink.views.from", "`clicks` has no routes", ""),
        ('table = "users"\n', 'table = "user"\n', "stage.clean.join[0].table",
         "there is no [table.user]", "did you mean `users`?"),
        # Sources and tables.
        ('topics = ["clicks"]', "", "source.clicks", "reads no topic", "`topics` or `pattern`"),
        ('topics = ["clicks"]', 'topics = ["clicks"]\npattern = "c.*"', "source.clicks",
         "has both `topics` and `pattern`", "either"),
        ('topics = ["clicks"]', 'pattern = "c("', "source.clicks.pattern", "no regular", "clicks-"),
        ('topics = ["clicks"]', 'topics = ["clicks"]\nstart = "yesterday"', "source.clicks.start",
         "`yesterday` is no place to start", "earliest"),
        ('topics = ["clicks"]', "topics = [\"clicks\"]\nstart = '{\"clicks\": [1]}'",
         "source.clicks.start", "is no place to start", "JSON"),
        ('on_failure = "drop" }', 'on_failure = "quarantine" }', "table.users.decode.on_failure",
         "a table is read again and again", "drop or fail"),
        ('schema = "name STRING, country STRING", ', "", "table.users.decode", "json needs", "STR"),
        ('schema = "name STRING, country STRING"', 'schema = "name, country"',
         "table.users.decode.schema", "no list of columns with types", "STRING"),
        ('schema = "name STRING, country STRING"', 'schema = "name STRING, name INT"',
         "table.users.decode.schema", "the column `name` is there twice", "remove one"),
        ('schema = "name STRING, country STRING"', 'schema = "_name STRING"',
         "table.users.decode.schema", "names that begin with `_`", ""),
        ('format = "json", schema = "name STRING, country STRING"', 'format = "avro"',
         "table.users.decode", "avro needs a schema", "`registry`"),
        ('format = "json", schema = "name STRING, country STRING"',
         'format = "text", schema = "a INT"', "table.users.decode.schema", "no schema", "remove"),
        # Stages.
        ('by = ["page"]\n' + WINDOW, 'by = ["page"]\n' + WINDOW + "\n" + SESSION,
         "stage.views.aggregate", "by windows and by sessions", "either"),
        (WINDOW, 'window = { column = "at", size = "1 minute", slide = "2 minutes" }',
         "stage.views.aggregate.window.slide", "leave rows out", "at most"),
        ('by = ["page"]\n' + WINDOW, SESSION, "stage.views.aggregate", "of somebody", "by"),
        ('where = "ms >= 0"', 'function = "no function"', "stage.clean.function",
         "names no function", "module:function"),
        ("[stage.clean.watermark]",
         '[[stage.clean.expect]]\nname = "has-user"\nthat = "true"\non_failure = "drop"\n'
         "[stage.clean.watermark]", "stage.clean.expect[1].name", "already", "its own name"),
        # Sinks.
        (TO_TOPIC, "", "sink.clean", "goes nowhere", "`topic`"),
        (TO_TOPIC, TO_TOPIC + '\ntable = "delta:/x"', "sink.clean", "`topic` and `table`", "one"),
        (TO_TABLE, 'table = "detla:/tables/views"', "sink.views.table", "is no table",
         "did you mean delta:/tables/views?"),
        (TO_TABLE, 'table = "/tables/views"', "sink.views.table", "is no table", "parquet:URL"),
        (TO_TABLE, TO_TABLE + '\nkey = "page"', "sink.views.key", "means nothing for tables", ""),
        (TO_TOPIC, TO_TOPIC + '\nkeys = ["id"]', "sink.clean.keys", "means nothing for topics", ""),
        (TO_TOPIC, TO_TOPIC + '\nmode = "upsert"', "sink.clean.mode", "not replace", "compact"),
        (TO_TABLE, TO_TABLE + '\nmode = "upsert"', "sink.views.mode", "what makes a row", "keys"),
        (TO_TABLE, TO_TABLE + '\nkeys = ["page"]', "sink.views.keys", "mode append", "upsert"),
        (TO_TOPIC, 'topic = "clicks"', "sink.clean.topic", "source `clicks` reads", "another"),
        # What Spark cannot give.
        (TO_TOPIC, TO_TOPIC + '\noutput = "update"', "sink.clean.output", "only rows of", "app"),
        (TO_TABLE, TO_TABLE + '\noutput = "update"\nmode = "upsert"\nkeys = ["page"]',
         "sink.views.output", "one aggregate or dedupe only", "split it"),
        (WINDOW + "\n", "", "sink.views.output", "never end, so none", 'output = "update"'),
        # Columns.
        ('column = "at"\ndelay', 'column = "att"\ndelay', "stage.clean.watermark.column",
         "there is no column `att` here", "did you mean `at`?"),
        ('keys = ["id"]', 'keys = ["idd"]', "stage.clean.dedupe.keys[0]", "no column", "`id`"),
        ('by = ["page"]', 'by = ["pages"]', "stage.views.aggregate.by[0]", "no column `pages`",
         "did you mean `page`?"),
        (WINDOW, 'window = { column = "when", size = "1 minute" }',
         "stage.views.aggregate.window.column", "no column `when`", "there is id"),
        (TO_TABLE, TO_TABLE + '\nmode = "upsert"\nkeys = ["id"]', "sink.views.keys[0]",
         "there is no column `id` here", "there is window_start, window_end, page, views"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_once_with_its_key_and_what_to_do(
    old: str, new: str, key: str, message: str, suggestion: str
) -> None:
    mistake = only_mistake(changed(old, new))
    assert mistake.key == key
    assert message in mistake.message
    assert suggestion in mistake.suggestion
    assert not mistake.is_warning
    assert 1 <= mistake.line <= RIGHT.count("\n") + 8


def test_a_name_that_means_two_things() -> None:
    text = changed("[table.users]", "[table.clicks]").replace('table = "users"', 'table = "clicks"')
    mistake = only_mistake(text)
    assert mistake.key == "table.clicks"
    assert mistake.message == "there is a source `clicks` already"


@pytest.mark.parametrize("again", ["delta:/tables/views", "parquet:/tables/./views/"])
def test_a_table_that_two_sinks_write_into(again: str) -> None:
    text = RIGHT + f'\n[sink.again]\nfrom = "clean"\ntable = "{again}"\n'
    mistake = only_mistake(text)
    assert (mistake.key, mistake.line) == ("sink.again.table", len(text.splitlines()))
    assert mistake.message == "sink `views` writes into this table already"
    assert "another table" in mistake.suggestion


def test_dedupe_without_a_watermark_would_remember_forever() -> None:
    text = changed('[stage.clean.watermark]\ncolumn = "at"\ndelay = "10 minutes"\n', "")
    _, problems = checked(text)
    assert [each.key for each in problems.found] == ["stage.clean.dedupe", "stage.views.aggregate"]
    assert "dedupe needs a watermark" in problems.found[0].message
    assert "[stage.clean.watermark]" in problems.found[0].suggestion


def test_a_circle_is_told_once_with_all_of_it() -> None:
    text = changed('from = "clicks"', 'from = ["clicks", "views"]')
    mistake = only_mistake(text)
    assert mistake.key == "stage.clean.from"
    assert mistake.line == line_of(text, 'from = ["clicks", "views"]')
    assert "in a circle: clean -> views -> clean" in mistake.message


def test_a_stage_that_reads_itself_is_a_circle() -> None:
    mistake = only_mistake(changed('from = "clicks"', 'from = "clean"'))
    assert "in a circle: clean -> clean" in mistake.message


def test_two_circles_are_two_mistakes() -> None:
    text = changed('from = "clicks"', 'from = "clean"')
    text = text.replace('from = "clean"\n\n[stage.views.agg', 'from = "views"\n\n[stage.views.agg')
    _, problems = checked(text)
    assert [each.key for each in problems.found] == ["stage.clean.from", "stage.views.from"]


def test_routes_are_read_by_name() -> None:
    routes = '[stage.clean.routes]\nslow = "ms > 5000"\nrest = "true"\n\n[stage.clean.columns]'
    text = changed("[stage.clean.columns]", routes)
    right(text.replace('from = "clean"\ntopic', 'from = "clean.slow"\ntopic'))
    mistake = only_mistake(text.replace('from = "clean"\ntopic', 'from = "clean.slw"\ntopic'))
    assert mistake.message == "stage `clean` has no route `slw`"
    assert mistake.suggestion == "did you mean `slow`?"


def test_the_watermark_may_come_from_a_stage_before() -> None:
    text = changed('[stage.clean.dedupe]\nkeys = ["id"]\n', "")
    text = text.replace(
        "[stage.views.aggregate]", '[stage.views.dedupe]\nkeys = ["id"]\n\n[stage.views.aggregate]'
    )
    right(text)


def test_windows_without_a_watermark_never_end() -> None:
    text = changed('[stage.clean.watermark]\ncolumn = "at"\ndelay = "10 minutes"\n', "")
    mistake = only_mistake(text.replace('[stage.clean.dedupe]\nkeys = ["id"]\n', ""))
    assert mistake.key == "stage.views.aggregate"
    assert "without a watermark the windows of stage `views` never end" in mistake.message


UPSERT = TO_TABLE + '\nmode = "upsert"\n'


def test_of_two_rows_with_the_same_keys_one_has_to_be_the_later() -> None:
    """Else a batch that has both fails, some time after the pipeline was started."""
    mistake = only_mistake(changed(TO_TABLE, UPSERT + 'keys = ["page"]'))
    assert mistake.key == "sink.views.mode"
    assert "nothing says which is the later" in mistake.message
    assert "order_by" in mistake.suggestion
    right(changed(TO_TABLE, UPSERT + 'keys = ["page"]\norder_by = ["window_start"]'))
    right(changed(TO_TABLE, UPSERT + 'keys = ["page", "window_start"]'))
    to_clean = changed(TO_TOPIC, 'table = "delta:/tables/clean"\nmode = "upsert"\nkeys = ["id"]')
    right(to_clean)
    user = to_clean.replace('keys = ["id"]\n\n[sink', 'keys = ["user"]\n\n[sink')
    assert only_mistake(user).key == "sink.clean.mode"
    offset = '[stage.clean.columns]\noffset = "_offset"'
    right(user.replace("[stage.clean.columns]", offset))


GROUPED = "[stage.views.aggregate]"
SELECTED = 'select = ["page", "window_start AS start", "views"]\n' + GROUPED
LATER = """
[stage.later]
from = "views"
select = ["page AS of_page", "window_start", "views"]
columns = { views = "views + 1" }

[sink.views]
from = "later"
"""


@pytest.mark.parametrize(
    "text",
    [
        changed(TO_TABLE, UPSERT + 'keys = ["page", "start"]').replace(GROUPED, SELECTED),
        changed(TO_TABLE, UPSERT + 'keys = ["of_page", "window_start"]').replace(
            '\n[sink.views]\nfrom = "views"\n', LATER
        ),
        changed(TO_TABLE, UPSERT + 'keys = ["p", "window_end"]').replace(
            '\n[sink.views]\nfrom = "views"\n',
            LATER.replace('select = ["page AS of_page", "window_start", "views"]\n', "").replace(
                "{ views", '{ p = "PAGE", views'
            ),
        ),
    ],
)
def test_groups_keep_their_keys_under_other_names(text: str) -> None:
    """And in stages after the aggregate, that leave the rows as they are."""
    right(text)


@pytest.mark.parametrize(
    ("text", "is_warning"),
    [
        (changed(TO_TABLE, UPSERT + 'keys = ["page"]'), True),
        (changed(TO_TABLE, UPSERT + 'keys = ["page", "window_start"]').replace(
            GROUPED, SELECTED.replace('"page", "window_start AS start"',
                '"upper(page) AS page", "window_start"')), True),
        (changed(TO_TABLE, UPSERT + 'keys = ["page", "window_start"]').replace(
            'from = "views"\n', 'from = ["views", "again"]\n').replace(
            "[sink.clean]", LATER.partition("[sink")[0].replace("later", "again").replace(
                "page AS of_page", "page") + "[sink.clean]"), True),
        (changed(TO_TOPIC, UPSERT.replace("views", "clean") + 'keys = ["user"]'), False),
        (changed(TO_TABLE, UPSERT + 'keys = ["page"]').replace('from = "views"', 'from = "clicks"')
            + '\n[sink.all]\nfrom = "views"\ntopic = "views"\n', False),
    ],
)  # fmt: skip
def test_only_rows_that_nothing_groups_are_sure_to_lack_an_order(
    text: str, is_warning: bool
) -> None:
    mistake = only_mistake(text)
    assert "nothing says which is the later" in mistake.message
    assert mistake.is_warning == is_warning


OPTIONS = "\n[source.clicks.options]\n"
SINK = "\n[sink.views.options]\n"
CLIENT = "\n[client]\n"


@pytest.mark.parametrize(
    ("section", "line", "key", "message", "suggestion"),
    [
        (OPTIONS, "maxOffsetsPerTriger = 5", "source.clicks.options.maxOffsetsPerTriger",
         "`maxOffsetsPerTriger`: is unknown", "did you mean `maxOffsetsPerTrigger`?"),
        (OPTIONS, 'minPartitions = "many"', "source.clicks.options.minPartitions",
         "`minPartitions` = 'many': must be a whole number", ""),
        (OPTIONS, '"kafka.fetch.max.byte" = 5', "source.clicks.options.kafka.fetch.max.byte",
         "unknown setting `fetch.max.byte`", "did you mean `fetch.max.bytes`?"),
        (OPTIONS, 'commitOffsets = "g"', "source.clicks.options.commitOffsets",
         "is no further option", "say `group`"),
        (OPTIONS, 'endingOffsets = "latest"', "source.clicks.options.endingOffsets",
         "a stream has no end", ""),
        ("\n[table.users.options]\n", "minPartition = 3", "table.users.options.minPartition",
         "is unknown", "did you mean `minPartitions`?"),
        (SINK, '"table.fileByte" = 1000', "sink.views.options.table.fileByte",
         "is unknown", "did you mean `table.fileBytes`?"),
        (SINK, '"table.compression" = "zip"', "sink.views.options.table.compression",
         "must be one of zstd", ""),
        (SINK, '"catalog.uri" = "x"', "sink.views.options.catalog.uri", "only Iceberg", ""),
        ("\n[sink.clean.options]\n", '"kafka.acks" = "some"', "sink.clean.options.kafka.acks",
         "acks", ""),
        (CLIENT, '"request.timout.ms" = 5', "client.request.timout.ms",
         "unknown setting `request.timout.ms`", "did you mean `request.timeout.ms`?"),
        (CLIENT, '"request.timeout.ms" = "soon"', "client.request.timeout.ms", "soon", ""),
        (CLIENT, '"compression.type" = "lz4"', "client.compression.type",
         "a setting of producers alone", '"kafka.compression.type" in [sink.NAME.options]'),
        (CLIENT, '"fetch.max.bytes" = 5', "client.fetch.max.bytes",
         "a setting of consumers alone", '"kafka.fetch.max.bytes" in [source.NAME.options]'),
        (CLIENT, '"bootstrap.servers" = "x:1"', "client.bootstrap.servers", "no setting here",
         "say `bootstrap`"),
    ],
)  # fmt: skip
def test_options_are_checked_as_the_source_and_the_sinks_will(
    section: str, line: str, key: str, message: str, suggestion: str
) -> None:
    text = RIGHT + section + line + "\n"
    mistake = only_mistake(text)
    assert (mistake.key, mistake.line) == (key, len(text.splitlines()))
    assert message in mistake.message
    assert suggestion in mistake.suggestion


def test_every_wrong_option_is_told_and_right_ones_are_not() -> None:
    right(RIGHT + OPTIONS + 'minPartitions = 3\n"kafka.fetch.max.bytes" = 1000\n')
    right(RIGHT + SINK + '"table.compression" = "snappy"\n"storage.region" = "x"\n')
    right(RIGHT + CLIENT + '"request.timeout.ms" = "20000"\n"client.dns.lookup" = "x"\n')
    _, problems = checked(
        RIGHT + OPTIONS + "a = 1\nminPartitions = 0\nmaxRecordsPerPartition = 5\n"
    )
    assert [each.key for each in problems.found] == [
        "source.clicks.options.a",
        "source.clicks.options.minPartitions",
    ]


def test_a_node_may_be_on_another_cluster() -> None:
    """Its topics are not those of the same names in the pipeline's cluster."""
    other = '"kafka.bootstrap.servers" = "far:9092"\n'
    right(RIGHT + OPTIONS + other)
    right(RIGHT + "\n[table.users.options]\n" + other)
    right(RIGHT + "\n[sink.clean.options]\n" + other)
    wrong = RIGHT + "\n[sink.clean.options]\n" + other + '"kafka.acks" = "some"\n'
    assert only_mistake(wrong).key == "sink.clean.options.kafka.acks"
    back = changed(TO_TOPIC, 'topic = "clicks"')
    right(back + "\n[sink.clean.options]\n" + other)
    right(back + OPTIONS + other)
    here = 'bootstrap = "far:9092,near:9092"\n' + back + "\n[sink.clean.options]\n" + other
    assert only_mistake(here).key == "sink.clean.topic"
    both = back + "\n[sink.clean.options]\n" + other + OPTIONS + other
    assert only_mistake(both).key == "sink.clean.topic"
    pipeline, problems = checked(RIGHT + OPTIONS + other)
    assert pipeline is not None
    check_topics(pipeline, ["users", "clicks.clean"], problems, forbidden={"clicks"})
    assert not problems.found


NO_PRODUCER = changed(TO_TOPIC, 'table = "delta:/tables/clean"').replace("quarantine", "drop")


def test_settings_of_consumers_are_those_of_all_clients_where_there_is_no_producer() -> None:
    right(NO_PRODUCER + CLIENT + '"fetch.max.bytes" = "1000"\n"max.poll.records" = "10"\n')
    for line, message in (
        ('"fetch.max.bytes" = "much"', "much"),
        ('"auto.offset.reset" = "latest"', "startingOffsets"),
        ('"compression.type" = "lz4"', "a setting of producers alone"),
    ):
        mistake = only_mistake(NO_PRODUCER + CLIENT + line + "\n")
        assert mistake.key == f"client.{line.split(chr(34))[1]}"
        assert message in mistake.message + mistake.suggestion
    no_letters = RIGHT.replace("quarantine", "drop")
    assert not only_mistake(no_letters + CLIENT + '"fetch.max.bytes" = "1000"\n').is_warning


@pytest.mark.parametrize(
    ("section", "line", "suggestion"),
    [
        (OPTIONS, 'subscribe = "x"', "say `topics`"),
        (OPTIONS, 'deadLetterTopic = "x"', 'say on_failure = "quarantine"'),
        ("\n[table.users.options]\n", 'subscribe = "x"', "say `topic`"),
        ("\n[table.users.options]\n", 'deadLetterTopic = "x"', 'say on_failure = "drop"'),
        ("\n[table.users.options]\n", 'commitOffsets = "x"', "a batch query has none"),
        (SINK, 'mode = "upsert"', "say `mode`"),
        (SINK, '"table.orderBy" = "page"', "say `order_by`"),
        (SINK, 'subscribe = "x"', ""),
        (SINK, 'includeHeader = "x"', "did you mean `includeHeaders`?"),
    ],
)
def test_what_is_said_instead_of_an_option_is_there(
    section: str, line: str, suggestion: str
) -> None:
    assert only_mistake(RIGHT + section + line + "\n").suggestion == suggestion


def test_options_that_need_each_other_are_tried_together() -> None:
    pair = '"table.txnAppId" = "a"\n"table.txnVersion" = '
    right(RIGHT + SINK + pair + '"1"\n')
    assert only_mistake(RIGHT + SINK + pair + '"x"\n').key == "sink.views.options.table.txnVersion"
    assert "goes together" in only_mistake(RIGHT + SINK + '"table.txnAppId" = "a"\n').message
    avro = """
[sink.clean.options]
valueSchema = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "string"}]}'
"""
    right(RIGHT + avro + 'valueFormat = "avro"\n')
    assert "`valueSchema`" in only_mistake(RIGHT + avro).message


FEED = """\
name = "feed"
{dead_letters}

[source.raw]
{raw}
decode = {{ format = "json", schema = "id STRING", on_failure = "quarantine" }}

[source.clean]
topics = ["clean"]
decode = {{ format = "text" }}

[sink.clean]
from = "raw"
{first}

[sink.out]
from = "clean"
{second}
"""


def feed(
    raw: str = 'topics = ["raw"]',
    first: str = 'topic = "clean"',
    second: str = 'topic = "out"',
    dead_letters: str = "",
) -> str:
    return FEED.format(raw=raw, first=first, second=second, dead_letters=dead_letters)


@pytest.mark.parametrize(
    ("text", "key", "message", "suggestion"),
    [
        (feed(second='topic = "raw"'), "sink.clean.topic",
         "in a circle: clean -> `clean` -> out -> `raw` -> clean", "another topic"),
        (feed(first='topic = "raw"'), "sink.clean.topic",
         "writes to `raw`, which source `raw` reads", "another topic"),
        (feed(raw='pattern = "raw.*"', first='topic = "raw.clean"'), "sink.clean.topic",
         "writes to `raw.clean`, which source `raw` reads", "narrow the pattern of source `raw`"),
        (feed(raw='pattern = "ra.*"', second='topic = "raw"'), "sink.clean.topic",
         "clean -> `clean` -> out -> `raw` -> clean", "another topic"),
        (feed(raw='pattern = "fee.*"'), "source.raw.decode.on_failure",
         "writes to `feed.dead-letters`, which source `raw` reads", "narrow the pattern"),
        (feed(raw='topics = ["raw", "bad"]', dead_letters='dead_letters = "bad"'),
         "source.raw.decode.on_failure", "writes to `bad`, which source `raw` reads", "another"),
        (feed(second='topic = "raw"', dead_letters='dead_letters = "clean"'), "sink.clean.topic",
         "in a circle", "another topic"),
    ],
)  # fmt: skip
def test_a_pipeline_must_not_feed_on_what_it_writes(
    text: str, key: str, message: str, suggestion: str
) -> None:
    mistake = only_mistake(text)
    assert (mistake.key, mistake.is_warning) == (key, False)
    assert message in mistake.message
    assert suggestion in mistake.suggestion


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (feed(first='topic_from = "id"'), "sink.clean.topic_from"),
        (feed(first="topic_from = \"concat('ra', id)\""), "sink.clean.topic_from"),
        (feed(raw='pattern = "x.*"', first="topic_from = \"concat('a', id)\""),
         "sink.clean.topic_from"),
        (feed(second='topic_from = "value"'), "sink.out.topic_from"),
    ],
)  # fmt: skip
def test_rows_that_name_their_topics_may_feed_the_pipeline(text: str, key: str) -> None:
    mistake = only_mistake(text)
    assert (mistake.key, mistake.is_warning) == (key, True)
    assert "may write to topics" in mistake.message


def test_feeding_on_is_no_circle() -> None:
    for text in (
        feed(),
        feed(first="topic_from = \"concat('articles-', id)\""),
        feed(raw='pattern = "raw-[0-9]+"'),
    ):
        right(text)


def test_updates_of_one_aggregate_go_into_a_table_by_key() -> None:
    text = changed('[stage.clean.dedupe]\nkeys = ["id"]\n', "")
    update = text.replace(TO_TABLE, TO_TABLE + '\noutput = "update"')
    assert "once for each update" in only_mistake(update).message
    right(update.replace(TO_TABLE, TO_TABLE + '\nmode = "upsert"\nkeys = ["page"]'))
    session = update.replace(WINDOW, SESSION).replace(TO_TABLE, 'topic = "v"')
    assert "does not update the sessions" in only_mistake(session).message


def test_what_nothing_reads_is_a_warning() -> None:
    pipeline, problems = checked(
        changed('table = "users"\non = "user"\n', "").replace("[[stage.clean.join]]\n", "")
    )
    assert pipeline is not None
    assert [(each.key, each.is_warning) for each in problems.found] == [("table.users", True)]
    _, problems = checked(changed('[sink.views]\nfrom = "views"', '[sink.views]\nfrom = "clean"'))
    assert [(each.key, each.is_warning) for each in problems.found] == [("stage.views", True)]
    assert not problems.are_fatal


def test_columns_that_only_spark_knows_are_not_guessed() -> None:
    """After a function, and from a schema that is elsewhere, any name may be right."""
    right(
        changed("[stage.clean.columns]", 'function = "a.b:c"\n[stage.clean.columns]').replace(
            'by = ["page"]', 'by = ["xyz"]'
        )
    )
    avro = 'format = "avro"\nschema = "clicks.avsc"'
    text = RIGHT.replace(
        'format = "json"\nschema = "id STRING, user STRING, page STRING, ms INT, at TIMESTAMP"',
        avro,
    )
    right(text.replace('keys = ["id"]', 'keys = ["any"]'))


@pytest.mark.parametrize(
    "start", ["earliest", "latest", "2026-11-15", "2026-11-15T08:00:00Z", '{"clicks": {"0": -2}}']
)
def test_places_to_start(start: str) -> None:
    right(changed('topics = ["clicks"]', f"topics = [\"clicks\"]\nstart = '{start}'"))


def test_missing_topics() -> None:
    pipeline, problems = checked(RIGHT)
    assert pipeline is not None
    check_topics(pipeline, ["click", "users", "clicks.clean"], problems)
    (mistake,) = problems.found
    assert mistake.key == "source.clicks.topics[0]"
    assert mistake.line == line_of(RIGHT, 'topics = ["clicks"]')
    assert mistake.message == "there is no topic `clicks`"
    assert mistake.suggestion == "did you mean `click`?"


def test_topics_that_the_cluster_hides() -> None:
    pipeline, problems = checked(RIGHT)
    assert pipeline is not None
    check_topics(pipeline, ["clicks", "clicks.clean"], problems, forbidden={"users"})
    (mistake,) = problems.found
    assert mistake.key == "table.users.topic"
    assert mistake.message == "the cluster denies access to topic `users`"


def test_missing_topics_of_tables_and_sinks() -> None:
    pipeline, problems = checked(RIGHT)
    assert pipeline is not None
    check_topics(pipeline, ["clicks"], problems)
    assert [each.key for each in problems.found] == ["table.users.topic", "sink.clean.topic"]
    assert "tidemill topic create users" in problems.found[0].suggestion
    assert "partitions = 3" in problems.found[1].suggestion


def test_a_sink_that_says_how_many_partitions_makes_its_topic() -> None:
    pipeline, problems = checked(changed(TO_TOPIC, TO_TOPIC + "\npartitions = 2"))
    assert pipeline is not None
    check_topics(pipeline, ["clicks", "users"], problems)
    assert not problems.found


def test_a_topic_between_two_stages_is_made_by_the_first() -> None:
    more = '[source.again]\ntopics = ["clicks.clean"]\ndecode = { format = "raw" }\n'
    more += '[sink.again]\nfrom = "again"\ntable = "parquet:/x"\n'
    pipeline, problems = checked(changed(TO_TOPIC, TO_TOPIC + "\npartitions = 2") + more)
    assert pipeline is not None
    check_topics(pipeline, ["clicks", "users"], problems)
    assert not problems.found


def test_a_pattern_that_matches_nothing_yet_is_a_warning() -> None:
    pipeline, problems = checked(changed('topics = ["clicks"]', 'pattern = "clicks-.*"'))
    assert pipeline is not None
    check_topics(pipeline, ["users", "clicks.clean"], problems)
    assert [each.is_warning for each in problems.found] == [True]
    check_topics(pipeline, ["users", "clicks.clean", "clicks-eu"], problems)
    assert len(problems.found) == 1
