"""The log actor: one per application version; keeps rows for a while and writes them as Parquet.

A process of its own, so that what it takes in time and memory is not the queries'. A disk that is
full or a folder that cannot be written is counted and told, and rows wait for better times up to a
bound.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from actors.log_folder import LogFolder, state_folder
from actors.log_sender import LogState
from runtime.call_log import CallRow, LogEntry, OutcomeRow, QueryRow
from runtime.config import parse_config
from runtime.errors import ConfigError
from runtime.log_tables import only, parts, read_part

MAX_ROWS = 50_000
MAX_CHARS = 100_000_000
"""What waits in memory for a disk that does not take it."""

TIDY_S = 60.0
UNHEARD_S = 1.5
"""How long an id may be on its way here from the process that answered the query."""

ROW_CHARS = 400

logger = logging.getLogger(__name__)


class LogActor:
    """Rows come in with ``add`` and are on disk at most ``flush_s`` later."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._limits = parse_config(config).call_log
        self._folder = LogFolder(state_folder(self._limits))
        self._queries: dict[str, QueryRow] = {}
        self._calls: list[CallRow] = []
        self._outcomes: list[tuple[OutcomeRow, asyncio.Future[bool]]] = []
        self._chars = 0
        self._written = self._lost = self._faults = 0
        self._last_fault: str | None = None
        self._tidied_s = 0.0
        self._disk = ThreadPoolExecutor(1, "log")
        self._writing = asyncio.Lock()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def add(self, entries: Sequence[LogEntry]) -> LogState:
        """Take the rows of queries that have ended."""
        for entry in entries:
            size = _size(entry)
            if self._num_rows >= MAX_ROWS or self._chars + size > MAX_CHARS:
                self._lost += 1 + len(entry.calls)
                continue
            self._queries[entry.query.query_id] = entry.query
            self._calls += entry.calls
            self._chars += size
        return self.state

    async def feedback(self, outcome: OutcomeRow, owner: str) -> bool | None:
        """Keep an outcome: ``True`` once it is on disk, ``False`` where the disk does not take it.

        ``None``: the query is not in the log, or it is another owner's long query.
        """
        known = await self._owner(outcome.query_id)
        if known is None or (known[0] is not None and known[0] != owner):
            return None
        if not self._limits.log_content:
            outcome = replace(outcome, comment=None)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._outcomes.append((outcome, done))
        await self._flush_outcomes()
        return await done

    async def flush(self) -> LogState:
        """Write all that waits."""
        async with self._writing:
            await self._write_rows()
        return self.state

    @property
    def state(self) -> LogState:
        folder = str(self._folder.path)
        return LogState(folder, self._written, self._lost, self._faults, self._last_fault)

    @property
    def _num_rows(self) -> int:
        return len(self._queries) + len(self._calls)

    # --- is it known? --------------------------------------------------------------------------

    async def _owner(self, query_id: str) -> tuple[str | None] | None:
        """A query's owner in a tuple; ``None`` where the query is not known."""
        end = time.monotonic() + UNHEARD_S
        asked_disk = False
        while True:
            if (row := self._queries.get(query_id)) is not None:
                return (row.owner,)
            if not asked_disk:
                asked_disk = True
                found = await self._on_disk(lambda: find_owner(self._folder, query_id))
                if found is not None:
                    return (found[0],)
            if time.monotonic() > end:
                return None
            await asyncio.sleep(0.1)

    # --- writing -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._limits.flush_s)
            try:
                await self.flush()
                if time.monotonic() - self._tidied_s >= TIDY_S:
                    self._tidied_s = time.monotonic()
                    await self._attempt(lambda: self._folder.tidy(self._limits, time.time()))
            except Exception:
                logger.exception("the call log")

    async def _write_rows(self) -> None:
        """Under ``_writing``. Rows stay in memory where the disk does not take them."""
        queries, calls = list(self._queries.values()), list(self._calls)
        if queries and await self._append("queries", queries):
            for row in queries:
                del self._queries[row.query_id]
        if calls and await self._append("calls", calls):
            del self._calls[: len(calls)]
        if not self._num_rows:
            self._chars = 0

    async def _flush_outcomes(self) -> None:
        """Write what has been told; whoever comes while that goes on is in the next part."""
        async with self._writing:
            some, self._outcomes = self._outcomes, []
            if some:
                written = await self._append("outcomes", [row for row, _ in some])
                for _, done in some:
                    if not done.done():
                        done.set_result(written)

    async def _append(self, table: str, rows: Sequence[Any]) -> bool:
        count = await self._attempt(lambda: self._folder.append(table, rows, time.time()))
        self._written += count or 0
        return count is not None

    async def _attempt(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` on the disk; ``None`` where it fails, which is counted."""
        try:
            return await self._on_disk(work)
        except (OSError, ConfigError) as error:
            self._faults += 1
            level = logging.WARNING if str(error) != self._last_fault else logging.DEBUG
            self._last_fault = str(error)
            logger.log(level, "the call log cannot be written: %s", error)
            return None

    async def _on_disk(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)


def find_owner(folder: LogFolder, query_id: str) -> tuple[str | None] | None:
    """The owner of a query that is on disk, in a tuple; ``None`` where there is no such query."""
    for part in reversed(parts(folder.path, "queries")):
        try:
            table = read_part(part.path, "queries", ["query_id", "owner"])
        except (FileNotFoundError, ConfigError):
            continue
        found = only(table, "query_id", [query_id], keep=True)
        if len(found):
            return (found["owner"][0].as_py(),)
    return None


def _size(entry: LogEntry) -> int:
    query = entry.query
    texts = [query.question, query.text, *(t for c in entry.calls for t in (c.prompt, c.text))]
    held = sum(len(text) for text in texts if text is not None)
    return held + ROW_CHARS * (1 + len(entry.calls)) + 8 * len(query.embedding or ())
