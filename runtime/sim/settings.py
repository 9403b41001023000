"""How to simulate, and what stands in for a policy whose decisions come from outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from runtime.policy import PlanView, StepView
from runtime.sim.outcomes import SimItem
from runtime.sim.pool import Fault
from runtime.types import Decision, Plan

Embed = Callable[[SimItem], Sequence[float] | None]


@dataclass(frozen=True, slots=True)
class SimSettings:
    """How to simulate.

    ``engine`` is ``fast`` or ``exact`` (iteration by iteration); ``slowdown`` divides the speed of
    every engine. Telemetry is sampled every ``telemetry_period_s`` (by default the config's
    ``report_period_s``) and read ``telemetry_age_s`` later. ``faults`` happen at their times.
    """

    engine: Literal["fast", "exact"] = "fast"
    slowdown: float = 1.0
    telemetry_period_s: float | None = None
    telemetry_age_s: float = 0.05
    faults: tuple[Fault, ...] = ()


class Outside:
    """Stands for a policy whose decisions come from outside."""

    name = "outside"
    needs_embedding = False

    def plan(self, view: PlanView) -> Plan:
        raise NotImplementedError("decisions come through `Simulation.decide`")

    def route(self, view: StepView) -> Decision:
        raise NotImplementedError("decisions come through `Simulation.decide`")
