"""The records actor: drives long queries, keeps their events and answers, and journals them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from actors import wire
from actors.journal import Entry, Journal, dump
from actors.names import ActorNames
from actors.runner import Progress, Started, StepStarted
from actors.submission import DirectSubmission, Drivers, Submission, failed
from actors.workflow_actor import WorkflowActor
from runtime.config import parse_config
from runtime.errors import InfraMindError, NoModelAnswered, Overloaded, QueryNotFound
from runtime.records import EventBatch, Record, RecordBook, RecordView, status_of
from runtime.types import Answer, Query

FIRST_NEWS_S = 0.3
CANCEL_WAIT_S = 5.0
SWEEP_S = 1.0
NUMBERS_PER_START = 10**9
"""Event numbers after a restart begin above all that were given before it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refused:
    """A long query that was not accepted."""

    message: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Deleted:
    """What a deletion did: it ``cancelled`` a running query or ``removed`` one that had ended.

    ``cancelling``: it has not ended yet. ``ended``: it ended by itself before it could be
    cancelled, and its record is still there.
    """

    query_id: str
    status: str
    action: str


class RecordsActor:
    """One per application version. Another owner's query is answered as an unknown one: ``None``.

    When its process dies, the next one takes records back from the journal and submits queries
    that still ran once more, within what is left of their budget.
    """

    def __init__(self, config: dict[str, Any], engines: dict[str, Any], embed: Any) -> None:
        self._config = parse_config(config)
        name = ActorNames(self._config.digest).records
        own = WorkflowActor(name, config, engines, embed)
        self._drivers = Drivers(self._config, own)
        self._journal = _journal(self._config.digest)
        first_number = 1 + self._journal.num_starts * NUMBERS_PER_START
        self._book = RecordBook(self._config.long_queries, first_number)
        self._submissions: dict[str, Submission | DirectSubmission] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._news: dict[str, asyncio.Event] = {}
        for entry in self._journal.entries():
            with contextlib.suppress(Overloaded):  # a record that no longer fits
                self._take_back(entry)
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    async def submit(self, query: Query, owner: str, spent_s: float) -> RecordView | Refused:
        """Accept a query and start it; a second time with the same id changes nothing.

        Where it is refused at once, nothing is kept.
        """
        query_id = query.query_id
        if query_id not in self._book:
            try:
                self._begin(query, owner, spent_s)
            except Overloaded as error:
                return Refused(error.message, error.retry_after_s)
        if self._book.events_after(query_id, owner, 0).events == ():
            await self._changed(query_id, FIRST_NEWS_S)
        view = self._book.view(query_id, owner, time.monotonic())
        answer = view.answer
        if answer is not None and answer.error_code == Overloaded.code:
            self._forget(query_id)
            return Refused(answer.error_message or "", answer.retry_after_s or 1.0)
        return view

    async def status(self, query_id: str, owner: str, wait_s: float = 0.0) -> RecordView | None:
        """The record; of a query that runs, when it has ended or ``wait_s`` later."""
        end_s = time.monotonic() + wait_s
        with contextlib.suppress(QueryNotFound):
            while True:
                now = time.monotonic()
                view = self._book.view(query_id, owner, now)
                if view.answer is not None or now >= end_s:
                    return view
                await self._changed(query_id, end_s - now)
        return None

    async def events(
        self, query_id: str, owner: str, after: int, wait_s: float
    ) -> EventBatch | None:
        """The events after number ``after``; where there is none, ``wait_s`` is waited for one."""
        with contextlib.suppress(QueryNotFound):
            batch = self._book.events_after(query_id, owner, after)
            if not batch.events and not batch.ended:
                await self._changed(query_id, wait_s)
                batch = self._book.events_after(query_id, owner, after)
            return batch
        return None

    async def delete(self, query_id: str, owner: str) -> Deleted | None:
        """Cancel a query that runs, or forget one that has ended."""
        view = await self.status(query_id, owner)
        if view is None:
            return None
        if view.answer is not None:
            self._forget(query_id)
            return Deleted(query_id, view.status, "removed")
        self._submissions[query_id].withdraw()
        view = await self.status(query_id, owner, CANCEL_WAIT_S)
        if view is None:
            return None
        action = {"running": "cancelling", "cancelled": "cancelled"}.get(view.status, "ended")
        return Deleted(query_id, view.status, action)

    async def counters(self) -> dict[str, int]:
        """What is kept, and how much of it runs."""
        book = self._book
        kept = {"kept": book.num_kept, "kept_bytes": book.kept_bytes}
        return {"running": book.num_running, **kept, **self._drivers.own.in_flight}

    # --- running -----------------------------------------------------------------------------

    def _begin(self, query: Query, owner: str, spent_s: float) -> None:
        query = dataclasses.replace(query, owner=owner)
        text = dump(query)
        arrival_s, query_id = time.monotonic() - spent_s, query.query_id
        dropped = self._book.accept(query_id, owner, arrival_s, query.budget_s, len(text))
        try:
            self._journal.begin(query, text, owner, time.time() - spent_s)
        except sqlite3.Error:
            self._book.remove(query_id)
            raise
        finally:
            self._dropped(dropped)
        self._start(query, query_id, arrival_s)

    def _start(self, query: Query, query_id: str, arrival_s: float) -> None:
        submission = self._drivers.submission(query, arrival_s)
        self._submissions[query_id] = submission
        task = asyncio.get_running_loop().create_task(self._drive(submission, query_id, arrival_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drive(
        self, submission: Submission | DirectSubmission, query_id: str, arrival_s: float
    ) -> None:
        ended = False
        try:
            async for item in submission.items():
                self._take(query_id, item)
                ended = ended or isinstance(item, Answer)
            if not ended:
                raise RuntimeError("the query ended without an outcome")
        except Exception as error:  # whatever it is, the record must not run for ever
            logger.exception("long query %s", query_id)
            submission.withdraw()
            fault = InfraMindError(f"internal error: {type(error).__name__}")
            self._end(query_id, failed(submission.query, time.monotonic() - arrival_s, fault))
        finally:
            del self._submissions[query_id]

    def _take(self, query_id: str, item: Progress) -> None:
        if isinstance(item, Answer):
            self._end(query_id, item)
        elif isinstance(item, Started):
            self._append(query_id, "plan", {"topology": item.topology})
        elif isinstance(item, StepStarted):
            self._append(query_id, "step", dataclasses.asdict(item))
        else:
            self._append(query_id, "delta", {"text": item.text})

    def _append(self, query_id: str, kind: str, data: dict[str, Any]) -> None:
        self._dropped(self._book.append(query_id, kind, _json(data)))
        self._tell(query_id)

    def _end(self, query_id: str, answer: Answer) -> None:
        answer = dataclasses.replace(answer, query_id=query_id)
        now = time.monotonic()
        dropped = self._book.end(query_id, answer, *_last_event(answer), now)
        try:
            number = self._book.last_number(query_id)
            self._journal.end(query_id, answer, time.time(), number)
        except (sqlite3.Error, ValueError):
            logger.exception("long query %s is kept in memory only", query_id)
        self._dropped(dropped)
        self._tell(query_id)

    # --- keeping -----------------------------------------------------------------------------

    def _take_back(self, entry: Entry) -> None:
        """One record of the process before this one."""
        now, wall_s = time.monotonic(), time.time()
        arrival_s = now - max(0.0, wall_s - entry.arrival_wall_s)
        if entry.answer is not None:
            record = Record(entry.query_id, entry.owner, arrival_s, entry.budget_s)
            record.status, record.answer = status_of(entry.answer), entry.answer
            record.ended_s = now - max(0.0, wall_s - entry.ended_wall_s)
            last = _last_event(entry.answer)
            self._dropped(self._book.restore(record, entry.last_number, *last))
        elif entry.query is not None:
            self._submit_again(entry, entry.query, arrival_s)

    def _submit_again(self, entry: Entry, query: Query, arrival_s: float) -> None:
        """Under an id of its own: what the lost process had started is only now withdrawn."""
        query_id, size = entry.query_id, len(dump(query))
        self._dropped(self._book.accept(query_id, entry.owner, arrival_s, entry.budget_s, size))
        run_id = f"{query_id}.{entry.restarts}" if entry.restarts else query_id
        self._drivers.withdraw_everywhere(run_id)
        if entry.restarts:
            error = NoModelAnswered("the records actor was lost twice")
            answer = failed(query, time.monotonic() - arrival_s, error)
            self._drivers.own.log_outcome(query, arrival_s, answer)
            self._end(query_id, answer)
            return
        self._journal.restart(query_id)
        self._append(query_id, "restart", {})
        again = dataclasses.replace(query, query_id=f"{query_id}.{entry.restarts + 1}")
        self._start(again, query_id, arrival_s)

    def _forget(self, query_id: str) -> None:
        self._book.remove(query_id)
        self._dropped([query_id])

    def _dropped(self, query_ids: list[str]) -> None:
        """Records that are gone: also from the journal, and whoever waits for them is told."""
        if not query_ids:
            return
        try:
            self._journal.remove(query_ids)
        except sqlite3.Error:
            logger.exception("the journal still has what was removed")
        for query_id in query_ids:
            self._tell(query_id)

    async def _sweep(self) -> None:
        while True:
            self._dropped(self._book.expire(time.monotonic()))
            await asyncio.sleep(SWEEP_S)

    def _tell(self, query_id: str) -> None:
        if event := self._news.pop(query_id, None):
            event.set()

    async def _changed(self, query_id: str, wait_s: float) -> None:
        """Return when something happened to the query, or ``wait_s`` later."""
        event = self._news.setdefault(query_id, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await event.wait()


def _journal(digest: str) -> Journal:
    """On disk; in memory where that cannot be had, so that long queries are still served."""
    try:
        return Journal(journal_path(digest))
    except (sqlite3.Error, OSError):
        logger.exception("long queries are kept in memory only")
        return Journal(None)


def journal_path(digest: str) -> Path:
    """In Ray's session directory of this node, which goes away with the cluster."""
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir()) / context.get_session_name()
    return session / f"inframind-{digest}-queries.sqlite3"


def _last_event(answer: Answer) -> tuple[str, str]:
    """Kind and text of the event that ends a query."""
    if answer.status == "error":
        return "error", _json(wire.failure_response(answer)[1])
    return "answer", _json(wire.native_answer(answer))


def _json(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False)
