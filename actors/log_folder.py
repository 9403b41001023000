"""The log's folder: appends, merges, prunes and deletes. Every method blocks; none may be called on
an event loop.

Any number of processes write side by side, each its own parts. What changes the parts of others
(merging, pruning, deleting) holds the folder's lock alone; appending shares it. A deleted id leaves
a mark under ``deleted``, so that rows of it that still are in some process's memory never come in.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from runtime.call_log import CallRow, OutcomeRow, QueryRow
from runtime.config import CallLogConfig
from runtime.log_tables import (
    SCHEMAS,
    Part,
    all_parts,
    only,
    part_name,
    parts,
    read_part,
    table_of,
    write_part,
)

MIN_FREE_BYTES = 256_000_000
"""Where less is free on the disk, nothing is written: the last of it is for others."""

MERGE_PARTS = 16
MERGED_BYTES = 64_000_000
DAY_MS = 86_400_000
MARKS_KEPT_S = 2 * 86_400.0
"""Longer than any row stays in memory."""

WORKING_KEPT_S = 3600.0

R = TypeVar("R", CallRow, QueryRow, OutcomeRow)


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning took away."""

    num_files: int
    num_bytes: int


class LogFolder:
    """One process's way into the log at ``path``. Methods raise ``OSError`` where the disk does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer = f"{os.getpid()}x{uuid.uuid4().hex[:10]}"
        self._batches = dict.fromkeys(SCHEMAS, 0)

    def append(self, table: str, rows: Sequence[R], now: float) -> int:
        """Write rows as a part of their own; returns how many, less those of deleted ids.

        Raises:
            OSError: also where the disk is nearly full. Nothing of the rows is there then.
        """
        (self.path / table).mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.path).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, "too little free space", str(self.path))
        with self._lock(fcntl.LOCK_SH):
            marks = set(self._marks())
            kept = [r for r in rows if not marks or _mark(r.query_id) not in marks]
            if kept:
                number = self._batches[table] + 1
                name = part_name(round(now * 1000), self.writer, number, number)
                _write(self.path / table / name, table_of(table, kept))
                self._batches[table] = number
        return len(kept)

    def tidy(self, limits: CallLogConfig, now: float) -> Pruned:
        """Merge this process's parts and prune; skipped while another process does so."""
        try:
            with self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB):
                self._sweep(now)
                most = min(MERGED_BYTES, limits.max_bytes // MERGE_PARTS)
                for table in SCHEMAS:
                    self._merge(table, most)
                return self._prune(limits, now)
        except BlockingIOError:
            return Pruned(0, 0)

    def prune(self, limits: CallLogConfig, now: float) -> Pruned:
        """Take away parts that are too old, then the oldest while there are too many bytes."""
        if not self.path.is_dir():
            return Pruned(0, 0)
        with self._lock(fcntl.LOCK_EX):
            self._sweep(now)
            return self._prune(limits, now)

    def delete(self, query_ids: Sequence[str]) -> int:
        """Take every row of these queries out of all parts; returns how many there were."""
        if not self.path.is_dir():
            return 0
        with self._lock(fcntl.LOCK_EX):
            self._mark_deleted(query_ids)
            self._sweep(None)
            return sum(
                _rewrite(part, table, query_ids)
                for table in SCHEMAS
                for part in parts(self.path, table)
            )

    @property
    def num_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(_size(p) for table in SCHEMAS for p in all_parts(self.path, table))

    @contextlib.contextmanager
    def _lock(self, mode: int) -> Iterator[None]:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("ab") as file:
            fcntl.flock(file, mode)  # the end of the file's life ends the lock
            yield

    # --- under the lock ------------------------------------------------------------------------

    def _merge(self, table: str, most_bytes: int) -> None:
        """Make one part of each ``MERGE_PARTS`` of about equal size and of the same day."""
        mine = [p for p in parts(self.path, table) if p.writer == self.writer]
        mine.sort(key=lambda p: p.first)
        for _, group in groupby(mine, key=lambda p: (p.last_ms // DAY_MS, _level(p))):
            equals = list(group)
            for i in range(0, len(equals) - MERGE_PARTS + 1, MERGE_PARTS):
                some = equals[i : i + MERGE_PARTS]
                if sum(map(_size, some)) <= most_bytes:
                    _merge(some, table)

    def _prune(self, limits: CallLogConfig, now: float) -> Pruned:
        kept = [p for table in SCHEMAS for p in all_parts(self.path, table)]
        kept.sort(key=lambda p: p.last_ms)
        sizes = {p.path: _size(p) for p in kept}
        total, oldest_ms = sum(sizes.values()), (now - limits.keep_days * 86_400) * 1000
        files = gone = 0
        for part in kept:
            if part.last_ms >= oldest_ms and total - gone <= limits.max_bytes:
                break
            part.path.unlink(missing_ok=True)
            files, gone = files + 1, gone + sizes[part.path]
        return Pruned(files, gone)

    def _sweep(self, now: float | None) -> None:
        """Take away what a crash may have left: merged parts, files half written, old marks."""
        for table in SCHEMAS:
            current = {p.path for p in parts(self.path, table)}
            for part in all_parts(self.path, table):
                if part.path not in current:
                    part.path.unlink(missing_ok=True)
        if now is None:
            return
        for table in SCHEMAS:
            for path in (self.path / table).glob(".*.tmp"):
                _unlink_older(path, now - WORKING_KEPT_S)
        for mark in self._marks():
            _unlink_older(self.path / "deleted" / mark, now - MARKS_KEPT_S)

    def _marks(self) -> list[str]:
        try:
            return os.listdir(self.path / "deleted")
        except FileNotFoundError:
            return []

    def _mark_deleted(self, query_ids: Sequence[str]) -> None:
        (self.path / "deleted").mkdir(parents=True, exist_ok=True)
        for query_id in query_ids:
            (self.path / "deleted" / _mark(query_id)).touch()


def state_folder(limits: CallLogConfig) -> Path:
    """Where the log is: the config's folder, else ``$INFRAMIND_STATE/calls``, else ``calls`` in the
    user's state folder (``$XDG_STATE_HOME/inframind`` or ``~/.local/state/inframind``)."""
    if limits.folder is not None:
        return Path(limits.folder).expanduser()
    if named := os.environ.get("INFRAMIND_STATE"):
        return Path(named).expanduser() / "calls"
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "inframind" / "calls"


def _mark(query_id: str) -> str:
    return hashlib.sha256(query_id.encode()).hexdigest()[:32]


def _write(path: Path, table: pa.Table) -> None:
    try:
        write_part(path, table)
    except pa.ArrowException as error:
        raise OSError(errno.EIO, str(error), str(path)) from None


def _merge(some: Sequence[Part], table: str) -> None:
    whole = pa.concat_tables([read_part(p.path, table) for p in some]).unify_dictionaries()
    last = some[-1]
    name = part_name(last.last_ms, last.writer, some[0].first, last.last)
    _write(last.path.with_name(name), whole)
    for part in some:
        part.path.unlink(missing_ok=True)


def _rewrite(part: Part, table: str, query_ids: Sequence[str]) -> int:
    """Take the rows of these ids out of a part; returns how many there were."""
    ids = read_part(part.path, table, ["query_id"])
    found = len(only(ids, "query_id", query_ids, keep=True))
    if found == len(ids):
        part.path.unlink(missing_ok=True)
    elif found:
        rest = only(read_part(part.path, table), "query_id", query_ids, keep=False)
        _write(part.path, rest)
    return found


def _level(part: Part) -> int:
    """0 for a part as it was appended, one more for each time it was merged."""
    level, batches = 0, part.last - part.first + 1
    while batches >= MERGE_PARTS:
        level, batches = level + 1, batches // MERGE_PARTS
    return level


def _size(part: Part) -> int:
    try:
        return part.path.stat().st_size
    except FileNotFoundError:
        return 0


def _unlink_older(path: Path, than: float) -> None:
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_mtime < than:
            path.unlink()
