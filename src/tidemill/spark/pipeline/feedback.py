"""Pipelines that feed on what they write: found by who writes which topic, and who reads it.

Every query reads topics and writes topics; an arrow goes from one query to another that reads what
it writes. Whoever can be reached from itself by arrows gets its own rows again, changed or not, and
never comes to an end. Rows that name their own topics (`topic_from`) may go anywhere that the
beginning of the name allows: a circle through such an arrow is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidemill.spark.pipeline.keys import Path
from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import Pipeline, Sink, Source
from tidemill.spark.pipeline.plan import Query, nodes_of, queries, reads_topic, same_cluster

_BEGINS_WITH: Final = re.compile(r"\s*(?:concat\s*\(\s*)?'([^'\\]*)'\s*[,)]?", re.IGNORECASE)


class Arrow(NamedTuple):
    """One query writes what another one reads."""

    writer: Query
    at: Path
    """The key that says where the writer's rows go."""
    topic: str
    """Empty where the rows say it."""
    source: Source
    reader: Query


def check_feedback(pipeline: Pipeline, problems: Problems) -> None:
    """Each circle once, told at the key of the first topic in it."""
    arrows = list(_arrows(pipeline, queries(pipeline)))
    sure = [each for each in arrows if each.topic]
    told: set[str] = set()
    for some, is_warning in ((sure, False), (arrows, True)):
        circles = [_circle_from(query, some) for query in queries(pipeline)]
        for circle in sorted(filter(None, circles), key=len):
            if not told & {each.writer.name for each in circle}:
                told.update(each.writer.name for each in circle)
                _tell(circle, problems, is_warning=is_warning)


def _arrows(pipeline: Pipeline, all_queries: Sequence[Query]) -> Iterator[Arrow]:
    for writer in all_queries:
        sink = writer.target if isinstance(writer.target, Sink) else None
        for at, topic, beginning in _written_by(pipeline, writer):
            for reader in all_queries:
                for source in nodes_of(pipeline, reader)[0]:
                    if not same_cluster(pipeline, source, sink):
                        continue
                    may = not topic and _may_read(source, beginning)
                    if may or (topic and reads_topic(source, topic)):
                        yield Arrow(writer, at, topic, source, reader)


def _written_by(pipeline: Pipeline, query: Query) -> Iterator[tuple[Path, str, str]]:
    """The keys that name topics, with the topic, or else with what its name begins with."""
    node = query.target
    if isinstance(node, Sink):
        if node.topic:
            yield (*node.at, "topic"), node.topic, ""
        elif node.topic_from:
            yield (*node.at, "topic_from"), "", _beginning(node.topic_from)
        return
    declared = [node.decode] if isinstance(node, Source) else node.expect
    for each in declared:
        if each.on_failure == "quarantine":
            at: Path = (*each.at, "dead_letters" if each.dead_letters else "on_failure")
            yield at, each.dead_letters or pipeline.dead_letter_topic, ""


def _beginning(expression: str) -> str:
    """What all names that an expression gives begin with, if that is plain to see."""
    found = _BEGINS_WITH.match(expression)
    return found[1] if found else ""


def _may_read(source: Source, beginning: str) -> bool:
    return bool(source.pattern) or any(each.startswith(beginning) for each in source.topics)


def _circle_from(start: Query, arrows: Sequence[Arrow]) -> list[Arrow]:
    """The shortest way from a query back to itself; empty if there is none."""
    waiting: list[list[Arrow]] = [[each] for each in arrows if each.writer == start]
    seen: set[str] = set()
    while waiting:
        way = waiting.pop(0)
        here = way[-1].reader
        if here == start:
            return way
        if here.name not in seen:
            seen.add(here.name)
            waiting += [[*way, each] for each in arrows if each.writer == here]
    return []


def _tell(circle: Sequence[Arrow], problems: Problems, *, is_warning: bool) -> None:
    first = circle[0]
    narrow = f", or narrow the pattern of source `{first.source.name}`"
    suggestion = f"write to another topic{narrow if first.source.pattern else ''}"
    if len(circle) > 1:
        steps = [f"{each.writer.name} -> {_shown(each)}" for each in circle]
        message = f"the queries feed each other in a circle: {' -> '.join(steps)} -> "
        message += first.writer.name
    elif first.topic:
        message = f"writes to `{first.topic}`, which source `{first.source.name}` reads"
    else:
        message = f"may write to topics that source `{first.source.name}` reads, without end"
    problems.add(first.at, message, suggestion, is_warning=is_warning)


def _shown(arrow: Arrow) -> str:
    return f"`{arrow.topic}`" if arrow.topic else "topics that rows name"
