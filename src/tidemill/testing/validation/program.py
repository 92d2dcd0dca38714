"""A user's own program as the load of a trial: started, listened to, stopped.

The program is told by variables and by words in its command line where the cluster is. What it was
acknowledged and what it read it says on its standard output, in the JSON lines of Kafka's
verifiable tools, one event a line:

    {"name": "producer_send_success", "topic": ..., "partition": 0, "offset": 7, "value": "17"}
    {"name": "producer_send_error", "topic": ..., "value": "18", "message": ...}
    {"name": "record_data", "topic": ..., "partition": 0, "offset": 7, "value": "17"}
    {"name": "records_consumed", "partitions": [{"topic": ..., "partition": 0, "minOffset": 0,
                                                 "maxOffset": 9, "count": 10}]}

Other lines are its own business. Whatever it does not say, a reader of ours may still have seen:
a record that consumers saw and that is gone in the end is lost, whoever wrote it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tidemill.children import stopping_with_parent
from tidemill.client import ClientError, Consumer
from tidemill.clock import SystemClock
from tidemill.errors import TidemillError
from tidemill.testing.history import Operation, Outcome, Send, Value
from tidemill.testing.validation.evidence import (
    Evidence,
    FinalLog,
    Place,
    Rank,
    key_of,
    until_delivered,
    value_of,
)
from tidemill.testing.validation.load import Load
from tidemill.testing.validation.scenarios import Say
from tidemill.types import TopicPartition

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
RESTARTS_MAX = 3
RESTART_PAUSE_S = 1.0
LINE_BYTES_MAX = 1 << 20
LAST_WORDS_LINES = 3
POLL_MS = 100
EVENTS_MAX = 5_000_000

_NUMBERED = re.compile(r"(?:(.*)\.)?(\d{1,18})")
"""The values of verifiable producers: growing numbers, with the producer's own before a dot."""


class ProgramError(TidemillError):
    """The program cannot serve as a load."""


class Program:
    """One run of a user's program; its whole process group is ended with it."""

    def __init__(
        self,
        command: str,
        bootstrap: str,
        topic: str,
        partitions: int,
        environment: Mapping[str, str],
        log: Path,
        say: Say,
        *,
        feed: Load | None = None,
    ) -> None:
        """`feed` writes to the topic, for a program that only reads."""
        self._command = command
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._environment = {**os.environ, **environment}
        self._log = log
        self._say = say
        self._feed = feed
        self.numbers = feed is not None
        self.evidence = feed.evidence if feed is not None else Evidence()
        self._clock = SystemClock()
        self._process: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False
        self._sends: list[Operation] = []
        self._ranges: list[tuple[int, int, int]] = []
        self._names_records = False
        self._final: FinalLog | None = None
        self._watch_times_ms: list[int] = []
        self._looked_unique = True
        self._first_news = asyncio.Event()

    # Life

    async def start(self) -> None:
        """Start it, and wait until there is something to lose."""
        await self._spawn()
        self._life = asyncio.create_task(self._live())
        self._watch = asyncio.create_task(self._look_on())
        if self._feed is not None:
            await self._feed.start()
        news = asyncio.create_task(self._first_news.wait())
        await asyncio.wait(
            {news, self._life}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        news.cancel()
        if self._life.done():
            self._life.result()
        if not self._first_news.is_set():
            await self.close()
            did = "wrote nothing to" if self._feed is None else "said nothing of what it read from"
            raise ProgramError(
                f"the program {did} the topic {self._topic} within {START_TIMEOUT_S:g} s"
                f"{self._last_words()}"
            )

    async def stop_sending(self) -> None:
        """SIGTERM, and everything that it has to say until it is gone."""
        if self._feed is not None:
            await self._feed.stop_sending()
        else:
            await self._end()

    async def drain(self, log: FinalLog) -> None:
        """Let the reader get everything, where there is one, and sum up."""
        self._final = log
        self._place_ranges()
        if self.evidence.delivered and self.is_running:
            await until_delivered(self.evidence, log)
        await self.close()
        self._sum_up(log)

    async def close(self) -> None:
        await self._end()
        for task in (self._life, self._watch):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._feed is not None:
            await self._feed.close()

    def struck(self) -> None:
        """Remember whether values told records apart as long as all was well."""
        values = [place.value for place in self.evidence.watched]
        self._looked_unique = len(set(values)) == len(values)

    @property
    def is_running(self) -> bool:
        return self._life is not None and not self._life.done()

    # The process

    async def _spawn(self) -> None:
        with self._open_log() as errors:
            self._process = await asyncio.create_subprocess_shell(
                self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                preexec_fn=stopping_with_parent(),
            )

    async def _live(self) -> None:
        """Listen to the program; start it again when it dies, and say so."""
        while True:
            status = await self._listen()
            if self._is_told_to_stop() or status == 0:
                return
            how = f"the program ended with status {status}{self._last_words()}"
            if not self._first_news.is_set():
                raise ProgramError(f"{how} before it had done anything")
            if self.evidence.restarts == RESTARTS_MAX:
                self._note(f"{how}; not started again, after {RESTARTS_MAX} times")
                return
            self.evidence.restarts += 1
            self._note(f"{how}; started again")
            await asyncio.sleep(RESTART_PAUSE_S)
            if not self._is_told_to_stop():
                await self._spawn()

    def _is_told_to_stop(self) -> bool:
        return self._stopping

    async def _listen(self) -> int:
        """Take its lines until it ends; its exit status."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        with self._open_log() as copy:
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    continue  # Longer than any event.
                if not line:
                    break
                if not self._hear(line):
                    copy.write(line)
        return await process.wait()

    async def _end(self) -> None:
        """SIGTERM to all its processes, SIGKILL to those that do not care."""
        self._stopping = True
        process = self._process
        if process is None or self._life is None or self._life.done():
            return
        _signal_group(process.pid, signal.SIGTERM)
        await asyncio.wait({self._life}, timeout=STOP_TIMEOUT_S)
        if not self._life.done():
            self._note(f"the program did not end within {STOP_TIMEOUT_S:g} s and was killed")
        _signal_group(process.pid, signal.SIGKILL)
        await asyncio.wait({self._life}, timeout=STOP_TIMEOUT_S)

    def _open_log(self) -> BinaryIO:
        return open(self._log, "ab")

    def _last_words(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-LAST_WORDS_LINES:]
        return f" ({' | '.join(line.strip() for line in lines)})" if lines else ""

    def _note(self, text: str) -> None:
        self.evidence.notes.append(text)
        self._say(text)

    # What it says

    def _hear(self, line: bytes) -> bool:
        """Take a line if it is an event of ours."""
        if not line.startswith(b"{"):
            return False
        try:
            event = json.loads(line)
            name = event["name"]
        except (ValueError, KeyError, TypeError):
            return False
        try:
            return self._took(name, event)
        except (KeyError, TypeError, ValueError):
            self._first_time(f"an event {name} lacks something: {line[:200]!r}")
            return True

    def _took(self, name: str, event: Mapping[str, Any]) -> bool:
        match name:
            case "producer_send_success" if event["topic"] == self._topic:
                self._acked(event)
            case "producer_send_error":
                self.evidence.failed += 1
            case "record_data" if event["topic"] == self._topic:
                value = value_of(str(event["value"]).encode(), numbers=self.numbers)
                place = Place(int(event["partition"]), int(event["offset"]), value)
                self._names_records = True
                self.evidence.delivered[place] += 1
                self._has_read()
            case "records_consumed":
                self._ranges += [
                    (int(each["partition"]), int(each["minOffset"]), int(each["maxOffset"]))
                    for each in event["partitions"]
                    if each["topic"] == self._topic
                ]
                if self._final is not None:
                    self._place_ranges()
                self._has_read()
            case "producer_send_success" | "record_data":
                self._first_time(f"events about the topic {event['topic']!r} do not count")
        return True

    def _has_read(self) -> None:
        self.evidence.read_now(self._clock.monotonic_ms())
        self._first_news.set()

    def _acked(self, event: Mapping[str, Any]) -> None:
        if len(self._sends) >= EVENTS_MAX:
            self._first_time(f"only the first {EVENTS_MAX:,} acknowledgements count")
            return
        value, now_ms = str(event["value"]), self._clock.monotonic_ms()
        offset = int(event["offset"])
        key = key_of(self._topic, int(event["partition"]))
        send = Send(key, value, offset if offset >= 0 else None)
        # When it was sent nobody knows: the beginning of time rules out nothing.
        self._sends.append(Operation("program", [send], Outcome.OK, ended_ms=now_ms))
        self.evidence.acked[value] += 1
        self.evidence.ack_times_ms.append(now_ms)
        if self._feed is None:
            # Known to it before our reader sees the record; it may end in between.
            self._first_news.set()

    def _first_time(self, text: str) -> None:
        if text not in self.evidence.notes:
            self._note(text)

    # What a reader of ours sees meanwhile

    async def _look_on(self) -> None:
        keys = [TopicPartition(self._topic, index) for index in range(self._partitions)]
        async with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(keys)
            consumer.seek_to_beginning(*keys)
            while True:
                try:
                    records = await consumer.poll(timeout_ms=POLL_MS)
                except ClientError:
                    await asyncio.sleep(POLL_MS / 1000)
                    continue
                if not records:
                    continue
                if self._feed is None:
                    self._first_news.set()
                self._watch_times_ms.append(self._clock.monotonic_ms())
                if len(self.evidence.watched) < EVENTS_MAX:
                    self.evidence.watched.update(
                        Place(each.partition, each.offset, self._value(each.value))
                        for each in records
                    )

    def _value(self, data: bytes | None) -> Value:
        return value_of(data, numbers=self.numbers)

    # What it comes to

    def _place_ranges(self) -> None:
        """Ranges of offsets as the records that are there; none where it names its records."""
        ranges, self._ranges = self._ranges, []
        if self._names_records or self._final is None:
            return
        for index, first, last in ranges:
            for offset, value in self._final[index]:
                if first <= offset <= last:
                    self.evidence.delivered[Place(index, offset, value)] += 1

    def _sum_up(self, log: FinalLog) -> None:
        """What could be known, and a history of it."""
        evidence = self.evidence
        evidence.knows_deliveries = bool(evidence.delivered)
        if not evidence.knows_deliveries:
            evidence.notes.append("the program names no records that it read (`record_data`)")
        if self._feed is not None:
            return
        evidence.knows_acks = bool(evidence.acked)
        if not evidence.knows_acks:
            evidence.ack_times_ms = self._watch_times_ms
            evidence.values_are_unique = self._looked_unique
            evidence.notes.append(
                "the program does not say what was acknowledged (`producer_send_success`): lost "
                "counts records that consumers saw and that are gone"
            )
            return
        evidence.values_are_unique = max(evidence.acked.values()) == 1
        if evidence.values_are_unique:
            self._write_history(log)

    def _write_history(self, log: FinalLog) -> None:
        evidence = self.evidence
        for index, part in log.items():
            for value in dict.fromkeys(value for _, value in part):
                evidence.ranks |= _rank_of(value)
                if not evidence.acked[value]:
                    sent = Send(key_of(self._topic, index), value)
                    self._sends.append(Operation("program", [sent]))
        evidence.history.operations[:0] = self._sends


def _rank_of(value: Value) -> dict[Value, Rank]:
    """When a record was sent, where its value says it."""
    match = _NUMBERED.fullmatch(str(value))
    return {} if match is None else {value: Rank(match[1] or "", int(match[2]))}


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return
