"""Policies that settle every model with the plan, as load-blind orchestrators do."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from runtime.policies.base import ConfiguredPolicy, Options
from runtime.policy import StepView
from runtime.roles import roles_for
from runtime.types import Decision, Route, Strategy, TaskKind


class CallOptions(Options):
    """How every call is made: one depth, one cap on its tokens, one temperature.

    The originals prompt in one fixed way and let every model write up to 2,048 tokens; ``strategy``
    is the instruction that stands in for their prompt. Without ``max_tokens`` the strategy's cap
    holds, without ``temperature`` the model's own default.
    """

    strategy: Strategy = Strategy.CONCISE
    max_tokens: int | None = Field(default=2048, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)


class Committed(ConfiguredPolicy):
    """Routes each step to the model that its agent was given in ``Plan.models``.

    A model that cannot take the step (it is away, failed it, or is too small for the prompt) is
    stood in for by the strongest that can: the runtime tries again where the originals lose the
    answer.
    """

    options_type: type[Options] = CallOptions

    def route(self, view: StepView) -> Decision:
        """The agent's model; for a step over all agents the decider."""
        names = [model.name for model in view.candidates]
        wanted = self._wanted(view)
        if wanted not in names:
            wanted = self.strongest(view.plan.task, self.options.strategy, names)
        options = self.options
        return Route(wanted, options.strategy, options.temperature, options.max_tokens)

    def decider(self, view: StepView) -> str:
        """The model of a step over all agents: the one chosen most often, ties to the earliest."""
        return Counter(view.plan.models).most_common(1)[0][0]

    def _wanted(self, view: StepView) -> str | None:
        models = view.plan.models
        if not models:
            return None
        if view.step.agent < 0:
            return self.decider(view)
        return models[view.step.agent % len(models)]


def plain_roles(task: TaskKind, agents: int) -> tuple[str, ...]:
    """The task's default role for every agent: originals without roles differ by model only."""
    return (roles_for(task)[0].name,) * agents
