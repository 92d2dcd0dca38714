"""Which topics a pattern describes, found a little at a time.

A broker may have ten thousand topics, and any client may send a pattern. So the work is rationed:
`Allowance` grants a few milliseconds of matching at once and a share of the time in the long run,
over all groups of the broker. `TopicSearch.find` does what it may and answers None when there is
more to do: the group asks again a little later, as Kafka finds topics in the background, too.

What was found is remembered per pattern. While the topics are the same, asking again costs
nothing; once they have changed, only the names that were added are looked at.

The cost of a match is estimated from the pattern's size and the name's length rather than
measured, so that simulated time behaves as real time does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from tidemill.clock import Clock
from tidemill.coordinators.regex import Regex, compile_regex
from tidemill.image import TopicImage

Topics = Mapping[str, TopicImage]

BURST_US = 5_000
"""The most work in one turn of the event loop."""
SHARE_US_PER_MS = 250
"""How much of each millisecond may go into matching, over all groups."""
CALL_US = 3
INSTRUCTIONS_PER_US = 200
"""How many instructions RE2 weighs per microsecond where its cache of states is of no use."""
NAMES_COMPARED_PER_US = 10
SEARCHES_MAX = 64
ABANDONED_MS = 5_000
"""An unfinished search that nobody asked for in this time is given up."""


class Allowance:
    """Microseconds of work that may be done now; they come back as time passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left_us = BURST_US
        self._at_ms = clock.monotonic_ms()

    def refill(self) -> None:
        now_ms = self._clock.monotonic_ms()
        earned_us = (now_ms - self._at_ms) * SHARE_US_PER_MS
        self._left_us = min(BURST_US, self._left_us + earned_us)
        self._at_ms = now_ms

    def spend(self, cost_us: int) -> bool:
        """True if anything is left; the last piece may overdraw, and is paid back in time."""
        if self._left_us <= 0:
            return False
        self._left_us -= cost_us
        return True


class _Search:
    """One pattern's progress through the names of one picture of the topics."""

    def __init__(self, regex: Regex) -> None:
        self._regex = regex
        self._topics: Topics | None = None
        self._known: frozenset[str] = frozenset()
        self._waiting: list[str] = []
        self._matches: set[str] = set()
        self.asked_at_ms = 0
        self.found: frozenset[str] | None = None

    def turn_to(self, topics: Topics, names: frozenset[str], allowance: Allowance) -> None:
        """Look for what changed, unless these are the topics that were looked at before."""
        if topics is self._topics or not allowance.spend(len(names) // NAMES_COMPARED_PER_US):
            return
        looked_at = self._known.difference(self._waiting)
        self._waiting = list(names - looked_at)
        self._matches &= names
        self._known, self._topics, self.found = names, topics, None

    def proceed(self, topics: Topics, allowance: Allowance) -> frozenset[str] | None:
        """Go on as far as is allowed; the answer once every name was looked at."""
        if topics is not self._topics:
            return None
        while self._waiting and allowance.spend(self._cost_us(self._waiting[-1])):
            name = self._waiting.pop()
            if self._regex.fullmatch(name):
                self._matches.add(name)
        if not self._waiting and self.found is None:
            self.found = frozenset(self._matches)
        return self.found

    def _cost_us(self, name: str) -> int:
        return CALL_US + len(name) * self._regex.program_size // INSTRUCTIONS_PER_US


class TopicSearch:
    """All patterns of a broker; `find` is all there is to it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowance = Allowance(clock)
        self._searches: OrderedDict[str, _Search] = OrderedDict()
        self._topics: Topics = {}
        self._names: frozenset[str] = frozenset()

    def find(self, pattern: str, topics: Topics) -> frozenset[str] | None:
        """The names that the pattern describes in full; None if it takes longer: ask again.

        Raises `RegexError` for a pattern that is none.
        """
        search = self._search(pattern)
        if search is None:
            return None
        search.asked_at_ms = self._clock.monotonic_ms()
        self._allowance.refill()
        search.turn_to(topics, self._names_of(topics), self._allowance)
        return search.proceed(topics, self._allowance)

    def _names_of(self, topics: Topics) -> frozenset[str]:
        """One set for all searches: there may be many of both."""
        if topics is not self._topics:
            self._topics, self._names = topics, frozenset(topics)
        return self._names

    def _search(self, pattern: str) -> _Search | None:
        known = self._searches.get(pattern)
        if known is not None:
            self._searches.move_to_end(pattern)
            return known
        regex = compile_regex(pattern)
        if len(self._searches) >= SEARCHES_MAX and not self._make_room():
            return None
        self._searches[pattern] = search = _Search(regex)
        return search

    def _make_room(self) -> bool:
        """Forget the finished search that was not asked for the longest, or one given up."""
        given_up_ms = self._clock.monotonic_ms() - ABANDONED_MS
        for pattern, search in self._searches.items():
            if search.found is not None or search.asked_at_ms < given_up_ms:
                del self._searches[pattern]
                return True
        return False
