"""An event loop whose time is virtual: hours pass in milliseconds, and a seed repeats them exactly.

`SimLoop` runs ordinary asyncio code. Nothing waits: when no callback is ready, the loop sets its
time to that of the next timer. Callbacks run in the order of (time, sequence number), so a run
depends on nothing but the program and its seeds. Real sockets, threads, signals and sub-processes
are refused, because they would bring the machine's own timing in.

Whatever a callback schedules belongs to the same `Domain` as the callback: a domain is one process
of the simulated world. It can stand still (`pause`, as SIGSTOP or a long collection would) and it
can die (`crash`): nothing of it runs again, not even a `finally`.

    loop = SimLoop()
    broker = loop.domain("broker-1")
    broker.create_task(serve())
    loop.run_for(10)
    broker.crash()
    loop.close()

`VirtualClock` and `VirtualExecutor` are what such a process gets as its clock and its executor.
Sets of strings have an order that differs between interpreters: set PYTHONHASHSEED to replay a seed
in another process.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple

from tidemill.executor import Then
from tidemill.testing.burial import bury
from tidemill.testing.clock import START_MS
from tidemill.testing.disk import PowerCut
from tidemill.types import TimestampMs

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
STEPS_PER_INSTANT_MAX = 1_000_000
"""More callbacks than this without any time passing is a loop that never ends."""

UNHANDLED_MAX = 100
_COMPACT_FROM = 1_024


class SimulationStuckError(RuntimeError):
    """The simulated world cannot go on: nothing is scheduled, or time does not pass."""


class RealWorldError(RuntimeError):
    """Simulated code reached for something that only the real machine has."""


class Network(Protocol):
    """What the loop asks of a simulated network; see `network.SimNetwork`."""

    async def connect(
        self, domain: Domain, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def listen(
        self, domain: Domain, factory: Callable[[], asyncio.BaseProtocol], port: int
    ) -> asyncio.AbstractServer: ...


class Domain:
    """One process of the simulated world; made by `SimLoop.domain`."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self._loop = loop
        self._held: deque[asyncio.Handle] = deque()
        self._tasks: list[asyncio.Task[Any]] = []
        self._purge_at = 64
        self._context = copy_context()
        self._context.run(_DOMAIN.set, self)

    def __repr__(self) -> str:
        state = "alive" if self.is_alive else "crashed"
        return f"<Domain {self.name} {'paused' if self.is_paused else state}>"

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Schedule a callback that belongs to this domain."""
        return self._loop.call_soon(callback, *args, context=self._context.copy())

    def call_at_ns(self, when_ns: int, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Schedule a callback of this domain at a moment of virtual time."""
        return self._loop.schedule(when_ns, callback, (), self._context.copy())

    def create_task(
        self, coroutine: Coroutine[Any, Any, T], *, name: str | None = None
    ) -> asyncio.Task[T]:
        """Start a task that belongs to this domain."""
        return self._loop.create_task(coroutine, name=name, context=self._context.copy())

    def run(self, callback: Callable[..., T], *args: Any) -> T:
        """Call something now, as this domain: what it schedules belongs here."""
        return self._context.copy().run(callback, *args)

    def pause(self) -> None:
        """Stand still; what becomes due meanwhile runs after `resume`, in its order."""
        self.is_paused = True

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self._loop.take_back(self, self._held)

    def crash(self) -> None:
        """Die at once. May be called from within: the running callback can only return."""
        self.is_alive = False
        self.is_paused = False
        self._held.clear()

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that became due while the domain stands still; called by the loop."""
        self._held.append(handle)

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of this domain alive; called by the loop.

        A task that is only garbage would run its `finally` blocks when it is collected, which a
        crashed process does not, and at a moment that no seed decides.
        """
        self._tasks.append(task)
        if len(self._tasks) > self._purge_at and self.is_alive:
            self._tasks = [one for one in self._tasks if not one.done()]
            self._purge_at = 64 + 2 * len(self._tasks)

    def unfinished(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if not task.done()]


_DOMAIN: ContextVar[Domain] = ContextVar("domain")


class _Timer(asyncio.TimerHandle):
    __slots__ = ("is_queued",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self.is_queued = True


class SimLoop(asyncio.BaseEventLoop):
    """See the module's docstring. Not for use with `asyncio.run`, which wants a real loop."""

    def __init__(self, *, steps_per_instant_max: int = STEPS_PER_INSTANT_MAX) -> None:
        super().__init__()
        self.now_ns = 0
        self.steps = 0
        """Callbacks run so far: with the same seed always the same number."""
        self.unhandled: list[dict[str, Any]] = []
        """What nobody caught; a test that expects no errors asserts that this is empty."""
        self.network: Network | None = None
        self._steps_per_instant_max = steps_per_instant_max
        self._steps_at_instant = 0
        self._sequence = 0
        self._due: deque[tuple[Domain, asyncio.Handle]] = deque()
        self._timers: list[tuple[int, int, Domain, _Timer]] = []
        self._cancelled = 0
        self._owner = threading.get_ident()
        self._domains: list[Domain] = []
        self.root = self.domain("test")
        """Where code runs that no simulated process started: the test itself."""
        self.set_exception_handler(_remember)

    # Domains

    def domain(self, name: str) -> Domain:
        """A new process of the simulated world."""
        made = Domain(self, name)
        self._domains.append(made)
        return made

    def current_domain(self) -> Domain:
        """The domain of the running callback."""
        return _DOMAIN.get(self.root)

    def take_back(self, domain: Domain, held: deque[asyncio.Handle]) -> None:
        """The domain runs again: first what it missed, before anything that is due just now."""
        self._due.extendleft((domain, handle) for handle in reversed(held))
        held.clear()

    # Time

    def time(self) -> float:
        return self.now_ns / NS_PER_S

    def run_for(self, duration_s: float) -> None:
        """Let that much virtual time pass."""
        self.run_until_complete(asyncio.sleep(duration_s))

    # Scheduling

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._due.append((self._domain_of(context), handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() != self._owner:
            _refuse("a thread", "an Executor that the simulation hands out")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.schedule(self.now_ns + round(delay * NS_PER_S), callback, args, context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.schedule(round(when * NS_PER_S), callback, args, context)

    def schedule(
        self,
        when_ns: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> asyncio.TimerHandle:
        self._check_open()
        timer = _Timer(when_ns / NS_PER_S, callback, args, self, context)
        self._sequence += 1
        entry = (when_ns, self._sequence, self._domain_of(context), timer)
        heapq.heappush(self._timers, entry)
        return timer

    def _domain_of(self, context: Context | None) -> Domain:
        return _DOMAIN.get(self.root) if context is None else context.get(_DOMAIN, self.root)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by `TimerHandle.cancel`: forget cancelled timers once they are the most."""
        if not (isinstance(handle, _Timer) and handle.is_queued):
            return
        self._cancelled += 1
        if self._cancelled > _COMPACT_FROM and self._cancelled * 2 > len(self._timers):
            # The one that is being cancelled says so only after this; it goes the next time.
            self._timers = [entry for entry in self._timers if not entry[3].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 1

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        self._sequence += 1
        label = f"task-{self._sequence}" if name is None else str(name)
        task: asyncio.Task[T] = super().create_task(coro, name=label, context=context, **options)
        self._domain_of(context).adopt(task)
        return task

    def run_in_executor(
        self, executor: object, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """The work is done inline, at a step of its own."""
        future: asyncio.Future[T] = self.create_future()
        self.call_soon(_work, future, func, args)
        return future

    # Running

    def _run_once(self) -> None:
        """One round, called by `run_forever`: all that is ready at its beginning."""
        self._take_due_timers()
        if not self._due:
            self._jump()
        count = len(self._due)
        for _ in range(count):
            self._step(*self._due.popleft())
        self._steps_at_instant += count
        if self._steps_at_instant > self._steps_per_instant_max:
            raise SimulationStuckError(
                f"{self._steps_at_instant} callbacks ran at {self.time():.6f} s and time stands"
                f" still; the next is {self._due[0] if self._due else 'a timer'}"
            )

    def _step(self, domain: Domain, handle: asyncio.Handle) -> None:
        if handle.cancelled() or not domain.is_alive:
            return
        if domain.is_paused:
            domain.hold(handle)
            return
        self.steps += 1
        handle._run()

    def _take_due_timers(self) -> None:
        timers, now_ns = self._timers, self.now_ns
        while timers and timers[0][0] <= now_ns:
            _, _, domain, timer = heapq.heappop(timers)
            timer.is_queued = False
            if timer.cancelled():
                self._cancelled -= 1
            else:
                self._due.append((domain, timer))

    def _jump(self) -> None:
        """Nothing is ready: go to the moment of the next timer."""
        timers = self._timers
        while not self._due:
            if not timers:
                raise SimulationStuckError(self._why_stuck())
            self.now_ns = max(self.now_ns, timers[0][0])
            self._steps_at_instant = 0
            self._take_due_timers()

    def _why_stuck(self) -> str:
        waiting = [
            f"{domain.name}: {task.get_name()} in {getattr(task.get_coro(), '__qualname__', '?')}"
            for domain in self._domains
            if domain.is_alive
            for task in domain.unfinished()
        ]
        more = f" and {len(waiting) - 10} more" if len(waiting) > 10 else ""
        shown = "; ".join(waiting[:10]) or "no task"
        return f"nothing is scheduled at {self.time():.6f} s, so nothing can happen; {shown}{more}"

    def close(self) -> None:
        """End the simulated world, without a word from the tasks that were still in it."""
        if self.is_closed():
            return
        if not self.is_running():
            for domain in self._domains:
                for task in domain.unfinished():
                    bury(task)
        super().close()
        self._due.clear()
        self._timers.clear()
        self._domains.clear()

    def _check_open(self) -> None:
        if self.is_closed():
            raise RuntimeError("Event loop is closed")

    # The real world

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        """Connect through the simulated network, from the host of the running callback."""
        if self.network is None or options:
            _refuse("a socket", "SimNetwork, and nothing beyond a host and a port")
        factory, host, port = args
        return await self.network.connect(self.current_domain(), factory, host, port)

    async def create_server(self, *args: Any, **options: Any) -> Any:
        """Listen on the simulated network, on the host of the running callback."""
        if self.network is None or options.pop("sock", None) is not None:
            _refuse("a listening socket", "SimNetwork, with a host and a port")
        factory, _host, port = args
        return self.network.listen(self.current_domain(), factory, port)

    def add_reader(self, fd: object, callback: Callable[[*Ts], Any], *args: *Ts) -> NoReturn:
        _refuse("a file descriptor", "SimNetwork")

    def add_writer(self, fd: object, callback: Callable[[*Ts], Any], *args: *Ts) -> NoReturn:
        _refuse("a file descriptor", "SimNetwork")

    def add_signal_handler(
        self, sig: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> NoReturn:
        _refuse("a signal", "Domain.crash or Domain.pause")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a process", "SimLoop.domain")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("a process", "SimLoop.domain")

    async def getaddrinfo(self, *args: Any, **options: Any) -> NoReturn:
        _refuse("the resolver", "the host names of SimNetwork")


def _refuse(what: str, instead: str) -> NoReturn:
    raise RealWorldError(f"simulated code asked for {what}; it has to use {instead}")


def _remember(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Nobody caught it: keep it for the test, and show it. A power cut is nobody's mistake."""
    assert isinstance(loop, SimLoop)
    if isinstance(context.get("exception"), PowerCut):
        return
    if len(loop.unhandled) < UNHANDLED_MAX:
        loop.unhandled.append(context)
    log.error("in the simulation: %s", context["message"], exc_info=context.get("exception"))


def _work(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - whoever waits is told, whatever it was
        future.set_exception(error)
    else:
        future.set_result(result)


class VirtualClock:
    """A machine's clocks in virtual time; implements `tidemill.clock.Clock`."""

    def __init__(self, loop: SimLoop, *, start_ms: int = START_MS) -> None:
        self._loop = loop
        self._start_ms = start_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._start_ms + self._loop.now_ns // NS_PER_MS)

    def monotonic_ms(self) -> int:
        return self._loop.now_ns // NS_PER_MS

    def step(self, change_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP does; durations go on."""
        self._start_ms += change_ms


class VirtualExecutor:
    """Runs blocking work inline but later, after a delay that the seed decides.

    The work itself happens at the end of the delay: a process that crashes before has not done it.
    Two pieces of work may finish in either order, as in a pool of threads.
    """

    def __init__(self, loop: SimLoop, random: Random, *, delay_ms_max: float = 5.0) -> None:
        self._loop = loop
        self._random = random
        self._delay_s_max = delay_ms_max / 1000

    def submit(self, work: Callable[[], T], then: Then[T]) -> None:
        delay_s = self._random.random() * self._delay_s_max
        self._loop.call_later(delay_s, self._run, work, then)

    def close(self) -> None:
        """Work under way is done all the same: nobody waits for it here."""

    @staticmethod
    def _run(work: Callable[[], T], then: Then[T]) -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the caller is told, whatever it was
            then(None, error)
        else:
            then(result, None)
