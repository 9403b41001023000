"""One query on an idle pool: the real state machine over a model of answers, without queues.

The baselines are blind to load, so their training needs no engine: a call takes what it would take
alone, and is cut at its cap. What a plan costs is counted at the pool's prices and in seconds of
engines that are full, which is the least that a call can take of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from runtime.config import AppConfig, ModelConfig, parse_config
from runtime.decide import Decider
from runtime.events import (
    AskPlan,
    AskRoute,
    CallDone,
    CancelCall,
    Finish,
    Planned,
    RunCall,
    WorkflowCommand,
    WorkflowEvent,
)
from runtime.load import LocalLoad
from runtime.policies.committed import Committed
from runtime.policy import PlanView, Policy
from runtime.sim.filler import core_of, filler, padded
from runtime.sim.outcomes import OutcomeModel, Seen, SimItem
from runtime.types import Answer, Call, CallResult, DeadlineKind, Plan, Query, Speed
from runtime.workflow import WorkflowState

_PER_MILLION = 1e-6


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a query: ``latency_s`` on an idle pool, ``dollars`` at the pool's prices,
    ``work_s`` seconds of each model's engine at full batches."""

    solved: bool
    latency_s: float
    dollars: float
    work_s: dict[str, float]
    answer: Answer

    @property
    def num_calls(self) -> int:
        return sum(step.attempts for step in self.answer.steps)


@dataclass
class _Run:
    state: WorkflowState
    item: SimItem
    now: float = 0.0
    dollars: float = 0.0
    work_s: dict[str, float] = field(default_factory=dict)
    pending: list[tuple[float, int, CallDone]] = field(default_factory=list)


class IdlePool:
    """Plays queries one at a time; ``policy`` routes, and plans where no plan is given."""

    def __init__(self, config: AppConfig, outcomes: OutcomeModel, policy: Policy) -> None:
        self._config = config
        self._outcomes = outcomes
        self._decider = Decider(config, policy)
        self._view = LocalLoad(config).view(0.0)

    def play(
        self,
        query: Query,
        item: SimItem,
        plan: Plan | None = None,
        embedding: Sequence[float] | None = None,
    ) -> Played:
        """From arrival to the answer. ``query`` should have a soft deadline: nothing is cut then.

        Raises:
            RuntimeError: the query waits for something that never comes.
        """
        run = _Run(WorkflowState(query, self._config, 0.0), item)
        todo: list[WorkflowCommand] = run.state.start(0.0)
        while run.state.answer is None:
            if todo:
                todo += self._perform(run, todo.pop(0), plan, embedding)
            elif run.pending:
                run.now, _, done = heapq.heappop(run.pending)
                todo += run.state.handle(done, run.now)
            else:
                raise RuntimeError(f"query {query.query_id} waits for nothing")
        answer = run.state.answer
        whole = answer.status in ("ok", "late")
        solved = whole and self._outcomes.solved(item, core_of(answer.text))
        return Played(solved, answer.latency_s, run.dollars, run.work_s, answer)

    def _perform(
        self,
        run: _Run,
        command: WorkflowCommand,
        plan: Plan | None,
        embedding: Sequence[float] | None,
    ) -> list[WorkflowCommand]:
        event: WorkflowEvent
        match command:
            case RunCall(call=call):
                self._call(run, call)
                return []
            case CancelCall() | Finish():
                return []
            case AskRoute():
                event = self._decider.route(run.state, command, self._view, run.now, embedding)
            case AskPlan():
                event = self._plan(run, plan, embedding)
        return run.state.handle(event, run.now)

    def _plan(self, run: _Run, plan: Plan | None, embedding: Sequence[float] | None) -> Planned:
        if plan is not None:
            return Planned(plan, self._decider.policy.name)
        query = run.state.query
        return self._decider.plan(query, run.item.task, self._view, query.budget_s, embedding)

    def _call(self, run: _Run, call: Call) -> None:
        model = self._config.model(call.model)
        states = run.state.steps
        step = states[call.step_id].step
        earlier = [states[i] for i in step.depends_on if states[i].status == "ok"]
        seen = [
            Seen(s.step, s.route.model, s.route.strategy, core_of(s.text))
            for s in earlier
            if s.route
        ]
        outcome = self._outcomes.draw(run.item, call, step, seen)
        tokens = min(outcome.completion_tokens, call.max_tokens)
        whole = outcome.completion_tokens <= call.max_tokens
        service_s = _alone(model).service_s(call.prompt_tokens, tokens)
        result = CallResult(
            text=padded(outcome.text, tokens) if whole else "",
            finish_reason="stop" if whole else "length",
            prompt_tokens=call.prompt_tokens,
            completion_tokens=tokens,
            queue_s=0.0,
            service_s=service_s,
        )
        run.dollars += _price(model, call.prompt_tokens, tokens)
        work_s = engine_s(model, call.prompt_tokens, tokens)
        run.work_s[model.name] = run.work_s.get(model.name, 0.0) + work_s
        done = CallDone(call.call_id, result)
        heapq.heappush(run.pending, (run.now + service_s, call.step_id, done))


class GivenPlans(Committed):
    """Routes the plans that ``play`` is given to the models in them; makes none of its own."""

    name = "given_plans"

    def plan(self, view: PlanView) -> Plan:
        raise NotImplementedError("give `play` a plan")


def read_pool(path: Path) -> AppConfig:
    """The pool of a Serve config file."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parse_config(content["applications"][0]["args"], str(path))


def query_about(item: SimItem, query_id: str, budget_s: float) -> Query:
    """A query of the item's size, with a soft deadline; its text says nothing."""
    return Query(
        query_id=query_id,
        question=filler(item.question_tokens),
        budget_s=budget_s,
        task=item.task,
        choices=item.choices,
        deadline_kind=DeadlineKind.SOFT,
    )


def engine_s(model: ModelConfig, prompt_tokens: int, output_tokens: int) -> float:
    """Engine time that a call takes of a full batch: no schedule needs less for it."""
    speed = model.speed
    token_s = speed.token_s / model.max_num_seqs + speed.token_s_per_seq
    return prompt_tokens / speed.prefill_tokens_per_s + output_tokens * token_s


def _alone(model: ModelConfig) -> Speed:
    speed = model.speed
    return Speed(speed.prefill_tokens_per_s, speed.token_s + speed.token_s_per_seq)


def _price(model: ModelConfig, prompt_tokens: int, output_tokens: int) -> float:
    if model.price is None:
        return 0.0
    dollars = prompt_tokens * model.price.input + output_tokens * model.price.output
    return dollars * _PER_MILLION
