"""Ensembles without learning: Mixture-of-Agents and self-consistency. The same at every load."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.committed import CallOptions, Committed, plain_roles
from runtime.policy import PlanView, StepView
from runtime.topology import MOA, MOA_3, VOTE, topologies_for
from runtime.types import Plan, Topology

_SAMPLING_TEMPERATURE = 0.7
_DEFAULT_SAMPLES = 5


class _MoaOptions(CallOptions):
    """``aggregator`` writes the answer; by default the model with the highest prior of the task.
    It is meant to be chosen on validation."""

    temperature: float | None = Field(default=_SAMPLING_TEMPERATURE, ge=0, le=2)
    layers: Literal[2, 3] = 2
    aggregator: str | None = None


class MixtureOfAgents(Committed):
    """Mixture-of-Agents (Wang et al., 2024): every model answers, one makes an answer of theirs.

    ``(layers - 1) * |pool| + 1`` calls at 0.7 and 2,048 tokens for every query and load, so the
    slowest model sets the latency. References that failed are left out of the synthesis.

    Adapted: the references stand as quoted data in the user message, where they can be shortened
    to a context, not in the system message; each reference has the task's default role and answer
    format; a failed call is first tried on another model; a pool larger than ``limits.max_agents``
    is cut to its first models.
    """

    name = "moa"
    options_type = _MoaOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        self.check_model(options.aggregator, "aggregator")
        self._models = tuple(m.name for m in config.models)[: config.limits.max_agents]

    def plan(self, view: PlanView) -> Plan:
        topology = MOA if self.options.layers == 2 else MOA_3
        roles = plain_roles(view.task, len(self._models))
        return Plan(topology, roles, view.task, self._models)

    def decider(self, view: StepView) -> str:
        aggregator: str | None = self.options.aggregator
        return aggregator or self.strongest(view.plan.task, self.options.strategy)


class _SamplesOptions(CallOptions):
    """``k`` samples of ``model``; by default 5 (or ``limits.max_agents``) of the strongest."""

    temperature: float | None = Field(default=_SAMPLING_TEMPERATURE, ge=0, le=2)
    k: int | None = Field(default=None, ge=1, le=6)
    model: str | None = None


class SelfConsistency(Committed):
    """Self-consistency (Wang et al., 2023): one model, ``k`` samples, the plurality of answers.

    Adapted: where answers cannot be compared (code, free text) the same model chooses among its
    samples in one more call, as in universal self-consistency (Chen et al., 2023).
    """

    name = "self_consistency"
    options_type = _SamplesOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        self.check_model(options.model, "model")
        most = config.limits.max_agents
        if options.k is not None and options.k > most:
            raise ConfigError(f"policy {self.name}: k is {options.k}, limits.max_agents {most}")
        self._k = options.k or min(_DEFAULT_SAMPLES, most)

    def plan(self, view: PlanView) -> Plan:
        topology = VOTE if VOTE in topologies_for(view.task) else Topology.IO
        model = self.options.model or self.strongest(view.task, self.options.strategy)
        return Plan(topology, plain_roles(view.task, self._k), view.task, (model,) * self._k)
