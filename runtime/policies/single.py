"""One agent per query: the pair of model and depth that was best on validation, or the model whose
answer is predicted to come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from runtime.config import AppConfig
from runtime.load import ModelView
from runtime.policies.base import ConfiguredPolicy, Options, make_plan
from runtime.policy import PlanView, StepView
from runtime.types import STRATEGIES, Decision, Plan, Route, Strategy, TaskKind, Topology

_LEAST_KV_FREE = 0.05


class BestPair(Options):
    """A model and the depth that it is asked for."""

    model: str
    strategy: Strategy = Strategy.CONCISE


class _SingleOptions(Options):
    """``best`` holds for the tasks that it names; for others the prior decides."""

    best: dict[TaskKind, BestPair] = Field(default={})


class SingleBest(ConfiguredPolicy):
    """The one (model, depth) per task that was best on validation, for every query: load-blind.

    ``choose_best`` finds the pairs. Without them the pair with the highest prior is taken, the
    shallowest of equals.
    """

    name = "single_best"
    options_type = _SingleOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        for task, pair in options.best.items():
            self.check_model(pair.model, f"best.{task}.model")

    def plan(self, view: PlanView) -> Plan:
        return make_plan(view.task, Topology.IO, 1)

    def route(self, view: StepView) -> Decision:
        """The pair; where its model cannot take the step, the highest prior of those that can."""
        names = [model.name for model in view.candidates]
        pair = self.options.best.get(view.plan.task)
        if pair is not None and pair.model in names:
            return Route(pair.model, pair.strategy)
        expected, task = self.config.quality.expected, view.plan.task
        routes = [Route(name, strategy) for strategy in STRATEGIES for name in names]
        return max(routes, key=lambda r: expected(task, r.model, r.strategy))


@dataclass(frozen=True, slots=True)
class Validated:
    """How one (model, depth) did on the validation queries: shares of all that were offered, and
    the mean cost of a query in any one unit."""

    model: str
    strategy: Strategy
    correct_on_time: float
    cost: float


def choose_best(results: Iterable[Validated]) -> Validated:
    """The pair with the most queries correct and on time; of equals the cheapest.

    Raises:
        ValueError: there are no results.
    """
    return max(results, key=lambda r: (r.correct_on_time, -r.cost))


class _LatencyOptions(Options):
    """``output_tokens`` is the length of answer that is predicted for."""

    strategy: Strategy = Strategy.CONCISE
    output_tokens: int = Field(default=300, ge=1)


class PredictedLatency(ConfiguredPolicy):
    """The model that is predicted to have answered first, as llm-d's latency scorer does.

    Predicted is the time to the first token, of the wait for a slot and the prompt, and the time
    per token, of the batch that the call would join; the score is their sum over ``output_tokens``.

    Adapted: llm-d learns both from its own traffic by gradient-boosted trees; here they follow from
    the measured queue and token time (``runtime.load.predict_speed``), and a KV cache that fills up
    slows the prompt by the reciprocal of what is free, which is assumed.
    """

    name = "predicted_latency"
    options_type = _LatencyOptions

    def plan(self, view: PlanView) -> Plan:
        return make_plan(view.task, Topology.IO, 1)

    def route(self, view: StepView) -> Decision:
        """The lowest score; equals share the load by chance."""
        tokens = self.options.output_tokens
        scores = [ttft_s(m, view.prompt_tokens) + tokens * m.speed.tpot_s for m in view.candidates]
        least = min(scores)
        equals = [m for m, score in zip(view.candidates, scores, strict=True) if score == least]
        return Route(view.rng.choice(equals).name, self.options.strategy)


def ttft_s(model: ModelView, prompt_tokens: int) -> float:
    """Predicted seconds to the first token; an unknown KV use counts as none."""
    free = max(1.0 - (model.kv_usage or 0.0), _LEAST_KV_FREE)
    speed = model.speed
    return speed.wait_s + speed.start_s + prompt_tokens / speed.prefill_tokens_per_s / free
