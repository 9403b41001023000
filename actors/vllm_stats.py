"""The newest figures of the vLLM engine in this process, kept by a stat logger plugin.

vLLM loads ``ReplicaStatLogger`` through the entry point group ``vllm.stat_logger_plugins`` in the
process that holds the engine's front end, which is the Serve replica.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from actors.reporting import EngineLoad

_newest: dict[int, EngineLoad] = {}


class ReplicaStatLogger(StatLoggerBase):
    """Keeps the last record of each engine. vLLM records once per step, and not while idle."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._engine_index = engine_index

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            _newest[self._engine_index] = load_of(scheduler_stats)

    def log_engine_initialized(self) -> None:
        pass


def load_of(stats: Any) -> EngineLoad:
    """The load in one ``SchedulerStats``; requests that are held back count as waiting."""
    # Two names for one figure, over the versions of vLLM; neither means unknown, not 0.
    kv_usage = getattr(stats, "kv_cache_usage", None)
    if kv_usage is None:
        kv_usage = getattr(stats, "gpu_cache_usage", None)
    skipped = getattr(stats, "num_skipped_waiting_reqs", 0)
    return EngineLoad(stats.num_running_reqs, stats.num_waiting_reqs + skipped, kv_usage)


def newest_load() -> EngineLoad | None:
    """The last recorded load of this process's engines together, ``None`` before the first."""
    if not _newest:
        return None
    loads = _newest.values()
    known = [load.kv_usage for load in loads if load.kv_usage is not None]
    return EngineLoad(
        running=sum(load.running for load in loads),
        waiting=sum(load.waiting for load in loads),
        kv_usage=max(known, default=None),
    )
