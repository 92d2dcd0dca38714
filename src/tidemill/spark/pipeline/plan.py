"""The Spark queries that a pipeline becomes, and what of them a checkpoint depends on.

Every sink is a query; so is every source or stage that quarantines, which writes to dead-letter
topics. Queries fail, lag and restart each for itself, at the price that each reads its source.
A query's `fingerprint` is what Spark needs to be the same when it continues from a checkpoint:
`why_not_continued` compares two of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.spark.pipeline import graph
from tidemill.spark.pipeline.durations import shown
from tidemill.spark.pipeline.model import Aggregate, Pipeline, Sink, Source, Stage, Table

DEAD_LETTERS = "dead-letters"


@dataclass(frozen=True, slots=True)
class Query:
    """One Spark query: of a sink, or of the records that a source or stage quarantines."""

    name: str
    group: str
    target: Sink | Source | Stage

    @property
    def is_quarantine(self) -> bool:
        return not isinstance(self.target, Sink)


def queries(pipeline: Pipeline) -> list[Query]:
    """All queries of a pipeline, in the file's order, sinks first."""
    found = [Query(name, _group(pipeline, name), sink) for name, sink in pipeline.sink.items()]
    used = {node.name for sink in pipeline.sink.values() for node in graph.upstream(pipeline, sink)}
    nodes: list[Source | Stage] = [*pipeline.source.values(), *graph.order(pipeline)]
    for node in nodes:
        if node.name in used and quarantines(node):
            name = f"{DEAD_LETTERS}.{node.name}"
            found.append(Query(name, _group(pipeline, name), node))
    return found


def _group(pipeline: Pipeline, query: str) -> str:
    return f"{pipeline.group_prefix}.{query}"


def quarantines(node: Source | Stage) -> bool:
    """Whether records may leave a source or stage for a dead-letter topic."""
    if isinstance(node, Source):
        return node.decode.on_failure == "quarantine"
    return any(each.on_failure == "quarantine" for each in node.expect)


def dead_letter_topics(pipeline: Pipeline) -> set[str]:
    """Every topic that quarantined records may go to."""
    found = set()
    for query in queries(pipeline):
        node = query.target
        if isinstance(node, Source):
            found.add(node.decode.dead_letters or pipeline.dead_letter_topic)
        elif isinstance(node, Stage):
            found.update(
                each.dead_letters or pipeline.dead_letter_topic
                for each in node.expect
                if each.on_failure == "quarantine"
            )
    return found


def nodes_of(pipeline: Pipeline, query: Query) -> tuple[list[Source], list[Stage]]:
    """The sources and, in order, the stages whose rows a query gets."""
    target = query.target
    if isinstance(target, Source):
        return [target], []
    names = {node.name for node in graph.upstream(pipeline, target)}
    stages = [each for each in graph.order(pipeline) if each.name in names]
    return [pipeline.source[name] for name in pipeline.source if name in names], stages


def fed_by(pipeline: Pipeline, query: Query) -> set[str]:
    """The queries that write a topic which this one reads: stages with a topic between them.

    One whose rows name their topics may write any.
    """
    sources, _ = nodes_of(pipeline, query)
    return {
        name
        for name, sink in pipeline.sink.items()
        if name != query.name
        and any(
            same_cluster(pipeline, sink, source)
            and (sink.topic_from or reads_topic(source, sink.topic))
            for source in sources
        )
    }


def cluster_of(pipeline: Pipeline, node: Source | Table | Sink | None) -> frozenset[str]:
    """The addresses of the cluster that a node's topics are in: the pipeline's unless its options
    say another. Dead letters go to the pipeline's."""
    own = own_bootstrap(node) if node is not None else ""
    return frozenset(each.strip() for each in (own or pipeline.bootstrap).split(","))


def own_bootstrap(node: Source | Table | Sink) -> str:
    """The addresses of a node's own cluster, empty if it has none."""
    given = {name.lower(): text for name, text in node.options.items()}
    return given.get("kafka.bootstrap.servers", "")


def same_cluster(
    pipeline: Pipeline,
    one: Source | Table | Sink | None,
    other: Source | Table | Sink | None = None,
) -> bool:
    """Whether topics of the same name are the same topic; without nodes, in the pipeline's."""
    return bool(cluster_of(pipeline, one) & cluster_of(pipeline, other))


def reads_topic(source: Source, topic: str) -> bool:
    if source.pattern:
        return bool(topic) and re.fullmatch(source.pattern, topic) is not None
    return topic in source.topics


# --- where rows go --------------------------------------------------------------------------------


def table_of(pipeline: Pipeline, sink: Sink) -> str:
    """The sink's table; a relative path is meant from the pipeline's file, wherever it is run."""
    kind, _, location = sink.table.partition(":")
    if not location or kind == "iceberg" or ":" in location:
        return sink.table
    folder = os.path.dirname(os.path.abspath(pipeline.path))
    return f"{kind}:{os.path.normpath(os.path.join(folder, location))}"


def added_to(pipeline: Pipeline) -> list[str]:
    """What gets a row once more when it is read once more: not tables that rows replace by key."""
    found = [f"topic {name}" for name in sorted(dead_letter_topics(pipeline))]
    for sink in pipeline.sink.values():
        if sink.topic:
            found.append(f"topic {sink.topic}")
        elif sink.topic_from:
            found.append(f"the topics of sink.{sink.name}")
        elif sink.mode == "append":
            found.append(f"table {table_of(pipeline, sink)}")
    return list(dict.fromkeys(found))


# --- what a checkpoint depends on -----------------------------------------------------------------


def fingerprint(pipeline: Pipeline, query: Query) -> dict[str, Any]:
    """What must not change between two runs of a query on one checkpoint, as plain JSON."""
    sources, stages = nodes_of(pipeline, query)
    output = query.target.output if isinstance(query.target, Sink) else "append"
    kept: dict[str, str] = {}
    for stage in stages:
        kept.update(_state_of(stage))
    return {
        "sources": {source.name: _reads(source) for source in sources},
        "state": kept,
        "output": output if kept else "",
        "order": list(_in_order(pipeline, query.target)),
        "table": table_of(pipeline, query.target) if isinstance(query.target, Sink) else "",
    }


def _in_order(pipeline: Pipeline, target: Sink | Source | Stage) -> Iterator[str]:
    """The sources and what keeps state, as Spark finds them in the query's plan: a checkpoint knows
    them by their places in it, not by name. What two inputs share is there twice."""
    if isinstance(target, Source):
        yield f"source.{target.name}"
        return
    for reference in target.inputs:
        name = graph.node_of(reference)
        if name in pipeline.source:
            yield f"source.{name}"
        else:
            stage = pipeline.stage[name]
            yield from _in_order(pipeline, stage)
            yield from (where for where, _ in _state_of(stage))


def _reads(source: Source) -> list[str]:
    return [f"pattern {source.pattern}"] if source.pattern else sorted(source.topics)


def _state_of(stage: Stage) -> Iterator[tuple[str, str]]:
    """What the stage remembers from batch to batch, by the section that says so."""
    if stage.dedupe:
        yield f"stage.{stage.name}.dedupe", f"keys {', '.join(stage.dedupe.keys)}"
    if stage.aggregate:
        yield f"stage.{stage.name}.aggregate", _state_of_groups(stage.aggregate)


def _state_of_groups(aggregate: Aggregate) -> str:
    parts = [f"by {', '.join(aggregate.by)}"] if aggregate.by else []
    if window := aggregate.window:
        slide = f" every {shown(window.slide_ms)}" if window.slide_ms else ""
        parts.append(f"windows of {shown(window.size_ms)}{slide} over {window.column}")
    if session := aggregate.session:
        parts.append(f"sessions with gaps of {shown(session.gap_ms)} over {session.column}")
    parts += [f"{name} = {text}" for name, text in aggregate.columns.items()]
    return "; ".join(parts)


def why_not_continued(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why a query cannot go on from the checkpoint of its former self; None if it can."""
    for name, reads in before["sources"].items():
        if name not in now["sources"]:
            return f"source.{name} is no longer read"
        lost = sorted(set(reads) - set(now["sources"][name]))
        if lost:
            return f"source.{name} no longer reads {', '.join(lost)}"
    added = [name for name in now["sources"] if name not in before["sources"]]
    if added:
        return f"source.{added[0]} is read, too"
    table = before.get("table", now["table"])  # One of an earlier version has none.
    if table != now["table"]:
        is_ = now["table"] or "none"
        return f"its table was {table or 'none'} and is {is_}, which has nothing of what was read"
    return _why_state_not_kept(before, now)


def _why_state_not_kept(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    for where, was in before["state"].items():
        if where not in now["state"]:
            return f"{where} is gone"
        if now["state"][where] != was:
            return f"{where} was ({was}) and is ({now['state'][where]})"
    added = [where for where in now["state"] if where not in before["state"]]
    if added:
        return f"{added[0]} is new"
    if before["output"] != now["output"]:
        return f"output was {before['output']} and is {now['output']}"
    order = before.get("order", now["order"])  # One of an earlier version has none.
    if order != now["order"]:
        was, is_ = ", ".join(order), ", ".join(now["order"])
        return f"the order in which rows come together was ({was}) and is ({is_})"
    return None
