"""Fusion of reports, and the load as one process sees it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from runtime.config import AppConfig, TelemetryConfig
from runtime.load import LocalLoad
from runtime.observation import (
    FLOATS_PER_MODEL,
    budget_feature,
    executor_observation,
    planner_summary,
    system_state,
)
from runtime.telemetry import QueueReport, ReplicaReport, TelemetryFusion

SETTINGS = TelemetryConfig(report_period_s=0.25, stale_after_periods=2.0, gone_after_s=5.0)
NAMES = ("small", "middle", "large")
QUEUE = QueueReport("small", backlog=0, leased=0, slots=4, oldest_s=0.0, backlog_work_s=0.0)


def report(**changes: object) -> ReplicaReport:
    base = ReplicaReport("small", "r1", 4, 2, 0, 0.5, 1.0, 0.1, 0.02, finished=7)
    return replace(base, **changes)  # type: ignore[arg-type]


def fusion() -> TelemetryFusion:
    return TelemetryFusion(NAMES, SETTINGS)


def test_replicas_add_up_and_rates_are_means() -> None:
    fused = fusion()
    fused.add_replica(report(), 0.0)
    fused.add_replica(report(replica="r2", running=4, kv_usage=0.7, e2e_s=3.0), 0.0)
    load = fused.snapshot(0.1).models["small"]
    assert (load.replicas, load.slots, load.running) == (2, 8, 6)
    assert load.kv_usage == pytest.approx(0.6)
    assert load.e2e_s == pytest.approx(2.0)
    assert load.age_s == pytest.approx(0.1)


def test_what_nobody_reported_is_none_and_a_reported_zero_is_zero() -> None:
    fused = fusion()
    fused.add_replica(report(running=0, e2e_s=None, kv_usage=0.0), 0.0)
    load = fused.snapshot(0.0).models["small"]
    assert (load.running, load.kv_usage, load.e2e_s) == (0, 0.0, None)
    unheard = fused.snapshot(0.0).models["large"]
    assert (unheard.running, unheard.replicas, unheard.age_s) == (None, 0, None)


def test_a_silent_source_is_unknown_after_two_periods_and_no_capacity_when_gone() -> None:
    fused = fusion()
    fused.add_replica(report(), 0.0)
    assert fused.snapshot(0.5).models["small"].running == 2
    stale = fused.snapshot(0.51).models["small"]
    assert (stale.running, stale.slots) == (None, 4)
    gone = fused.snapshot(5.1).models["small"]
    assert (gone.replicas, gone.slots) == (0, 0)


def test_one_silent_replica_does_not_take_its_sibling_along() -> None:
    fused = fusion()
    fused.add_replica(report(), 0.0)
    fused.add_replica(report(replica="r2", running=1), 1.0)
    assert fused.snapshot(1.1).models["small"].running == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_nan_reaches_a_snapshot(bad: float) -> None:
    fused = fusion()
    fused.add_replica(report(e2e_s=bad), 0.0)
    assert fused.snapshot(0.0).models["small"].e2e_s is None


def test_reports_of_unknown_models_are_ignored() -> None:
    fused = fusion()
    fused.add_replica(report(model="stranger"), 0.0)
    assert set(fused.snapshot(0.0).models) == set(NAMES)


def test_versions_grow() -> None:
    fused = fusion()
    assert fused.snapshot(0.0).version < fused.snapshot(0.0).version


# --- the local view --------------------------------------------------------------------------


def test_own_calls_count_at_once_so_that_nobody_stampedes(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    fused.add_replica(report(running=1), 0.0)
    load.update(fused.snapshot(0.0), 10.0)
    before = load.view(10.0)["small"].in_system
    for i in range(5):
        load.sent(f"c{i}", "small", 10.1)
    assert load.view(10.2)["small"].in_system == before + 5
    assert load.view(10.2)["small"].speed.wait_s > 0


def test_a_newer_snapshot_that_has_seen_the_calls_is_not_added_to(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    for i in range(3):
        load.sent(f"c{i}", "small", 10.0)
    fused.add_replica(report(running=3), 0.0)
    load.update(fused.snapshot(0.0), 10.5)
    assert load.view(10.5)["small"].in_system == 3


def test_leases_count_only_where_the_engines_are_silent(config: AppConfig) -> None:
    """A holder keeps some leases idle, so they are not load."""
    load, fused = LocalLoad(config), fusion()
    fused.add_queue(replace(QUEUE, leased=4, backlog=2), 0.0)
    load.update(fused.snapshot(0.0), 10.0)
    assert load.view(10.0)["small"].in_system == 6
    fused.add_replica(report(running=3), 0.0)
    load.update(fused.snapshot(0.0), 10.0)
    assert load.view(10.0)["small"].in_system == 5


def test_own_calls_that_ended_since_the_snapshot_are_taken_off(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    load.sent("c0", "small", 9.0)
    fused.add_replica(report(running=3), 0.0)
    load.update(fused.snapshot(0.0), 10.0)
    load.ended("c0", "small", 10.1)
    assert load.view(10.2)["small"].in_system == 2


def test_without_any_telemetry_only_own_calls_are_known(config: AppConfig) -> None:
    load = LocalLoad(config)
    load.sent("c0", "large", 1.0)
    view = load.view(1.0)
    assert [m.in_system for m in view.models] == [0, 0, 1]
    assert all(m.available and not m.fresh and m.age_s is None for m in view.models)


def test_a_model_without_a_replica_is_not_available(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    fused.add_replica(report(), 0.0)
    load.update(fused.snapshot(0.0), 0.0)
    assert [m.available for m in load.view(0.0).models] == [True, False, False]


def test_measured_token_time_replaces_the_configs(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    assert load.view(0.0)["small"].speed.tpot_s == pytest.approx(0.005)
    fused.add_replica(report(tpot_s=0.2), 0.0)
    load.update(fused.snapshot(0.0), 0.0)
    assert load.view(0.0)["small"].speed.tpot_s == pytest.approx(0.2)


# --- observation vectors ---------------------------------------------------------------------


def test_budget_feature_is_bounded_and_monotone() -> None:
    values = [budget_feature(s) for s in (-5.0, 0.0, math.nan, 1.0, 10.0, 300.0, 1e9)]
    assert values[:3] == [0.0, 0.0, 0.0]
    assert values[5] == pytest.approx(1.0)
    assert values[3] < values[4] < values[5] < values[6] == 1.2


def test_observation_shapes_and_bounds_under_extreme_load(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    fused.add_replica(report(running=10**6, kv_usage=3.0, e2e_s=1e9), 0.0)
    load.update(fused.snapshot(0.0), 0.0)
    state = system_state(load.view(0.0), 1e-9, 5.0, ["small"])
    z0 = planner_summary(1e-9, state)
    assert z0.shape == (1 + FLOATS_PER_MODEL * 3,)
    assert np.isfinite(z0).all()
    assert z0.min() >= 0.0
    assert state.queue.max() <= 4.0
    assert state.e2e.max() <= 4.0
    assert state.kv.max() <= 1.0
    s_k = executor_observation([0.0] * 384, [math.nan] * 384, 10.0, state)
    assert s_k.shape == (2 * 384 + 1 + FLOATS_PER_MODEL * 3,)
    assert np.isfinite(s_k).all()


def test_unknown_and_a_fresh_zero_differ(config: AppConfig) -> None:
    load, fused = LocalLoad(config), fusion()
    fused.add_replica(report(running=0, kv_usage=0.0), 0.0)
    load.update(fused.snapshot(0.0), 0.0)
    state = system_state(load.view(0.0), 30.0, 5.0, NAMES)
    assert state.kv[0] == state.kv[1] == 0.0
    assert state.age[0] == 0.0
    assert state.age[1] == 1.0


def test_the_mask_is_what_is_allowed(config: AppConfig) -> None:
    state = system_state(LocalLoad(config).view(0.0), 30.0, 5.0, ["large"])
    assert state.mask.tolist() == [0.0, 0.0, 1.0]
