"""Telemetry in virtual time: sampled with a period, delivered with an age.

Live, every source reports each ``report_period_s`` (and sooner after a change); monitor and
broadcast take some milliseconds more. Here all sources are read at multiples of the period and
heard ``age_s`` later. Nobody is read for nothing: a model is sampled when its state is about to
change, or when somebody looks, which gives the figures of the same moments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from runtime.config import AppConfig
from runtime.load import LocalLoad
from runtime.sim.replicas import SimServer
from runtime.telemetry import PoolTelemetry, QueueReport, ReplicaReport, TelemetryFusion

_Sample = tuple[int, list[ReplicaReport], QueueReport]


class SimTelemetry:
    """The monitor of a simulated pool, and the way to the workflow actors.

    Args:
        config: the names of the models, and how long reports count.
        period_s: between two samples of a source.
        age_s: from a sample to those who read it.
    """

    def __init__(self, config: AppConfig, period_s: float, age_s: float) -> None:
        if not (period_s > 0 and age_s >= 0):
            raise ValueError("period_s must be above zero, and age_s not negative")
        self.period_s = period_s
        self.age_s = age_s
        self._fusion = TelemetryFusion(tuple(m.name for m in config.models), config.telemetry)
        self._samples: dict[SimServer, deque[_Sample]] = {}
        self._next: dict[SimServer, int] = {}
        self._still: dict[SimServer, tuple[list[ReplicaReport], QueueReport]] = {}
        self._heard = -1

    def watch(self, servers: Sequence[SimServer]) -> None:
        """These are the pool."""
        self._samples = {server: deque() for server in servers}
        self._next = dict.fromkeys(servers, 0)

    def touch(self, server: SimServer, now: float) -> None:
        """``server`` is about to change: keep what is due of how it was."""
        newest = int(now / self.period_s)
        due = self._next[server]
        if newest < due:
            self._still.pop(server, None)
            return
        samples, wanted = self._samples[server], self._due(now)
        while samples and samples[0][0] < wanted:
            samples.popleft()
        for number in range(max(due, wanted), newest + 1):
            samples.append(self._sample(server, number))
        self._next[server] = newest + 1
        self._still.pop(server, None)

    def refresh(self, loads: Sequence[LocalLoad], now: float) -> PoolTelemetry | None:
        """Let ``loads`` hear what has come by ``now``; the snapshot, if there is a new one."""
        number = self._due(now)
        if number <= self._heard or number < 0:
            return None
        self._heard = number
        at_s = number * self.period_s
        for server, samples in self._samples.items():
            while samples and samples[0][0] < number:
                samples.popleft()
            there = samples and samples[0][0] == number
            _, reports, queue = samples[0] if there else self._sample(server, number)
            for report in reports:
                self._fusion.add_replica(report, at_s)
            self._fusion.add_queue(queue, at_s)
        for one in loads:
            self._fusion.add_spent(one.holder, one.spent_hour_usd(now), at_s)
        snapshot = self._fusion.snapshot(at_s)
        for load in loads:
            load.update(snapshot, at_s)
        return snapshot

    def next_s(self, now: float) -> float:
        """When the next snapshot is heard."""
        return (self._due(now) + 1) * self.period_s + self.age_s

    def _due(self, now: float) -> int:
        """The newest sample that has been heard of by ``now``; -1 before the first."""
        # The next one is heard at a float sum; do not miss it by its rounding.
        return int((now - self.age_s) / self.period_s + 1e-9) if now >= self.age_s else -1

    def _sample(self, server: SimServer, number: int) -> _Sample:
        if (still := self._still.get(server)) is not None:
            return number, *still
        at_s = number * self.period_s
        reports = [replica.report(at_s) for replica in server.replicas if replica.up]
        queue = server.dispatch.report(at_s)
        if server.idle(at_s):
            self._still[server] = reports, queue
        return number, reports, queue
