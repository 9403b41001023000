"""The log's rows: one per model call, one per query, one per outcome that somebody told us.

A ``QueryRecord`` follows one query and makes its rows when the query ends. Pure: who calls passes
monotonic seconds, and says once which wall time they stand for. No row holds a prompt, an answer or
an embedding unless the record was told to keep content. ``runtime.log_tables`` has the rows as
Parquet tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.events import CallDone, CallDropped, CallFailed, WorkflowEvent
from runtime.load import PoolView
from runtime.types import Answer, Call, CallResult, DeadlineKind, Query, Step, StepKind


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One model as the one who chose saw it; ``None`` is what was not known."""

    model: str
    in_system: int
    slots: int
    running: int | None
    waiting: int | None
    backlog: int | None
    kv_usage: float | None
    age_s: float | None


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call of a model. Times ``*_at`` are seconds since 1970.

    ``status`` is ``ok``, ``cancelled`` (withdrawn), ``dropped`` (its deadline passed in the queue),
    or the kind of its failure (``runtime.events.FailureKind``). ``strategy`` is ``None`` for a
    model that was called by name. ``prompt_tokens`` are the engine's count, ``estimated_tokens``
    ours. ``queue_s`` is the wait for a lease, ``service_s`` what came after. ``num_shown`` counts
    the earlier answers in the prompt. ``agrees`` says whether its answer is that of the query,
    ``None`` where that cannot be told. ``load`` is the pool when the model was chosen.
    """

    query_id: str
    step_id: int
    attempt: int
    kind: str
    role: str
    task: str
    topology: str
    policy: str
    model: str
    strategy: str | None
    replica: str | None
    status: str
    finish_reason: str | None
    agrees: bool | None
    num_shown: int
    prompt_tokens: int | None
    estimated_tokens: int
    completion_tokens: int | None
    max_tokens: int
    arrival_at: float
    deadline_at: float
    hard: bool
    asked_at: float
    granted_at: float | None
    ended_at: float
    budget_left_s: float
    queue_s: float
    service_s: float | None
    ttft_s: float | None
    load: tuple[LoadRow, ...]
    simulated: bool
    config: str
    prompt: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query that was offered, also where it was refused. ``owner`` is a long query's."""

    query_id: str
    owner: str | None
    status: str
    error: str | None
    task: str
    topology: str | None
    roles: tuple[str, ...]
    policy: str
    direct_model: str | None
    hard: bool
    arrival_at: float
    ended_at: float
    latency_s: float
    budget_s: float
    num_calls: int
    prompt_tokens: int
    completion_tokens: int
    simulated: bool
    config: str
    cost_usd: float | None = None
    question: str | None = None
    text: str | None = None
    embedding: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """What somebody says of a query's answer: ``correct``, or a ``score`` from 0 to 1.

    ``source`` is who says it, such as ``user``, ``grader`` or ``judge``; ``dataset`` and
    ``item_id`` are what was asked, where it was an item of a data set. Of several outcomes of one
    query the last counts; a query without any has an unknown outcome.
    """

    query_id: str
    at: float
    source: str
    correct: bool | None
    score: float | None
    dataset: str | None = None
    item_id: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class LogEntry:
    """All rows of one query."""

    query: QueryRow
    calls: tuple[CallRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall time from monotonic time: at ``now_s`` it was ``wall_at``. Steps of the wall clock while
    a query runs change nothing."""

    now_s: float
    wall_at: float

    def at(self, now: float) -> float:
        return self.wall_at + (now - self.now_s)


@dataclass(slots=True)
class _Open:
    """A call until its row is made."""

    call: Call
    step: Step
    num_shown: int
    load: tuple[LoadRow, ...]
    simulated: bool
    asked_s: float
    granted_s: float | None = None
    max_tokens: int | None = None
    ended_s: float | None = None
    end: WorkflowEvent | None = None


class QueryRecord:
    """The calls of one query, from the first that is asked for to the query's end."""

    def __init__(
        self, query: Query, arrival_s: float, clock: Clock, config: str, content: bool
    ) -> None:
        self._query = query
        self._arrival_s = arrival_s
        self._clock = clock
        self._config = config
        self._content = content
        self._calls: dict[str, _Open] = {}

    def asked(self, call: Call, step: Step, num_shown: int, pool: PoolView, now: float) -> None:
        """A call was routed by what ``pool`` showed, and asks for its turn."""
        simulated = pool[call.model].config.simulated
        opened = _Open(call, step, num_shown, load_rows(pool), simulated, now)
        self._calls[call.call_id] = opened

    def granted(self, call_id: str, max_tokens: int, now: float) -> None:
        """Its turn has come; it may write ``max_tokens``."""
        if (known := self._calls.get(call_id)) is not None:
            known.granted_s, known.max_tokens = now, max_tokens

    def ended(self, call_id: str, end: WorkflowEvent | None, now: float) -> None:
        """It is over, as ``end`` says, or withdrawn; the first of several ends counts."""
        known = self._calls.get(call_id)
        if known is not None and known.ended_s is None:
            known.ended_s, known.end = now, end

    def finished(
        self, answer: Answer, now: float, embedding: Sequence[float] | None = None
    ) -> LogEntry:
        """The query has its outcome; calls that are still on their way are withdrawn by it."""
        for call_id in self._calls:
            self.ended(call_id, None, now)
        canonical = {step.step_id: step.answer for step in answer.steps}
        calls = tuple(self._row(c, answer, canonical) for c in self._calls.values())
        return LogEntry(self._query_row(answer, now, len(calls), embedding), calls)

    def _query_row(
        self, answer: Answer, now: float, num_calls: int, embedding: Sequence[float] | None
    ) -> QueryRow:
        query, kept = self._query, self._content
        return QueryRow(
            query_id=public_id(query.query_id),
            owner=query.owner,
            status=answer.status,
            error=answer.error_code,
            task=answer.task,
            topology=answer.topology,
            roles=answer.roles,
            policy=answer.policy,
            direct_model=query.direct_model,
            hard=query.deadline_kind is DeadlineKind.HARD,
            arrival_at=self._clock.at(self._arrival_s),
            ended_at=self._clock.at(now),
            latency_s=answer.latency_s,
            budget_s=query.budget_s,
            num_calls=num_calls,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            simulated=answer.simulated,
            config=self._config,
            cost_usd=answer.usage.cost_usd,
            question=query.question if kept else None,
            text=answer.text if kept else None,
            embedding=tuple(embedding) if kept and embedding is not None else None,
        )

    def _row(self, one: _Open, answer: Answer, canonical: Mapping[int, str | None]) -> CallRow:
        call, step, query, clock = one.call, one.step, self._query, self._clock
        assert one.ended_s is not None
        result = one.end.result if isinstance(one.end, CallDone) else None
        granted_s, ended_s = one.granted_s, one.ended_s
        queue_s = (ended_s if granted_s is None else granted_s) - one.asked_s
        service_s = None if granted_s is None else ended_s - granted_s
        deadline_s = self._arrival_s + query.budget_s
        return CallRow(
            query_id=public_id(query.query_id),
            step_id=step.step_id,
            attempt=int(call.call_id.rpartition(".")[2]),
            kind=step.kind,
            role=step.role,
            task=answer.task,
            topology=answer.topology or "",
            policy=answer.policy,
            model=call.model,
            strategy=None if step.kind is StepKind.DIRECT else call.strategy,
            replica=result.replica if result else None,
            status=_status(one.end),
            finish_reason=result.finish_reason if result else None,
            agrees=_agrees(result, canonical.get(step.step_id), answer),
            num_shown=one.num_shown,
            prompt_tokens=result.prompt_tokens if result else None,
            estimated_tokens=call.prompt_tokens,
            completion_tokens=result.completion_tokens if result else None,
            max_tokens=call.max_tokens if one.max_tokens is None else one.max_tokens,
            arrival_at=clock.at(self._arrival_s),
            deadline_at=clock.at(deadline_s),
            hard=query.deadline_kind is DeadlineKind.HARD,
            asked_at=clock.at(one.asked_s),
            granted_at=None if granted_s is None else clock.at(granted_s),
            ended_at=clock.at(ended_s),
            budget_left_s=deadline_s - one.asked_s,
            queue_s=result.queue_s if result else queue_s,
            service_s=result.service_s if result else service_s,
            ttft_s=result.ttft_s if result else None,
            load=one.load,
            simulated=one.simulated,
            config=self._config,
            prompt=_prompt(call) if self._content else None,
            text=result.text if self._content and result else None,
        )


def load_rows(pool: PoolView) -> tuple[LoadRow, ...]:
    """The pool as a policy sees it, as rows."""
    return tuple(
        LoadRow(m.name, m.in_system, m.slots, m.running, m.waiting, m.backlog, m.kv_usage, m.age_s)
        for m in pool.models
    )


def public_id(query_id: str) -> str:
    """The id that the client knows: a query that ran again has a number behind it."""
    return query_id.partition(".")[0]


def _status(end: WorkflowEvent | None) -> str:
    match end:
        case CallDone():
            return "ok"
        case CallDropped():
            return "dropped"
        case CallFailed(kind=kind):
            return kind.value
        case _:
            return "cancelled"


def _agrees(result: CallResult | None, canonical: str | None, answer: Answer) -> bool | None:
    if result is None or answer.status == "error":
        return None
    if canonical is not None and answer.canonical is not None:
        return canonical == answer.canonical
    return True if result.text == answer.text else None


def _prompt(call: Call) -> str:
    if call.prompt is not None:
        return call.prompt
    messages = [{"role": m.role, "content": m.content} for m in call.messages]
    return json.dumps(messages, ensure_ascii=False)
