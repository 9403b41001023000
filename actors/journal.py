"""Long queries on disk: what outlives the records actor's process, though not the cluster.

Only here is time the wall clock's, since the monotonic clock of a process ends with it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from runtime.types import Answer, Query

logger = logging.getLogger(__name__)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS starts (started INTEGER);
CREATE TABLE IF NOT EXISTS queries (
    query_id TEXT PRIMARY KEY, owner TEXT, query BLOB, budget_s REAL, arrival_wall_s REAL,
    restarts INTEGER DEFAULT 0, answer BLOB, ended_wall_s REAL, last_number INTEGER
);
"""

_QUERY = TypeAdapter(Query)
_ANSWER = TypeAdapter(Answer)


@dataclass(frozen=True, slots=True)
class Entry:
    """One long query: while it runs there is ``query``, when it has ended ``answer``."""

    query_id: str
    owner: str
    query: Query | None
    budget_s: float
    arrival_wall_s: float
    restarts: int
    answer: Answer | None
    ended_wall_s: float
    last_number: int


class Journal:
    """One file; ``num_starts`` counts how often it was opened before.

    Without fsync: a process that is killed loses nothing, a machine that loses power may, and then
    the cluster is gone as well. A path of ``None`` keeps it in memory. Methods raise
    ``sqlite3.Error``.
    """

    def __init__(self, path: Path | None) -> None:
        try:
            self._db = _checked(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            assert path is not None
            logger.exception("%s cannot be read, long queries in it are lost", path)
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._db = _open(path)
        self.num_starts = int(self._db.execute("SELECT count(*) FROM starts").fetchone()[0])
        self._db.execute("INSERT INTO starts VALUES (1)")

    def begin(self, query: Query, text: bytes, owner: str, arrival_wall_s: float) -> None:
        """A query was accepted; ``text`` is what ``dump`` made of it."""
        self._db.execute(
            "INSERT INTO queries (query_id, owner, query, budget_s, arrival_wall_s) "
            "VALUES (?, ?, ?, ?, ?)",
            (query.query_id, owner, text, query.budget_s, arrival_wall_s),
        )

    def restart(self, query_id: str) -> None:
        """A query is submitted once more."""
        self._db.execute(
            "UPDATE queries SET restarts = restarts + 1 WHERE query_id = ?", (query_id,)
        )

    def end(self, query_id: str, answer: Answer, ended_wall_s: float, last_number: int) -> None:
        """A query has its outcome, as the event ``last_number``; its question is forgotten."""
        self._db.execute(
            "UPDATE queries SET query = NULL, answer = ?, ended_wall_s = ?, last_number = ? "
            "WHERE query_id = ?",
            (_ANSWER.dump_json(answer), ended_wall_s, last_number, query_id),
        )

    def remove(self, query_ids: Iterable[str]) -> None:
        """Forget queries."""
        self._db.executemany("DELETE FROM queries WHERE query_id = ?", [(i,) for i in query_ids])

    def entries(self) -> list[Entry]:
        """All of it: first what has ended, in that order, then what still ran.

        What cannot be read, such as rows of another version of this program, is dropped.
        """
        rows = self._db.execute(
            "SELECT * FROM queries ORDER BY ended_wall_s IS NULL, ended_wall_s, arrival_wall_s"
        ).fetchall()
        entries = []
        for row in rows:
            try:
                entries.append(_entry(row))
            except ValueError:
                logger.exception("long query %s cannot be read, it is lost", row[0])
                self.remove([row[0]])
        return entries


def dump(query: Query) -> bytes:
    """A query as JSON."""
    return _QUERY.dump_json(query)


def _entry(row: tuple) -> Entry:
    query_id, owner, query, budget_s, arrival_wall_s, restarts, answer, ended_wall_s, number = row
    return Entry(
        query_id,
        owner,
        _QUERY.validate_json(query) if answer is None else None,
        budget_s,
        arrival_wall_s,
        restarts,
        None if answer is None else _ANSWER.validate_json(answer),
        ended_wall_s or 0.0,
        number or 0,
    )


def _checked(path: Path | None) -> sqlite3.Connection:
    """Raises ``DatabaseError`` also where only some pages cannot be read."""
    db = _open(path)
    try:
        [(told,), *_] = db.execute("PRAGMA quick_check(1)").fetchall()
        if told != "ok":
            raise sqlite3.DatabaseError(told)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _open(path: Path | None) -> sqlite3.Connection:
    """Only this user may read it: it holds questions and answers."""
    if path is not None:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    db = sqlite3.connect(path or ":memory:", timeout=5.0, isolation_level=None)
    try:
        for setting in ("journal_mode=WAL", "synchronous=OFF", "secure_delete=ON"):
            db.execute(f"PRAGMA {setting}")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db
