"""The learned policy, served: planner and executor from an artefact, in numpy.

Found by the entry points ``inframind`` and ``inframind-adaptive``. Decisions are drawn from the
view's generator, which is seeded by query and step: the likeliest action on a snapshot that all
share would send everybody to one model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

from rl.artefact import Artefact, check_fits, load
from rl.nets import Drawn, ExecutorNet, PlannerNet
from rl.spaces import Encoder, decision_of, plan_of
from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.base import ConfiguredPolicy, Options
from runtime.policy import PlanView, StepView
from runtime.types import Decision, Plan

SHIPPED = Path(__file__).parent / "artefacts"


class LearnedOptions(Options):
    """``artefact`` is a ``.safetensors`` file; without it the one shipped for the pool is taken.
    ``sample`` off takes the likeliest decision."""

    artefact: Path | None = None
    sample: bool = True


class LearnedPolicy(ConfiguredPolicy):
    """Plans and routes as it was trained to, on one pool."""

    name = "inframind"
    adaptive = False
    needs_embedding = True
    options_type = LearnedOptions

    def __init__(
        self, config: AppConfig, options: LearnedOptions, artefact: Artefact | None = None
    ) -> None:
        super().__init__(config, options)
        self.artefact = artefact or load(options.artefact or self._shipped(config))
        check_fits(self.artefact.layout, config, f"policy {self.name}: the artefact")
        layout, found = self.artefact.layout, self.artefact
        self._encoder = Encoder(layout, config, found.role_vectors)
        self._planner = PlannerNet(found.planner, layout, film=found.film, question=found.question)
        self._executor = ExecutorNet(found.executor, layout, question=found.question)

    @classmethod
    def of(cls, config: AppConfig, artefact: Artefact, *, sample: bool = True) -> Self:
        """A policy of an artefact in memory. Raises ``ConfigError`` where it does not fit."""
        return cls(config, LearnedOptions(sample=sample), artefact)

    def _shipped(self, config: AppConfig) -> Path:
        """The shipped artefact for the pool's models."""
        models = tuple(model.name for model in config.models)
        for path in sorted(SHIPPED.glob("*.safetensors")):
            layout = load(path).layout
            if layout.models == models and layout.stop == self.adaptive:
                return path
        raise ConfigError(
            f"policy {self.name}: none is shipped for the models {', '.join(models)}; train one "
            "(`inframind train`) and name it as policy.options.artefact"
        )

    def plan(self, view: PlanView) -> Plan:
        action, _ = self._planner.choose(self._encoder.planner(view), self._rng(view))
        return plan_of(self.artefact.layout, view.task, action)

    def route(self, view: StepView) -> Decision:
        chosen = self._executor.choose(self._encoder.executor(view), self._rng(view))
        return decision_of(self.artefact.layout, chosen.index)

    def explain_plan(self, view: PlanView) -> list[Drawn]:
        """What ``plan`` draws from: topology, number of agents, one role per agent."""
        return self._planner.choose(self._encoder.planner(view), self._rng(view))[1]

    def explain_route(self, view: StepView) -> Drawn:
        """What ``route`` draws from, in the order of ``rl.spaces.decision_of``."""
        return self._executor.choose(self._encoder.executor(view), self._rng(view))

    def _rng(self, view: PlanView | StepView) -> Random | None:
        return view.rng if self.options.sample else None


class AdaptivePolicy(LearnedPolicy):
    """The same with ``Adaptive`` and ``Stop``."""

    name = "inframind-adaptive"
    adaptive = True


def from_config(config: AppConfig, options: Mapping[str, Any]) -> LearnedPolicy:
    """Entry point of ``inframind``."""
    return LearnedPolicy.from_config(config, options)


def adaptive_from_config(config: AppConfig, options: Mapping[str, Any]) -> LearnedPolicy:
    """Entry point of ``inframind-adaptive``."""
    return AdaptivePolicy.from_config(config, options)
