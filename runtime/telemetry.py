"""Telemetry: what replicas and schedulers report, and the one snapshot that policies read.

Missing is not zero: a figure that was not read is ``None``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from runtime.config import TelemetryConfig


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica's own figures, sent every report period.

    ``e2e_s``, ``ttft_s`` (first token) and ``tpot_s`` (per output token) are means over the
    calls that finished in the last ``window`` of the replica, ``None`` when none did.
    ``calls`` are the ids of the calls that it runs or holds waiting.
    """

    model: str
    replica: str
    max_num_seqs: int
    running: int
    waiting: int
    kv_usage: float | None
    e2e_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    finished: int
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One scheduler's figures: calls waiting for a lease, leases out, age of the oldest."""

    model: str
    backlog: int
    leased: int
    slots: int
    oldest_s: float
    backlog_work_s: float


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model in a snapshot: sums over its live replicas, and its scheduler's queue.

    ``replicas`` and ``slots`` count replicas heard of within ``gone_after_s``. The other figures
    are ``None`` when no source is fresh. ``age_s`` is that of the oldest figure used at the
    moment the snapshot was made, ``None`` when there is none. ``breakers`` are the states (``open``
    or ``half_open``) of those drivers of queries whose breaker for it is not closed.
    """

    model: str
    replicas: int
    slots: int
    running: int | None
    waiting: int | None
    kv_usage: float | None
    e2e_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    backlog: int | None
    leased: int | None
    oldest_s: float | None
    backlog_work_s: float | None
    age_s: float | None
    finished: int | None = None
    engine_calls: frozenset[str] = frozenset()
    breakers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolTelemetry:
    """The pool at one moment; ``version`` grows with every snapshot of one monitor."""

    version: int
    models: dict[str, ModelLoad]


class TelemetryFusion:
    """Fuses reports into snapshots; old figures and dead sources fall out by age."""

    def __init__(self, models: tuple[str, ...], config: TelemetryConfig) -> None:
        self._models = models
        self._stale_s = config.report_period_s * config.stale_after_periods
        self._gone_s = config.gone_after_s
        self._replicas: dict[tuple[str, str], tuple[float, ReplicaReport]] = {}
        self._queues: dict[str, tuple[float, QueueReport]] = {}
        self._breakers: dict[str, tuple[float, dict[str, str]]] = {}
        self._version = 0

    def add_replica(self, report: ReplicaReport, now: float) -> None:
        """Take a replica's figures; those of unknown models are ignored."""
        if report.model in self._models:
            self._replicas[report.model, report.replica] = (now, report)

    def add_queue(self, report: QueueReport, now: float) -> None:
        """Take a scheduler's figures; those of unknown models are ignored."""
        if report.model in self._models:
            self._queues[report.model] = (now, report)

    def add_breakers(self, holder: str, states: dict[str, str], now: float) -> None:
        """Take the breakers of one driver of queries: those that are not closed, by model."""
        self._breakers[holder] = (now, states)

    def snapshot(self, now: float) -> PoolTelemetry:
        """The pool as known at ``now``; sources gone for good are forgotten."""
        self._breakers = {k: v for k, v in self._breakers.items() if now - v[0] <= self._gone_s}
        self._replicas = {k: v for k, v in self._replicas.items() if now - v[0] <= self._gone_s}
        self._version += 1
        return PoolTelemetry(self._version, {m: self._model(m, now) for m in self._models})

    def _model(self, model: str, now: float) -> ModelLoad:
        known = [v for (name, _), v in self._replicas.items() if name == model]
        fresh = [v for v in known if now - v[0] <= self._stale_s]
        reports = [report for _, report in fresh]
        queue_at, queue = self._queues.get(model, (now, None))
        if queue is not None and now - queue_at > self._gone_s:
            queue = None
        ages = [now - at for at, _ in fresh]
        return ModelLoad(
            model=model,
            replicas=len(known),
            slots=sum(report.max_num_seqs for _, report in known),
            running=sum(r.running for r in reports) if reports else None,
            waiting=sum(r.waiting for r in reports) if reports else None,
            kv_usage=_mean([r.kv_usage for r in reports]),
            e2e_s=_mean([r.e2e_s for r in reports]),
            ttft_s=_mean([r.ttft_s for r in reports]),
            tpot_s=_mean([r.tpot_s for r in reports]),
            backlog=queue.backlog if queue else None,
            leased=queue.leased if queue else None,
            oldest_s=queue.oldest_s if queue else None,
            backlog_work_s=queue.backlog_work_s if queue else None,
            age_s=max(ages) if ages else None,
            finished=sum(r.finished for r in reports) if reports else None,
            engine_calls=frozenset(c for r in reports for c in r.calls),
            breakers=tuple(sorted(s[model] for _, s in self._breakers.values() if model in s)),
        )


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None
