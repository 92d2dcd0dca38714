"""Circles in a directed graph, in linear time and without recursion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


def circles(edges: Mapping[int, Iterable[int]]) -> list[list[int]]:
    """The strongly connected components of two nodes and more (Tarjan), each sorted."""
    return [sorted(found) for found in _components(edges) if len(found) > 1]


def _components(edges: Mapping[int, Iterable[int]]) -> Iterator[list[int]]:
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    for root in edges:
        if root in order:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        _enter(root, edges, order, lowest, open_nodes, is_open, path)
        while path:
            node, successors = path[-1]
            after = next(successors, None)
            if after is None:
                path.pop()
                if path:
                    above = path[-1][0]
                    lowest[above] = min(lowest[above], lowest[node])
                if lowest[node] == order[node]:
                    yield _close(node, open_nodes, is_open)
            elif after not in order:
                _enter(after, edges, order, lowest, open_nodes, is_open, path)
            elif after in is_open:
                lowest[node] = min(lowest[node], order[after])


def _enter(
    node: int,
    edges: Mapping[int, Iterable[int]],
    order: dict[int, int],
    lowest: dict[int, int],
    open_nodes: list[int],
    is_open: set[int],
    path: list[tuple[int, Iterator[int]]],
) -> None:
    order[node] = lowest[node] = len(order)
    open_nodes.append(node)
    is_open.add(node)
    path.append((node, iter(edges.get(node, ()))))


def _close(node: int, open_nodes: list[int], is_open: set[int]) -> list[int]:
    """Take a whole component off the stack."""
    found = []
    while True:
        top = open_nodes.pop()
        is_open.discard(top)
        found.append(top)
        if top == node:
            return found
