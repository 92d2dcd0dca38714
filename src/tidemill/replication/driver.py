"""Copies what one leader leads: the task that sends a follower's fetches and does what they ask.

What to fetch and what an answer means is decided in `follower.py`; here is the I/O around it. There
is one `LeaderDriver` per leader that this broker follows, each with a connection of its own, so a
leader that is slow or gone holds up nobody else's partitions. `_run` is its life: one request at a
time, then its steps, with a turn of the loop in between for every `BYTES_PER_TURN` appended, and
after every cut: a cut makes itself durable before anything else can happen to the log, so it
flushes on the loop. What goes wrong with one partition stays with it (rule D9).

Under flush policy `ack` a fetch may only ask for what is flushed, because asking acknowledges (rule
E7). A request without the partitions that are being flushed could wait at the leader for records
of the others while producers wait for these, so the driver waits for the flushes instead, a little.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from tidemill.client.fetch_session import SESSION_ERRORS
from tidemill.clock import Clock
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.logs import Sparingly
from tidemill.replication.channels import LeaderLink
from tidemill.replication.follower import (
    Advance,
    Append,
    Cut,
    DefectError,
    FindRange,
    FollowedPartition,
    FollowerFetcher,
    Status,
    Step,
    Trouble,
    code_of,
)
from tidemill.replication.partition import Partition
from tidemill.replication.session import TopicIdPartition
from tidemill.replication.throttle import Throttle
from tidemill.types import BrokerId, TopicPartition
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

log = logging.getLogger(__name__)

BYTES_PER_TURN = 1 << 20
"""What is appended before others get their turn of the loop."""
FLUSH_WAIT_MS = 100
"""How long the next request waits for flushes; a disk that takes longer is left out of it."""
UNFLUSHED_FETCH_WAIT_MS = 20
"""How long a request without the partitions being flushed may then wait at the leader."""

_EARLY_NEWS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_EARLY_NEWS_MAX = 5
_LATEST = -1
_EARLIEST = -2


def key_of(partition: Partition) -> TopicIdPartition:
    """How followers and leaders name a partition to each other."""
    return TopicIdPartition(partition.topic_id, partition.topic_partition.partition)


class LeaderDriver:
    """Everything that this broker follows from one leader, kept going by one task."""

    def __init__(
        self,
        broker_id: BrokerId,
        leader_id: BrokerId,
        fetcher: FollowerFetcher,
        link: LeaderLink,
        clock: Clock,
        throttle: Throttle,
    ) -> None:
        self.leader_id = leader_id
        self.fetcher = fetcher
        self._broker_id = broker_id
        self._link = link
        self._clock = clock
        self._throttle = throttle
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._throttled: dict[TopicIdPartition, None] = {}
        """Partitions that are held back while the throttle says so."""
        self._first_cuts: dict[TopicIdPartition, tuple[Step, FollowedPartition | None]] = {}
        """What has to be done before a partition's first fetch, until it is."""
        self._awake = asyncio.Event()
        self._flush_deadline_ms: int | None = None
        self._complaints = Sparingly(clock)
        self._task: asyncio.Task[None] | None = None
        self.requests = 0
        """How many were answered, or given up; a request under way counts when it is over."""

    def __len__(self) -> int:
        return len(self._partitions)

    # Which partitions.

    def follow(self, partition: Partition) -> None:
        """Copy the partition in its present leader epoch; a new epoch starts all over (A8)."""
        key = key_of(partition)
        self._partitions[key] = partition
        for step in self.fetcher.follow(key, partition.copy, partition.leader_epoch):
            self._first_cuts[key] = step, self.fetcher.get(key)
        if self._is_throttled(partition):
            self._throttled[key] = None
        self.wake()

    def unfollow(self, partition: Partition) -> None:
        key = key_of(partition)
        if self._partitions.get(key) is partition:
            del self._partitions[key]
            self.fetcher.unfollow(key)
            self.wake()

    def touch(self, partition: Partition) -> None:
        """The partition's log or settings were changed by somebody else: look at it again."""
        self.fetcher.touch(key_of(partition))
        self.wake()

    def wake(self) -> None:
        self._awake.set()

    # The task.

    def start(self) -> None:
        name = f"copies what {self.leader_id} leads"
        self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def stop(self) -> asyncio.Task[None] | None:
        """End the task; await what is returned to know that it has ended."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._fetch_once()
            except (TidemillError, OSError) as error:
                self._complain("fetching from broker %s failed: %s", self.leader_id, error)
                self._give_up_request()
            except Exception:
                # A mistake of ours must not end replication for good: rest, and start anew.
                log.exception("copying from broker %s failed", self.leader_id)
                self._give_up_request()
                await asyncio.sleep(self.fetcher.settings.backoff_ms / 1000)

    def _give_up_request(self) -> None:
        self.requests += 1
        self.fetcher.request_failed(self._clock.monotonic_ms())

    async def _fetch_once(self) -> None:
        request = await self._next_request()
        response = await self._link.fetch(self.leader_id, request)
        steps = self._take(response)
        self.requests += 1
        ranges = await self._do_in_turns(steps)
        if ranges:
            await self._find_ranges(ranges)

    # Asking.

    async def _next_request(self) -> FetchRequest:
        while True:
            # Before the look at what there is to do: a flush may be over within it.
            self._awake.clear()
            await self._make_first_cuts()
            request = self._request_if_ready()
            if request is not None:
                return request
            await self._sleep_until(self._due_ms())

    async def _make_first_cuts(self) -> None:
        """Cut what has to be before its first fetch; what fails is tried again (rule D3)."""
        for key, first in list(self._first_cuts.items()):
            _, state = first
            if self.fetcher.get(key) is state and state is not None and state.owes_cut:
                if state.is_due(self._clock.monotonic_ms()):
                    await self._do_in_turns([first])
                    await asyncio.sleep(0)
            elif self._first_cuts.get(key) is first:
                del self._first_cuts[key]

    def _request_if_ready(self) -> FetchRequest | None:
        now_ms = self._clock.monotonic_ms()
        self._look_at_throttle(now_ms)
        if not self._flush():
            self._flush_deadline_ms = None
            return self.fetcher.next_request(now_ms)
        if self._flush_deadline_ms is None:
            self._flush_deadline_ms = now_ms + FLUSH_WAIT_MS
        if now_ms < self._flush_deadline_ms:
            return None
        request = self.fetcher.next_request(now_ms)
        if request is not None:
            request.max_wait_ms = min(request.max_wait_ms, UNFLUSHED_FETCH_WAIT_MS)
        return request

    def _flush(self) -> bool:
        """Have everything flushed that cannot be fetched before; False if there is nothing."""
        for key in self.fetcher.unflushed():
            self._partitions[key].request_flush()
        return bool(self.fetcher.unflushed())

    def _due_ms(self) -> int | None:
        """When to look again even if nothing happens."""
        now_ms = self._clock.monotonic_ms()
        if self._flush_deadline_ms is not None and now_ms < self._flush_deadline_ms:
            return self._flush_deadline_ms
        return self.fetcher.ready_at_ms(now_ms)

    async def _sleep_until(self, due_ms: int | None) -> None:
        delay_s = None
        if due_ms is not None:
            delay_s = max(1, due_ms - self._clock.monotonic_ms()) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._awake.wait()

    # The throttle: replicas that are catching up keep to it, others are never held back.

    def _look_at_throttle(self, now_ms: int) -> None:
        wait_ms = self._throttle.wait_ms() if self._throttled else 0
        for key in list(self._throttled):
            partition = self._partitions.get(key)
            if partition is not None and self._is_throttled(partition):
                self.fetcher.rest(key, now_ms + wait_ms)
            else:
                del self._throttled[key]
                self.fetcher.rest(key, now_ms)

    def _is_throttled(self, partition: Partition) -> bool:
        return self._broker_id not in partition.isr and self._is_chosen(partition)

    def _is_chosen(self, partition: Partition) -> bool:
        index = partition.topic_partition.partition
        return partition.settings.follower_throttled.has(index, self._broker_id)

    # Answers.

    def _take(self, response: FetchResponse) -> list[tuple[Step, FollowedPartition | None]]:
        steps = self.fetcher.take(response, self._clock.monotonic_ms())
        if response.error_code and response.error_code not in SESSION_ERRORS:
            self._complain(
                "broker %s refused a fetch with error %d", self.leader_id, response.error_code
            )
        return [(step, self.fetcher.get(step.key)) for step in steps]

    async def _do_in_turns(
        self, steps: list[tuple[Step, FollowedPartition | None]]
    ) -> list[FindRange]:
        """Do the steps, and let others run in between; the questions among them are returned."""
        ranges: list[FindRange] = []
        in_turn_bytes = 0
        for step, state in steps:
            if in_turn_bytes >= BYTES_PER_TURN:
                in_turn_bytes = 0
                await asyncio.sleep(0)
            if self.fetcher.get(step.key) is not state:
                continue  # Meanwhile another epoch has begun, or it is not followed any more.
            in_turn_bytes += _cost_bytes(step)
            if isinstance(step, FindRange):
                ranges.append(step)
            else:
                self._do(step)
        return ranges

    def _do(self, step: Step) -> None:
        """Whatever it raises, this partition waits or is given up; others go on (rule D9)."""
        partition = self._partitions[step.key]
        try:
            self._do_to(partition, step)
        except Exception as error:  # noqa: BLE001 - it is logged, and the partition's alone
            trouble = self.fetcher.write_failed(step.key, error, self._clock.monotonic_ms())
            if trouble is not None:
                self._report(partition, trouble)

    def _do_to(self, partition: Partition, step: Step) -> None:
        match step:
            case Append(_, fetched, high_watermark, log_start_offset):
                partition.append_copied(fetched, high_watermark, log_start_offset)
                self._count(partition, len(fetched.records))
            case Advance(_, high_watermark, log_start_offset):
                partition.follow_leader(high_watermark, log_start_offset)
            case Cut():
                self._cut(partition, step)
            case Trouble():
                self._report(partition, step)
            case FindRange():
                raise AssertionError("a question is asked, not done")

    def _count(self, partition: Partition, size_bytes: int) -> None:
        if self._is_chosen(partition):
            self._throttle.take(size_bytes)

    def _cut(self, partition: Partition, step: Cut) -> None:
        end_before = partition.log.log_end_offset
        loses_committed = partition.cut(step.decision)
        say = log.error if loses_committed else log.info
        say(
            "%s was cut from offset %d to %d, following broker %d in epoch %d%s",
            partition.topic_partition, end_before, partition.log.log_end_offset,
            self.leader_id, step.leader_epoch,
            ": committed records were lost in an unclean election" if loses_committed else "",
        )  # fmt: skip
        self.fetcher.cut_done(step.key, step.leader_epoch)

    def _report(self, partition: Partition, trouble: Trouble) -> None:
        name = partition.topic_partition
        if isinstance(trouble.error, DefectError):
            # Never sparingly: it is a mistake of ours, and somebody has to hear of it.
            log.error("copying %s failed, and is tried again", name, exc_info=trouble.error)
        elif trouble.status is Status.FAILED:
            log.error("%s is not copied any more: %s", name, trouble.error)
        elif trouble.status is Status.FENCED:
            log.info("%s waits for news of its leader", name)
        elif self._is_early(trouble):
            log.debug("%s is fetched again in a moment: %s", name, trouble.error)
        else:
            self._complain("%s is fetched again after a while: %s", name, trouble.error)

    def _is_early(self, trouble: Trouble) -> bool:
        """Whether the leader has probably not heard yet of what we have heard."""
        state = self.fetcher.get(trouble.key)
        is_early = isinstance(trouble.error, ApiError) and trouble.error.code in _EARLY_NEWS
        return is_early and state is not None and state.errors <= _EARLY_NEWS_MAX

    def _complain(self, message: str, *about: object) -> None:
        """A line now and then: a leader that died has thousands of partitions."""
        held_back = self._complaints.ask()
        if held_back is not None:
            log.warning(message + "%s", *about, held_back)

    # Where the leader's logs start and end (rule D7).

    async def _find_ranges(self, steps: list[FindRange]) -> None:
        starts = await self._offsets(steps, _EARLIEST)
        ends = await self._offsets(steps, _LATEST)
        for step in steps:
            found = self._range_found(step, starts.get(step.key), ends.get(step.key))
            if found is not None and step.key in self._partitions:
                self._do(found)
                if isinstance(found, Cut):
                    await asyncio.sleep(0)

    async def _offsets(
        self, steps: list[FindRange], place: int
    ) -> dict[TopicIdPartition, ListOffsetsPartitionResponse]:
        """The leader's answers; nothing where it gave none: nothing is cut on a guess."""
        names = {
            partition.topic_partition: step
            for step in steps
            if (partition := self._partitions.get(step.key)) is not None
        }
        topics: dict[str, ListOffsetsTopic] = {}
        for (name, index), step in names.items():
            topic = topics.setdefault(name, ListOffsetsTopic(name=name))
            topic.partitions.append(
                ListOffsetsPartition(
                    partition_index=index, current_leader_epoch=step.leader_epoch, timestamp=place
                )
            )
        request = ListOffsetsRequest(replica_id=self._broker_id, topics=list(topics.values()))
        try:
            response: ListOffsetsResponse = await self._link.list_offsets(self.leader_id, request)
        except (TidemillError, OSError) as error:
            self._complain("broker %s does not say what it has: %s", self.leader_id, error)
            return {}
        answers = {
            TopicPartition(topic.name, answer.partition_index): answer
            for topic in response.topics
            for answer in topic.partitions
        }
        return {step.key: answers[name] for name, step in names.items() if name in answers}

    def _range_found(
        self,
        step: FindRange,
        start: ListOffsetsPartitionResponse | None,
        end: ListOffsetsPartitionResponse | None,
    ) -> Step | None:
        """What to do now; nothing if another epoch has begun meanwhile."""
        fetcher, now_ms = self.fetcher, self._clock.monotonic_ms()
        if start is None or end is None:
            code = ErrorCode.REQUEST_TIMED_OUT
            return fetcher.range_not_found(step.key, step.leader_epoch, code, now_ms)
        if start.error_code or end.error_code:
            code = code_of(start.error_code or end.error_code)
            return fetcher.range_not_found(step.key, step.leader_epoch, code, now_ms)
        return fetcher.range_found(step.key, step.leader_epoch, start.offset, end.offset, now_ms)


def _cost_bytes(step: Step) -> int:
    """What a step takes of its turn of the loop: a cut takes all of it, for it flushes."""
    match step:
        case Cut():
            return BYTES_PER_TURN
        case Append(_, fetched):
            return len(fetched.records) if fetched.starts_over_at is None else BYTES_PER_TURN
    return 0
