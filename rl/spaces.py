"""What planner and executor see and choose, as vectors: one layout, with a version.

An observation carries its action mask behind its features, so that log-probabilities can be
computed again from what was stored. Features are those of ``runtime.observation``; question
embeddings are scaled to unit variance. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.config import AppConfig
from runtime.embedding import EMBEDDING_DIM
from runtime.errors import ConfigError
from runtime.load import PoolView
from runtime.observation import budget_feature, system_state
from runtime.policies.base import comparable
from runtime.policy import PlanView, StepView
from runtime.roles import DECIDER, roles_for
from runtime.topology import TOPOLOGIES, topologies_for
from runtime.types import (
    STRATEGIES,
    Decision,
    Plan,
    Route,
    StepKind,
    Stop,
    TaskKind,
    Topology,
)

Array = npt.NDArray[np.float32]

LAYOUT_VERSION = 1
NUM_STRATEGIES = len(STRATEGIES)
PAPER_TOPOLOGIES = (
    Topology.IO,
    Topology.COT,
    Topology.CHAIN,
    Topology.FULL_CONNECTED,
    Topology.DEBATE,
    Topology.REFLECTION,
)
TASKS = tuple(TaskKind)
_KINDS = (
    StepKind.ANSWER,
    StepKind.FOLLOW_UP,
    StepKind.REVISE,
    StepKind.DEBATE,
    StepKind.DECIDE,
)
_SCALE = np.float32(np.sqrt(EMBEDDING_DIM))
_MAX_STEPS_AFTER = 8.0
_MAX_USED = 3.0
_AGREEMENT_FLOATS = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """Which floats stand where, for a pool of N models.

    ``roles`` are (task, name) pairs. ``age_and_mask`` adds age and mask of every model to the load
    vectors (5 N instead of the paper's 3 N); ``progress`` tells the executor where in its plan the
    step stands and which models were used; ``stop`` adds the action that ends an ``Adaptive``
    plan, and how the answers so far agree. ``embedding`` is the backend of the question's vectors.
    """

    models: tuple[str, ...]
    topologies: tuple[str, ...]
    roles: tuple[tuple[str, str], ...]
    embedding: str
    max_agents: int = 6
    age_and_mask: bool = True
    progress: bool = True
    stop: bool = False
    version: int = LAYOUT_VERSION

    @property
    def system_floats(self) -> int:
        """Load vectors of all models."""
        return (5 if self.age_and_mask else 3) * len(self.models)

    @property
    def progress_floats(self) -> int:
        """Where the step stands in its plan; 0 without ``progress``."""
        if not self.progress:
            return 0
        return 2 + len(_KINDS) + len(self.models) + (_AGREEMENT_FLOATS if self.stop else 0)

    @property
    def num_actions(self) -> int:
        """Joint actions of the executor: N x 3, and ``Stop`` last."""
        return len(self.models) * NUM_STRATEGIES + self.stop

    @property
    def summary_floats(self) -> int:
        """``z0`` of section 4.1: budget and load vectors."""
        return 1 + self.system_floats

    @property
    def planner_masks(self) -> tuple[int, int, int]:
        """Lengths of the masks of topology, agent count and role."""
        return len(self.topologies), self.max_agents, len(self.roles)

    @property
    def planner_floats(self) -> int:
        return EMBEDDING_DIM + self.summary_floats + sum(self.planner_masks)

    @property
    def executor_floats(self) -> int:
        return 2 * EMBEDDING_DIM + 1 + self.system_floats + self.progress_floats + self.num_actions

    @property
    def plan_actions(self) -> int:
        """Integers of a planner's action: topology, count - 1, ``max_agents`` roles."""
        return 2 + self.max_agents

    def as_json(self) -> dict[str, Any]:
        """Plain lists and numbers; ``layout_from_json`` reads them."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
        return {**plain, "roles": [list(pair) for pair in self.roles]}


def layout_from_json(about: Mapping[str, Any]) -> Layout:
    """Raises ``ConfigError`` for another version, or for fields that are missing or unknown."""
    version = about.get("version")
    if version != LAYOUT_VERSION:
        raise ConfigError(f"observation layout {version!r} cannot be read, only {LAYOUT_VERSION}")
    try:
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
        fields["roles"] = tuple((str(task), str(name)) for task, name in about["roles"])
        return Layout(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"observation layout cannot be read: {error}") from None


def layout_for(
    config: AppConfig,
    *,
    adaptive: bool = False,
    age_and_mask: bool = True,
    progress: bool = True,
    topologies: Sequence[str] = PAPER_TOPOLOGIES,
) -> Layout:
    """The layout of a pool; with ``adaptive`` the planner may choose ``Adaptive``, and the
    executor may stop it.

    Raises:
        ConfigError: an unknown topology, or ``adaptive`` without ``progress``.
    """
    if unknown := [name for name in topologies if name not in TOPOLOGIES]:
        raise ConfigError(f"unknown topology {unknown[0]!r}; there are {sorted(TOPOLOGIES)}")
    if adaptive and not progress:
        raise ConfigError("adaptive needs progress: the executor must see how answers agree")
    chosen = (*topologies, Topology.ADAPTIVE) if adaptive else tuple(topologies)
    return Layout(
        models=tuple(model.name for model in config.models),
        topologies=tuple(dict.fromkeys(str(name) for name in chosen)),
        roles=tuple((task.value, role.name) for task in TASKS for role in roles_for(task)),
        embedding=config.embedding.backend,
        max_agents=config.limits.max_agents,
        age_and_mask=age_and_mask,
        progress=progress,
        stop=adaptive,
    )


def role_key(task: str, name: str) -> str:
    """How embedding files name a role."""
    return f"role:{task}/{name}"


DECIDER_KEY = role_key(DECIDER.task.value, DECIDER.name)


class Encoder:
    """Views to vectors for one pool. ``role_vectors`` is [R + 1, 384]: the layout's roles, then the
    decider's."""

    def __init__(self, layout: Layout, config: AppConfig, role_vectors: Array) -> None:
        wanted = (len(layout.roles) + 1, EMBEDDING_DIM)
        if role_vectors.shape != wanted:
            raise ConfigError(f"role vectors are {role_vectors.shape}, must be {wanted}")
        self.layout = layout
        self._config = config
        self._gone_after_s = config.telemetry.gone_after_s
        self._roles = {pair: _scaled(row) for pair, row in zip(layout.roles, role_vectors[:-1],
                                                               strict=True)}  # fmt: skip
        self._decider = _scaled(role_vectors[-1])
        self._nothing = np.zeros(EMBEDDING_DIM, dtype=np.float32)
        self._plan_masks = {task: self._plan_mask(task) for task in TASKS}

    def planner(self, view: PlanView) -> Array:
        """Shape [planner_floats], float32."""
        names = [model.name for model in view.candidates]
        return np.concatenate(
            [
                self._question(view.embedding),
                [np.float32(budget_feature(view.remaining_s))],
                self._system(view.pool, view.remaining_s, names),
                self._plan_masks[view.task],
            ],
            dtype=np.float32,
        )

    def executor(self, view: StepView) -> Array:
        """Shape [executor_floats], float32."""
        names = [model.name for model in view.candidates]
        return np.concatenate(
            [
                self._question(view.embedding),
                self._role(view.plan.task, view.step.role, view.step.kind),
                [np.float32(budget_feature(view.remaining_s))],
                self._system(view.pool, view.remaining_s, names),
                self._progress(view),
                self._action_mask(names, view.can_stop),
            ],
            dtype=np.float32,
        )

    def _question(self, embedding: Sequence[float] | None) -> Array:
        return self._nothing if embedding is None else _scaled(embedding)

    def _role(self, task: TaskKind, name: str, kind: StepKind) -> Array:
        if kind is StepKind.DECIDE:
            return self._decider
        return self._roles.get((task.value, name), self._nothing)

    def _system(self, pool: PoolView, remaining_s: float, names: Sequence[str]) -> Array:
        state = system_state(pool, remaining_s, self._gone_after_s, names)
        if self.layout.age_and_mask:
            return state.concat()
        return np.concatenate([state.queue, state.e2e, state.kv])

    def _progress(self, view: StepView) -> list[float]:
        if not self.layout.progress:
            return []
        used = list(view.used.values())
        floats = [
            min(view.steps_after / _MAX_STEPS_AFTER, 1.0),
            view.plan.num_agents / self.layout.max_agents,
            *(float(view.step.kind is kind) for kind in _KINDS),
            *(min(used.count(name) / _MAX_USED, 1.0) for name in self.layout.models),
        ]
        return [*floats, *self._agreement(view)] if self.layout.stop else floats

    def _agreement(self, view: StepView) -> list[float]:
        seen, most = view.agreement, self.layout.max_agents
        return [
            min(seen.num_answers / most, 1.0),
            min(seen.num_canonical / most, 1.0),
            seen.leading / max(1, seen.num_answers),
            float(seen.unanimous),
            float(seen.failing),
            float(view.can_stop),
        ]

    def _action_mask(self, names: Sequence[str], can_stop: bool) -> list[float]:
        open_ = [float(name in names) for name in self.layout.models for _ in STRATEGIES]
        return [*open_, float(can_stop)] if self.layout.stop else open_

    def _plan_mask(self, task: TaskKind) -> Array:
        layout, config = self.layout, self._config
        allowed = [
            name in topologies_for(task)
            and (not TOPOLOGIES[name].votes or comparable(config, task))
            for name in layout.topologies
        ]
        counts = [agents < config.limits.max_agents for agents in range(layout.max_agents)]
        there = {role.name for role in roles_for(task)}
        roles = [kind == task.value and name in there for kind, name in layout.roles]
        return np.array([*allowed, *counts, *roles], dtype=np.float32)


def plan_of(layout: Layout, task: TaskKind, actions: Sequence[int]) -> Plan:
    """The plan of a planner's action, shape [2 + max_agents]."""
    topology, more, *roles = (int(a) for a in actions)
    names = tuple(layout.roles[i][1] for i in roles[: more + 1])
    return Plan(layout.topologies[topology], names, task)


def decision_of(layout: Layout, action: int) -> Decision:
    """The route of an executor's action, or ``Stop``."""
    model, strategy = divmod(int(action), NUM_STRATEGIES)
    if model == len(layout.models):
        return Stop()
    return Route(layout.models[model], STRATEGIES[strategy])


def _scaled(vector: Any) -> Array:
    scaled: Array = np.asarray(vector, dtype=np.float32) * _SCALE
    return scaled
