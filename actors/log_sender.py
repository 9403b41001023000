"""What a driver of queries knows of the call log: makes records, and sends entries on in batches.

One batch is on its way at a time. Where the log actor is slow or gone, entries wait up to a bound
and are then lost and counted; a query never waits for its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import asdict, dataclass
from typing import Any

from actors.names import ActorNames, ActorRef
from runtime.call_log import Clock, LogEntry, QueryRecord
from runtime.config import AppConfig
from runtime.types import Query

SEND_GAP_S = 0.2
ASK_S = 15.0
"""With nothing to send, the actor is asked how it fares so often."""

SEND_TIMEOUT_S = 10.0
MAX_WAITING = 5000
"""Queries whose rows wait to be sent; some 10 MB without content."""

MAX_BATCH = 200
MAX_WAITING_CHARS = 50_000_000
"""Of prompts and answers, where content is logged."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogState:
    """How the log actor fares; counts are since its start."""

    folder: str = ""
    rows_written: int = 0
    rows_lost: int = 0
    faults: int = 0
    last_fault: str | None = None


class LogSender:
    """Sends to the log actor of a pool; needs a running event loop."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config.digest
        self._content = config.call_log.log_content
        self._actor = ActorRef(ActorNames(config.digest).log)
        self._waiting: list[LogEntry] = []
        self._chars = 0
        self._queries_lost = 0
        self._state = LogState()
        self._news = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def record(self, query: Query, arrival_s: float) -> QueryRecord:
        """Begin the record of a query that arrived at ``arrival_s``, monotonic."""
        clock = Clock(time.monotonic(), time.time())
        return QueryRecord(query, arrival_s, clock, self._config, self._content)

    def add(self, entry: LogEntry) -> None:
        """Send the rows of a query that has ended, soon."""
        chars = _chars(entry)
        if len(self._waiting) >= MAX_WAITING or self._chars + chars > MAX_WAITING_CHARS:
            self._queries_lost += 1
            return
        self._waiting.append(entry)
        self._chars += chars
        self._news.set()

    @property
    def state(self) -> dict[str, Any]:
        """The log actor's state as last heard, and the queries whose rows this process lost."""
        return {**asdict(self._state), "queries_lost": self._queries_lost}

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await self._news.wait()
            await asyncio.sleep(SEND_GAP_S)
            batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
            self._chars -= sum(map(_chars, batch))
            if not self._waiting:
                self._news.clear()
            try:
                sent = self._actor.get().add.remote(tuple(batch))
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    self._state = await sent
            except Exception as error:  # whatever it is, the next batch is tried
                self._actor.forget()
                self._queries_lost += len(batch)
                if batch:
                    what = type(error).__name__
                    logger.warning("the log lost %d queries: %s", len(batch), what)


def _chars(entry: LogEntry) -> int:
    query = entry.query
    texts = [query.question, query.text, *(t for c in entry.calls for t in (c.prompt, c.text))]
    return sum(len(text) for text in texts if text is not None)
