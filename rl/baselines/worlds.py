"""Training items and rewards of the learned baselines: plans played on an idle, simulated pool."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from rl.baselines.gptswarm import SwarmTraining
from rl.baselines.masrouter import Sampled
from rl.baselines.rollout import IdlePool, Played, query_about
from runtime.config import AppConfig
from runtime.policies.gptswarm import pruned, swarm_plan
from runtime.policy import Policy
from runtime.sim.outcomes import SimItem
from runtime.sim.quality import QualityModel
from runtime.types import AgentGraph, Plan

_BUDGET_S = 3600.0


class World:
    """Plays plans for items; ``renew`` draws luck, and difficulties that were only drawn, anew."""

    def __init__(self, config: AppConfig, policy: Policy, quality: QualityModel, seed: int) -> None:
        self._config = config
        self._policy = policy
        self._rng = Random(seed)
        self._quality = quality
        self._pool = IdlePool(config, quality, policy)
        self._number = 0

    def renew(self) -> None:
        self._quality = self._quality.redraw(self._rng)
        self._pool = IdlePool(self._config, self._quality, self._policy)

    def play(self, item: SimItem, plan: Plan | None = None) -> Played:
        """A new query about ``item``; every one has its own draws."""
        self._number += 1
        return self._pool.play(query_about(item, f"q{self._number}", _BUDGET_S), item, plan)


class RouterReward:
    """``U = solved - c * dollars`` of MasRouter's sampled plans; a new world every epoch."""

    def __init__(
        self,
        world: World,
        items: Sequence[SimItem],
        modes: Sequence[str],
        roles: Sequence[tuple[str, str]],
        models: Sequence[str],
        cost_weight: float,
    ) -> None:
        self._world = world
        self._items = items
        self._modes, self._roles, self._models = modes, roles, models
        self._cost_weight = cost_weight
        self._played = 0

    def __call__(self, rows: Sequence[int], sampled: Sampled) -> list[float]:
        plans = zip(
            rows,
            sampled.modes.tolist(),
            sampled.counts.tolist(),
            sampled.roles.tolist(),
            sampled.models.tolist(),
            strict=True,
        )
        return [self._utility(row, mode, roles[:count], models[:count])
                for row, mode, count, roles, models in plans]  # fmt: skip

    def _utility(self, row: int, mode: int, roles: Sequence[int], models: Sequence[int]) -> float:
        item = self._items[row]
        plan = Plan(
            topology=self._modes[mode],
            roles=tuple(self._roles[i][1] for i in roles),
            task=item.task,
            models=tuple(self._models[i] for i in models),
        )
        played = self._world.play(item, plan)
        self._played += 1
        if self._played % len(self._items) == 0:
            self._world.renew()
        return played.solved - self._cost_weight * played.dollars


class SwarmUtility:
    """1 where a sampled graph answers a question right; a new world every iteration."""

    def __init__(
        self,
        world: World,
        items: Sequence[SimItem],
        models: tuple[str, ...],
        settings: SwarmTraining,
    ) -> None:
        self._world = world
        self._items = items
        self._models = models
        self._per_iteration = settings.questions
        self._played = 0

    def __call__(self, question: int, graph: AgentGraph) -> float:
        item = self._items[question]
        plan = swarm_plan(pruned(self._models, graph), item.task)
        played = self._world.play(item, plan)
        self._played += 1
        if self._played % self._per_iteration == 0:
            self._world.renew()
        return float(played.solved)
