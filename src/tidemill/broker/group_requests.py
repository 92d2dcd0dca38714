"""How handlers ask the group coordinator: answers that come later, and together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from tidemill.broker.deferred import Deferred
from tidemill.coordinators.result import RequestInfo, Result
from tidemill.coordinators.shard import GroupShard
from tidemill.errors import ErrorCode

if TYPE_CHECKING:
    from tidemill.broker.context import Broker
    from tidemill.broker.dispatch import RequestContext

R = TypeVar("R")
T = TypeVar("T")

OnError = Callable[[ErrorCode, str | None], R]


def request_info(broker: Broker, context: RequestContext) -> RequestInfo:
    """Who asks, as groups remember it; an address is written as Java writes it."""
    return RequestInfo(
        client_id=context.client_id or "",
        client_host=f"/{context.client_address}",
        now_ms=broker.clock.now_ms(),
        api_version=context.version,
    )


def ask(
    broker: Broker,
    group_id: str,
    operation: Callable[[GroupShard], Result[R]],
    on_error: OnError[R],
    *,
    gather: bool = False,
) -> Deferred[R]:
    """Run an operation on a group's shard; what it returns, or its error, is the answer."""
    answer: Deferred[R] = Deferred()
    broker.groups.run(
        group_id,
        operation,
        lambda response: answer.complete(cast(R, response)),
        lambda code, message: answer.complete(on_error(code, message)),
        gather=gather,
    )
    return answer


def ask_partition(
    broker: Broker,
    index: int,
    operation: Callable[[GroupShard], Result[R]],
    on_error: OnError[R],
) -> Deferred[R]:
    """The same for the shard of a partition, whatever groups it has."""
    answer: Deferred[R] = Deferred()
    broker.groups.run_on(
        index,
        operation,
        lambda response: answer.complete(cast(R, response)),
        lambda code, message: answer.complete(on_error(code, message)),
    )
    return answer


def finished(answer: R) -> Deferred[R]:
    """An answer that is there already, among others that are not."""
    found: Deferred[R] = Deferred()
    found.complete(answer)
    return found


def ask_late(
    broker: Broker,
    group_id: str,
    operation: Callable[[GroupShard, Callable[[R], None]], Result[None]],
    on_error: OnError[R],
) -> Deferred[R]:
    """The same for requests that the group answers itself, when it is time."""
    answer: Deferred[R] = Deferred()
    broker.groups.run(
        group_id,
        lambda shard: operation(shard, answer.complete),
        lambda _: None,
        lambda code, message: answer.complete(on_error(code, message)),
    )
    return answer


def all_of(parts: list[Deferred[R]], make_answer: Callable[[list[R]], T]) -> Deferred[T]:
    """One answer of many, in the order in which they were asked."""
    answer: Deferred[T] = Deferred()
    found: dict[int, R] = {}

    def arrived(number: int, part: R) -> None:
        found[number] = part
        if len(found) == len(parts):
            answer.complete(make_answer([found[each] for each in range(len(parts))]))

    for number, part in enumerate(parts):
        part.listen(lambda value, number=number: arrived(number, value))  # type: ignore[misc]
    if not parts:
        answer.complete(make_answer([]))
    return answer
