"""Whole simulations: every query has one outcome, deadlines and orders work as they do live."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from actors.local_pool import read_serve_file
from runtime.policy import PlanView, make_policy
from runtime.sim.items import shipped
from runtime.sim.quality import QualityModel
from runtime.sim.results import ANSWERED
from runtime.sim.settings import SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.speeds import calibrated_pool
from runtime.sim.workload import Arrival, poisson_workload
from runtime.types import Plan, Route, Stop, Strategy, TaskKind, Topology
from tests.sim_case import (
    ITEM,
    FixedOutcomes,
    HashedOutcomes,
    SimItem,
    at,
    engine,
    grants,
    model,
    pool,
    simulate,
    statuses,
)

ONE_SLOT = model("only", max_num_seqs=1)
FIXED_DEEP = {"name": "fixed", "options": {"strategy": "DeepThink", "topology": "IO"}}


def items(number=50):
    return [SimItem(f"i{n}", "set", TaskKind.MATH, 50 + n) for n in range(number)]


def three(**changes):
    return pool(*(model(name, max_num_seqs=2) for name in "abc"), **changes)


# --- every query has one outcome -----------------------------------------------------------------


def test_a_call_withdrawn_at_the_very_moment_of_its_end_has_ended_once():
    """Deadlines of calls that start together fall on the moments at which engines finish."""
    config = read_serve_file(Path("serve_configs/b200.yaml")).config
    options = {"model": "llama-3.1-8b", "topology": "Chain", "agents": 4}
    policy = config.policy.model_copy(update={"name": "fixed", "options": options})
    config = config.model_copy(
        update={"policy": policy, "at_deadline": "finish", "order": "edf_plain"}
    )
    simulation = Simulation(
        config,
        QualityModel(shipped(), seed=0),
        poisson_workload(shipped().select("mmlu_pro"), rate_per_min=300, num_queries=200),
        make_policy(config),
        models=calibrated_pool(config),
        settings=SimSettings(slowdown=30),
    )
    results = simulation.run()
    assert sorted(results.queries["query"]) == list(range(200))
    assert simulation.num_in_flight == 0


@pytest.mark.parametrize("at_deadline", ["finish", "run_on"])
@pytest.mark.parametrize("name", ["random", "greedy", "cascade", "least_loaded"])
def test_every_query_offered_has_one_outcome_and_nothing_is_left(name, at_deadline):
    config = three(
        policy={"name": name, "options": {}},
        at_deadline=at_deadline,
        limits={"max_backlog_per_model": 6, "max_queries_in_flight": 20},
    )
    arrivals = poisson_workload(items(), rate_per_min=900, num_queries=200, budgets_s=(2.0, 10.0))
    arrivals = [
        Arrival(a.at_s, a.item, a.budget_s, 1.0 if n % 7 == 0 else None)
        for n, a in enumerate(arrivals)
    ]
    simulation = Simulation(config, HashedOutcomes(), arrivals, make_policy(config))
    results = simulation.run()
    assert sorted(results.queries["query"]) == list(range(200))
    assert simulation.num_in_flight == 0
    assert simulation.num_calls == 0
    calls = Counter(row["query"] for row in results.calls.rows())
    for row in results.queries.rows():
        assert row["num_calls"] == calls[row["query"]]
        assert row["latency_s"] >= 0
    told = Counter(row["status"] for row in results.queries.rows())
    assert told["ok"] > 0
    assert {e["error"] for e in results.queries.rows()} >= {"", "cancelled", "overloaded"}
    assert results.summary().n_offered == 200


def test_a_query_alone_takes_the_time_of_its_call():
    results = simulate(pool(), at((1.0, 60.0)), models={"only": engine()})
    (row,) = results.queries.rows()
    assert row["latency_s"] == pytest.approx(1.0)  # 100 tokens of 10 ms
    assert (row["status"], row["solved"], row["num_calls"]) == ("ok", 1, 1)
    (call,) = results.calls.rows()
    assert call["asked_s"] == call["granted_s"] == 1.0
    assert call["first_token_s"] == pytest.approx(1.01)
    assert call["ended_s"] == pytest.approx(2.0)
    assert call["completion_tokens"] == 100
    assert not call["cut"]
    assert results.gpu_s["only"] == pytest.approx(1.0)


def test_what_passes_between_grant_and_engine_counts():
    results = simulate(pool(), at((0.0, 60.0)), models={"only": engine(dispatch_s=0.5)})
    assert results.queries["latency_s"][0] == pytest.approx(1.5)


def test_an_answer_that_does_not_fit_its_cap_is_cut_and_wrong():
    config = pool(policy={"name": "fixed", "options": {"strategy": "Flash"}})
    results = simulate(config, at((0.0, 60.0)), FixedOutcomes(257), {"only": engine()})
    (call,) = results.calls.rows()
    assert call["completion_tokens"] == call["max_tokens"] == 256
    assert call["cut"]
    assert results.queries["solved"][0] == 0
    whole = simulate(config, at((0.0, 60.0)), FixedOutcomes(256), {"only": engine()})
    assert whole.queries["solved"][0] == 1


def test_speed_is_divided():
    slow = simulate(pool(), at((0.0, 60.0)), models={"only": engine()}, slowdown=3.0)
    assert slow.queries["latency_s"][0] == pytest.approx(3.0)


def test_the_same_seed_gives_the_same_run_and_arrivals_do_not_depend_on_the_policy():
    def run(policy, seed=0):
        config = three(policy={"name": policy, "options": {}, "seed": seed})
        arrivals = poisson_workload(items(), rate_per_min=200, num_queries=80, seed=3)
        return simulate(config, arrivals, HashedOutcomes())

    first, second, other = run("random"), run("random"), run("random", seed=1)
    for column in ("query", "model", "strategy", "asked_s", "granted_s", "ended_s"):
        assert np.array_equal(first.calls[column], second.calls[column], equal_nan=True)
    assert not np.array_equal(first.calls["model"][:80], other.calls["model"][:80])
    greedy = run("greedy")
    for column in ("item", "arrival_s", "budget_s"):
        by_query = [r.queries[column][np.argsort(r.queries["query"])] for r in (first, greedy)]
        if column == "item":
            names = [r.queries.names["item"].names for r in (first, greedy)]
            by_query = [[n[i] for i in q] for n, q in zip(names, by_query, strict=True)]
        assert list(by_query[0]) == list(by_query[1])


# --- deadlines and orders ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [("edf", [0, 2, 3, 1]), ("edf_plain", [0, 2, 3, 1]), ("fcfs", [0, 1, 2, 3])],
)
def test_budgets_of_60_10_and_30_are_served_10_30_60(order, expected):
    arrivals = at((0.0, 100.0), (0.1, 60.0), (0.2, 10.0), (0.3, 30.0))
    config = pool(model("only", max_num_seqs=1, max_output_tokens=200), order=order)
    results = simulate(config, arrivals, models={"only": engine()})
    assert grants(results) == expected


def test_what_cannot_be_in_time_yields_to_what_can_only_with_late_yielding():
    # Each call takes 2 s. When the slot is free the second can no longer be in time.
    arrivals = at((0.0, 100.0), (0.1, 3.0), (0.2, 4.5))
    config = {o: pool(ONE_SLOT, order=o) for o in ("edf", "edf_plain")}
    speeds = {"only": engine()}
    on_time = {}
    for order, each in config.items():
        results = simulate(each, arrivals, FixedOutcomes(200), speeds)
        on_time[order] = [q for q, s in sorted(statuses(results).items()) if s == "ok"]
    # The prediction is the cap's: 2048 tokens of 10 ms, so both are late at once, by arrival.
    assert on_time["edf_plain"] == [0]
    capped = pool(model("only", max_num_seqs=1, max_output_tokens=200), order="edf")
    results = simulate(capped, arrivals, FixedOutcomes(200), speeds)
    assert [q for q, s in sorted(statuses(results).items()) if s == "ok"] == [0, 2]


def test_a_hard_deadline_ends_the_query_and_frees_the_slot():
    config = pool(ONE_SLOT, at_deadline="finish")
    arrivals = at((0.0, 100.0), (0.1, 0.5), (0.2, 50.0))
    results = simulate(config, arrivals, models={"only": engine()})
    assert statuses(results) == {0: "ok", 1: "error", 2: "ok"}
    rows = {row["query"]: row for row in results.queries.rows()}
    assert rows[1]["error"] == "deadline_exceeded"
    assert rows[1]["latency_s"] == pytest.approx(0.5)
    assert grants(results) == [0, 2]
    ends = {row["query"]: row["status"] for row in results.calls.rows()}
    assert ends == {0: "ok", 1: "dropped", 2: "ok"}


def test_with_run_on_the_same_query_is_late_and_whole():
    arrivals = at((0.0, 100.0), (0.1, 0.5))
    results = simulate(pool(ONE_SLOT), arrivals, models={"only": engine()})
    assert statuses(results) == {0: "ok", 1: "late"}
    summary = results.summary()
    assert (summary.slo, summary.accuracy, summary.correct_on_time) == (50.0, 100.0, 50.0)


def test_a_call_is_cut_where_its_share_of_a_hard_budget_ends():
    # The model is ten times as slow as its config says, so its cap does not protect it.
    config = pool(ONE_SLOT, at_deadline="finish")
    results = simulate(config, at((0.0, 4.05)), FixedOutcomes(380), {"only": engine(a_s=0.1)})
    (call,) = results.calls.rows()
    assert call["cut"]
    assert call["completion_tokens"] == 37  # 0.3 s before the deadline
    assert statuses(results) == {0: "ok"}
    assert results.queries["solved"][0] == 0


def test_a_client_that_leaves_frees_everything():
    config = pool(ONE_SLOT)
    arrivals = [Arrival(0.0, ITEM, 60.0, leaves_after_s=0.255), *at((0.1, 60.0))]
    results = simulate(config, arrivals, models={"only": engine()})
    assert statuses(results) == {0: "error", 1: "ok"}
    rows = {row["query"]: row for row in results.queries.rows()}
    assert rows[0]["error"] == "cancelled"
    first, second = sorted(results.calls.rows(), key=lambda row: row["query"])
    assert (first["status"], first["completion_tokens"]) == ("cancelled", 25)
    assert second["granted_s"] == 0.255


def test_a_full_backlog_refuses_and_the_call_goes_to_another_model():
    config = pool(
        ONE_SLOT,
        model("other", max_num_seqs=1),
        limits={"max_backlog_per_model": 1},
    )
    results = simulate(config, at(*((0.1 * n, 60.0) for n in range(3))))
    calls = [(r["query"], r["model"], r["status"]) for r in results.calls.rows()]
    assert (2, "only", "refused") in calls
    assert (2, "other", "ok") in calls
    assert set(statuses(results).values()) == {"ok"}


def test_beyond_the_queries_in_flight_one_is_refused_and_counted():
    config = pool(ONE_SLOT, limits={"max_queries_in_flight": 2})
    results = simulate(config, at(*((0.1 * n, 60.0) for n in range(3))))
    assert statuses(results) == {0: "ok", 1: "ok", 2: "error"}
    assert results.summary().accuracy == pytest.approx(200 / 3)


# --- prompts and answers -------------------------------------------------------------------------


def test_prompts_grow_by_what_earlier_steps_wrote():
    config = pool(policy={"name": "fixed", "options": {"topology": "Debate", "agents": 2}})
    outcomes = FixedOutcomes(400)
    results = simulate(config, at((0.0, 600.0)), outcomes)
    tokens = {(r["kind"], r["step"]): r["prompt_tokens"] for r in results.calls.rows()}
    answers = [n for (kind, _), n in tokens.items() if kind == "answer"]
    debates = [n for (kind, _), n in tokens.items() if kind == "debate"]
    assert all(750 < n - answers[0] < 950 for n in debates)
    seen = {step.kind: seen for step, seen in outcomes.seen}
    assert [s.text for s in seen["debate"]] == ["Answer: 42"] * 2
    assert seen["answer"] == []
    assert results.queries["solved"][0] == 1


def test_a_cut_answer_is_shown_without_what_it_would_have_said():
    config = pool(
        policy={"name": "fixed", "options": {"topology": "Reflection", "strategy": "Flash"}}
    )
    outcomes = FixedOutcomes(300)
    simulate(config, at((0.0, 600.0)), outcomes)
    assert [s.text for step, seen in outcomes.seen for s in seen] == [""]


def test_adaptive_stops_where_the_answers_agree():
    config = three(policy={"name": "cascade", "options": {}})
    results = simulate(config, at((0.0, 60.0)))
    assert (results.queries["num_calls"][0], results.queries["solved"][0]) == (2, 1)


# --- decisions from outside ----------------------------------------------------------------------


def test_decisions_from_outside_are_those_of_the_policy_if_it_is_asked():
    config = three(policy={"name": "greedy", "options": {}})
    arrivals = poisson_workload(items(), rate_per_min=200, num_queries=60)
    inside = simulate(config, arrivals, HashedOutcomes())
    policy = make_policy(config)
    lanes = [Simulation(config, HashedOutcomes(), arrivals) for _ in range(2)]
    while views := [(lane, view) for lane in lanes if (view := lane.advance()) is not None]:
        for lane, view in views:
            assert lane.advance() is view
            assert lane.item_of(view).item_id.startswith("i")
            plans = isinstance(view, PlanView)
            lane.decide(policy.plan(view) if plans else policy.route(view))
    for lane in lanes:
        for column in ("query", "model", "ended_s"):
            assert np.array_equal(lane.results.calls[column], inside.calls[column])


def test_siblings_are_asked_one_after_the_other_and_see_each_others_calls():
    config = three()
    simulation = Simulation(config, FixedOutcomes(), at((0.0, 60.0)))
    assert isinstance(simulation.advance(), PlanView)
    roles = ("MathSolver", "Engineer")
    simulation.decide(Plan(Topology.COT, roles, TaskKind.MATH))
    first = simulation.advance()
    assert first.pool["a"].in_system == 0
    simulation.decide(Route("a", Strategy.FLASH))
    second = simulation.advance()
    assert (second.step.agent, second.pool["a"].in_system) == (1, 1)
    assert simulation.now == 0.0


def test_a_decision_that_cannot_be_ends_its_query_with_an_error():
    simulation = Simulation(pool(), FixedOutcomes(), at((0.0, 60.0), (0.0, 60.0)))
    simulation.advance()
    simulation.decide(Plan("Ring", ("MathSolver",), TaskKind.MATH))
    simulation.advance()
    simulation.decide(Plan(Topology.IO, ("MathSolver",), TaskKind.MATH))
    simulation.advance()
    simulation.decide(Stop())
    assert simulation.advance() is None
    assert statuses(simulation.results) == {0: "error", 1: "error"}
    with pytest.raises(ValueError, match="no decision"):
        simulation.decide(Stop())


def test_every_outcome_is_told():
    told = []
    config = pool()
    Simulation(
        config,
        FixedOutcomes(),
        at((0.0, 60.0)),
        make_policy(config),
        on_answer=lambda number, answer, solved: told.append((number, answer.status, solved)),
    ).run()
    assert told == [(0, "ok", True)]


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="unknown engine"):
        Simulation(pool(), FixedOutcomes(), [], settings=SimSettings(engine="quick"))
    with pytest.raises(ValueError, match="no engine for only"):
        Simulation(pool(), FixedOutcomes(), [], models={})


# --- the two engines -----------------------------------------------------------------------------


def test_both_engines_agree_on_service_time_and_throughput():
    """Within 2 % of each other, load-blind, below saturation, ten seeds."""
    names = ("a", "b", "c")
    config = pool(*(model(name, max_num_seqs=8) for name in names), policy=FIXED_DEEP)
    config = config.model_copy(
        update={"policy": config.policy.model_copy(update={"name": "random", "options": {}})}
    )
    speeds = {
        name: engine(a_s=0.01 * (n + 1), c_s=0.0004, d_s_per_1k=0.03, prefill_tokens_per_s=2e4)
        for n, name in enumerate(names)
    }
    speeds["a"] = engine(a_s=0.01, kv_tokens=8000, gpus=("g0",))
    speeds["b"] = engine(a_s=0.02, c_s=0.001, gpus=("g0",))
    for seed in range(10):
        arrivals = poisson_workload(items(), rate_per_min=20, num_queries=60, seed=seed)
        figures = {}
        for mode in ("fast", "exact"):
            results = simulate(config, arrivals, HashedOutcomes(), speeds, engine=mode)
            calls = results.calls
            done = calls.named("status") == "ok"
            service_s = (calls["ended_s"] - calls["granted_s"])[done].mean()
            figures[mode] = service_s, done.sum() / results.end_s
            assert math.isfinite(service_s)
            assert all(s in ANSWERED for s in statuses(results).values())
        assert figures["fast"] == pytest.approx(figures["exact"], rel=0.02)
