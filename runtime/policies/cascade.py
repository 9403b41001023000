"""Two cheap models answer; the strongest is asked only when they disagree (MOSAIC's idea)."""

from __future__ import annotations

from runtime.load import ModelView
from runtime.policies.base import ConfiguredPolicy, Options, comparable, make_plan, unit_price
from runtime.policy import PlanView, StepView
from runtime.types import Decision, Plan, Route, Stop, Strategy, Topology


class _CascadeOptions(Options):
    cheap_strategy: Strategy = Strategy.CONCISE
    strong_strategy: Strategy = Strategy.DEEPTHINK


class Cascade(ConfiguredPolicy):
    """Adaptive with three agents where answers can be compared, else one strong call."""

    name = "cascade"
    options_type = _CascadeOptions

    def plan(self, view: PlanView) -> Plan:
        if comparable(self.config, view.task):
            agents = min(3, self.config.limits.max_agents)
            return make_plan(view.task, Topology.ADAPTIVE, agents)
        return make_plan(view.task, Topology.IO, 1)

    def route(self, view: StepView) -> Decision:
        if view.can_stop and view.agreement.unanimous:
            return Stop()
        if view.plan.topology == Topology.ADAPTIVE and view.step.agent < 2:
            return self._cheap(view)
        return Route(self._strongest(view).name, self.options.strong_strategy)

    def _cheap(self, view: StepView) -> Decision:
        """The two cheapest models, one each; the emptier one where only one is left."""
        cheap = sorted(view.candidates, key=lambda m: unit_price(m.config))[:2]
        return Route(cheap[view.step.agent % len(cheap)].name, self.options.cheap_strategy)

    def _strongest(self, view: StepView) -> ModelView:
        strategy = self.options.strong_strategy
        expected = self.config.quality.expected
        return max(view.candidates, key=lambda m: expected(view.plan.task, m.name, strategy))
