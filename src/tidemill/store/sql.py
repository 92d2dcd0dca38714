"""The tree in one SQLite file: schema, reads, and commits, all synchronous.

Every broker of a machine opens the same file. SQLite's write lock puts all commits in one order,
its log (WAL, synchronous=FULL) makes each durable before it returns, and the `changes` table keeps
what every commit did until all sessions have heard of it.

A `StoreFile` is one connection. `sqlite.py` holds two: one on the loop for reads that take
microseconds, one in an executor for everything that may wait for the disk or for another process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tidemill.store.base import (
    Event,
    EventKind,
    Node,
    Op,
    OpResult,
    SessionExpired,
    Stat,
    StoreFormatError,
    StoreUnavailable,
    split_path,
)
from tidemill.store.transaction import Changes, Transaction

FORMAT_VERSION = 1
_APPLICATION_ID = 0x54494445
"""Marks the file as ours, for `file` and for whoever opens the wrong one."""

_BUSY_TIMEOUT_S = 5.0
_BEGINNERS_MAX = 100
_EVENTS_PER_READ_MAX = 2_000
_KINDS = {kind.value: kind for kind in EventKind}

_SCHEMA = f"""
CREATE TABLE nodes (
    parent TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
    created INTEGER NOT NULL, changed INTEGER NOT NULL, owner INTEGER NOT NULL,
    child_version INTEGER NOT NULL, child_count INTEGER NOT NULL, PRIMARY KEY (parent, name)
) WITHOUT ROWID;
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner <> 0;
CREATE TABLE changes (
    number INTEGER NOT NULL, ordinal INTEGER NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL,
    PRIMARY KEY (number, ordinal)
) WITHOUT ROWID;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, timeout_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL,
    boot TEXT NOT NULL, address TEXT NOT NULL, seen INTEGER NOT NULL
);
CREATE TABLE latest (number INTEGER NOT NULL);
INSERT INTO latest VALUES (0);
INSERT INTO nodes VALUES ('', '', x'', 0, 0, 0, 0, 0, 0);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {FORMAT_VERSION};
"""

_COLUMNS = "value, version, created, changed, owner, child_version, child_count"
_SELECT_NODE = f"SELECT {_COLUMNS} FROM nodes WHERE parent = ? AND name = ?"
_INSERT_NODE = "INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_UPDATE_NODE = (
    "UPDATE nodes SET value = ?, version = ?, created = ?, changed = ?, owner = ?, "
    "child_version = ?, child_count = ? WHERE parent = ? AND name = ?"
)
_SELECT_TREE = (
    f"SELECT parent, name, {_COLUMNS} FROM nodes "
    "WHERE parent = ?1 OR (parent >= ?2 AND parent < ?3) ORDER BY parent, name"
)


class SessionRow(NamedTuple):
    """One session as the file knows it; the deadline is on this boot's monotonic clock."""

    session_id: int
    timeout_ms: int
    deadline_ms: int
    boot: str
    address: str


class StoreFile:
    """One connection to the file. Errors of SQLite come out as `StoreUnavailable`."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._translated():
            self._db = sqlite3.connect(
                path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._prepare()

    def close(self) -> None:
        self._db.close()

    def _prepare(self) -> None:
        run = self._db.execute
        if run("PRAGMA user_version").fetchone()[0] != FORMAT_VERSION:
            self._create_or_refuse()
        if run("PRAGMA application_id").fetchone()[0] != _APPLICATION_ID:
            raise StoreFormatError(f"{self._path} is not a Tidemill store")
        run("PRAGMA synchronous = FULL")

    def _create_or_refuse(self) -> None:
        run = self._db.execute
        self._write_ahead()
        with self._writing():
            # Another process may have been first while we waited for the lock.
            found = run("PRAGMA user_version").fetchone()[0]
            if found == 0 and run("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                for statement in _SCHEMA.split(";\n"):
                    run(statement)
            elif found != FORMAT_VERSION:
                raise StoreFormatError(
                    f"{self._path} has format {found}; this version of Tidemill reads format "
                    f"{FORMAT_VERSION}. Use the version that wrote it, or another data directory."
                )

    def _write_ahead(self) -> None:
        """Brokers of one cluster may begin with the file at the same moment. With this statement
        SQLite says at once that it is busy; with a transaction it waits."""
        for _ in range(_BEGINNERS_MAX):
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            with self._writing():
                pass
        self._db.execute("PRAGMA journal_mode = WAL")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            hint = ". Free some disk space, then try again" if is_full else ""
            raise StoreUnavailable(f"{self._path}: {error}{hint}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction: committed and durable at the end, or rolled back on an error."""
        with self._translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # Reads

    def read(self, path: str) -> Node | None:
        parent, name = _key(path)
        with self._translated():
            row = self._db.execute(_SELECT_NODE, (parent, name)).fetchone()
        return None if row is None else Node(row[0], Stat(*row[1:]))

    def children(self, path: str) -> list[str]:
        query = "SELECT name FROM nodes WHERE parent = ? ORDER BY name"
        with self._translated():
            return [name for (name,) in self._db.execute(query, (path,))]

    def tree(self, path: str) -> dict[str, Node]:
        """The node and all below it, from one snapshot, parents first."""
        prefix = path if path == "/" else path + "/"
        # '0' is the character after '/', so the range holds exactly the parents below the path.
        bounds = (path, prefix, prefix[:-1] + "0")
        with self._translated():
            self._db.execute("BEGIN")
            try:
                root = self.read(path)
                rows = self._db.execute(_SELECT_TREE, bounds).fetchall() if root else []
            finally:
                self._db.execute("COMMIT")
        found = {} if root is None else {path: root}
        for parent, name, value, *stat in rows:
            found[f"{'' if parent == '/' else parent}/{name}"] = Node(value, Stat(*stat))
        return found

    def latest(self) -> int:
        """The number of the latest commit."""
        with self._translated():
            return int(self._db.execute("SELECT number FROM latest").fetchone()[0])

    def data_version(self) -> int:
        """A number that differs once another connection has committed."""
        with self._translated():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def events_after(self, number: int) -> list[Event]:
        """What the commits after this one did, in order; bounded, so ask until it is empty."""
        query = (
            "SELECT kind, path, number FROM changes WHERE number > ? "
            f"ORDER BY number, ordinal LIMIT {_EVENTS_PER_READ_MAX}"
        )
        with self._translated():
            rows = self._db.execute(query, (number,)).fetchall()
            if len(rows) == _EVENTS_PER_READ_MAX:
                # The last commit may be cut: read it whole.
                last = rows[-1][2]
                rest = "SELECT kind, path, number FROM changes WHERE number = ? ORDER BY ordinal"
                rows = [row for row in rows if row[2] != last]
                rows += self._db.execute(rest, (last,)).fetchall()
        return [Event(_KINDS[kind], path, number) for kind, path, number in rows]

    def sessions(self) -> list[SessionRow]:
        query = "SELECT id, timeout_ms, deadline_ms, boot, address FROM sessions ORDER BY id"
        with self._translated():
            return [SessionRow(*row) for row in self._db.execute(query)]

    # Writes

    def commit(self, session_id: int, ops: Sequence[Op]) -> list[OpResult]:
        """Apply the operations as one commit, or raise and change nothing."""
        with self._writing():
            self._expect_session(session_id)
            number = self.latest() + 1
            transaction = Transaction(self, number, session_id)
            results = transaction.apply(ops)
            self._write(number, transaction.changes())
        return results

    def open_session(
        self,
        timeout_ms: int,
        deadline_ms: int,
        boot: str,
        prepare: Callable[[int], str],
    ) -> int:
        """Enter a new session. `prepare(session_id)` runs before anyone can see it, so that its
        lock is held by then; it returns the address at which the session is poked."""
        with self._writing():
            session_id = self.latest() + 1
            self._db.execute("UPDATE latest SET number = ?", (session_id,))
            address = prepare(session_id)
            row = (session_id, timeout_ms, deadline_ms, boot, address, session_id)
            self._db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?)", row)
        return session_id

    def renew(self, session_id: int, deadline_ms: int, seen: int) -> bool:
        """Extend a lease, note which events were heard, drop those heard by all; False if the
        session is expired."""
        with self._writing():
            update = "UPDATE sessions SET deadline_ms = ?, seen = ? WHERE id = ?"
            if self._db.execute(update, (deadline_ms, seen, session_id)).rowcount == 0:
                return False
            heard_by_all = "(SELECT min(seen) FROM sessions)"
            self._db.execute(f"DELETE FROM changes WHERE number <= {heard_by_all}")
        return True

    def expire(self, session_id: int, deadline_ms: int | None = None) -> bool:
        """End a session and delete its ephemeral nodes in one commit.

        With `deadline_ms` only if its lease still is the one that the caller judged by; False if
        it was renewed or ended meanwhile.
        """
        with self._writing():
            query = "SELECT deadline_ms FROM sessions WHERE id = ?"
            row = self._db.execute(query, (session_id,)).fetchone()
            if row is None or (deadline_ms is not None and row[0] != deadline_ms):
                return False
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            number = self.latest() + 1
            transaction = Transaction(self, number, 0)
            transaction.delete_ephemerals(self.owned_by(session_id))
            self._write(number, transaction.changes())
        return True

    def owned_by(self, session_id: int) -> list[str]:
        """The ephemeral nodes of a session."""
        query = "SELECT parent, name FROM nodes WHERE owner = ? AND owner <> 0"
        with self._translated():
            rows = self._db.execute(query, (session_id,)).fetchall()
        return [f"{'' if parent == '/' else parent}/{name}" for parent, name in rows]

    def _expect_session(self, session_id: int) -> None:
        if session_id == 0:
            return
        query = "SELECT 1 FROM sessions WHERE id = ?"
        if self._db.execute(query, (session_id,)).fetchone() is None:
            raise SessionExpired("the session has expired")

    def _write(self, number: int, changes: Changes) -> None:
        if not changes.events:
            return
        run_many = self._db.executemany
        self._db.execute("UPDATE latest SET number = ?", (number,))
        run_many("DELETE FROM nodes WHERE parent = ? AND name = ?", map(_key, changes.deleted))
        run_many(
            _UPDATE_NODE,
            ((node.value, *node.stat, *_key(path)) for path, node in changes.changed.items()),
        )
        run_many(
            _INSERT_NODE,
            ((*_key(path), node.value, *node.stat) for path, node in changes.new.items()),
        )
        run_many(
            "INSERT INTO changes VALUES (?, ?, ?, ?)",
            (
                (number, ordinal, event.kind.value, event.path)
                for ordinal, event in enumerate(changes.events)
            ),
        )


def _key(path: str) -> tuple[str, str]:
    """The primary key of a node; the root has no parent."""
    return ("", "") if path == "/" else split_path(path)
