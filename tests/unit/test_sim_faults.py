"""Replicas that die, come back, slow down and freeze, and what queries see of it."""

import math

import pytest

from runtime.sim.pool import Death, Slowdown
from runtime.sim.workload import poisson_workload
from tests.sim_case import (
    FixedOutcomes,
    HashedOutcomes,
    SimItem,
    TaskKind,
    at,
    engine,
    model,
    pool,
    simulate,
    statuses,
)

SLOW = engine(a_s=0.1)  # a call of 100 tokens takes 10 s


def calls(results):
    return sorted(
        (r["query"], r["attempt"], r["model"], r["status"], round(r["ended_s"], 2))
        for r in results.calls.rows()
    )


def test_calls_of_a_dead_replica_are_lost_at_once_and_tried_on_another_model():
    config = pool(model("first"), model("second"))
    results = simulate(
        config,
        at((0.0, 60.0)),
        models={"first": SLOW, "second": engine()},
        faults=(Death(4.0, "first"),),
    )
    assert calls(results) == [
        (0, 1, "first", "lost", 4.0),
        (0, 2, "second", "ok", 5.0),
    ]
    assert results.gpu_s["first"] == pytest.approx(4.0)
    assert results.queries["num_calls"][0] == 2


def test_a_lost_call_of_the_only_model_goes_on_when_the_replica_is_back():
    results = simulate(
        pool(limits={"silent_s": 30.0}),
        at((0.0, 60.0)),
        models={"only": engine(a_s=0.1, load_s=8.0)},
        faults=(Death(4.0, "only", back_after_s=2.0),),
    )
    assert calls(results) == [(0, 1, "only", "lost", 4.0), (0, 2, "only", "ok", 24.0)]


def test_a_call_that_finds_no_replica_is_given_up_after_silent_s():
    results = simulate(pool(), at((5.0, 60.0)), faults=(Death(4.0, "only"),))
    assert calls(results)[0] == (0, 1, "only", "lost", 10.0)
    assert statuses(results) == {0: "error"}


def test_what_is_gone_takes_no_more_slots_once_its_silence_is_noticed():
    config = pool(model("only", max_num_seqs=1, replicas=2), telemetry={"gone_after_s": 3.0})
    arrivals = at((0.0, 60.0), (0.1, 60.0), (10.0, 60.0), (10.1, 60.0))
    results = simulate(config, arrivals, models={"only": SLOW}, faults=(Death(1.0, "only", 1),))
    rows = {(r["query"], r["attempt"]): r for r in results.calls.rows()}
    assert rows[1, 1]["status"] == "lost"
    # Nobody knows yet that a replica is missing: the call is granted, and waits in the other.
    assert rows[1, 2]["granted_s"] == 1.0
    assert rows[1, 2]["ended_s"] == pytest.approx(20.0, abs=0.01)
    # Later there is one slot.
    granted = sorted(rows[q, 1]["granted_s"] for q in (2, 3))
    assert granted == pytest.approx([20.0, 30.0], abs=0.01)


def test_a_replica_that_is_back_takes_calls_again():
    config = pool(model("only", max_num_seqs=1, replicas=2))
    results = simulate(
        config,
        at((0.0, 90.0), *((40.0 + n / 10, 90.0) for n in range(2))),
        models={"only": engine(a_s=0.1, load_s=5.0)},
        faults=(Death(1.0, "only", 1, back_after_s=1.0),),
    )
    assert all(r["granted_s"] == r["asked_s"] for r in results.calls.rows())
    assert all(r["running"] == 0 for r in results.calls.rows())


def test_a_replica_slows_down_and_recovers():
    faults = (Slowdown(1.0, "only", 4.0), Slowdown(3.0, "only", 1.0))
    results = simulate(
        pool(), at((0.0, 60.0)), FixedOutcomes(300), {"only": engine()}, faults=faults
    )
    # 100 tokens, then 50 in two seconds, then the rest.
    assert results.queries["latency_s"][0] == pytest.approx(1.0 + 2.0 + 1.5, abs=0.05)


def test_a_frozen_replica_hangs_its_calls_and_they_go_elsewhere():
    config = pool(model("first"), model("second"), limits={"stall_s": 6.0})
    results = simulate(
        config,
        at((0.0, 60.0), (3.0, 60.0)),
        models={"first": SLOW, "second": engine()},
        faults=(Slowdown(2.0, "first", math.inf),),
    )
    assert calls(results) == [
        (0, 1, "first", "hung", 8.0),
        (0, 2, "second", "ok", 9.0),
        (1, 1, "first", "hung", 9.0),
        (1, 2, "second", "ok", 10.0),
    ]


def test_a_replica_that_thaws_in_time_hangs_nothing():
    faults = (Slowdown(2.0, "only", math.inf), Slowdown(5.0, "only", 1.0))
    results = simulate(pool(), at((0.0, 60.0)), models={"only": SLOW}, faults=faults)
    assert calls(results) == [(0, 1, "only", "ok", 13.0)]


def test_the_breaker_keeps_calls_away_from_a_model_that_only_fails():
    config = pool(model("first"), model("second"), limits={"stall_s": 2.0}, breaker={"failures": 2})
    arrivals = at((1.0, 60.0), (1.5, 60.0), (6.0, 60.0))
    faults = (Slowdown(0.5, "first", math.inf),)
    results = simulate(config, arrivals, faults=faults)
    first = [(r["query"], r["model"]) for r in results.calls.rows() if r["attempt"] == 1]
    assert sorted(first) == [(0, "first"), (1, "first"), (2, "second")]


def test_a_parked_step_goes_on_when_the_telemetry_says_that_a_model_is_back():
    # Two failures open the breaker of the only model; the step waits for it.
    config = pool(
        limits={"silent_s": 1.0, "park_s": 100.0, "max_attempts_per_step": 3},
        breaker={"failures": 2, "open_s": 6.0},
        telemetry={"gone_after_s": 1.0},
    )
    results = simulate(
        config,
        at((0.0, 100.0)),
        models={"only": engine(a_s=0.1, load_s=1.0)},
        faults=(Death(2.0, "only", back_after_s=4.0),),
    )
    assert statuses(results) == {0: "ok"}
    (done,) = [r for r in results.calls.rows() if r["status"] == "ok"]
    assert 7.0 < done["asked_s"] < 10.0


@pytest.mark.parametrize("at_deadline", ["finish", "run_on"])
def test_under_faults_every_query_has_one_outcome(at_deadline):
    config = pool(
        model("a", replicas=2),
        model("b"),
        policy={"name": "random", "options": {}},
        at_deadline=at_deadline,
        limits={"stall_s": 3.0},
    )
    faults = (
        Death(5.0, "a", 0, back_after_s=5.0),
        Slowdown(8.0, "b", 5.0),
        Slowdown(9.0, "a", math.inf, 1),
        Death(12.0, "a", 1),
        Slowdown(20.0, "b", 1.0),
        Death(30.0, "b", back_after_s=0.0),
    )
    items = [SimItem(f"i{n}", "set", TaskKind.MATH, 50) for n in range(20)]
    arrivals = poisson_workload(items, rate_per_min=120, num_queries=100, budgets_s=(5.0, 30.0))
    speeds = {name: engine(load_s=2.0) for name in "ab"}
    results = simulate(config, arrivals, HashedOutcomes(), speeds, faults=faults)
    assert sorted(results.queries["query"]) == list(range(100))
    assert {"lost", "ok"} <= {r["status"] for r in results.calls.rows()}


def test_a_fault_of_a_replica_that_is_none_is_refused():
    with pytest.raises(ValueError, match="no replica 1 of model 'only'"):
        simulate(pool(), [], faults=(Death(1.0, "only", 1),))
    with pytest.raises(ValueError, match="factor"):
        simulate(pool(), [], faults=(Slowdown(1.0, "only", 0.0),))
