"""The paper's state vectors (equation 1 and section 4.1), bounded.

Per model: queue ``log1p(in_system / slots)`` clipped at ``MAX_LOG_QUEUE``, where the congestion of
an API model stands in if it is higher (section 5.4); end-to-end latency over the remaining budget,
clipped at 4; KV use 0..1; age over ``gone_after_s``, clipped at 1; mask. The budget is
``log1p(remaining_s) / log1p(300)``, 0..1.2. A KV figure that is missing is 0 with an age of 1, so
that "unknown" and "a fresh zero" differ; a latency that is missing is the one predicted from the
config's speed. Nothing is ever NaN or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.load import ModelView, PoolView

FLOATS_PER_MODEL = 5
MAX_LOG_QUEUE = 4.0
MAX_LATENCY_RATIO = 4.0
MAX_BUDGET = 1.2
_BUDGET_SCALE = math.log1p(300.0)

Vector = npt.NDArray[np.float32]


def budget_feature(remaining_s: float) -> float:
    """The normalised remaining budget ``b``, in 0..1.2; a budget that is used up is 0."""
    if not remaining_s > 0:
        return 0.0
    return min(math.log1p(remaining_s) / _BUDGET_SCALE, MAX_BUDGET)


@dataclass(frozen=True, slots=True)
class SystemState:
    """The system load vectors, each of shape [N] in the pool's order, float32."""

    queue: Vector
    e2e: Vector
    kv: Vector
    age: Vector
    mask: Vector

    def concat(self) -> Vector:
        """Shape [5 N]: queue, e2e, kv, age, mask."""
        return np.concatenate([self.queue, self.e2e, self.kv, self.age, self.mask])


def system_state(
    pool: PoolView, remaining_s: float, gone_after_s: float, allowed: Sequence[str]
) -> SystemState:
    """The load of every model; ``allowed`` are the names that the mask leaves open."""
    models = pool.models
    return SystemState(
        queue=_vector([min(math.log1p(m.occupancy), MAX_LOG_QUEUE) for m in models]),
        e2e=_vector([_latency_ratio(m, remaining_s) for m in models]),
        kv=_vector([min(max(m.kv_usage or 0.0, 0.0), 1.0) for m in models]),
        age=_vector([_age(m, gone_after_s) for m in models]),
        mask=_vector([float(m.name in allowed) for m in models]),
    )


def planner_summary(remaining_s: float, state: SystemState) -> Vector:
    """``z0`` of section 4.1, shape [1 + 5 N]: budget, then the load vectors."""
    return np.concatenate([_vector([budget_feature(remaining_s)]), state.concat()])


def executor_observation(
    query_embedding: Sequence[float],
    role_embedding: Sequence[float],
    remaining_s: float,
    state: SystemState,
) -> Vector:
    """``s_k`` of equation 1, shape [2 * 384 + 1 + 5 N]."""
    budget = _vector([budget_feature(remaining_s)])
    return np.concatenate(
        [_vector(query_embedding), _vector(role_embedding), budget, state.concat()]
    )


def _latency_ratio(model: ModelView, remaining_s: float) -> float:
    if remaining_s <= 0:
        return MAX_LATENCY_RATIO
    return min(model.mean_service_s / remaining_s, MAX_LATENCY_RATIO)


def _age(model: ModelView, gone_after_s: float) -> float:
    return 1.0 if model.age_s is None else min(max(model.age_s, 0.0) / gone_after_s, 1.0)


def _vector(values: Sequence[float]) -> Vector:
    return np.nan_to_num(np.asarray(values, dtype=np.float32), nan=0.0, posinf=0.0, neginf=0.0)
