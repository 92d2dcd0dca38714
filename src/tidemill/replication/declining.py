"""When a replica whose disk failed says that it cannot lead, though it was elected.

The controller does not remember who has no disk: where nobody is known to be complete it may elect
such a replica, and elects another when it hears of it. Two of them would elect each other for ever,
so each speaks once while the same brokers are there. After a while it does so again, since what the
controller may do can have changed: unclean elections may be allowed by now.
"""

from __future__ import annotations

from tidemill.types import BrokerEpoch

Present = tuple[BrokerEpoch | None, ...]
"""The epochs of the brokers that have replicas; None for one that is not alive."""


class Declining:
    """What one replica has said, when, and who was there to take over."""

    __slots__ = ("_pause_ms", "_said_at_ms", "_said_to")

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._said_at_ms = 0
        self._said_to: Present = ()

    def is_due(self, present: Present, now_ms: int) -> bool:
        """Whether to speak now; then it is taken as said."""
        if present == self._said_to and now_ms - self._said_at_ms < self._pause_ms:
            return False
        self._said_at_ms, self._said_to = now_ms, present
        return True
