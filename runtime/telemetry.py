"""Telemetry: what replicas and schedulers report, and the one snapshot that policies read.

Missing is not zero: a figure that was not read is ``None``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from runtime.config import TelemetryConfig
from runtime.money import HOUR_S
from runtime.ratelimit import RateReport


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
    """One scheduler's figures: calls waiting for a lease, leases out, age of the oldest; of an API
    model its window, too."""

    model: str
    backlog: int
    leased: int
    slots: int
    oldest_s: float
    backlog_work_s: float
    rate: RateReport | None = None


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One model in a snapshot: sums over its live replicas, and its scheduler's queue.

    ``replicas`` and ``slots`` count replicas heard of within ``gone_after_s``. The other figures
    are ``None`` when no source is fresh. ``age_s`` is that of the oldest figure used at the
    moment the snapshot was made, ``None`` when there is none. ``breakers`` are the states (``open``
    or ``half_open``) of those drivers of queries whose breaker for it is not closed. ``rate`` is
    the window of an API model.
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
    rate: RateReport | None = None


@dataclass(frozen=True, slots=True)
class PoolTelemetry:
    """The pool at one moment; ``version`` grows with every snapshot of one monitor.

    ``spent_hour_usd`` is what the calls of each driver of queries cost within the last hour.
    """

    version: int
    models: dict[str, ModelLoad]
    spent_hour_usd: dict[str, float] = field(default_factory=dict)


class TelemetryFusion:
    """Fuses reports into snapshots; old figures and dead sources fall out by age."""

    def __init__(self, models: tuple[str, ...], config: TelemetryConfig) -> None:
        self._models = models
        self._stale_s = config.report_period_s * config.stale_after_periods
        self._gone_s = config.gone_after_s
        self._replicas: dict[str, dict[str, tuple[float, ReplicaReport]]] = {m: {} for m in models}
        self._queues: dict[str, tuple[float, QueueReport]] = {}
        self._breakers: dict[str, tuple[float, dict[str, str]]] = {}
        self._spent: dict[str, tuple[float, float]] = {}
        self._version = 0
        self._made: dict[str, tuple[ReplicaReport, QueueReport, ModelLoad]] = {}

    def add_replica(self, report: ReplicaReport, now: float) -> None:
        """Take a replica's figures; those of unknown models are ignored."""
        if (known := self._replicas.get(report.model)) is not None:
            known[report.replica] = (now, report)

    def add_queue(self, report: QueueReport, now: float) -> None:
        """Take a scheduler's figures; those of unknown models are ignored."""
        if report.model in self._models:
            self._queues[report.model] = (now, report)

    def add_breakers(self, holder: str, states: dict[str, str], now: float) -> None:
        """Take the breakers of one driver of queries: those that are not closed, by model."""
        self._breakers[holder] = (now, states)

    def add_spent(self, holder: str, usd: float, now: float) -> None:
        """What one driver of queries spent within the last hour. It counts for an hour even if the
        driver is gone."""
        self._spent[holder] = (now, usd)

    def snapshot(self, now: float) -> PoolTelemetry:
        """The pool as known at ``now``; sources gone for good are forgotten."""
        self._spent = {k: v for k, v in self._spent.items() if now - v[0] <= HOUR_S}
        spent = {holder: usd for holder, (_, usd) in self._spent.items() if usd}
        self._breakers = {k: v for k, v in self._breakers.items() if now - v[0] <= self._gone_s}
        self._version += 1
        models = {m: self._known(m, now) or self._model(m, now) for m in self._models}
        return PoolTelemetry(self._version, models, spent)

    def _known(self, model: str, now: float) -> ModelLoad | None:
        """What the last snapshot said, where a model's one replica and its scheduler have sent
        nothing else since and the figures are as old as then."""
        replicas, queue = self._replicas[model], self._queues.get(model)
        made = self._made.get(model)
        if made is None or queue is None or len(replicas) != 1 or self._breakers:
            return None
        report, queue_report, load = made
        [(at, latest)] = replicas.values()
        age_s = now - at
        same = latest is report and queue[1] is queue_report and age_s == load.age_s
        fresh = age_s <= self._gone_s and now - queue[0] <= self._gone_s
        return load if same and fresh and not load.breakers else None

    def _model(self, model: str, now: float) -> ModelLoad:
        known = self._replicas[model]
        for replica in [r for r, (at, _) in known.items() if now - at > self._gone_s]:
            del known[replica]
        reports: list[ReplicaReport] = []
        slots, oldest_s = 0, now
        for at, report in known.values():
            slots += report.max_num_seqs
            if now - at <= self._stale_s:
                reports.append(report)
                oldest_s = min(oldest_s, at)
        queue_at, queue = self._queues.get(model, (now, None))
        if queue is not None and now - queue_at > self._gone_s:
            queue = None
        one = reports[0] if len(reports) == 1 else None  # most models have one replica
        load = ModelLoad(
            model=model,
            replicas=len(known),
            slots=slots,
            running=one.running if one else _sum([r.running for r in reports]),
            waiting=one.waiting if one else _sum([r.waiting for r in reports]),
            kv_usage=_finite(one.kv_usage) if one else _mean([r.kv_usage for r in reports]),
            e2e_s=_finite(one.e2e_s) if one else _mean([r.e2e_s for r in reports]),
            ttft_s=_finite(one.ttft_s) if one else _mean([r.ttft_s for r in reports]),
            tpot_s=_finite(one.tpot_s) if one else _mean([r.tpot_s for r in reports]),
            backlog=queue.backlog if queue else None,
            leased=queue.leased if queue else None,
            oldest_s=queue.oldest_s if queue else None,
            backlog_work_s=queue.backlog_work_s if queue else None,
            age_s=now - oldest_s if reports else None,
            finished=one.finished if one else _sum([r.finished for r in reports]),
            engine_calls=frozenset(one.calls if one else (c for r in reports for c in r.calls)),
            breakers=self._breakers_of(model) if self._breakers else (),
            rate=queue.rate if queue else None,
        )
        if one is not None and queue is not None:
            self._made[model] = one, queue, load
        return load

    def _breakers_of(self, model: str) -> tuple[str, ...]:
        return tuple(sorted(s[model] for _, s in self._breakers.values() if model in s))


def _sum(values: list[int]) -> int | None:
    return sum(values) if values else None


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _mean(values: list[float | None]) -> float | None:
    known = [v for v in values if v is not None and math.isfinite(v)]
    return sum(known) / len(known) if known else None
