"""``Simulation``: queries, schedulers and engines in virtual time; no clock, no event loop.

It performs the commands of the very state machines that production runs: ``WorkflowState`` per
query, ``DispatchState`` per model, ``Decider``, ``LocalLoad`` and ``TelemetryFusion``. What actors
do beside (leases, timers, cancelling) is done here in their order. Production keeps a lease for a
next call only while nobody waits (``LeaseStock``), so leases that always go back at once, as here,
are granted in the same order. Figures from it are always to be labelled simulated.

Where a decision is due, ``advance`` stops and ``decide`` goes on, so decisions may come from
outside, for many simulations at once. There is one at a time: each sees the calls of those before
it, as live. ``run`` asks a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from runtime.config import AppConfig
from runtime.decide import Decider
from runtime.errors import InfraMindError
from runtime.events import (
    AskPlan,
    AskRoute,
    CancelCall,
    Cancelled,
    DeadlinePassed,
    Finish,
    Routed,
    RunCall,
    TelemetryChanged,
    WorkflowCommand,
    WorkflowEvent,
)
from runtime.load import LocalLoad
from runtime.outcome import refused_answer
from runtime.policy import PlanView, Policy, StepView
from runtime.sim.agenda import Agenda
from runtime.sim.faults import FaultPlayer
from runtime.sim.filler import core_of, filler
from runtime.sim.outcomes import OutcomeModel, SimItem
from runtime.sim.pool import Death, SimApi, SimModel, Slowdown, check_faults, sim_pool
from runtime.sim.results import Results
from runtime.sim.runs import Attempt, CallEnd, QueryRun
from runtime.sim.sampling import SimTelemetry
from runtime.sim.serving import Serving
from runtime.sim.settings import Embed, Outside, SimSettings
from runtime.sim.workload import Arrival
from runtime.types import Answer, Call, DeadlineKind, Decision, Plan, Query, Route, Stop, Wait
from runtime.workflow import WorkflowState

_JUST_AFTER_S = 1e-9
"""A timer goes off a little after its time, never before."""


View = PlanView | StepView


class Simulation:
    """One run over one workload.

    Args:
        config: the pool and its limits; ``at_deadline`` says whether deadlines are hard.
        outcomes: what calls write and what is right.
        arrivals: the queries in order of arrival; may be endless if the caller stops.
        policy: its name is in the answers, and ``run`` asks it; ``None``: decisions come from
            outside.
        models: the engines; by default those that the config's ``speed`` describes.
        settings: how to simulate.
        embed: the embedding of an item's question, for policies that need it.
        on_answer: told of every outcome, with the query's number and whether it is right.

    Raises:
        ValueError: an unknown engine, a model without one, or a fault of a replica that is none.
    """

    def __init__(
        self,
        config: AppConfig,
        outcomes: OutcomeModel,
        arrivals: Iterable[Arrival],
        policy: Policy | None = None,
        *,
        models: Mapping[str, SimModel | SimApi] | None = None,
        settings: SimSettings | None = None,
        embed: Embed | None = None,
        on_answer: Callable[[int, Answer, bool], None] | None = None,
    ) -> None:
        settings = settings or SimSettings()
        check_faults(settings.faults, config)
        self.results = Results(tuple(m.name for m in config.models))
        self._config = config
        self._outcomes = outcomes
        self._policy: Policy = policy or Outside()
        self._decider = Decider(config, self._policy)
        self._embed = embed
        self._on_answer = on_answer
        self._agenda = Agenda()
        period_s = settings.telemetry_period_s
        period_s = config.telemetry.report_period_s if period_s is None else period_s
        self._telemetry = SimTelemetry(config, period_s, settings.telemetry_age_s)
        pool = dict(models) if models is not None else sim_pool(config)
        self._serving = Serving(
            self._agenda,
            config,
            {name: model.slower(settings.slowdown) for name, model in pool.items()},
            settings.engine,
            self._telemetry,
            outcomes,
            self.results,
            self._call_ended,
            may_freeze=any(isinstance(f, Slowdown) for f in settings.faults),
        )
        drivers = max(1, config.workflow_actors)
        self._loads = [LocalLoad(config, f"driver{number}") for number in range(drivers)]
        self._runs: dict[int, QueryRun] = {}
        self._parked: dict[int, QueryRun] = {}
        self._todo: list[tuple[QueryRun, WorkflowCommand]] = []
        self._pending: tuple[QueryRun, View] | None = None
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)
        self._learns = any(isinstance(f, Death) for f in settings.faults)
        FaultPlayer(
            self._agenda, config, self._serving, self._telemetry, self._hear, settings.faults
        )

    # --- from outside --------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._agenda.now

    @property
    def num_in_flight(self) -> int:
        """Queries that have come and have no outcome yet."""
        return len(self._runs)

    @property
    def num_calls(self) -> int:
        """Calls that wait or run."""
        return self._serving.num_calls

    def item_of(self, view: View) -> SimItem:
        """The item of the query that a decision is about."""
        return self._runs[_number(view.query.query_id)].arrival.item

    def run(self) -> Results:
        """Ask the policy until the workload has ended and every query has its outcome."""
        policy = self._policy
        while (view := self.advance()) is not None:
            if isinstance(view, PlanView):
                self.decide(policy.plan(view))
            else:
                self.decide(policy.route(view))
        return self.results

    def advance(self) -> View | None:
        """Go on until a decision is due, and return what it is about; ``None`` at the end.

        Asked again before ``decide``, it returns the same view.

        Raises:
            RuntimeError: queries are left, and nothing that could ever happen to them.
        """
        if self._pending is not None:
            return self._pending[1]
        while True:
            while self._todo:
                run, command = self._todo.pop()
                self._perform(run, command)
                if self._pending is not None:
                    return self._pending[1]
            if not self._agenda.run_soon() and not self._go_on():
                break
        self.results.end_s = self.now
        self._serving.collect()
        return None

    def decide(self, decision: Plan | Decision) -> None:
        """The decision that ``advance`` asked for; a bad one ends its query with an error."""
        if self._pending is None:
            raise ValueError("no decision is due")
        (run, view), self._pending = self._pending, None

        def handle() -> list[WorkflowCommand]:
            if isinstance(view, PlanView):
                assert isinstance(decision, Plan)
                return run.state.handle(self._decider.planned(decision), self.now)
            assert isinstance(decision, Route | Stop | Wait)
            return self._routed(run, self._decider.routed(view, decision))

        self._guard(run, handle)

    # --- time ----------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """The next event or arrival; ``False`` when all is over."""
        next_s = self._agenda.next_s
        if self._next is not None and (next_s is None or self._next.at_s < next_s):
            arrival, self._next = self._next, next(self._arrivals, None)
            self._agenda.now = max(self.now, arrival.at_s)
            self._arrive(arrival)
            return True
        if self._next is None and not self._runs:
            return False
        if next_s is None:
            raise RuntimeError(f"{len(self._runs)} queries are left and nothing will happen")
        self._agenda.run_next()
        return True

    def _arrive(self, arrival: Arrival) -> None:
        number, now, item = self.results.num_arrivals, self.now, arrival.item
        self.results.num_arrivals += 1
        hard = self._config.at_deadline == "finish"
        query = Query(
            query_id=f"q{number}",
            question=filler(item.question_tokens),
            budget_s=arrival.budget_s,
            budget_usd=self._config.money.query_usd(arrival.budget_usd),
            task=item.task,
            choices=item.choices,
            deadline_kind=DeadlineKind.HARD if hard else DeadlineKind.SOFT,
        )
        load = self._loads[number % len(self._loads)]
        embedding = self._embed(item) if self._embed is not None else None
        state = WorkflowState(query, self._config, arrival.at_s)
        run = QueryRun(number, arrival, state, load, embedding)
        limit = self._config.limits.max_queries_in_flight
        if len(self._runs) >= limit:
            self._finish(run, refused_answer(query, arrival.at_s, now, limit))
            return
        self._runs[number] = run
        if hard:
            self._agenda.at(state.deadline_s + _JUST_AFTER_S, self._deadline, number)
        if arrival.leaves_after_s is not None:
            self._agenda.at(arrival.at_s + arrival.leaves_after_s, self._leaves, number)
        self._guard(run, lambda: state.start(now))

    def _deadline(self, number: int) -> None:
        if (run := self._runs.get(number)) is not None:
            for attempt in list(run.attempts.values()):
                self._serving.expire(attempt)
            self._agenda.soon(self._drops_are_out, number)

    def _drops_are_out(self, number: int) -> None:
        self._agenda.soon(self._deadline_passed, number)  # behind what the drops brought about

    def _deadline_passed(self, number: int) -> None:
        if (run := self._runs.get(number)) is not None:
            self._take(run, DeadlinePassed())

    def _leaves(self, number: int) -> None:
        if (run := self._runs.get(number)) is not None:
            self._take(run, Cancelled())

    # --- one query -----------------------------------------------------------------------------

    def _take(self, run: QueryRun, event: WorkflowEvent) -> None:
        self._guard(run, lambda: run.state.handle(event, self.now))

    def _guard(self, run: QueryRun, advance: Callable[[], list[WorkflowCommand]]) -> None:
        """Advance a state machine; what is wrong with a plan or a route ends the query."""
        try:
            commands = advance()
        except InfraMindError as error:
            commands = run.state.fail(error, self.now)
        # The last is taken next: each command, and what follows from it, before the one after it.
        self._todo.extend((run, command) for command in reversed(commands))

    def _perform(self, run: QueryRun, command: WorkflowCommand) -> None:
        match command:
            case AskPlan():
                self._ask_plan(run)
            case AskRoute():
                if run.state.answer is None:
                    self._guard(run, lambda: self._ask_route(run, command))
            case RunCall(call=call):
                self._start(run, call)
            case CancelCall(call_id=call_id):
                self._withdraw(run, call_id)
            case Finish(answer=answer):
                self._runs.pop(run.number)
                self._finish(run, answer)

    def _ask_plan(self, run: QueryRun) -> None:
        self._hear()
        state, query = run.state, run.state.query
        pool, left_s = run.load.view(self.now), state.deadline_s - self.now
        task = run.arrival.item.task
        self._pending = run, self._decider.plan_view(query, task, pool, left_s, run.embedding)

    def _ask_route(self, run: QueryRun, ask: AskRoute) -> list[WorkflowCommand]:
        self._hear()
        pool = run.load.view(self.now)
        view = self._decider.step_view(run.state, ask, pool, self.now, run.embedding)
        if isinstance(view, Routed):
            return self._routed(run, view)
        self._pending = run, view
        return []

    def _routed(self, run: QueryRun, routed: Routed) -> list[WorkflowCommand]:
        if isinstance(routed.decision, Wait):
            self._park(run)
        return run.state.handle(routed, self.now)

    def _start(self, run: QueryRun, call: Call) -> None:
        now = self.now
        in_system = run.load.view_of(call.model, now).in_system
        run.load.sent(call.call_id, call.model, now)
        attempt = run.attempts[call.call_id] = Attempt(run, call, now, in_system)
        self._serving.acquire(attempt)

    def _withdraw(self, run: QueryRun, call_id: str) -> None:
        attempt = run.attempts.pop(call_id, None)
        if attempt is not None:  # else it has just ended, and its query is not told yet
            self._serving.withdraw(attempt)
            run.load.ended(call_id, attempt.call.model, self.now)

    def _call_ended(self, attempt: Attempt, event: CallEnd) -> None:
        run, call = attempt.run, attempt.call
        run.load.ended(call.call_id, call.model, self.now, event)
        run.load.paid(call, event, self.now)
        del run.attempts[call.call_id]
        self._agenda.soon(self._tell, (run, event))

    def _tell(self, about: tuple[QueryRun, CallEnd]) -> None:
        self._take(*about)

    def _finish(self, run: QueryRun, answer: Answer) -> None:
        item = run.arrival.item
        core = core_of(answer.text)
        solved = bool(core) and self._outcomes.solved(item, core)
        self.results.add_query(
            run.number, item.item_id, item.dataset, run.arrival.at_s, answer, solved
        )
        if self._on_answer is not None:
            self._on_answer(run.number, answer, solved)

    # --- telemetry -----------------------------------------------------------------------------

    def _hear(self) -> None:
        snapshot = self._telemetry.refresh(self._loads, self.now)
        if snapshot is not None and self._learns:
            self._serving.learn_capacity(snapshot)

    def _park(self, run: QueryRun) -> None:
        """Ask again when there is news."""
        if not self._parked:
            self._agenda.at(self._telemetry.next_s(self.now), self._wake_parked, None)
        self._parked[run.number] = run

    def _wake_parked(self, _: None) -> None:
        self._hear()
        parked, self._parked = self._parked, {}
        for run in parked.values():
            self._agenda.soon(self._tell_news, run)

    def _tell_news(self, run: QueryRun) -> None:
        self._take(run, TelemetryChanged())


def _number(query_id: str) -> int:
    return int(query_id.removeprefix("q"))
