"""API models as policies see them: congestion, hold, latencies; and how they are configured."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from runtime.config import AppConfig, parse_config
from runtime.errors import ConfigError
from runtime.load import LocalLoad, PoolView
from runtime.model_config import API_DOWN_AFTER_S, API_PROBE_S
from runtime.observation import system_state
from runtime.policies.single import ttft_s
from runtime.ratelimit import RateReport
from runtime.telemetry import QueueReport, ReplicaReport, TelemetryFusion
from runtime.window import CallWindow, LatencyAverage, finished_call, latency_window
from tests.conftest import app_args, model_args

URL = {"url": "http://127.0.0.1:9/v1"}
FREE = RateReport(recent=0, limit=10)


def api(name: str = "api", rpm: int = 10, **changes: Any) -> dict[str, Any]:
    settings = {"backend": "openai", "endpoint": URL, "api": {"rpm_limit": rpm}, **changes}
    speed = {"prefill_tokens_per_s": 10_000, "token_s": 0.01, "start_s": 0.5}
    return model_args(name, **{"speed": speed, **settings})


def pool(**changes: Any) -> AppConfig:
    return parse_config(app_args(model_args("own"), api(**changes)))


def view(rate: RateReport | None, sent: int = 0, at_s: float = 0.0, **report: Any) -> PoolView:
    """The pool after a report at 0 s, with ``sent`` calls of this process since."""
    config = pool()
    fusion = TelemetryFusion(("own", "api"), config.telemetry)
    base = ReplicaReport("own", "r", 4, 0, 0, 0.0, None, None, None, 0)
    fusion.add_replica(base, 0.0)
    fusion.add_replica(replace(base, **{"model": "api", "kv_usage": None, **report}), 0.0)
    held = rate.held if rate else 0
    fusion.add_queue(QueueReport("api", held, 0, 4, 0.0, 0.0, rate), 0.0)
    load = LocalLoad(config)
    load.update(fusion.snapshot(0.0), 0.0)
    for number in range(sent):
        load.sent(f"q.0.{number}", "api", 0.01)
    return load.view(max(at_s, 0.01 if sent else 0.0))


# --- what policies see -------------------------------------------------------------------------


def test_ninety_percent_of_the_limit_looks_like_a_queue() -> None:
    seen = view(RateReport(recent=9, limit=10))
    assert seen["api"].congestion == pytest.approx(0.9)
    assert seen["api"].occupancy == pytest.approx(0.9)
    assert seen["own"].congestion is None
    assert seen["own"].occupancy == 0.0
    queue = system_state(seen, 60.0, 5.0, ("own", "api")).queue
    assert queue == pytest.approx([0.0, math.log1p(0.9)], abs=1e-6)


def test_held_calls_are_seen_in_queue_wait_and_pool() -> None:
    full = RateReport(recent=10, limit=10, held=5, hold_s=42.0)
    seen = view(full)
    assert seen["api"].congestion == pytest.approx(1.5)
    assert seen["api"].speed.wait_s == pytest.approx(42.0)
    assert seen.occupancy == pytest.approx(0.75)  # 1.5 and 0, the same slots
    assert ttft_s(seen["api"], 100) > 42.0
    state = system_state(seen, 60.0, 5.0, ("own",))
    assert state.queue[1] == pytest.approx(math.log1p(1.5), abs=1e-6)
    assert list(state.mask) == [1.0, 0.0]


def test_own_calls_since_the_report_count_against_a_stampede() -> None:
    near = RateReport(recent=8, limit=10)
    assert view(near, sent=1)["api"].congestion == pytest.approx(0.9)
    assert view(near, sent=1)["api"].speed.wait_s == 0.0
    after = view(near, sent=4)["api"]
    assert after.congestion == pytest.approx(1.2)
    assert after.speed.wait_s > 0.0


def test_before_anything_is_heard_own_calls_count() -> None:
    load = LocalLoad(pool())
    for number in range(5):
        load.sent(f"q.0.{number}", "api", 0.0)
    assert load.view(0.0)["api"].congestion == pytest.approx(0.5)


def test_a_hold_runs_down_between_two_reports() -> None:
    full = RateReport(recent=10, limit=10, hold_s=42.0, closed_s=30.0)
    assert view(full, at_s=12.0)["api"].speed.wait_s == pytest.approx(30.0)
    assert view(full)["api"].congestion == pytest.approx(1.5)  # half a minute closed
    assert view(full, at_s=30.0)["api"].congestion == pytest.approx(1.0)


def test_the_start_of_an_answer_is_assumed_until_measured() -> None:
    assert view(FREE)["api"].speed.start_s == 0.5
    assert view(FREE, ttft_s=2.0)["api"].speed.start_s == 2.0
    speed = view(FREE, ttft_s=2.0, tpot_s=0.1)["api"].speed
    assert speed.service_s(1000, 10) == pytest.approx(2.0 + 0.1 + 1.0)
    assert view(FREE)["own"].speed.start_s == 0.0


def test_nothing_in_an_observation_is_out_of_bounds() -> None:
    worst = RateReport(recent=10_000, limit=1, held=10_000, hold_s=1e6, closed_s=3600.0)
    state = system_state(view(worst), 60.0, 5.0, ("own", "api")).concat()
    assert all(0.0 <= value <= 4.0 for value in state)


# --- latencies from the client's side ----------------------------------------------------------


def test_latencies_are_an_exponential_moving_average() -> None:
    average = LatencyAverage(weight=0.25, kept_s=100.0)
    assert average.empty
    for number, e2e_s in enumerate((4.0, 8.0, 8.0)):
        at_s = 10.0 + number
        average.add(finished_call(at_s - e2e_s, at_s, None, None))
    assert average.means(12.0).e2e_s == pytest.approx(0.75 * 5.0 + 0.25 * 8.0)
    assert average.means(12.0).ttft_s is None
    assert average.means(112.0).e2e_s is not None
    assert average.means(112.1).e2e_s is None  # so that the model gets another chance
    assert average.empty


def test_a_whole_answer_tells_the_time_per_token_once_a_first_token_was_seen() -> None:
    average = LatencyAverage(weight=1.0, kept_s=100.0)
    average.add(finished_call(0.0, 3.0, None, 21))
    assert average.means(3.0).tpot_s is None
    average.add(finished_call(3.0, 6.0, 1.0, 21))
    assert average.means(6.0).tpot_s == pytest.approx(0.1)
    average.add(finished_call(6.0, 12.0, None, 11))
    assert average.means(12.0).tpot_s == pytest.approx(0.5)
    assert average.means(12.0).ttft_s == pytest.approx(1.0)


def test_each_kind_of_model_has_its_window() -> None:
    own, remote = pool().models
    assert isinstance(latency_window(own.api), CallWindow)
    assert isinstance(latency_window(remote.api), LatencyAverage)


# --- config ------------------------------------------------------------------------------------


def test_an_api_is_watched_at_leisure_and_has_no_metrics_page() -> None:
    watched = pool().model("api").watched
    assert watched is not None
    assert watched.metrics_page is None
    assert (watched.probe_period_s, watched.down_after_s) == (API_PROBE_S, API_DOWN_AFTER_S)
    given = pool(endpoint={**URL, "down_after_s": 7.0}).model("api").watched
    assert given is not None
    assert (given.down_after_s, given.probe_period_s) == (7.0, API_PROBE_S)


def test_an_endpoint_without_api_is_watched_as_before() -> None:
    model = pool(api=None).model("api")
    assert model.watched == model.endpoint
    assert pool(api=None).metered_models == frozenset()
    assert pool().metered_models == {"api"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "vllm", "endpoint": None, "source": "a/b"}, "no `api`"),
        ({"endpoint": {**URL, "metrics_url": "http://127.0.0.1:9/metrics"}}, "metrics_url"),
        ({"api": {"rpm_limit": 0}}, "rpm_limit"),
        ({"api": {"rpm_limit": 5, "rpm": 5}}, "unknown key"),
        ({"api": {"rpm_limit": 5, "latency_weight": 0.0}}, "latency_weight"),
    ],
)
def test_what_an_api_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pool(**changes)
