"""``CallWatch``: a call lives as long as a replica reports it."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.config import TelemetryConfig
from runtime.telemetry import PoolTelemetry, ReplicaReport, TelemetryFusion
from runtime.watch import CallWatch

SILENT_S = 5.0


def snapshot(calls: Iterable[str], slots: int = 4, running: int | None = None) -> PoolTelemetry:
    """The news of one replica that runs ``calls``."""
    fused = TelemetryFusion(("small",), TelemetryConfig())
    calls = tuple(calls)
    running = len(calls) if running is None else running
    report = ReplicaReport("small", "r", slots, running, 0, None, None, None, None, 0, calls)
    fused.add_replica(report, 0.0)
    return fused.snapshot(0.0)


NOBODY = TelemetryFusion(("small",), TelemetryConfig()).snapshot(0.0)


def looks(watch: CallWatch, news: PoolTelemetry, seconds: int, since: int = 0) -> list[str]:
    return [call for s in range(since, since + seconds + 1) for call in watch.look(news, float(s))]


def test_a_call_that_is_reported_lives_for_hours() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    assert looks(watch, snapshot(["c"]), 7200) == []
    assert len(watch) == 1


def test_a_call_whose_replica_fell_silent_is_lost_once() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    looks(watch, snapshot(["c"]), 10)
    assert looks(watch, NOBODY, 4, since=10) == []
    assert looks(watch, NOBODY, 10, since=14) == ["c"]
    assert len(watch) == 0


def test_a_call_that_waits_for_a_place_is_not_lost() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    assert looks(watch, snapshot(["a", "b", "d", "e"]), 600) == []
    assert looks(watch, snapshot(["a"]), 10, since=600) == ["c"]


def test_a_call_is_not_lost_to_a_short_silence() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    for second in range(0, 80, 8):
        assert looks(watch, NOBODY, 3, since=second) == []
        assert looks(watch, snapshot(["c"]), 3, since=second + 4) == []


def test_a_pause_of_the_watcher_counts_against_nobody() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    watch.look(snapshot(["c"]), 0.0)
    assert watch.look(NOBODY, 3600.0) == []


def test_a_call_that_ended_is_forgotten() -> None:
    watch = CallWatch(SILENT_S)
    watch.began("c", "small")
    watch.ended("c")
    watch.ended("c")
    assert looks(watch, NOBODY, 60) == []
