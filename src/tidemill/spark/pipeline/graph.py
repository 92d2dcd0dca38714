"""Who feeds whom in a pipeline: references that lead somewhere, no circles, one order.

A reference is the name of a source or a stage, or `STAGE.ROUTE`. `order` has the stages such that
each comes after what it reads, which is the order to compile and to check them in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from tidemill.spark.pipeline.load import Problems
from tidemill.spark.pipeline.model import Pipeline, Sink, Source, Stage


def node_of(reference: str) -> str:
    """The source or stage that a reference is to."""
    return reference.partition(".")[0]


def route_of(reference: str) -> str | None:
    """The route of a stage that a reference is to, if it is to one."""
    return reference.partition(".")[2] or None


def check_references(pipeline: Pipeline, problems: Problems) -> None:
    """Names that mean two things, references that lead nowhere, and circles."""
    _check_names(pipeline, problems)
    readers: list[Stage | Sink] = [*pipeline.stage.values(), *pipeline.sink.values()]
    for reader in readers:
        _check_inputs(pipeline, reader, problems)
    for stage in pipeline.stage.values():
        for join in stage.join:
            if join.table not in pipeline.table:
                near = _near(join.table, pipeline.table)
                problems.add((*join.at, "table"), f"there is no [table.{join.table}]", near)
    if not problems.found:
        _check_circles(pipeline, problems)


def _check_names(pipeline: Pipeline, problems: Problems) -> None:
    taken: dict[str, str] = {}
    for noun in ("source", "table", "stage"):
        for name, node in getattr(pipeline, noun).items():
            if name in taken:
                problems.add(node.at, f"there is a {taken[name]} `{name}` already", "rename one")
            taken[name] = noun


def _check_inputs(pipeline: Pipeline, reader: Stage | Sink, problems: Problems) -> None:
    known = {**pipeline.source, **pipeline.stage}
    at = (*reader.at, "from")
    for reference in reader.inputs:
        node, route = node_of(reference), route_of(reference)
        if node in pipeline.table and node not in known:
            message = f"`{node}` is a table, and tables are joined, not read"
            problems.add(at, message, f'write [[stage.NAME.join]] with table = "{node}"')
        elif node not in known:
            problems.add(at, f"there is no source or stage `{node}`", _near(node, known))
        elif route is not None:
            _check_route(pipeline, node, route, reader, problems)


def _check_route(
    pipeline: Pipeline, node: str, route: str, reader: Stage | Sink, problems: Problems
) -> None:
    stage = pipeline.stage.get(node)
    routes: Mapping[str, str] = {} if stage is None else stage.routes
    if route in routes:
        return
    at = (*reader.at, "from")
    if not routes:
        problems.add(at, f"`{node}` has no routes", f'write from = "{node}"')
    else:
        problems.add(at, f"stage `{node}` has no route `{route}`", _near(route, routes))


def _near(name: str, known: Mapping[str, object]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if found:
        return f"did you mean `{found[0]}`?"
    return f"there is {', '.join(f'`{each}`' for each in known)}" if known else ""


def _check_circles(pipeline: Pipeline, problems: Problems) -> None:
    """Each circle once, told at the stage of it that comes first in the file."""
    told: set[str] = set()
    for name in pipeline.stage:
        circle = _circle_from(pipeline, name)
        if circle is None or told & set(circle):
            continue
        told.update(circle)
        shown = " -> ".join((*circle, circle[0]))
        message = f"the stages feed each other in a circle: {shown}"
        problems.add((*pipeline.stage[name].at, "from"), message, "let one of them read a source")


def _circle_from(pipeline: Pipeline, start: str) -> tuple[str, ...] | None:
    """The stages from `start` back to it, in the direction in which rows go."""
    waiting: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        for reference in pipeline.stage[path[-1]].inputs:
            node = node_of(reference)
            if node == start:
                return (start, *reversed(path[1:]))
            if node in pipeline.stage and node not in seen:
                seen.add(node)
                waiting.append((*path, node))
    return None


def order(pipeline: Pipeline) -> list[Stage]:
    """The stages, each after what it reads; the file's order otherwise."""
    done: dict[str, Stage] = {}
    while len(done) < len(pipeline.stage):
        before = len(done)
        for name, stage in pipeline.stage.items():
            needed = {node_of(each) for each in stage.inputs} & set(pipeline.stage)
            if name not in done and needed <= set(done):
                done[name] = stage
        if len(done) == before:
            raise ValueError("the stages feed each other in a circle")
    return list(done.values())


def upstream(pipeline: Pipeline, reader: Stage | Sink) -> Iterator[Source | Stage]:
    """Every source and stage whose rows come to `reader`, nearest first, each once."""
    waiting = list(reader.inputs)
    seen: set[str] = set()
    while waiting:
        name = node_of(waiting.pop(0))
        if name in seen:
            continue
        seen.add(name)
        if name in pipeline.source:
            yield pipeline.source[name]
        else:
            stage = pipeline.stage[name]
            yield stage
            waiting.extend(stage.inputs)


def sources_of(pipeline: Pipeline, reader: Stage | Sink) -> list[Source]:
    return [node for node in upstream(pipeline, reader) if isinstance(node, Source)]


def stages_of(pipeline: Pipeline, reader: Stage | Sink) -> list[Stage]:
    return [node for node in upstream(pipeline, reader) if isinstance(node, Stage)]
