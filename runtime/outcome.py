"""The state of a query's steps, and how an ``Answer`` with its trace is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.errors import InfraMindError, Overloaded
from runtime.types import (
    Answer,
    Call,
    CallResult,
    Plan,
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
    route: Route | None = None
    speed: Speed | None = None
    call: Call | None = None
    result: CallResult | None = None
    canonical: str | None = None
    error: str | None = None
    first_asked_s: float | None = None
    ended_s: float | None = None

    @property
    def ended(self) -> bool:
        return self.status in _ENDED

    @property
    def text(self) -> str:
        return self.result.text if self.result else ""

    def ask(self, now: float) -> None:
        """The executor is asked where the step should run."""
        self.status = "asked"
        if self.first_asked_s is None:
            self.first_asked_s = now

    def begin(self, call: Call, route: Route, speed: Speed) -> None:
        """A call is on its way."""
        self.status = "running"
        self.attempts += 1
        self.call, self.route, self.speed = call, route, speed
        self.error = None

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
    result = chosen.result if chosen else None
    finish = result.finish_reason if result else "length" if status == "degraded" else "error"
    failed = error if status in ("error", "degraded") else None
    return Answer(
        query_id=query.query_id,
        status=status,
        text=result.text if result else text,
        canonical=chosen.canonical if chosen else None,
        finish_reason=finish,
        task=plan.task if plan else query.task or TaskKind.GENERAL,
        topology=plan.topology if plan else None,
        roles=plan.roles if plan else (),
        steps=tuple(_trace(s, progress, now) for s in progress.steps if s.status != "waiting"),
        usage=_usage(progress.steps),
        latency_s=now - progress.arrival_s,
        budget_s=query.budget_s,
        policy=progress.policy,
        simulated=progress.simulated,
        error_code=failed.code if failed else None,
        error_message=failed.message if failed else None,
        retry_after_s=failed.retry_after_s if isinstance(failed, Overloaded) else None,
    )


def _usage(steps: tuple[StepState, ...]) -> Usage:
    results = [s.result for s in steps if s.result is not None]
    return Usage(
        prompt_tokens=sum(r.prompt_tokens or 0 for r in results),
        completion_tokens=sum(r.completion_tokens or 0 for r in results),
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
    )
