"""What figures measure beside rows: queues, step latencies, use of GPUs, shares of routes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks.cells import Cell
from benchmarks.rows import Played, played
from runtime.sim.results import Results

NUM_SAMPLES = 400


@dataclass(frozen=True, slots=True)
class ModelUse:
    """One model during the arrivals. ``queue`` are its calls that wait or run, at even times;
    ``step_s`` is the mean time from asking to the end; ``busy_percent`` the share of the time that
    it computed (as if alone on its GPU), ``slots_percent`` the mean share of its slots in use."""

    calls: int
    queue: tuple[float, ...]
    step_s: float
    step_p90_s: float
    busy_percent: float
    slots_percent: float

    @property
    def mean_queue(self) -> float:
        return float(np.mean(self.queue))

    @property
    def deepest_queue(self) -> float:
        return float(np.max(self.queue))


@dataclass(frozen=True, slots=True)
class Use:
    """A cell's row, its models in the config's order, and how it routed and planned."""

    played: Played
    times_s: tuple[float, ...]
    models: dict[str, ModelUse]
    routes: dict[tuple[str, str], float]  # share of calls by (model, depth)
    topologies: dict[str, float]  # share of queries

    @property
    def step_s(self) -> float:
        """Mean step latency over all calls."""
        calls = sum(m.calls for m in self.models.values())
        return sum(m.step_s * m.calls for m in self.models.values() if m.calls) / calls

    @property
    def mean_queue(self) -> float:
        """Mean over models of the calls that wait or run."""
        return float(np.mean([m.mean_queue for m in self.models.values()]))


def use(cell: Cell, results: Results) -> Use:
    """Measure the load that a cell put on the pool."""
    last_s = float(results.queries["arrival_s"].max())
    times_s = np.linspace(0.0, last_s, NUM_SAMPLES)
    config = cell.point.config(cell.contender, cell.dataset, cell.hard)
    slots = {m.name: m.max_num_seqs * m.replicas for m in config.models}
    models = {name: _model(results, name, times_s, slots[name]) for name in slots}
    calls = results.calls
    routes = Counter(zip(calls.named("model"), calls.named("strategy"), strict=True))
    topologies = Counter(results.queries.named("topology"))
    return Use(
        played(cell, results),
        tuple(times_s.tolist()),
        models,
        {k: n / len(calls) for k, n in routes.items()},
        {k: n / len(results.queries) for k, n in topologies.items()},
    )


def _model(results: Results, name: str, times_s: np.ndarray, slots: int) -> ModelUse:
    rows = results.calls.named("model") == name
    asked_s, ended_s = results.calls["asked_s"][rows], results.calls["ended_s"][rows]
    granted_s = results.calls["granted_s"][rows]
    ran = ~np.isnan(granted_s)
    running = _between(granted_s[ran], ended_s[ran], times_s)
    took_s = ended_s - asked_s
    return ModelUse(
        calls=int(rows.sum()),
        queue=tuple(_between(asked_s, ended_s, times_s).tolist()),
        step_s=float(took_s.mean()) if len(took_s) else 0.0,
        step_p90_s=float(np.quantile(took_s, 0.9)) if len(took_s) else 0.0,
        busy_percent=100 * results.gpu_s[name] / results.end_s,
        slots_percent=100 * float(np.minimum(running, slots).mean()) / slots,
    )


def _between(from_s: np.ndarray, to_s: np.ndarray, times_s: np.ndarray) -> np.ndarray:
    """How many intervals hold each of the times."""
    begun = np.searchsorted(np.sort(from_s), times_s, side="right")
    over = np.searchsorted(np.sort(to_s), times_s, side="right")
    return (begun - over).astype(float)
