"""A connection's deadlines, on a clock that waits (rule 3.4: half-sent frames do not stay)."""

from __future__ import annotations

from tidemill.broker.patience import FRAME_WINDOW_BYTES, Limits, Patience
from tidemill.testing.clock import ManualClock
from tidemill.timers import TimingWheel

HANDSHAKE_MS = 1_000
FRAME_MS = 2_000
IDLE_MS = 10_000


class Line:
    """A connection of which only its patience is real."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = TimingWheel(self.clock)
        self.limits = Limits(100, IDLE_MS, HANDSHAKE_MS, FRAME_MS)
        self.is_busy = False
        self.unread: int | None = None
        self.ended: list[str] = []
        self.patience = Patience(
            self.limits,
            self.clock,
            self.wheel,
            lambda: self.is_busy,
            lambda: self.unread,
            self.ended.append,
        )
        self.patience.begin()

    def served(self) -> Line:
        """After its first request."""
        self.patience.saw_request = True
        return self

    def receive(self, size_bytes: int) -> None:
        self.patience.received_bytes += size_bytes
        self.patience.active_at_ms = self.clock.monotonic_ms()

    def wait(self, duration_ms: int) -> list[str]:
        """What has ended the connection after so long, at the latest."""
        for _ in range(duration_ms // 10):
            self.clock.advance(10)
            self.wheel.advance(self.clock.monotonic_ms())
        return self.ended


def test_the_first_request_has_its_time() -> None:
    assert Line().wait(HANDSHAKE_MS - 50) == []
    line = Line()
    assert line.wait(HANDSHAKE_MS + 50) == [f"no request within {HANDSHAKE_MS} ms"]
    assert Line().served().wait(IDLE_MS - 50) == []


def test_a_frame_that_stops_half_way_is_given_up() -> None:
    line = Line().served()
    line.patience.frame_begins()
    line.receive(FRAME_WINDOW_BYTES - 1)
    assert line.wait(FRAME_MS - 50) == []
    assert line.wait(100) == [f"a frame was not finished within {FRAME_MS} ms"]


def test_a_large_frame_may_take_long_while_it_comes() -> None:
    """Enough bytes in each window of time, for as long as it takes; then too few."""
    line = Line().served()
    line.patience.frame_begins()
    for _ in range(5):
        line.receive(FRAME_WINDOW_BYTES)
        assert line.wait(FRAME_MS) == []
    assert line.wait(FRAME_MS + 50) == [f"a frame was not finished within {FRAME_MS} ms"]


def test_beginning_again_does_not_prolong_a_frame() -> None:
    line = Line().served()
    for _ in range(FRAME_MS // 100):
        line.patience.frame_begins()
        line.receive(1)
        line.wait(100)
    assert line.wait(50) == [f"a frame was not finished within {FRAME_MS} ms"]


def test_nobody_is_blamed_while_the_broker_does_not_read() -> None:
    """The frame waits for room in the request memory: its time starts again with the room."""
    line = Line().served()
    line.patience.frame_begins()
    line.patience.holds_up_frame = True
    assert line.wait(3 * FRAME_MS) == []
    line.patience.holds_up_frame = False
    line.patience.frame_goes_on()
    assert line.wait(FRAME_MS - 50) == []
    assert line.wait(100) != []


def test_a_finished_frame_has_no_deadline() -> None:
    line = Line().served()
    line.patience.frame_begins()
    line.patience.no_frame()
    assert line.wait(2 * FRAME_MS) == []


def test_idle_is_counted_from_the_last_sign_and_not_while_an_answer_is_owed() -> None:
    line = Line().served()
    line.wait(IDLE_MS - 1_000)
    line.receive(1)
    assert line.wait(IDLE_MS - 1_000) == []
    line.is_busy = True
    assert line.wait(3 * IDLE_MS) == []
    line.is_busy = False
    assert "idle for" in line.wait(IDLE_MS + 50)[0]


def test_a_peer_that_reads_nothing_of_what_waits_for_it_is_given_up() -> None:
    """However little it reads, it is given time; an answer that the broker owes is no reason."""
    line = Line().served()
    line.is_busy = True
    line.unread = 1_000
    for _ in range(5):
        assert line.wait(IDLE_MS - 1_000) == []
        line.unread -= 1
    line.unread = None
    assert line.wait(3 * IDLE_MS) == []
    line.unread = 1_000
    assert "read none of its answers" in line.wait(2 * IDLE_MS + 50)[0]


def test_a_shorter_limit_counts_from_the_next_look() -> None:
    line = Line().served()
    line.limits.idle_ms = 3_000
    line.wait(HANDSHAKE_MS + 50)
    assert "idle for" in line.wait(3_000)[0]


def test_nothing_is_looked_at_after_the_end() -> None:
    line = Line()
    line.patience.end()
    assert line.wait(2 * IDLE_MS) == []
    assert len(line.wheel) == 0
