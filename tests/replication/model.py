"""A small cluster of the real cores: three replicas of one partition on disks that can lose power.

`Cluster` runs the leader's and the followers' state machines on real logs, with a network that
loses, delays and reorders messages, and a controller that does nothing but what the rules say. A
tape of numbers decides what happens next, so that a failing run can be replayed and shrunk. After
every step it is checked that

* a record that was once below a leader's high watermark never changes, and every later leader has
  it;
* the high watermark that clients are told never goes back, from one leader to the next included;
* and at the end, when everything works again, all replicas hold the same log and all are in sync.

`Flaw` names mistakes that must make this fail: they show that it can. The controller is in
`model_controller.py`, what can happen and how often in `model_lives.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from random import Random

from tests.replication.model_controller import NODES, Controller
from tests.storage.helpers import TOPIC_ID, batch, manager_on, read_all

from tidemill.broker.fetch_sessions import FetchSessions
from tidemill.broker.fetch_sessions import Wanted as Asked
from tidemill.errors import ApiError, ErrorCode
from tidemill.image import PartitionImage
from tidemill.replication.alignment import Alignment, Ask, StartOver, TruncateTo, diverging
from tidemill.replication.copying import ReplicaCopy
from tidemill.replication.follower import (
    Advance,
    Append,
    Cut,
    FindRange,
    FollowerFetcher,
    FollowerSettings,
    Status,
    Step,
    Trouble,
)
from tidemill.replication.isr import IsrAnswer, IsrProposal, Settled
from tidemill.replication.leading import LeaderSettings, Leadership
from tidemill.replication.progress import FetchPosition
from tidemill.replication.session import TopicIdPartition
from tidemill.storage.log import Log
from tidemill.storage.log_config import FlushPolicy, LogConfig
from tidemill.testing.clock import ManualClock
from tidemill.testing.disk import CrashDisk
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    TopicPartition,
)
from tidemill.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

PARTITION = TopicPartition("t", 0)
KEY = TopicIdPartition(TOPIC_ID, 0)
LAG_MAX_MS = 2_000
BACKOFF_MS = 100
MESSAGES_MAX = 40
FETCH_VERSION = 17
HEALING_ROUNDS = 120


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


class Flaw(Enum):
    """A mistake to build in."""

    NONE = auto()
    TRUNCATE_TO_HIGH_WATERMARK = auto()
    NO_EPOCH_CHECK = auto()
    SHRINK_UNCONFIRMED = auto()
    REPORT_UNFLUSHED = auto()


@dataclass(frozen=True, slots=True)
class Plan:
    """What kind of cluster it is. Power cuts belong to `ack`; under `async` processes die."""

    flush_policy: FlushPolicy = "ack"
    min_insync_replicas: int = 2
    asks_first: bool = False
    """Whether followers align by questions before they fetch, or with the fetch itself."""
    flaw: Flaw = Flaw.NONE


Message = Callable[[], None]
"""Something under way: calling it is its arrival."""


@dataclass(slots=True)
class Node:
    """One broker with its disk; everything below `is_up` is gone when it dies."""

    broker_id: BrokerId
    disk: CrashDisk
    is_up: bool = False
    incarnation: int = 0
    broker_epoch: BrokerEpoch = field(default_factory=lambda: BrokerEpoch(-1))
    copy: ReplicaCopy = field(init=False)
    leadership: Leadership | None = None
    fetcher: FollowerFetcher | None = None
    alignment: Alignment | None = None
    leader: BrokerId = NO_BROKER
    leader_epoch: int = -1
    partition_epoch: int = -1
    seen_views: int = 0
    sessions: FetchSessions = field(init=False)
    outstanding: FetchRequest | None = None
    range_asked: FindRange | None = None
    saved_high_watermark: int = 0

    @property
    def log(self) -> Log:
        return self.copy.log

    @property
    def high_watermark(self) -> int:
        return (self.leadership or self.copy).high_watermark

    def values(self) -> dict[int, bytes | None]:
        return {record.offset: record.value for record in read_all(self.log)}


class Cluster:
    """Three replicas, a controller, and everything that is on its way between them."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        self.clock = ManualClock()
        self.controller = Controller()
        self.messages: list[Message] = []
        self.committed: list[bytes | None] = []
        self.committed_in: list[int] = []
        """Each committed record's value, and the leader epoch in which it was first committed."""
        self.told: dict[int, int] = {}
        """Per leader epoch, the high watermark that clients were told last."""
        self.produced = 0
        self.elections = 0
        self.cuts = 0
        self.ranges = 0
        self._observed: dict[BrokerId, tuple[int, int]] = {}
        self._config = LogConfig(
            flush_policy=plan.flush_policy, segment_bytes=700, index_interval_bytes=100
        )
        self.nodes = [Node(node, CrashDisk(Random(seed + node))) for node in NODES]
        for node in self.nodes:
            self._open(node)
            node.broker_epoch = self.controller.now.alive[node.broker_id]
            self.apply_view(node)

    def _open(self, node: Node) -> None:
        manager = manager_on(node.disk, clock=self.clock, config=self._config)
        log = manager.create(PARTITION, TOPIC_ID, self._config)
        log.flush()
        node.copy = ReplicaCopy(log, node.saved_high_watermark)
        node.sessions = FetchSessions(10, self.clock, Random(node.broker_id))
        node.is_up = True

    # Faults.

    def crash(self, node: Node) -> None:
        if not node.is_up:
            return
        node.is_up = False
        node.incarnation += 1
        node.leadership = node.fetcher = node.alignment = node.outstanding = None
        node.leader_epoch = node.partition_epoch = -1
        node.log.abandon()
        if self.plan.flush_policy == "ack":
            node.disk.power_on()
        else:
            node.disk.restart()

    def restart(self, node: Node) -> None:
        if node.is_up:
            return
        self._open(node)
        self._register(node)

    def _register(self, node: Node) -> None:
        node.broker_epoch = self.controller.register(node.broker_id)
        self.apply_view(node)

    def notice(self, node: Node) -> None:
        """The controller notices a death."""
        if not node.is_up:
            self.expire(node)

    def expire(self, node: Node) -> None:
        """The node's session ends. If it is alive, it goes on as before until it hears of that."""
        if node.broker_id in self.controller.now.alive:
            self.controller.fence(node.broker_id)

    def rejoin(self, node: Node) -> None:
        """A node that was taken for dead finds out, and registers anew (rule A9)."""
        if node.is_up and node.broker_id not in self.controller.now.alive:
            self._resign(node)
            self._register(node)

    # The network.

    def send(self, to: Node, message: Callable[[], None]) -> None:
        incarnation = to.incarnation

        def arrive() -> None:
            if to.is_up and to.incarnation == incarnation:
                message()

        self.messages.append(arrive)
        del self.messages[:-MESSAGES_MAX]

    def deliver(self, place: int = 0) -> None:
        if self.messages:
            self.messages.pop(place % len(self.messages))()

    def drop(self, place: int) -> None:
        if self.messages:
            self.messages.pop(place % len(self.messages))

    # Metadata.

    def apply_view(self, node: Node, *, newest: bool = True) -> None:
        """The node hears of the next image, or of the newest."""
        views = self.controller.views
        if not node.is_up:
            return
        node.seen_views = len(views) if newest else min(node.seen_views + 1, len(views))
        image = views[node.seen_views - 1].partition
        if image.partition_epoch < node.partition_epoch:
            return
        node.partition_epoch = image.partition_epoch
        if image.leader == node.broker_id:
            self._lead(node, image)
        else:
            self._follow(node, image)

    def _alive(self, node: Node) -> dict[BrokerId, BrokerEpoch]:
        return self.controller.views[node.seen_views - 1].alive

    def _lead(self, node: Node, image: PartitionImage) -> None:
        if node.leadership is not None and image.leader_epoch == node.leader_epoch:
            node.leadership.follow_image(image, self.clock.monotonic_ms())
            return
        self._resign(node)
        self._demand_committed(node, image.leader_epoch)
        self.elections += 1
        node.leader, node.leader_epoch = image.leader, image.leader_epoch
        node.log.begin_epoch(image.leader_epoch)
        node.leadership = Leadership(
            node.log,
            image,
            LeaderSettings(self.plan.min_insync_replicas, LAG_MAX_MS),
            broker_epoch=node.broker_epoch,
            epoch_of=lambda broker_id: self._alive(node).get(broker_id),
            high_watermark=node.copy.high_watermark,
            now_ms=self.clock.monotonic_ms(),
        )

    def _resign(self, node: Node) -> None:
        if node.leadership is not None:
            node.copy.high_watermark = node.leadership.high_watermark
        node.leadership = node.fetcher = node.alignment = node.outstanding = None

    def _follow(self, node: Node, image: PartitionImage) -> None:
        is_new_term = image.leader_epoch > node.leader_epoch
        if image.leader != node.leader or node.leadership is not None or node.fetcher is None:
            self._resign(node)
        node.leader, node.leader_epoch = image.leader, image.leader_epoch
        if image.leader == NO_BROKER:
            return
        if node.fetcher is None:
            settings = FollowerSettings(backoff_ms=BACKOFF_MS, partition_max_bytes=400)
            node.fetcher = FollowerFetcher(node.broker_id, node.broker_epoch, settings)
        if is_new_term and self.plan.flaw is Flaw.TRUNCATE_TO_HIGH_WATERMARK:
            node.copy.cut(TruncateTo(node.copy.high_watermark))
        if is_new_term and self.plan.asks_first:
            node.alignment = Alignment(node.log, node.copy.high_watermark, image.leader_epoch)
            node.fetcher.unfollow(KEY)
        if node.alignment is None:
            self._do(node, node.fetcher.follow(KEY, node.copy, image.leader_epoch))
        else:
            self._align(node, node.alignment)

    # Aligning by questions.

    def _align(self, node: Node, alignment: Alignment) -> None:
        """Go on until an answer is needed; once aligned, the fetcher takes over."""
        while isinstance(alignment.step, TruncateTo):
            self._cut(node, alignment.step)
            alignment.truncated()
        if isinstance(alignment.step, Ask):
            self._ask_epoch(node, alignment, alignment.step.epoch)
            return
        node.alignment = None
        assert node.fetcher is not None
        self._do(node, node.fetcher.follow(KEY, node.copy, alignment.leader_epoch))

    def _ask_epoch(self, node: Node, alignment: Alignment, epoch: int) -> None:
        leader = self.nodes[node.leader]

        def served() -> None:
            if leader.leadership is not None and leader.leader_epoch == alignment.leader_epoch:
                ends = leader.log.end_offset_for_epoch(epoch)
                self.send(node, lambda: answered(ends))

        def answered(ends: tuple[int, int]) -> None:
            current = node.alignment
            if current is not None and current.answered(epoch, alignment.leader_epoch, *ends):
                self._align(node, current)

        self.send(leader, served)

    def _cut(self, node: Node, decision: TruncateTo | StartOver) -> None:
        self.cuts += 1
        if node.copy.cut(decision):
            raise BrokenPromiseError(f"committed records of {node.broker_id} are cut: {decision}")

    # Producing and flushing.

    def produce(self, node: Node, count: int = 1) -> None:
        if node.leadership is None or not node.leadership.has_enough_in_sync:
            return
        values = [b"%d" % (self.produced + place) for place in range(count)]
        self.produced += count
        node.log.append_as_leader(batch(*values), leader_epoch=node.leader_epoch)
        node.leadership.advance(self.clock.monotonic_ms())

    def produce_at_leader(self, number: int) -> None:
        """A producer writes to somebody who believes to lead: there may be two of those."""
        leaders = [node for node in self.nodes if node.leadership is not None]
        if leaders:
            self.produce(leaders[number % len(leaders)], 1 + number // 2 % 3)

    def delete_records(self, node: Node, number: int) -> None:
        """Raise the leader's log start, also into the middle of a batch."""
        if node.leadership is not None:
            start, end = node.log.log_start_offset, node.leadership.high_watermark
            node.log.advance_log_start(start + number % (end - start + 1))

    def flush(self, node: Node) -> None:
        if node.is_up:
            node.log.flush()
            node.saved_high_watermark = node.high_watermark
            if node.leadership is not None:
                node.leadership.advance(self.clock.monotonic_ms())

    # Fetching, the follower's side.

    def fetch(self, node: Node) -> None:
        fetcher = node.fetcher
        if not node.is_up or fetcher is None or fetcher.is_asking:
            return
        if node.alignment is not None:
            self._align(node, node.alignment)
            return
        if self.plan.flaw is Flaw.REPORT_UNFLUSHED:
            node.log.flushed_offset = node.log.log_end_offset
        request = fetcher.next_request(self.clock.monotonic_ms())
        if request is not None:
            node.outstanding = request
            leader = self.nodes[node.leader]
            self.send(leader, lambda: self._serve(leader, node, request))

    def give_up_fetch(self, node: Node) -> None:
        """Whatever the follower waits for takes too long."""
        fetcher, asked, now_ms = node.fetcher, node.range_asked, self.clock.monotonic_ms()
        if fetcher is not None and node.outstanding is not None:
            node.outstanding = None
            fetcher.request_failed(now_ms)
        if fetcher is not None and asked is not None:
            node.range_asked = None
            fetcher.range_not_found(KEY, asked.leader_epoch, ErrorCode.REQUEST_TIMED_OUT, now_ms)

    def _answered(self, node: Node, request: FetchRequest, response: FetchResponse) -> None:
        if node.outstanding is request and node.fetcher is not None:
            node.outstanding = None
            self._do(node, node.fetcher.take(response, self.clock.monotonic_ms()))

    def _do(self, node: Node, steps: Sequence[Step]) -> None:
        for step in steps:
            self._do_one(node, step)

    def _do_one(self, node: Node, step: Step) -> None:
        assert node.fetcher is not None
        match step:
            case Append():
                node.copy.append(step.fetched)
                node.copy.advance(step.high_watermark, step.log_start_offset)
            case Advance():
                node.copy.advance(step.high_watermark, step.log_start_offset)
            case Cut():
                self._cut(node, step.decision)
                node.fetcher.cut_done(step.key, step.leader_epoch)
            case FindRange():
                self._ask_range(node, step)
            case Trouble() if step.status is Status.FAILED:
                raise BrokenPromiseError(f"node {node.broker_id}: {step.error}")

    def _ask_range(self, node: Node, step: FindRange) -> None:
        fetcher, leader = node.fetcher, self.nodes[node.leader]
        assert fetcher is not None
        self.ranges += 1
        node.range_asked = step

        def served() -> None:
            leads = leader.leadership is not None and leader.leader_epoch == step.leader_epoch
            ends = (leader.log.log_start_offset, leader.log.log_end_offset)
            self.send(node, lambda: found(ends if leads else None))

        def found(ends: tuple[int, int] | None) -> None:
            now_ms = self.clock.monotonic_ms()
            if node.fetcher is not fetcher or node.range_asked is not step:
                return
            node.range_asked = None
            if ends is None:
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                after = fetcher.range_not_found(KEY, step.leader_epoch, code, now_ms)
            else:
                after = fetcher.range_found(KEY, step.leader_epoch, *ends, now_ms)
            if after is not None:
                self._do(node, [after])

        self.send(leader, served)

    # Fetching, the leader's side.

    def _serve(self, leader: Node, follower: Node, request: FetchRequest) -> None:
        context = leader.sessions.open(request, FETCH_VERSION)
        if context.error is not ErrorCode.NONE:
            response = FetchResponse(error_code=int(context.error))
        else:
            answers = [(asked, self._read(leader, request, asked)) for asked in context.wanted]
            session_id, told = leader.sessions.answer(context, answers, FETCH_VERSION)
            topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[one for _, one in told])
            response = FetchResponse(session_id=session_id, responses=[topic])
        self.send(follower, lambda: self._answered(follower, request, response))

    def _read(self, leader: Node, request: FetchRequest, asked: Asked) -> PartitionData:
        try:
            return self._read_or_raise(leader, request, asked)
        except ApiError as error:
            return PartitionData(error_code=int(error.code), high_watermark=-1, records=b"")

    def _read_or_raise(self, leader: Node, request: FetchRequest, asked: Asked) -> PartitionData:
        leadership, log, state = leader.leadership, leader.log, request.replica_state
        if leadership is None:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.plan.flaw is not Flaw.NO_EPOCH_CHECK:
            _check_epoch(asked.current_leader_epoch, leader.leader_epoch)
            apart = diverging(log, asked.fetch_offset, asked.last_fetched_epoch)
            if apart is not None:
                ends = EpochEndOffset(epoch=apart[0], end_offset=apart[1])
                return PartitionData(diverging_epoch=ends, high_watermark=99, records=b"")
        now_ms, end = self.clock.monotonic_ms(), log.log_end_offset
        found = log.read(asked.fetch_offset, max_bytes=asked.max_bytes, upper_offset=end)
        assert state is not None
        follower = BrokerId(state.replica_id)
        position = FetchPosition(asked.fetch_offset, 0, BrokerEpoch(state.replica_epoch))
        leadership.record_fetch(follower, position, end, now_ms)
        self._submit(leader, leadership, leadership.propose_expand(follower))
        return PartitionData(
            high_watermark=leadership.high_watermark,
            log_start_offset=log.log_start_offset,
            records=found.read_blocking(),
        )

    # Changing the ISR.

    def check_lag(self, leader: Node) -> None:
        leadership = leader.leadership
        if leadership is None:
            return
        proposal = leadership.propose_shrink(self.clock.monotonic_ms())
        self._submit(leader, leadership, proposal)
        if proposal is not None and self.plan.flaw is Flaw.SHRINK_UNCONFIRMED:
            leadership.isr.pending = None
            leadership.isr.committed = frozenset(proposal.isr)
            leadership.advance(self.clock.monotonic_ms())

    def _submit(self, leader: Node, leadership: Leadership, proposal: IsrProposal | None) -> None:
        if proposal is None:
            return

        def at_controller() -> None:
            answer = self.controller.alter(proposal)
            self.send(leader, lambda: settled(answer))

        def settled(answer: IsrAnswer) -> None:
            if leader.leadership is leadership:
                outcome = leadership.settle(proposal, answer, self.clock.monotonic_ms())
                if outcome is Settled.RETRY:
                    self._submit(leader, leadership, proposal)

        self.messages.append(at_controller)
        del self.messages[:-MESSAGES_MAX]

    def give_up_proposal(self, leader: Node) -> None:
        leadership = leader.leadership
        if leadership is None or leadership.isr.pending is None:
            return
        proposal = leadership.isr.pending
        if leadership.isr.lost(proposal) is Settled.RETRY:
            self._submit(leader, leadership, proposal)

    # Promises.

    def _demand_committed(self, node: Node, epoch: int) -> None:
        # One who hears late of a term that is over will commit nothing in it.
        before = self.committed[: sum(term < epoch for term in self.committed_in)]
        if node.log.log_end_offset < len(before) or not _agree(node.values(), before):
            raise BrokenPromiseError(
                f"node {node.broker_id} leads in epoch {epoch} without all that was committed: "
                f"it has {node.values()}, committed are {before}"
            )

    def observe(self) -> None:
        """Look at what a client could see now."""
        for node in self.nodes:
            if node.leadership is not None:
                self._observe_leader(node, node.leadership)

    def _observe_leader(self, node: Node, leadership: Leadership) -> None:
        high_watermark = leadership.high_watermark
        seen = (node.leader_epoch, high_watermark)
        if self._observed.get(node.broker_id) == seen:
            return
        self._observed[node.broker_id] = seen
        values = node.values()
        if not _agree(values, self.committed[:high_watermark]):
            raise BrokenPromiseError(
                f"what was committed has changed: {self.committed} to {values}"
            )
        for offset in range(len(self.committed), high_watermark):
            self.committed.append(values[offset])
            self.committed_in.append(node.leader_epoch)
        if leadership.knows_high_watermark:
            before = [told for epoch, told in self.told.items() if epoch <= node.leader_epoch]
            if before and high_watermark < max(before):
                raise BrokenPromiseError(
                    f"the high watermark went back to {high_watermark}: {self.told}"
                )
            self.told[node.leader_epoch] = high_watermark

    # The end.

    def heal(self) -> None:
        """Let everything work again, and demand that it becomes whole."""
        for node in self.nodes:
            self.notice(node)
        for node in self.nodes:
            self.restart(node)
            self.rejoin(node)
            self.give_up_fetch(node)
        self._run_healthy()
        leader = self.nodes[self.controller.now.partition.leader]
        self.produce(leader)
        self._run_healthy()
        if len(self.committed) != leader.log.log_end_offset:
            raise BrokenPromiseError("the last record was never committed")

    def _run_healthy(self) -> None:
        for _ in range(HEALING_ROUNDS):
            for node in self.nodes:
                self.apply_view(node)
                self.flush(node)
                self.fetch(node)
                self.give_up_proposal(node)
            while self.messages:
                self.deliver()
            self.clock.advance(BACKOFF_MS)
            self.observe()
            if self._is_whole():
                return
        raise BrokenPromiseError(f"it does not become whole: {self._describe()}")

    def _is_whole(self) -> bool:
        leader = self.nodes[self.controller.now.partition.leader]
        end = leader.log.log_end_offset
        return (
            set(self.controller.now.partition.isr) == set(NODES)
            and leader.leadership is not None
            and all(node.high_watermark == end for node in self.nodes)
            and all(node.log.log_end_offset == end for node in self.nodes)
            and all(_agree(node.values(), self.committed) for node in self.nodes)
        )

    def _describe(self) -> str:
        ends = [(node.broker_id, node.log, node.high_watermark) for node in self.nodes]
        return f"{ends}, {self.controller.now.partition}"


def _agree(values: dict[int, bytes | None], committed: list[bytes | None]) -> bool:
    """Whether a log has nothing but what was committed, as far as that reaches."""
    return all(
        value == committed[offset] for offset, value in values.items() if offset < len(committed)
    )


def _check_epoch(asked: int, own: int) -> None:
    """Rule A4."""
    if asked < own:
        raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
    if asked > own:
        raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
