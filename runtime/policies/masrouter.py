"""MasRouter (Yue et al., 2025): a learned cascade over the question's text; blind to load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.base import unit_price
from runtime.policies.committed import CallOptions, Committed
from runtime.policies.masrouter_net import Array, CascadeNet, load
from runtime.policy import PlanView
from runtime.roles import roles_for
from runtime.topology import topologies_for
from runtime.types import Plan, TaskKind

SHIPPED = Path(__file__).parent / "artefacts" / "masrouter.safetensors"
QUERY_DIM = 384


class _RouterOptions(CallOptions):
    artefact: Path | None = None


class MasRouter(Committed):
    """Task, collaboration mode, number of agents, roles and one model per agent, all sampled from
    the question's embedding alone, at arrival.

    Its cosine logits bound how sharp it can be, so favourites get most of the load and never all of
    it. The decision call goes to the model chosen most often. Trained by
    ``python -m rl.baselines.train masrouter``.

    Adapted: the number of agents is sampled in training (six Bernoulli gates), so that its head
    learns; roles that search or execute reason instead; agents of a round run at once; a failed
    call is tried again on another model. The task is the cascade's own guess, unless the embedding
    is not of the kind it was trained on (then its guesses would be noise) or the query is free
    text, which it does not know. A pool that the shipped artefact was not trained for is matched to
    its models by rank of cost.
    """

    name = "masrouter"
    needs_embedding = True
    options_type = _RouterOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        self._net = load(options.artefact or SHIPPED)
        self._models = self._match(config, self._net)
        self._reads = config.embedding.backend == self._net.embedding
        self._roles = {task: self._known_roles(task) for task in TaskKind}

    def _match(self, config: AppConfig, net: CascadeNet) -> tuple[str, ...]:
        """Per model of the artefact the pool's own: by name, else by rank of cost."""
        pool = [model.name for model in config.models]
        if set(pool) == set(net.models):
            return net.models
        if self.options.artefact is not None:
            raise ConfigError(f"policy {self.name}: the artefact is for the pool {net.models}")
        by_cost = [model.name for model in sorted(config.models, key=unit_price, reverse=True)]
        last = max(1, len(net.models) - 1)
        return tuple(by_cost[round(i * (len(pool) - 1) / last)] for i in range(len(net.models)))

    def _known_roles(self, task: TaskKind) -> list[int]:
        there = {role.name for role in roles_for(task)}
        of_task = enumerate(self._net.roles)
        return [i for i, (kind, name) in of_task if kind == task.value and name in there]

    def plan(self, view: PlanView) -> Plan:
        query = _vector(view.embedding)
        task = self._task(view, query)
        allowed = topologies_for(task)
        chosen = self._net.sample(
            query,
            modes=[i for i, mode in enumerate(self._net.modes) if mode in allowed],
            roles=self._roles[task],
            most=self.config.limits.max_agents,
            rng=view.rng,
        )
        roles = tuple(self._net.roles[i][1] for i in chosen.roles)
        models = tuple(self._models[i] for i in chosen.models)
        return Plan(self._net.modes[chosen.mode], roles, task, models)

    def _task(self, view: PlanView, query: Array) -> TaskKind:
        if view.task is TaskKind.GENERAL or view.embedding is None or not self._reads:
            return view.task
        guess = int(self._net.task_probabilities(query).argmax())
        return TaskKind(self._net.tasks[guess])


def _vector(embedding: Any) -> Array:
    if embedding is None:
        return np.zeros(QUERY_DIM, dtype=np.float32)
    return np.asarray(embedding, dtype=np.float32)
