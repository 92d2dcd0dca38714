"""What settings promise: from a producer's, a consumer's and a topic's settings to what may happen.

`expect` is a pure function. For each way in which a cluster can be hurt it says, mishap by mishap,
whether the settings allow it or rule it out, and why. `tidemill validate` compares that with
what did happen; a test holds the table.

A mishap is seen from the log as it is when everything is healed:

* lost: an acknowledged record is not in it; duplicated: a record is in it twice;
* reordered: a record stands behind one that its producer sent later;
* undelivered: a record is in it that the consumers never got; redelivered: they got it twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import NamedTuple

from tidemill.client.settings import ConsumerSettings, ProducerSettings
from tidemill.testing.anomalies import Promise


class Scenario(StrEnum):
    """The ways in which the cluster is hurt; each time it is healed afterwards."""

    LEADER_KILL = "leader-kill"
    CONTROLLER_KILL = "controller-kill"
    ROLLING_RESTART = "rolling-restart"
    UNCLEAN_ELECTION = "unclean-election"


MEANINGS: dict[Scenario, str] = {
    Scenario.LEADER_KILL: "SIGKILL to the broker that leads partition 0; it comes back later",
    Scenario.CONTROLLER_KILL: "SIGKILL to the controller; it comes back later",
    Scenario.ROLLING_RESTART: "every broker is stopped in good order and started again, in turn",
    Scenario.UNCLEAN_ELECTION: "one broker misses some records; then the others are killed, and "
    "only that one is there until they come back",
}


class Commits(StrEnum):
    """When a consumer commits what it has read."""

    AUTO = "auto"
    """The client does it: what earlier polls returned, every `auto.commit.interval.ms`."""
    AFTER = "after"
    """The program does it once it has worked on the records."""
    BEFORE = "before"
    """The program does it as soon as it has the records, before it works on them."""
    NEVER = "never"
    """There is no group: the consumer alone knows where it is."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What a topic adds to the promise; the defaults are the safe ones."""

    partitions: int = 3
    replication_factor: int = 3
    min_insync_replicas: int = 2
    unclean_leader_election_enable: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a promise depends on."""

    producer: ProducerSettings = field(default_factory=ProducerSettings)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    topic: TopicSettings = TopicSettings()
    commits: Commits = Commits.NEVER

    @property
    def acks(self) -> str:
        return "all" if self.producer.acks == "-1" else self.producer.acks

    @property
    def is_replicated(self) -> bool:
        return self.topic.replication_factor > 1


def commits_of(consumer: ConsumerSettings, by_hand: Commits = Commits.AFTER) -> Commits:
    """When a consumer with these settings commits; `by_hand` is what its program does."""
    if not consumer.group_id:
        return Commits.NEVER
    return Commits.AUTO if consumer.enable_auto_commit else by_hand


class Clause(NamedTuple):
    """Whether a mishap may happen, and which settings say so."""

    may_happen: bool
    why: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the settings say to each mishap."""

    lost: Clause
    duplicated: Clause
    reordered: Clause
    undelivered: Clause
    redelivered: Clause

    @classmethod
    def mishaps(cls) -> tuple[str, ...]:
        return tuple(each.name for each in fields(cls))

    def of(self, mishap: str) -> Clause:
        found: Clause = getattr(self, mishap)
        return found

    def promise(self, setup: Setup) -> Promise:
        """The same as the history checker wants it."""
        return Promise(
            durable=not self.lost.may_happen,
            idempotent=not self.duplicated.may_happen,
            single_in_flight=not self.reordered.may_happen,
            read_committed=setup.consumer.isolation_level == "read_committed",
            subscribe=setup.commits is not Commits.NEVER,
        )


def expect(setup: Setup, scenario: Scenario) -> Expectation:
    """What may happen to records of this set-up when the cluster is hurt in this way."""
    lost = _loss(setup, scenario)
    return Expectation(
        lost=lost,
        duplicated=_duplication(setup),
        reordered=_reordering(setup),
        undelivered=_skipping(setup, lost),
        redelivered=_repeating(setup, lost),
    )


def _may(why: str) -> Clause:
    return Clause(True, why)


def _never(why: str) -> Clause:
    return Clause(False, why)


def _loss(setup: Setup, scenario: Scenario) -> Clause:
    topic = setup.topic
    if setup.acks == "0":
        return _may("acks=0: nobody tells the producer whether a record arrived")
    if not setup.is_replicated:
        return _never("replication factor 1: the only copy is on a disk that outlives its process")
    if _can_elect_uncleanly(topic, scenario):
        return _may(
            "unclean.leader.election.enable=true: a replica that lacks acknowledged records may "
            "become leader"
        )
    if setup.acks == "1":
        return _may("acks=1: the leader acknowledges what no other replica has yet")
    if topic.unclean_leader_election_enable:
        return _never(f"acks=all, min.insync.replicas={topic.min_insync_replicas}")
    return _never("acks=all, unclean.leader.election.enable=false")


def _can_elect_uncleanly(topic: TopicSettings, scenario: Scenario) -> bool:
    """Whether the last replica in sync may be gone. Where a record is acknowledged by two or more,
    the death of one broker leaves another that has it."""
    if not topic.unclean_leader_election_enable:
        return False
    return scenario is Scenario.UNCLEAN_ELECTION or topic.min_insync_replicas == 1


def _duplication(setup: Setup) -> Clause:
    if setup.producer.enable_idempotence:
        return _never("enable.idempotence=true")
    if setup.producer.retries == 0:
        return _never("retries=0")
    return _may("enable.idempotence=false: a retry may write again what was written already")


def _reordering(setup: Setup) -> Clause:
    producer = setup.producer
    if producer.enable_idempotence:
        return _never("enable.idempotence=true")
    if producer.retries == 0:
        return _never("retries=0")
    in_flight = f"{_IN_FLIGHT}={producer.max_in_flight_requests_per_connection}"
    if producer.max_in_flight_requests_per_connection == 1:
        return _never(in_flight)
    return _may(
        f"{in_flight} with retries and without idempotence: a later batch may overtake one that "
        "is sent again"
    )


def _skipping(setup: Setup, lost: Clause) -> Clause:
    if setup.commits is Commits.BEFORE:
        return _may("offsets are committed before the records are worked on")
    reset = setup.consumer.auto_offset_reset
    if setup.commits is not Commits.NEVER and reset not in ("earliest", "none", "error"):
        where = "at its end" if reset == "latest" else "with its last records"
        return _may(
            f"auto.offset.reset={reset}: a member that takes a partition over before the first "
            f"commit starts {where}"
        )
    return _given_out_again(setup, lost) or _never(_COMMITTED[setup.commits])


def _repeating(setup: Setup, lost: Clause) -> Clause:
    if setup.commits is Commits.AUTO:
        interval_ms = setup.consumer.auto_commit_interval_ms
        return _may(
            f"enable.auto.commit=true: what was read since the last commit ({interval_ms} ms) is "
            "read again after a rebalance"
        )
    if setup.commits is Commits.AFTER:
        return _may(f"{_COMMITTED[Commits.AFTER]}: those that were not are read again")
    return _given_out_again(setup, lost) or _never(_COMMITTED[setup.commits])


_IN_FLIGHT = "max.in.flight.requests.per.connection"
_COMMITTED = {
    Commits.AUTO: "enable.auto.commit=true: what was polled before is committed",
    Commits.AFTER: "offsets are committed after the records were worked on",
    Commits.BEFORE: "offsets are committed before the records are worked on",
    Commits.NEVER: "no group.id: one consumer reads on from where it is",
}


def _given_out_again(setup: Setup, lost: Clause) -> Clause | None:
    """Records that vanish leave offsets that are given to others, behind a consumer's back."""
    if not lost.may_happen or not setup.is_replicated:
        return None
    return _may(f"{lost.why.partition(':')[0]}: offsets of records that vanish are given out again")


def remarks(setup: Setup) -> list[str]:
    """What the settings risk or cost beyond what killed processes can show."""
    topic, producer = setup.topic, setup.producer
    found = []
    if not setup.is_replicated:
        found.append(
            "replication factor 1: a partition is away while its broker is down, and gone with "
            "its disk"
        )
    elif setup.acks == "all" and topic.min_insync_replicas == 1:
        found.append(
            "min.insync.replicas=1: a record may be acknowledged with a single copy; killed "
            "processes do not show that, a lost disk would"
        )
    elif topic.min_insync_replicas == topic.replication_factor and setup.acks == "all":
        found.append(
            f"min.insync.replicas={topic.min_insync_replicas} of {topic.replication_factor}: "
            "nothing can be written with acks=all while one broker is down"
        )
    if setup.acks in ("0", "1") and topic.min_insync_replicas > 1 and setup.is_replicated:
        found.append(f"min.insync.replicas has no effect with acks={setup.acks}")
    if producer.retries == 0:
        found.append("retries=0: records fail whenever a leader changes; the program has to care")
    return found
