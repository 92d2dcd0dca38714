"""A group that never comes to rest: members come, go, are killed and paused while records flow.

Start reading at `Churn.run`. Members are processes (`group_member.py`); a seeded schedule decides
what happens to whom. Afterwards the diaries of all members are held against what was produced:
everything processed, nothing twice but for a reason, nobody left out.

A record may be processed twice when a member that had processed it was disturbed before it could
commit: in the commit interval before it was killed or paused. Cooperative members go on reading
during a rebalance, and some clients cannot commit then, not even to say goodbye; so only time in
which the group was at rest counts (`Unrest`). One who leaves while it is at rest has no excuse. A
member that was paused for longer than its session may also go on with what it had fetched until it
hears that it is out. Every duplicate must lie in such a window (`Churn._is_excused`); everything
else is a fault.

One client has an excuse of its own: kafka-python (3.0.12) goes on from where it was, and not from
what is committed, in a partition that it had before and has again, although another member had it
in a generation that it missed (`_never_noticed`). It does so whatever the broker is.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.group_member import HEARTBEAT_MS, Diary, Place, Plan, Seen, spawn

from tidemill.client import Admin, ClientError
from tidemill.client.admin_groups import GroupDescription

TOPICS = ("churn-a", "churn-b", "churn-c")
PARTITIONS = 12
PLACES: frozenset[Place] = frozenset((topic, p) for topic in TOPICS for p in range(PARTITIONS))
MEMBERS = 8
CALM_MEMBERS_MIN = 3
RECORDS_PER_S = 400
DRAIN_LIMIT_S = 60
STARTING_S = 3.0
LEAVING_S = 0.5
SAMPLE_S = 0.05
LEAVE_LIMIT_S = 30
SLACK_S = 0.75
"""A commit takes time, and so does a loaded machine to let a member have its turn."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a member of a flavour is."""

    client: str
    protocol: str = "classic"
    strategy: str = "range"


@dataclass(frozen=True, slots=True)
class Rules:
    """How long, how hard."""

    seconds: float
    seed: int
    session_ms: int = 6_000
    commit_ms: int = 1_000
    pause_between_s: tuple[float, float] = (1.0, 4.0)


@dataclass(slots=True)
class Disruption:
    """Something that was done to a member; `end` is when a paused one went on."""

    what: str
    start: float
    end: float


@dataclass(slots=True)
class Member:
    """One process in the group, and what was done to it."""

    plan: Plan
    process: subprocess.Popen[bytes]
    diary: Diary
    disruptions: list[Disruption] = field(default_factory=list)
    paused_until: float | None = None

    @property
    def name(self) -> str:
        return self.plan.name

    def pause(self, seconds: float) -> None:
        self.process.send_signal(signal.SIGSTOP)
        now = time.monotonic()
        self.paused_until = now + seconds
        self.disruptions.append(Disruption("pause", now, now + seconds))

    def resume(self) -> None:
        self.paused_until = None
        self.disruptions[-1].end = time.monotonic()
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        now = time.monotonic()
        self.disruptions.append(Disruption("kill", now, now))
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        now = time.monotonic()
        self.disruptions.append(Disruption("leave", now, now))
        self.process.terminate()

    def complaints(self) -> str:
        return Path(f"{self.plan.diary}.err").read_text()[-2000:]


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of it."""

    produced: int
    processed: int
    duplicates: int
    duplicates_allowed: int
    disruptions: dict[str, int]
    rebalances: int
    stable_s: float
    missed_s: float

    def __str__(self) -> str:
        done = ", ".join(f"{count} x {what}" for what, count in sorted(self.disruptions.items()))
        return (
            f"{self.produced} records produced, {self.processed} processed, {self.duplicates} "
            f"duplicates (at most {self.duplicates_allowed}); {done}; {self.rebalances} "
            f"rebalances seen; stable {self.stable_s:.2f} s after the last change, of which "
            f"{self.missed_s:.2f} s until the last one killed was missed"
        )


class Unrest:
    """Looks at the group again and again, and remembers when it was not at rest."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._samples: list[tuple[float, bool]] = []
        self._where = bootstrap, group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        watcher = Watcher(*self._where)
        while not self._stop.wait(SAMPLE_S):
            try:
                at_rest = watcher.describe().state == "Stable"
            except ClientError:
                at_rest = False  # There is no such group yet.
            self._samples.append((time.monotonic(), at_rest))
        watcher.close()

    def rest_between(self, start: float, end: float) -> float:
        """Seconds of rest in this time."""
        rest_s = 0.0
        for (before, _), (now, at_rest) in itertools.pairwise(self._samples):
            if at_rest and now > start and before < end:
                rest_s += min(now, end) - max(before, start)
        return rest_s

    def at(self, moment: float) -> bool:
        """Whether the group was not at rest then, or right before or after."""
        near = [now for at, now in self._samples if abs(at - moment) <= LEAVING_S]
        return not all(near)

    @property
    def rebalances(self) -> int:
        """How often rest was followed by unrest, as far as it was seen."""
        return sum(was and not now for (_, was), (_, now) in itertools.pairwise(self._samples))


class Load:
    """A steady stream over all partitions, and where each record went."""

    def __init__(self, bootstrap: str) -> None:
        self.written: set[Seen] = set()
        self.failed: list[object] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(DRAIN_LIMIT_S) == 0, "records were not acked"
        assert not self.failed, self.failed[:3]

    def _run(self) -> None:
        places, number, begin = sorted(PLACES), 0, time.monotonic()
        while not self._stop.is_set():
            while number < (time.monotonic() - begin) * RECORDS_PER_S:
                topic, partition = places[number % len(places)]
                self._producer.produce(
                    topic, b"%d" % number, partition=partition, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0.02)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.written.add((message.topic(), message.partition(), message.offset()))


class Watcher:
    """Asks the broker about the group."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self._group = group
        self._runner = asyncio.Runner()
        self._admin = Admin(bootstrap)
        self._runner.run(self._admin.start())

    def close(self) -> None:
        self._runner.run(self._admin.close())
        self._runner.close()

    def describe(self) -> GroupDescription:
        found = self._runner.run(self._admin.describe_groups([self._group]))
        return found.raise_first()[self._group]


def unrest(group: GroupDescription, names: set[str], places: frozenset[Place]) -> str:
    """Why this group is not the one we wait for; empty when it is."""
    if group.state != "Stable":
        return f"it is {group.state}"
    if (present := sorted(member.client_id for member in group.members)) != sorted(names):
        return f"its members are {present}"
    owned = [tuple(tp) for member in group.members for tp in member.assignment]
    if len(owned) != len(set(owned)):
        return "a partition has two owners"
    if set(owned) != places:
        return f"nobody has {sorted(places - set(owned))}"
    return ""


def eventually(why_not: Callable[[], str], within_s: float) -> float:
    """Wait until there is no reason left; how long that took."""
    begin = time.monotonic()
    while reason := why_not():
        waited = time.monotonic() - begin
        assert waited < within_s, f"not within {within_s:.1f} s: {reason}"
        time.sleep(0.05)
    return time.monotonic() - begin


def churn_settings(session_ms: int, heartbeat_ms: int = HEARTBEAT_MS) -> dict[str, str]:
    """A broker whose groups of the newer protocol are as quick as the classic ones here."""
    return {
        "group.initial.rebalance.delay.ms": "200",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.heartbeat.interval.ms": str(heartbeat_ms),
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.assignment.interval.ms": "0",
        "offsets.topic.num.partitions": "5",
    }


def create_topics(bootstrap: str, topics: Sequence[str], partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(t, partitions, -1) for t in topics]).values():
        future.result(10)


class Churn:
    """One run of one flavour."""

    def __init__(self, bootstrap: str, folder: Path, kinds: Sequence[Kind], rules: Rules) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._kinds = kinds
        self._rules = rules
        self._chance = random.Random(rules.seed)
        self._group = "churned"
        self._started = 0
        self._live: list[Member] = []
        self._gone: list[Member] = []
        self._counts: dict[str, int] = defaultdict(int)
        self._stable_s = self._missed_s = 0.0

    # --- the run ---------------------------------------------------------------------------------

    def run(self) -> Figures:
        create_topics(self._bootstrap, TOPICS, PARTITIONS)
        load = Load(self._bootstrap)
        watcher = Watcher(self._bootstrap, self._group)
        self._unrest = Unrest(self._bootstrap, self._group)
        try:
            for _ in range(MEMBERS):
                self._join()
            load.start()
            self._disturb(time.monotonic() + self._rules.seconds)
            self._come_to_rest(watcher)
            self._everyone_works()
            load.stop()
            self._drain(load.written)
            self._nobody_shares(watcher)
            self._unrest.stop()
            return self._figures(load.written)
        finally:
            self._unrest.stop()
            self._end()
            watcher.close()

    def _disturb(self, until: float) -> None:
        while time.monotonic() < until:
            quiet_s = self._chance.uniform(*self._rules.pause_between_s)
            deadline = min(time.monotonic() + quiet_s, until)
            while time.monotonic() < deadline:
                self._resume_due()
                time.sleep(0.05)
            self._one_change()

    def _one_change(self) -> None:
        """Do something to somebody; whoever goes makes room for whoever comes."""
        calm = [member for member in self._live if member.paused_until is None]
        choices = ["join"] if len(self._live) < MEMBERS else []
        if len(calm) > CALM_MEMBERS_MIN:
            choices += ["leave", "kill", "pause"]
        if not choices:
            return
        what = self._chance.choice(choices)
        self._counts[what] += 1
        if what == "join":
            self._join()
            return
        member = self._chance.choice(calm)
        if what == "pause":
            session_s = self._rules.session_ms / 1000
            member.pause(self._chance.choice([0.3, 0.6, 1.3, 1.6]) * session_s)
            return
        getattr(member, what)()
        self._live.remove(member)
        self._gone.append(member)

    def _join(self) -> None:
        kind = self._kinds[self._started % len(self._kinds)]
        name = f"{kind.client}-{self._started}"
        self._started += 1
        plan = Plan(
            client=kind.client,
            name=name,
            bootstrap=self._bootstrap,
            group=self._group,
            topics=TOPICS,
            diary=str(self._folder / name),
            protocol=kind.protocol,
            strategy=kind.strategy,
            session_ms=self._rules.session_ms,
            commit_ms=self._rules.commit_ms,
        )
        self._live.append(Member(plan, spawn(plan), Diary(Path(plan.diary))))

    def _resume_due(self) -> None:
        for member in self._live:
            if member.paused_until is not None and member.paused_until <= time.monotonic():
                member.resume()

    def _come_to_rest(self, watcher: Watcher) -> None:
        """The last change, and the time until all have their share.

        One who was killed is missed when its session is over; so the time counts from there.
        """
        for member in self._live:
            if member.paused_until is not None:
                member.resume()
        while len(self._live) < MEMBERS:
            self._join()
        names = {member.name for member in self._live}
        session_s = self._rules.session_ms / 1000
        killed = [d.start for m in self._gone for d in m.disruptions if d.what == "kill"]
        owed_s = max([0.0, *(at + session_s - time.monotonic() for at in killed)])
        # Processes that were just started are not members yet.
        limit_s = owed_s + session_s + STARTING_S
        self._stable_s = eventually(lambda: unrest(watcher.describe(), names, PLACES), limit_s)
        self._missed_s = owed_s

    def _everyone_works(self) -> None:
        """Nobody is stranded: each member lives, owns something and processes records."""
        since = time.monotonic()

        def idle() -> str:
            for member in self._live:
                assert member.process.poll() is None, f"{member.name}: {member.complaints()}"
                member.diary.catch_up()
                fresh = [at for at, _ in member.diary.read[-1:] if at > since]
                if not member.diary.owned or not fresh:
                    return f"{member.name} is idle: {member.complaints()}"
            return ""

        eventually(idle, self._rules.session_ms / 1000)

    def _drain(self, written: set[Seen]) -> None:
        def missing() -> str:
            left = written - self._processed()
            return f"{len(left)} records were not processed: {sorted(left)[:5]}" if left else ""

        eventually(missing, DRAIN_LIMIT_S)

    def _processed(self) -> set[Seen]:
        for member in self._live + self._gone:
            member.diary.catch_up()
        return {seen for m in self._live + self._gone for _, seen in m.diary.read}

    def _nobody_shares(self, watcher: Watcher) -> None:
        """What the members themselves think they own, and what the broker thinks, is one."""
        names = {member.name for member in self._live}
        assert unrest(watcher.describe(), names, PLACES) == ""
        owned = [place for member in self._live for place in member.diary.owned]
        assert sorted(owned) == sorted(PLACES)

    def _end(self) -> None:
        for member in self._live + self._gone:
            if member.paused_until is not None:
                member.resume()
            member.leave()
        for member in self._live + self._gone:
            try:
                member.process.wait(LEAVE_LIMIT_S)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    # --- what came of it -------------------------------------------------------------------------

    def _figures(self, written: set[Seen]) -> Figures:
        everyone = self._live + self._gone
        processed = sum(len(member.diary.read) for member in everyone)
        duplicates = self._duplicates(everyone)
        return Figures(
            produced=len(written),
            processed=processed,
            duplicates=duplicates,
            duplicates_allowed=sum(self._in_windows(member) for member in everyone),
            disruptions=dict(self._counts),
            rebalances=self._unrest.rebalances,
            stable_s=self._stable_s,
            missed_s=self._missed_s,
        )

    def _duplicates(self, everyone: Sequence[Member]) -> int:
        """How many there are; each must have its reason."""
        times: dict[Seen, list[tuple[float, Member]]] = defaultdict(list)
        for member in everyone:
            for at, seen in member.diary.read:
                times[seen].append((at, member))
        repeated = {seen: found for seen, found in times.items() if len(found) > 1}
        without_reason = {
            seen: [(round(at, 2), member.name) for at, member in sorted(found, key=_when)]
            for seen, found in repeated.items()
            if not any(self._is_excused(member, at) for at, member in found)
            and not _never_noticed(seen, sorted(found, key=_when))
        }
        assert not without_reason, self._explain(without_reason)
        return sum(len(found) - 1 for found in repeated.values())

    def _is_excused(self, member: Member, at: float) -> bool:
        """Whether what this member processed at that time may be processed by others, too."""
        allowed_s = self._rules.commit_ms / 1000 + SLACK_S
        for disruption in member.disruptions:
            if disruption.what == "leave" and not self._unrest.at(disruption.start):
                continue
            if at <= disruption.start + SLACK_S:
                if self._unrest.rest_between(at, disruption.start) <= allowed_s:
                    return True
            elif disruption.what == "pause" and 0 <= at - disruption.end <= allowed_s:
                return True
        return False

    def _in_windows(self, member: Member) -> int:
        return sum(self._is_excused(member, at) for at, _ in member.diary.read)

    def _explain(self, found: dict[Seen, list[tuple[float, str]]]) -> str:
        lines = [f"{len(found)} records were processed twice without a reason, for example"]
        lines += [f"  {seen}: {times}" for seen, times in list(found.items())[:10]]
        for member in self._live + self._gone:
            done = [(d.what, round(d.start, 2), round(d.end, 2)) for d in member.disruptions]
            lines.append(f"  {member.name}: {done}; {member.complaints()}")
            lines += [f"    {at:.2f} {len(owned)}" for at, owned in member.diary.assigned]
        return "\n".join(lines)


def _when(entry: tuple[float, Member]) -> float:
    return entry[0]


def _never_noticed(seen: Seen, found: Sequence[tuple[float, Member]]) -> bool:
    """Whether it was read again by a kafka-python that thinks that it had the partition all the
    time, also when the other one read it."""
    place = seen[:2]
    (first_at, first), *later = found
    return any(
        member is not first
        and member.plan.client == "kafka-python"
        and all(place in owned for owned in member.diary.owned_between(first_at, at))
        for at, member in later
    )
