"""A store in memory that cuts large commits, and whose connection breaks between two pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.store.base import Check, Op, OpResult, StoreUnavailable
from tidemill.store.memory import MemoryStore, MemoryTree

OPS_PER_COMMIT = 4
PLENTY = 1_000_000


class CuttingStore(MemoryStore):
    """At most a few operations fit into a commit; after `commits_left` of them it is gone.

    With `heals` only one commit fails: the connection breaks, and is there again.
    """

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.commits_left = PLENTY
        self.heals = False
        self.ops_per_commit = OPS_PER_COMMIT

    def portions(self, guard: Check, ops: Sequence[Op]) -> Iterator[list[Op]]:
        for start in range(0, len(ops), self.ops_per_commit):
            yield [guard, *ops[start : start + self.ops_per_commit]]

    def break_once(self, after: int, *, ops_per_commit: int = 1) -> None:
        """The connection breaks once, when so many pieces of one operation each are written."""
        self.ops_per_commit = ops_per_commit
        self.commits_left, self.heals = after, True

    async def multi(self, ops: Sequence[Op]) -> list[OpResult]:
        if isinstance(ops[0], Check):
            assert len(ops) <= self.ops_per_commit + 1
            if self.commits_left == 0:
                self.commits_left = PLENTY if self.heals else 0
                raise StoreUnavailable("gone")
            self.commits_left -= 1
        return await super().multi(ops)
