"""API models in the simulator: latencies, the window, refusals, overflow, money."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from runtime.config import parse_config
from runtime.errors import ConfigError
from runtime.ratelimit import WINDOW_S
from runtime.sim.api import ApiEngine, RateLimited
from runtime.sim.apis import api_speed, api_speeds
from runtime.sim.describe import describe_apis
from runtime.sim.parameters import Status
from runtime.sim.pool import SimApi, Slowdown, sim_pool
from runtime.sim.sequences import SimSequence
from runtime.sim.speeds import calibrated_pool
from runtime.sim.workload import Arrival
from tests.sim_case import ITEM, FixedOutcomes, at, grants, model, pool, simulate, statuses

API = {"rpm_limit": 3}
FAST = SimApi(0.5, 100.0)


def api(name: str = "api", **changes: Any) -> dict[str, Any]:
    price = {"input": 1.0, "output": 2.0}
    return model(name, **{"api": API, "price": price, "max_num_seqs": 64, **changes})


def run(config: Any, arrivals: list[Arrival], engines: dict[str, Any], **more: Any) -> Any:
    return simulate(config, arrivals, FixedOutcomes(51), engines, **more)


def call_column(results: Any, column: str) -> list[float]:
    return [row[column] for row in results.calls.rows()]


def sequence(name: str = "q.0.1", tokens: int = 51) -> SimSequence:
    return SimSequence(name, (0.0, 0), 10, tokens)


# --- the engine --------------------------------------------------------------------------------


def test_a_call_takes_its_start_and_its_tokens_and_feels_no_other() -> None:
    engine = ApiEngine(FAST, 4)
    calls = [sequence(f"q{i}.0.1") for i in range(3)]
    for call in calls:
        engine.add(call, 1.0)
    assert (engine.num_running, engine.next_event_s) == (3, 1.5)
    engine.advance(1.6)
    assert [call.first_token_s for call in calls] == [1.5] * 3
    assert engine.generated(calls[0], 1.755) == 26
    engine.advance(2.0)
    assert engine.finished == calls
    assert calls[0].done_s == pytest.approx(2.0)
    assert (engine.busy, engine.next_event_s) == (False, math.inf)
    assert (engine.gpu_s(2.0), engine.kv_blocks(2.0)) == (0.0, 0)


def test_a_slow_provider_stretches_what_is_left_and_a_frozen_one_stops() -> None:
    engine, call = ApiEngine(FAST, 4), sequence()
    engine.add(call, 0.0)
    engine.set_factor(1.0, 2.0, 0.25)
    engine.advance(0.75)
    assert call.first_token_s == pytest.approx(0.75)
    engine.set_factor(1.0, math.inf, 0.75)
    assert engine.next_event_s == math.inf
    engine.set_factor(1.0, 1.0, 10.0)
    engine.advance(10.5)
    assert call.done_s == pytest.approx(10.5)


def test_what_is_withdrawn_ends_no_more() -> None:
    engine, call = ApiEngine(FAST, 4), sequence()
    engine.add(call, 0.0)
    engine.advance(0.5)
    engine.remove(call, 0.605)
    engine.advance(5.0)
    assert (call.generated, call.done_s, engine.finished) == (11, None, [])


def test_latencies_are_lognormal_around_their_means_whatever_the_order() -> None:
    api = SimApi(0.8, 50.0, ttft_cv=0.6, rate_cv=0.4, seed=7)
    names = [f"q{i}.0.1" for i in range(4000)]
    first, last = {}, {}
    for order in (names, list(reversed(names))):
        engine = ApiEngine(api, 10_000)
        calls = [sequence(name) for name in order]
        for call in calls:
            engine.add(call, 0.0)
        engine.advance(1e6)
        times = {c.call_id: (c.first_token_s, c.done_s) for c in calls}
        first, last = last, times
    assert first == last
    ttft = np.array([times[0] for times in first.values()])
    token = np.array([(done - start) / 50 for start, done in first.values()])
    assert ttft.mean() == pytest.approx(0.8, rel=0.05)
    assert token.mean() == pytest.approx(0.02, rel=0.05)
    assert ttft.std() / ttft.mean() == pytest.approx(0.6, rel=0.1)
    assert np.log(token).std() == pytest.approx(math.sqrt(math.log1p(0.4**2)), rel=0.05)


def test_the_provider_refuses_what_exceeds_its_limit() -> None:
    engine = ApiEngine(SimApi(0.5, 100.0, rpm_limit=2), 100)
    engine.add(sequence("a"), 0.0)
    engine.add(sequence("b"), 10.0)
    with pytest.raises(RateLimited) as refused:
        engine.add(sequence("c"), 20.0)
    assert refused.value.retry_after_s == pytest.approx(40.0)
    engine.add(sequence("c"), 60.0)


# --- in a pool ---------------------------------------------------------------------------------


def test_no_minute_has_more_requests_than_the_limit_and_calls_are_held() -> None:
    arrivals = at(*[(float(i), 1000.0) for i in range(12)])
    results = run(pool(api()), arrivals, {"api": SimApi(0.5, 100.0, rpm_limit=3)})
    granted = sorted(call_column(results, "granted_s"))
    for begin in granted:
        assert sum(begin <= one < begin + WINDOW_S for one in granted) <= 3
    assert granted == pytest.approx([60.0 * (i // 3) + i % 3 for i in range(12)])
    assert set(statuses(results).values()) == {"ok"}


def test_held_calls_leave_in_deadline_order() -> None:
    budgets = [1000.0, 1000.0, 1000.0, 900.0, 500.0, 700.0]
    arrivals = at(*[(float(i), budget) for i, budget in enumerate(budgets)])
    engines = {"api": FAST}
    assert grants(run(pool(api()), arrivals, engines)) == [0, 1, 2, 4, 5, 3]
    assert grants(run(pool(api(), order="fcfs"), arrivals, engines)) == [0, 1, 2, 3, 4, 5]


def test_a_policy_that_sees_the_load_overflows_to_the_api() -> None:
    own = model("own", max_num_seqs=1)
    config = pool(own, api(), policy={"name": "least_loaded", "options": {}})
    arrivals = at(*[(0.1 * i, 1000.0) for i in range(5)])
    results = run(config, arrivals, {**sim_pool(config), "api": FAST})
    by_model = dict.fromkeys(("own", "api"), 0)
    for row in results.calls.rows():
        by_model[row["model"]] += 1
    assert by_model["api"] >= 2
    assert by_model["own"] >= 1


def test_backpressure_reaches_the_policy_of_the_simulation() -> None:
    config = pool(model("own", max_num_seqs=8), api(), policy={"name": "least_loaded"})
    arrivals = at(*[(0.2 * i, 1000.0) for i in range(30)])
    results = run(config, arrivals, {**sim_pool(config), "api": FAST})
    sent = [row for row in results.calls.rows() if row["model"] == "api"]
    # It never piles up there: beyond the limit the window looks fuller than any queue of `own`.
    assert 1 <= len(sent) <= 6
    assert max(row["granted_s"] - row["asked_s"] for row in sent) <= WINDOW_S


def test_a_limit_that_is_lower_than_configured_is_learned_not_failed() -> None:
    config = pool(api(api={"rpm_limit": 10}))
    arrivals = at(*[(2.0 * i, 1000.0) for i in range(10)])
    results = run(config, arrivals, {"api": SimApi(0.5, 100.0, rpm_limit=4)})
    calls = list(results.calls.rows())
    limited = [row for row in calls if row["status"] == "limited"]
    assert 1 <= len(limited) <= 6
    assert set(statuses(results).values()) == {"ok"}
    answered = [row["granted_s"] for row in calls if row["status"] == "ok"]
    for begin in answered:
        assert sum(begin <= one < begin + WINDOW_S for one in answered) <= 4


def test_an_api_takes_no_gpu_and_no_slowdown() -> None:
    plain = run(pool(api()), at((0.0, 100.0)), {"api": FAST})
    slow = run(pool(api()), at((0.0, 100.0)), {"api": FAST}, slowdown=3.0)
    assert call_column(plain, "ended_s") == call_column(slow, "ended_s")
    assert plain.gpu_s == {"api": 0.0}


def test_a_provider_that_freezes_is_given_up_and_a_slow_one_waited_for() -> None:
    config = pool(model("own"), api(), policy={"name": "fixed", "options": {"model": "api"}})
    engines = {**sim_pool(config), "api": FAST}
    frozen = run(config, at((0.0, 100.0)), engines, faults=(Slowdown(0.2, "api", math.inf),))
    assert [row["status"] for row in frozen.calls.rows()] == ["hung", "ok"]
    slow = run(config, at((0.0, 100.0)), engines, faults=(Slowdown(0.0, "api", 4.0),))
    assert call_column(slow, "ended_s") == pytest.approx([4.0])


def test_money_is_counted_and_masks_in_the_simulation() -> None:
    config = pool(api(), model("own"), policy={"name": "fixed", "options": {}})
    arrivals = [Arrival(0.0, ITEM, 100.0), Arrival(1.0, ITEM, 100.0, budget_usd=0.0)]
    results = run(config, arrivals, {**sim_pool(config), "api": FAST})
    calls = list(results.calls.rows())
    assert [row["model"] for row in calls] == ["api", "own"]
    cost = [row["cost_usd"] for row in results.queries.rows()]
    paid = (calls[0]["prompt_tokens"] + 2 * calls[0]["completion_tokens"]) / 1e6
    assert cost[0] == paid
    assert math.isnan(cost[1])
    assert results.summary().cost_usd == pytest.approx(paid / 2)
    nobody = run(pool(), at((0.0, 100.0)), sim_pool(pool()))
    assert math.isnan(nobody.summary().cost_usd)


def test_the_hour_of_the_pool_holds_in_the_simulation() -> None:
    config = pool(api(api={"rpm_limit": 100}), money={"per_hour_usd": 0.002})
    arrivals = at(*[(10.0 * i, 100.0) for i in range(20)])
    results = run(config, arrivals, {"api": FAST})
    ended = list(statuses(results).values())
    assert ended[0] == "ok"
    assert ended[-1] == "error"
    cost = np.array([row["cost_usd"] for row in results.queries.rows()])
    spent = np.nansum(cost)
    assert 0.002 <= spent <= 0.002 + np.nanmax(cost)


# --- what is assumed ---------------------------------------------------------------------------


def test_everything_that_is_assumed_of_apis_says_so() -> None:
    assert {row.status for row in api_speeds().values()} == {Status.ASSUMED}
    lines = describe_apis(["llama-3.1-8b"])
    assert {line.status for line in lines} == {Status.ASSUMED}
    assert {line.name for line in lines} >= {
        "api.llama-3.1-8b.rpm_limit",
        "api.llama-3.1-8b.ttft_s",
        "api.llama-3.1-8b.output_usd",
    }
    assert len(describe_apis()) == len(lines) * len(api_speeds())


def test_the_calibrated_pool_knows_both_kinds() -> None:
    names = ("llama-3.1-8b", "llama-3.2-3b")
    models = [model(names[0]), api(names[1])]
    config = parse_config({"version": 1, "models": models})
    engines = calibrated_pool(config, slowdown=2.0, seed=5)
    remote = engines[names[1]]
    assert isinstance(remote, SimApi)
    assert (remote.rpm_limit, remote.seed) == (3, 5)
    assert remote.ttft_s == api_speed(names[1]).ttft_s
    with pytest.raises(ConfigError, match="nothing is assumed"):
        api_speed("unknown")
