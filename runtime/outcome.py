"""The state of a query's steps, and how an ``Answer`` with its trace is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from runtime.errors import InfraMindError, Overloaded
from runtime.money import total_usd
from runtime.types import (
    Answer,
    Call,
    CallResult,
    Choice,
    Plan,
    ProgramRun,
    Query,
    Route,
    Speed,
    Step,
    StepKind,
    StepTrace,
    TaskKind,
    Usage,
)

_ENDED = ("ok", "failed", "cancelled", "dropped", "stopped")


@dataclass(slots=True)
class StepState:
    """One step: ``status`` is waiting, asked, parked or running, or how it ended: ok, failed,
    cancelled, dropped (its deadline passed in a queue) or stopped (the answers agreed)."""

    step: Step
    status: str = "waiting"
    attempts: int = 0
    excluded: set[str] = field(default_factory=set)
    unlucky: set[str] = field(default_factory=set)  # of these, those that may be tried again
    route: Route | None = None
    speed: Speed | None = None
    call: Call | None = None
    result: CallResult | None = None
    cost_pusd: int | None = None
    canonical: str | None = None
    error: str | None = None
    first_asked_s: float | None = None
    parked_s: float | None = None
    ended_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @property
    def text(self) -> str:
        return self.result.text if self.result else ""

    @property
    def run(self) -> ProgramRun | None:
        """What came of its program."""
        return self.result.run if self.result else None

    def ask(self, now: float) -> None:
        """The executor is asked where the step should run."""
        self.status = "asked"
        if self.first_asked_s is None:
            self.first_asked_s = now

    def park(self, now: float) -> float:
        """No model can take it; returns since when."""
        self.status = "parked"
        if self.parked_s is None:
            self.parked_s = now
        return self.parked_s

    def begin(self, call: Call, route: Route, speed: Speed) -> None:
        """A call is on its way."""
        self.status = "running"
        self.attempts += 1
        self.call, self.route, self.speed = call, route, speed
        self.error = self.parked_s = None

    def end(self, status: str, now: float) -> None:
        """Its call is over."""
        self.status = status
        self.ended_s = now


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a query when its answer is made."""

    query: Query
    arrival_s: float
    plan: Plan | None
    steps: tuple[StepState, ...]
    policy: str
    simulated: bool = False


def build_answer(
    progress: Progress,
    now: float,
    status: str,
    chosen: StepState | None,
    text: str,
    error: InfraMindError | None,
) -> Answer:
    """The one outcome: ``chosen``'s text, or ``text`` that has already left, or an error."""
    query, plan = progress.query, progress.plan
    choices = () if status == "error" else _choices(progress, chosen, text, status)
    failed = error if status in ("error", "degraded") else None
    return Answer(
        query_id=query.query_id,
        status=status,
        text=choices[0].text if choices else text,
        canonical=chosen.canonical if chosen else None,
        finish_reason=choices[0].finish_reason if choices else None,
        task=plan.task if plan else query.task or TaskKind.GENERAL,
        topology=plan.topology if plan else None,
        roles=plan.roles if plan else (),
        steps=tuple(_trace(s, progress, now) for s in progress.steps if s.status != "waiting"),
        usage=_usage(progress.steps),
        latency_s=now - progress.arrival_s,
        budget_s=query.budget_s,
        budget_usd=query.budget_usd,
        policy=progress.policy,
        simulated=progress.simulated,
        error_code=failed.code if failed else None,
        error_message=failed.message if failed else None,
        retry_after_s=getattr(failed, "retry_after_s", None),
        choices=choices,
    )


def refused_answer(query: Query, arrival_s: float, now: float, limit: int) -> Answer:
    """The outcome of a query that found ``limit`` others in flight."""
    error = Overloaded(f"{limit} queries are in flight, which is the limit", retry_after_s=1.0)
    progress = Progress(query, arrival_s, None, (), "")
    return build_answer(progress, now, "error", None, "", error)


def _choices(
    progress: Progress, chosen: StepState | None, text: str, status: str
) -> tuple[Choice, ...]:
    """Every whole answer of a model called by name; else the one answer.

    A degraded answer is ``length`` whatever its own step ended with: the query was cut short.
    """
    direct = [s for s in progress.steps if s.step.kind is StepKind.DIRECT and s.status == "ok"]
    whole = tuple(_choice(s.step.agent, s.result) for s in direct if s.result is not None)
    if whole:
        return whole
    if chosen is None or chosen.result is None:
        return (Choice(0, text, "length"),)
    choice = _choice(0, chosen.result)
    return (choice if status != "degraded" else replace(choice, finish_reason="length"),)


def _choice(index: int, result: CallResult) -> Choice:
    finish = result.finish_reason
    return Choice(index, result.text, finish, result.tool_calls, result.logprobs)


def _usage(steps: tuple[StepState, ...]) -> Usage:
    results = [s.result for s in steps if s.result is not None]
    return Usage(
        prompt_tokens=sum(r.prompt_tokens or 0 for r in results),
        completion_tokens=sum(r.completion_tokens or 0 for r in results),
        cost_usd=total_usd(s.cost_pusd for s in steps),
    )


def _trace(state: StepState, progress: Progress, now: float) -> StepTrace:
    started = state.first_asked_s if state.first_asked_s is not None else now
    ended = state.ended_s if state.ended_s is not None else now
    result = state.result
    direct = state.step.kind is StepKind.DIRECT
    return StepTrace(
        step_id=state.step.step_id,
        kind=state.step.kind,
        role=state.step.role,
        round=state.step.round,
        model=state.route.model if state.route else None,
        strategy=state.route.strategy if state.route and not direct else None,
        status=state.status if state.ended else "cancelled",
        attempts=state.attempts,
        prompt_tokens=result.prompt_tokens if result else None,
        completion_tokens=result.completion_tokens if result else None,
        queue_s=result.queue_s if result else None,
        service_s=result.service_s if result else None,
        started_after_s=started - progress.arrival_s,
        ended_after_s=ended - progress.arrival_s,
        budget_left_s=progress.query.budget_s - (ended - progress.arrival_s),
        answer=state.canonical,
        error=state.error,
        cost_usd=total_usd((state.cost_pusd,)),
        program=state.run.status if state.run else None,
        tests=state.run.tests if state.run else None,
    )
