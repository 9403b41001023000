"""``WorkflowState``: one query's graph as a state machine. Events in, commands out, no clock."""

from __future__ import annotations

from runtime.allowance import limit_s, max_tokens, program_s, stall_s
from runtime.answers import canonical
from runtime.calls import build_call
from runtime.config import AppConfig
from runtime.errors import (
    ConfigError,
    ContextExceeded,
    DeadlineExceeded,
    InfraMindError,
    LimitExceeded,
    ModelUnavailable,
    MoneyExhausted,
    PlanError,
    QueryCancelled,
)
from runtime.events import (
    AskPlan,
    AskRoute,
    CallDone,
    CallDropped,
    CallFailed,
    CancelCall,
    Cancelled,
    DeadlinePassed,
    FailureKind,
    Finish,
    Planned,
    Routed,
    RunCall,
    TelemetryChanged,
    WorkflowCommand,
    WorkflowEvent,
)
from runtime.failures import SAME_MODEL_AGAIN, error_of
from runtime.formats import canonical_json
from runtime.money import Purse, call_cost_pusd, tariff
from runtime.outcome import Progress, StepState, build_answer
from runtime.policy import Agreement
from runtime.programs import Program, program_of
from runtime.prompts import PromptParts, build, rephrased
from runtime.roles import role
from runtime.topology import TOPOLOGIES, build_steps, path_lengths
from runtime.types import (
    Answer,
    Broke,
    Call,
    CallResult,
    DeadlineKind,
    Plan,
    Query,
    Route,
    Speed,
    Step,
    StepKind,
    Stop,
    Strategy,
    TaskKind,
    Topology,
    Wait,
)
from runtime.votes import agreement_of, behaviour, best_of, last_answers


class WorkflowState:
    """One query from arrival to its one outcome.

    ``start`` once, then ``handle`` each event with the monotonic time at which it happened;
    perform the commands in order. After ``Finish`` every event is ignored. A failed call is
    tried again, on a model that has not failed the step where there is one, while attempts and
    budget are left and none of its text has left.
    """

    def __init__(self, query: Query, config: AppConfig, arrival_s: float) -> None:
        self.query = query
        self.arrival_s = arrival_s
        self.deadline_s = arrival_s + query.budget_s
        self.answer: Answer | None = None
        self.plan: Plan | None = None
        self.steps: list[StepState] = []
        self._config = config
        self._policy = "direct" if query.direct_model else ""
        self._paths: tuple[int, ...] = ()
        self._calls: dict[str, int] = {}
        self._asked_parts: tuple[int, Strategy, PromptParts] | None = None
        self._num_calls = 0
        self._tokens = 0
        self.purse = Purse(query.budget_usd)
        self._error: InfraMindError | None = None

    # --- what the shell and the policies may ask ---------------------------------------------

    @property
    def hard(self) -> bool:
        return self.query.deadline_kind is DeadlineKind.HARD

    @property
    def progress(self) -> Progress:
        """The facts that an answer is made of."""
        fakes = {m.name for m in self._config.models if m.simulated}
        simulated = not fakes.isdisjoint(self.used.values())
        steps = tuple(self.steps)
        return Progress(self.query, self.arrival_s, self.plan, steps, self._policy, simulated)

    @property
    def used(self) -> dict[int, str]:
        """Model of every step that was routed, by step id."""
        return {s.step.step_id: s.route.model for s in self.steps if s.route is not None}

    @property
    def agreement(self) -> Agreement:
        """How the canonical answers so far agree."""
        return agreement_of(self._last_answers())

    def steps_after(self, step_id: int) -> int:
        """Length of the critical path that follows the step."""
        return self._paths[step_id]

    def parts(self, step_id: int, strategy: Strategy) -> PromptParts:
        """The step's prompt before it is fitted to a model."""
        assert self.plan is not None
        step = self.steps[step_id].step
        wanted = self.query.sampling.response_format if self._may_be_answer(step) else None
        last = self._asked_parts  # a step needs it once to be routed, and once to be run
        if last is not None and last[0] == step_id:
            if last[1] is strategy:
                return last[2]
            how = strategy, wanted, self._config.runs_code
            return rephrased(last[2], self.query, self.plan, step, *how)
        inputs = [
            (self.steps[i].step, self.steps[i].text)
            for i in step.depends_on
            if self.steps[i].status == "ok"
        ]
        runs = {s.step.step_id: s.run for s in self.steps if s.run is not None}
        told = runs if self._config.runs_code else None
        parts = build(self.query, self.plan, step, inputs, strategy, wanted, told)
        self._asked_parts = step_id, strategy, parts
        return parts

    def num_shown(self, step: Step) -> int:
        """How many earlier answers the step's prompt holds."""
        return sum(self.steps[i].status == "ok" for i in step.depends_on)

    def max_tokens_at(self, call_id: str, now: float) -> int:
        """The call's cap if it starts at ``now``, see ``runtime.allowance``."""
        call, speed = self._on_its_way(call_id)
        return max_tokens(call, speed, self._left_s(now), self._paths[call.step_id])

    def time_limit_at(self, call_id: str, now: float) -> float | None:
        """Seconds after which the engine should end the answer, if it starts at ``now``."""
        call, _ = self._on_its_way(call_id)
        return limit_s(call, self._left_s(now), self._paths[call.step_id])

    def stall_limit_at(self, call_id: str, now: float) -> float:
        """Seconds without a token after which the engine has hung, if it starts at ``now``."""
        call, speed = self._on_its_way(call_id)
        limits, after = self._config.limits, self._paths[call.step_id]
        return stall_s(call, speed, self._left_s(now), after, limits)

    def program(self, call_id: str, text: str, now: float) -> Program | None:
        """What is to be run of the call's answer before it is handed in with ``CallDone``."""
        if not self._config.runs_code or call_id not in self._calls or self.plan is None:
            return None
        call, _ = self._on_its_way(call_id)
        if call.sampling.response_format is not None:
            return None  # such answers are compared as JSON
        after, limits = self._paths[call.step_id], self._config.limits
        most_s = program_s(call, self._left_s(now), after, limits)
        steps = [state.step for state in self.steps]
        return program_of(self.plan, steps, steps[call.step_id], self.query.question, text, most_s)

    def call(self, call_id: str) -> Call | None:
        """A call that is on its way."""
        step_id = self._calls.get(call_id)
        return None if step_id is None else self.steps[step_id].call

    def _on_its_way(self, call_id: str) -> tuple[Call, Speed]:
        state = self.steps[self._calls[call_id]]
        assert state.call is not None
        assert state.speed is not None
        return state.call, state.speed

    def _left_s(self, now: float) -> float | None:
        """Seconds left of a hard budget; ``None`` where nothing is cut by it."""
        return self.deadline_s - now if self.hard else None

    # --- events ------------------------------------------------------------------------------

    def start(self, now: float) -> list[WorkflowCommand]:
        """The first commands; a pool model called by name needs no planner."""
        if self.query.direct_model is None:
            return [AskPlan()]
        task = self.query.task or TaskKind.GENERAL
        self.plan = Plan(Topology.IO, ("direct",), task)
        direct = (Step(i, StepKind.DIRECT, "direct", i, 1) for i in range(self.query.n))
        self._set_steps(tuple(direct))
        return self._advance(now)

    def handle(self, event: WorkflowEvent, now: float) -> list[WorkflowCommand]:
        """Apply one event.

        Raises:
            PlanError: a plan or route that cannot be carried out; ``fail`` it.
        """
        if self.answer is not None:
            return []
        match event:
            case Planned(plan=plan, policy=policy):
                self._policy = policy
                return self._planned(plan, now)
            case Routed():
                return self._routed(event, now)
            case CallDone():
                return self._done(event, now)
            case CallFailed():
                return self._failed(event, now)
            case CallDropped(call_id=call_id):
                self._error = DeadlineExceeded("the deadline passed while a call was queued")
                self.purse.spend(call_id, 0)
                return self._advance(now) if self._end_call(call_id, "dropped", now) else []
            case TelemetryChanged():
                return [self._ask(s, now) for s in self.steps if s.status == "parked"]
            case DeadlinePassed(streamed=streamed):
                return self._deadline(streamed, now) if self.hard else []
            case Cancelled():
                return self.fail(QueryCancelled("cancelled, or its client went away"), now)

    def fail(self, error: InfraMindError, now: float) -> list[WorkflowCommand]:
        """End the query with ``error``: something outside the graph made it impossible."""
        if self.answer is not None:
            return []
        self._error = error
        return self._finish(now, "error", None)

    def _planned(self, plan: Plan, now: float) -> list[WorkflowCommand]:
        try:
            roles = [role(plan.task, name) for name in plan.roles]
        except ConfigError as error:
            raise PlanError(error.message) from None
        limits = self._config.limits
        steps = build_steps(plan, [r.follow_up is not None for r in roles], limits.max_agents)
        self.plan = plan
        if len(steps) > limits.max_calls_per_query:
            needs = f"the plan needs {len(steps)} calls"
            return self.fail(
                LimitExceeded(f"{needs}, the limit is {limits.max_calls_per_query}"), now
            )
        self._set_steps(steps)
        return self._advance(now)

    def _set_steps(self, steps: tuple[Step, ...]) -> None:
        self.steps = [StepState(step) for step in steps]
        self._paths = path_lengths(steps)

    def _routed(self, event: Routed, now: float) -> list[WorkflowCommand]:
        state = self.steps[event.step_id]
        if state.status != "asked":
            return []
        match event.decision:
            case Wait(retry_after_s=retry_after_s):
                return self._wait(state, retry_after_s, now)
            case Stop():
                state.end("stopped", now)
                return self._finish(now, "ok", self._best())
            case Broke(message=message, retry_after_s=retry_after_s):
                return self._no_money(state, MoneyExhausted(message, retry_after_s), now)
            case Route() as route:
                return self._run(state, route, event.speed, now)

    def _run(
        self, state: StepState, route: Route, speed: Speed | None, now: float
    ) -> list[WorkflowCommand]:
        step = state.step
        prior = self._config.model(route.model).speed
        speed = speed or Speed(prior.prefill_tokens_per_s, prior.token_s, start_s=prior.start_s)
        try:
            call = build_call(
                self._config,
                self.query,
                step,
                self.parts(step.step_id, route.strategy),
                route,
                speed,
                attempt=state.attempts + 1,
                steps_after=self._paths[step.step_id],
                left_s=self._left_s(now),
                final=self._is_final(step),
                may_be_answer=self._may_be_answer(step),
                left_pusd=self.purse.left_pusd,
            )
        except ContextExceeded as error:
            return self._exclude(state, route.model, error, now)
        except MoneyExhausted as error:
            return self._no_money(state, error, now)
        if self._beyond_limits(call):
            self._error = LimitExceeded("the query reached its cap of calls or tokens")
            return self._give_up(now)
        self._num_calls += 1
        self._asked_parts = None
        state.begin(call, route, speed)
        self._calls[call.call_id] = step.step_id
        if (prices := tariff(self._config.model(call.model))) is not None:
            most = prices.cost_pusd(call.prompt_tokens, call.max_tokens)
            self.purse.hold(call.call_id, most)
        return [RunCall(call)]

    def _beyond_limits(self, call: Call) -> bool:
        """Whether the caps would be passed if every call on its way used all of its tokens."""
        limits = self._config.limits
        pending = [state.call for state in self.steps if state.status == "running" and state.call]
        tokens = self._tokens + sum(c.prompt_tokens + c.max_tokens for c in [*pending, call])
        return self._num_calls >= limits.max_calls_per_query or tokens > limits.max_tokens_per_query

    def _done(self, event: CallDone, now: float) -> list[WorkflowCommand]:
        state = self._end_call(event.call_id, "ok", now)
        if state is None or self.plan is None:
            return []
        prompt = event.result.prompt_tokens or 0
        self._tokens += prompt + (event.result.completion_tokens or 0)
        state.result = event.result
        self._pay(state, event.result)
        state.canonical = self._canonical(state, event.result)
        if self._is_final(state.step) and state.step.kind is not StepKind.DIRECT:
            return self._finish(now, "ok", state)
        return self._advance(now)

    def _pay(self, state: StepState, result: CallResult) -> None:
        assert state.call is not None
        if (prices := tariff(self._config.model(state.call.model))) is not None:
            state.cost_pusd = call_cost_pusd(prices, state.call, result)
            self.purse.spend(state.call.call_id, state.cost_pusd)

    def _canonical(self, state: StepState, result: CallResult) -> str | None:
        assert self.plan is not None
        if state.call is not None and state.call.sampling.response_format is not None:
            return canonical_json(result.text)
        if self.plan.task is TaskKind.CODE:
            return behaviour(result.run)
        return canonical(result.text, self.plan.task, self.query.choices)

    def _failed(self, event: CallFailed, now: float) -> list[WorkflowCommand]:
        state = self._end_call(event.call_id, "failed", now)
        if state is None or state.route is None:
            return []
        if event.kind.of_the_model or event.streamed:
            self.purse.lose(event.call_id)
        else:
            self.purse.spend(event.call_id, 0)
        state.error = event.message
        error = error_of(event)
        if event.kind is FailureKind.REQUEST:
            self._error = error
            return self._advance(now)
        if event.streamed:  # what has left cannot be taken back, nor another answer follow it
            return self.fail(error, now)
        if self._late(now):
            self._error = error
            return self._advance(now)
        if event.kind in SAME_MODEL_AGAIN:
            state.unlucky.add(state.route.model)
        else:
            state.unlucky.discard(state.route.model)
        return self._exclude(state, state.route.model, error, now)

    def _exclude(
        self, state: StepState, model: str, error: InfraMindError, now: float
    ) -> list[WorkflowCommand]:
        """Try the step on another model; where none is left, again on those that only lost it."""
        state.excluded.add(model)
        self._error = error
        names = {m.name for m in self._config.models}
        wanted = {self.query.direct_model} if self.query.direct_model else names
        if wanted <= state.excluded:
            state.excluded -= state.unlucky
        exhausted = state.attempts >= self._config.limits.max_attempts_per_step
        if exhausted or wanted <= state.excluded:
            return self._fail_step(state, error, now)
        return [self._ask(state, now)]

    def _wait(
        self, state: StepState, retry_after_s: float | None, now: float
    ) -> list[WorkflowCommand]:
        """No model for the step now. Where only one would do and that one fails, say so at once;
        else wait: to a hard deadline, or past a soft one for at least ``limits.park_s``."""
        since = state.park(now)
        until = max(self.deadline_s, since + self._config.limits.park_s)
        refused = self.query.direct_model is not None and retry_after_s is not None
        if refused or (not self.hard and now >= until):
            what = self.query.direct_model or "every model that could take the step"
            error = ModelUnavailable(f"{what} is failing or not there", retry_after_s or 1.0)
            self._error = error
            return self._fail_step(state, error, now)
        return []

    def _no_money(
        self, state: StepState, error: MoneyExhausted, now: float
    ) -> list[WorkflowCommand]:
        """The step cannot be paid for; what is on its way goes on, and what there is is used."""
        self._error = error
        state.error = error.message
        return self._fail_step(state, error, now)

    def _fail_step(
        self, state: StepState, error: InfraMindError, now: float
    ) -> list[WorkflowCommand]:
        state.status = "failed"
        state.error = state.error or error.message
        return self._advance(now)

    def _deadline(self, streamed: str, now: float) -> list[WorkflowCommand]:
        what = "no answer"
        if any(state.status == "parked" for state in self.steps):
            what = "no model could take a step"
        self._error = DeadlineExceeded(f"{what} within {self.query.budget_s:g} s")
        if streamed:
            return self._finish(now, "degraded", None, text=streamed)
        return self._give_up(now)

    # --- moving on ---------------------------------------------------------------------------

    def _advance(self, now: float) -> list[WorkflowCommand]:
        """Ask about every step whose turn has come; end the query when nothing is left to do."""
        commands: list[WorkflowCommand] = []
        moved = True
        while moved:
            moved = False
            for state in self.steps:
                if state.status == "waiting" and self._inputs_ended(state.step):
                    moved = True
                    if self._pointless(state.step):
                        state.status = "failed"
                        state.error = "nothing to work on: the steps before it failed"
                    else:
                        commands.append(self._ask(state, now))
        if all(s.ended for s in self.steps):
            return self._settle(now)
        return commands

    def _settle(self, now: float) -> list[WorkflowCommand]:
        """Nothing runs and nothing can: vote, or take the best there is."""
        assert self.plan is not None
        best = self._best()
        whole = all(s.status == "ok" for s in self.steps)
        if best is not None and (whole or TOPOLOGIES[self.plan.topology].votes):
            return self._finish(now, "ok", best)
        return self._give_up(now)

    def _give_up(self, now: float) -> list[WorkflowCommand]:
        best = self._best()
        return self._finish(now, "degraded" if best else "error", best)

    def _inputs_ended(self, step: Step) -> bool:
        return all(self.steps[i].ended for i in (*step.depends_on, *step.after))

    def _pointless(self, step: Step) -> bool:
        """A second call without a first, a decision over fewer than two answers."""
        whole = [i for i in step.depends_on if self.steps[i].status == "ok"]
        if step.kind in (StepKind.FOLLOW_UP, StepKind.REVISE):
            return not whole
        return step.kind is StepKind.DECIDE and len(whole) < 2

    def _ask(self, state: StepState, now: float) -> AskRoute:
        self._asked_parts = None
        state.ask(now)
        return AskRoute(state.step.step_id, frozenset(state.excluded), self._can_stop(state.step))

    def _can_stop(self, step: Step) -> bool:
        assert self.plan is not None
        spec = TOPOLOGIES[self.plan.topology]
        return spec.votes and bool(step.after) and any(s.status == "ok" for s in self.steps)

    def _end_call(self, call_id: str, status: str, now: float) -> StepState | None:
        step_id = self._calls.pop(call_id, None)
        if step_id is None:
            return None
        self._asked_parts = None
        self.steps[step_id].end(status, now)
        return self.steps[step_id]

    def _finish(
        self, now: float, status: str, state: StepState | None, text: str = ""
    ) -> list[WorkflowCommand]:
        commands: list[WorkflowCommand] = [CancelCall(call_id) for call_id in self._calls]
        for call_id in list(self._calls):
            self._end_call(call_id, "cancelled", now)
        if status == "ok" and self._late(now):
            status = "late"
        self.answer = build_answer(self.progress, now, status, state, text, self._error)
        return [*commands, Finish(self.answer)]

    # --- facts -------------------------------------------------------------------------------

    def _late(self, now: float) -> bool:
        return now > self.deadline_s

    def _is_final(self, step: Step) -> bool:
        """Whether the step's text is the answer: it ends the graph alone, and nobody votes."""
        if step.kind is StepKind.DIRECT:
            return True
        return not self._votes and step.step_id == len(self.steps) - 1

    def _may_be_answer(self, step: Step) -> bool:
        """Whether the step's text is the answer, or is voted on."""
        return self._votes or self._is_final(step)

    @property
    def _votes(self) -> bool:
        assert self.plan is not None
        return TOPOLOGIES[self.plan.topology].votes and self.plan.num_agents > 1

    def _last_answers(self) -> list[StepState]:
        # With a format only what was told of it can be the answer, also in an emergency.
        free = self.query.sampling.response_format is None
        return last_answers(self.steps, lambda s: free or self._may_be_answer(s.step))

    def _best(self) -> StepState | None:
        """The answer that would be sent now."""
        return best_of(self._last_answers(), self._prior)

    def _prior(self, state: StepState) -> float:
        assert self.plan is not None
        assert state.route is not None
        quality = self._config.quality
        return quality.expected(self.plan.task, state.route.model, state.route.strategy)
