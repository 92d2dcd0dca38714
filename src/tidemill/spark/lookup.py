"""What a query's driver asks of the brokers: topics, ends of partitions, times, sizes.

`Lookup` is what the planner sees; `BrokerLookup` asks real brokers. One connection lives as long as
the query does, outlives brokers that restart, and says what is not there by leaving it out.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from tidemill.client.admin_types import ListedOffset, OffsetSpec, Results, TopicDescription
from tidemill.client.blocking import Admin
from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.clock import Clock, SystemClock
from tidemill.errors import ErrorCode
from tidemill.spark.connecting import started
from tidemill.spark.options import Assign, SourceOptions, SubscribePattern
from tidemill.types import ZERO_TOPIC_ID, TopicPartition

logger = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

SIZES_CACHE_MS: Final = 30_000
COMMIT_LIMIT_MS: Final = 2_000
"""How long a commit may take: the next batch waits for it."""

_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


class Topic(NamedTuple):
    """A topic that there is; `topic_id` is empty where the brokers do not tell."""

    name: str
    topic_id: str
    partitions: tuple[int, ...]


class Lookup(Protocol):
    """What the planner wants to know; whatever is not there is missing from the answers."""

    def names(self) -> list[str]:
        """All topics of the cluster, for advice."""
        ...

    def topics(self, *, afresh: bool = False) -> Mapping[str, Topic]:
        """The topics of the subscription with their partitions; by default a moment old."""
        ...

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]: ...

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset at or after each time; None where there is no record that late."""
        ...

    def log_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """How large the partitions are on disk, as far as the brokers tell."""
        ...

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Does not take long: a coordinator that does not answer soon is an error."""
        ...

    def close(self) -> None: ...


class BrokerLookup:
    """A `Lookup` that asks brokers; connects with the first question."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self._pause = pause
        self._running: Admin | None = None
        self._committing: Admin | None = None
        self._topics: tuple[int, dict[str, Topic]] | None = None
        self._sizes: dict[TopicPartition, int] = {}
        self._sizes_until_ms = 0

    def names(self) -> list[str]:
        return [each.name for each in self._admin().list_topics()]

    def topics(self, *, afresh: bool = False) -> Mapping[str, Topic]:
        now_ms = self._clock.monotonic_ms()
        if afresh or self._topics is None or now_ms >= self._topics[0]:
            self._topics = (now_ms + self._options.metadata_cache_ms, self._ask_topics())
        return self._topics[1]

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ends(partitions, OffsetSpec.EARLIEST)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ends(partitions, OffsetSpec.LATEST)

    def at_times(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        specs = {partition: OffsetSpec.at_time(ms) for partition, ms in times_ms.items()}
        found = _there(self._listed(specs))
        return {tp: at.offset if at.offset >= 0 else None for tp, at in found.items()}

    def log_bytes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        stale = self._clock.monotonic_ms() >= self._sizes_until_ms
        if stale or not all(partition in self._sizes for partition in wanted):
            self._sizes = self._ask_sizes(wanted)
            self._sizes_until_ms = self._clock.monotonic_ms() + SIZES_CACHE_MS
        return {tp: self._sizes[tp] for tp in wanted if self._sizes.get(tp)}

    def commit(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self._committing is None:
            options = self._options
            limit_ms = min(COMMIT_LIMIT_MS, options.api_timeout_ms)
            limits = {"default.api.timeout.ms": limit_ms, "request.timeout.ms": limit_ms}
            settings: dict[str, Any] = {**options.common_settings, **limits}
            self._committing = started(
                lambda: Admin(options.bootstrap, **settings),
                limit_ms,
                clock=self._clock,
                pause=self._pause,
            )
        self._committing.alter_group_offsets(group, offsets).raise_first()

    def close(self) -> None:
        clients = (self._running, self._committing)
        self._running = self._committing = None
        for client in clients:
            if client is not None:
                client.close()

    # --- asking ----------------------------------------------------------------------------------

    def _admin(self) -> Admin:
        """The connection, from the first question on."""
        if self._running is None:
            self._running = started(
                lambda: Admin(self._options.bootstrap, **self._options.common_settings),
                self._options.api_timeout_ms,
                clock=self._clock,
                pause=self._pause,
            )
        return self._running

    def _ask_topics(self) -> dict[str, Topic]:
        subscription = self._options.subscription
        if isinstance(subscription, SubscribePattern):
            matches = re.compile(subscription.pattern).fullmatch
            # Whoever reads its own dead letters refuses them again, without end.
            letters = self._options.columns.dead_letter_topic
            return self._described(
                [name for name in self.names() if matches(name) and name != letters]
            )
        if isinstance(subscription, Assign):
            found = self._described(subscription.partitions)
            return {
                name: _only(topic, subscription.partitions[name]) for name, topic in found.items()
            }
        return self._described(subscription.topics)

    def _described(self, names: Iterable[str]) -> dict[str, Topic]:
        described = self._admin().describe_topics(sorted(names))
        return {name: _topic(found) for name, found in sorted(_there(described).items())}

    def _ends(
        self, partitions: Iterable[TopicPartition], which: OffsetSpec
    ) -> dict[TopicPartition, int]:
        found = _there(self._listed(dict.fromkeys(partitions, which)))
        return {tp: listed.offset for tp, listed in found.items()}

    def _listed(
        self, specs: Mapping[TopicPartition, OffsetSpec]
    ) -> Results[TopicPartition, ListedOffset]:
        return self._admin().list_offsets(specs, isolation_level=self._options.isolation_level)

    def _ask_sizes(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """The leader's copy is as large as any; who may not ask gets no answer, and needs none."""
        sizes: dict[TopicPartition, int] = dict.fromkeys(partitions, 0)
        try:
            answers = self._admin().describe_log_dirs(None, partitions)
        except ClientError as error:
            logger.info("sizes are not known: %s", error)
            return sizes
        for directories in answers.successes().values():
            for directory in directories.values():
                for partition, replica in directory.replicas.items():
                    sizes[partition] = max(sizes.get(partition, 0), replica.size_bytes)
        return sizes


def _there(answers: Results[K, V]) -> dict[K, V]:
    """What there is; an error that is no "there is none" is raised."""
    for error in answers.errors().values():
        if error.code not in _NOT_THERE:
            raise error
    return answers.successes()


def _topic(found: TopicDescription) -> Topic:
    topic_id = "" if found.topic_id == ZERO_TOPIC_ID else str(found.topic_id)
    return Topic(found.name, topic_id, tuple(sorted(each.index for each in found.partitions)))


def _only(topic: Topic, partitions: Iterable[int]) -> Topic:
    return topic._replace(partitions=tuple(each for each in partitions if each in topic.partitions))
