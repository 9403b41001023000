"""A fit to a log finds the parameters that made it, and says where the log does not tell them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.call_log import CallRow
from runtime.errors import ConfigError
from runtime.policy import PlanView, Policy, StepView, make_policy
from runtime.sim.calibrate import Fitted, calibrate, calls_of
from runtime.sim.fit_lengths import Lengths, fit_lengths
from runtime.sim.fit_skills import AccuracyCurve, Graded, fit_ability
from runtime.sim.fit_speed import ServedCalls, fit_speed
from runtime.sim.fitted import fitted_calibration, fitted_pool
from runtime.sim.items import TASKS, Calibration, shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.parameters import (
    ModelParameters,
    Parameter,
    Skill,
    Status,
    StrategyParameters,
    dump_pool,
    load_models,
    load_pool,
)
from runtime.sim.pool import SimModel
from runtime.sim.quality import QualityModel
from runtime.sim.results import Results
from runtime.sim.settings import SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.workload import poisson_workload
from runtime.types import STRATEGIES, Plan, Route, Strategy, TaskKind
from tests.sim_case import HashedOutcomes, model, pool
from tests.sim_log import call_rows, log_table, outcome_rows

SPEEDS = ("a_s", "c_s", "d_s_per_1k", "prefill_tokens_per_s", "dispatch_s")
CPU = SimModel(0.07, 0.010, 0.004, 200.0, dispatch_s=0.05)
GPU = SimModel(0.0043, 0.00034, 0.00018, 30_000.0, dispatch_s=0.003)


def served(results: Results, dispatch_s: float) -> ServedCalls:
    calls = results.calls
    began, ended = calls["granted_s"], calls["ended_s"]
    return ServedCalls(
        began, ended, calls["first_token_s"] - began - dispatch_s,
        calls["prompt_tokens"].astype(float), calls["completion_tokens"].astype(float),
        calls.named("status") == "ok",
    )  # fmt: skip


def simulated(engine: SimModel, rate_per_min: float, mode: Any = "fast") -> ServedCalls:
    """Calls of one engine, with prompts and answers of many lengths."""
    items = [SimItem(f"i{k}", "set", TaskKind.MATH, 30 + (k * 37) % 600) for k in range(200)]
    config = pool(model("only", max_num_seqs=8))
    arrivals = poisson_workload(
        items, rate_per_min=rate_per_min, num_queries=600, budgets_s=(1e6,), seed=1
    )
    simulation = Simulation(
        config, HashedOutcomes(), arrivals, make_policy(config),
        models={"only": engine}, settings=SimSettings(engine=mode),
    )  # fmt: skip
    return served(simulation.run(), engine.dispatch_s)


@pytest.mark.parametrize(
    ("engine", "rate", "mode"),
    [(CPU, 7.0, "fast"), (CPU, 2.0, "exact"), (GPU, 150.0, "fast"), (GPU, 400.0, "fast")],
)
def test_the_speed_that_made_the_log_is_found(engine: SimModel, rate: float, mode: Any) -> None:
    fitted = fit_speed([simulated(engine, rate, mode)])
    assert fitted.num_calls == 600
    assert fitted.error_median < 0.01
    assert abs(fitted.bias) < 0.01
    for name, within in zip(SPEEDS, (0.05, 0.15, 0.35, 0.1, 0.6), strict=True):
        assert getattr(fitted, name).value == pytest.approx(getattr(engine, name), rel=within), name
    assert fitted.a_s.status is fitted.prefill_tokens_per_s.status is Status.MEASURED


def test_replicas_are_fitted_together_each_with_its_own_load() -> None:
    one, other = simulated(CPU, 7.0), simulated(CPU, 2.0)
    assert fit_speed([one, other]).c_s.value == pytest.approx(CPU.c_s, rel=0.15)


def test_calls_that_went_wrong_do_not_move_the_fit() -> None:
    """One in ten took five times as long, as where a machine was away for a while."""
    calls = simulated(CPU, 2.0)
    slow = np.arange(len(calls.began_s)) % 10 == 0
    late = np.where(slow, calls.began_s + 5 * calls.service_s, calls.ended_s)
    fitted = fit_speed([replace(calls, ended_s=late)])
    assert fitted.a_s.value == pytest.approx(CPU.a_s, rel=0.1)


def test_a_prior_that_is_far_off_does_not_hold_the_fit() -> None:
    """As for an endpoint of which nothing was known."""
    fitted = fit_speed([simulated(CPU, 7.0)], SimModel(0.002, 0.0, 0.0, 1e5))
    assert fitted.a_s.value == pytest.approx(CPU.a_s, rel=0.05)
    assert fitted.prefill_tokens_per_s.value == pytest.approx(200.0, rel=0.1)


def alone(count: int) -> ServedCalls:
    """One call at a time, all alike: neither c nor d can be told from a."""
    began = np.arange(count) * 100.0
    lasted = 0.05 + 100 * (CPU.a_s + CPU.c_s)
    nothing = np.full(count, math.nan)
    ones = np.ones(count)
    return ServedCalls(began, began + lasted, nothing, ones, 100 * ones, ones > 0)


def test_what_the_log_does_not_tell_keeps_its_prior_and_says_so() -> None:
    prior = SimModel(0.05, 0.02, 0.001, 500.0)
    fitted = fit_speed([alone(60)], prior)
    assert fitted.a_s.value + fitted.c_s.value == pytest.approx(CPU.a_s + CPU.c_s, rel=0.05)
    assert fitted.prefill_tokens_per_s.value == pytest.approx(500.0, rel=0.05)
    for name in ("c_s", "d_s_per_1k", "prefill_tokens_per_s"):
        parameter = getattr(fitted, name)
        assert parameter.status is Status.ASSUMED, name
        assert "prior" in parameter.source
        assert parameter.low <= parameter.value <= parameter.high


def test_too_few_calls_are_not_fitted() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        fit_speed([alone(19)])


# --- lengths -------------------------------------------------------------------------------------

BELIEVED = Lengths(200.0, 0.8, 0.01)


def drawn(count: int, true: Lengths, cap: int) -> tuple[list[int], list[bool]]:
    rng = np.random.default_rng(7)
    variance = math.log1p(true.cv**2)
    tokens = np.exp(rng.normal(math.log(true.mean) - variance / 2, math.sqrt(variance), count))
    tokens[rng.random(count) < true.runaway] = 1e9
    whole = np.maximum(1, np.round(tokens))
    return [int(t) for t in np.minimum(whole, cap)], [bool(t > cap) for t in whole]


@pytest.mark.parametrize(
    ("true", "cap"),
    [
        (Lengths(300.0, 0.6, 0.0), 4096),
        (Lengths(300.0, 0.6, 0.08), 4096),
        (Lengths(300.0, 0.6, 0.0), 320),
    ],
)
def test_lengths_are_found_though_some_answers_were_cut(true: Lengths, cap: int) -> None:
    fitted = fit_lengths(*drawn(2000, true, cap), BELIEVED)
    assert fitted.mean == pytest.approx(true.mean, rel=0.08)
    assert fitted.cv == pytest.approx(true.cv, rel=0.12)
    assert fitted.runaway == pytest.approx(true.runaway, abs=0.015)


def test_few_answers_move_little_and_none_nothing() -> None:
    assert fit_lengths([], [], BELIEVED) == BELIEVED
    few = fit_lengths([20], [False], BELIEVED)
    many = fit_lengths([20] * 50, [False] * 50, BELIEVED)
    assert many.mean < few.mean < BELIEVED.mean


# --- abilities -----------------------------------------------------------------------------------

OFFSETS = {Strategy.FLASH: -0.5, Strategy.CONCISE: 0.0, Strategy.DEEPTHINK: 0.2}


def test_an_ability_is_found_and_shrinks_to_what_was_believed() -> None:
    curve = AccuracyCurve(shipped(), "mmlu_pro", TaskKind.KNOWLEDGE)

    def graded(count: int) -> dict[Strategy, Graded]:
        right = float(curve(np.array([1.0]))[0])
        return {Strategy.CONCISE: Graded(count, round(0.8 * right * count), 0.8)}

    nothing, _ = fit_ability(curve, {}, -1.0, OFFSETS)
    few, _ = fit_ability(curve, graded(5), -1.0, OFFSETS)
    many, offsets = fit_ability(curve, graded(2000), -1.0, OFFSETS)
    assert nothing.value == pytest.approx(-1.0, abs=0.01)
    assert nothing.value < few.value < many.value
    assert many.value == pytest.approx(1.0, abs=0.15)
    assert offsets[Strategy.CONCISE].value == 0.0
    assert offsets[Strategy.DEEPTHINK].parameter(0.4).status is Status.ASSUMED
    assert many.parameter(1.0).status is Status.MEASURED
    assert nothing.parameter(1.0).status is Status.ASSUMED
    assert nothing.parameter(1.0).source == "prior: no graded calls"


# --- the whole -----------------------------------------------------------------------------------

NAMES = ("weak", "strong")
ENGINES = {"weak": GPU, "strong": GPU.slower(3.0)}


def own_models() -> Calibration:
    """Two models that are in no table, unlike the shipped ones."""

    def parameter(value: float) -> Parameter:
        return Parameter(value, Status.ASSUMED, "test")

    def skill(ability: float, tokens: float) -> Skill:
        depths = {
            s: StrategyParameters(
                parameter(0.3 * i), parameter(tokens * (i + 1)), parameter(0.5), parameter(0.02)
            )
            for i, s in zip((-1, 0, 1), STRATEGIES, strict=True)
        }
        depths[Strategy.FLASH] = replace(depths[Strategy.FLASH], tokens_mean=parameter(tokens / 2))
        return Skill(parameter(ability), depths)

    base = shipped()
    models = [
        ModelParameters("weak", {"mmlu_pro": skill(-0.6, 60.0)}),
        ModelParameters("strong", {"mmlu_pro": skill(1.4, 240.0)}),
    ]
    return replace(base, parameters=base.parameters.with_models(*models))


class Dice:
    """One agent; model and depth by chance, so that every pair is in the log."""

    name = "dice"
    needs_embedding = False

    def __init__(self, plans: Policy) -> None:
        self._plans = plans

    def plan(self, view: PlanView) -> Plan:
        return self._plans.plan(view)

    def route(self, view: StepView) -> Route:
        return Route(view.rng.choice(NAMES), view.rng.choice(STRATEGIES))


CONFIG = pool(
    *(model(name, context_tokens=16384, max_num_seqs=16) for name in NAMES),
    policy={"name": "fixed", "options": {"topology": "IO", "agents": 1}},
)


@pytest.fixture(scope="module")
def results() -> Results:
    calibration = own_models()
    arrivals = poisson_workload(
        calibration.select("mmlu_pro"), rate_per_min=200.0, num_queries=1800,
        budgets_s=(1e6,), order="shuffled", seed=5,
    )  # fmt: skip
    dice = Dice(make_policy(CONFIG))
    return Simulation(CONFIG, QualityModel(calibration, 11), arrivals, dice, models=ENGINES).run()


def rows_of(results: Results) -> list[CallRow]:
    return call_rows(results, TASKS, GPU.dispatch_s)


@pytest.fixture(scope="module")
def fitted(results: Results) -> Fitted:
    return calibrate(log_table(rows_of(results), outcome_rows(results, "mmlu_pro")))


def test_speed_lengths_and_abilities_come_out_of_one_log(fitted: Fitted) -> None:
    true = {m.name: m.skills["mmlu_pro"] for m in own_models().parameters.models[-2:]}
    for found in fitted.pool.models:
        skill, wanted = found.skills["mmlu_pro"], true[found.name]
        assert skill.ability.value == pytest.approx(wanted.ability.value, abs=0.3), found.name
        assert skill.ability.status is Status.MEASURED
        assert "graded calls" in skill.ability.source
        for strategy in STRATEGIES:
            depth, made = skill.strategies[strategy], wanted.strategies[strategy]
            assert depth.tokens_mean.value == pytest.approx(made.tokens_mean.value, rel=0.15)
            assert depth.tokens_cv.value == pytest.approx(made.tokens_cv.value, rel=0.25)
            assert depth.tokens_mean.status is Status.MEASURED
        engine = fitted.pool.engines[found.name]
        assert engine.a_s.value == pytest.approx(ENGINES[found.name].a_s, rel=0.1)
    assert fitted.notes == ()


def test_the_file_is_what_the_simulator_loads(fitted: Fitted, tmp_path: Path) -> None:
    path = tmp_path / "fit.json"
    path.write_text(dump_pool(fitted.pool))
    assert load_pool(path) == fitted.pool
    assert load_models(path) == fitted.pool.models
    engines = fitted_pool(CONFIG, load_pool(path).engines)
    assert engines["strong"].a_s == fitted.pool.engines["strong"].a_s.value
    quality = QualityModel(fitted_calibration(shipped(), load_pool(path)), 1)
    strong = quality.accuracy("mmlu_pro", "strong", Strategy.CONCISE)
    assert strong > quality.accuracy("mmlu_pro", "weak", Strategy.CONCISE) + 0.1


def test_without_outcomes_abilities_stay_prior(results: Results) -> None:
    found = calibrate(log_table(rows_of(results)[:300], []))
    for one in found.pool.models:
        ability = one.skills["knowledge"].ability
        assert (ability.status, ability.source) == (Status.ASSUMED, "prior: no graded calls")
        assert "mmlu_pro" not in one.skills


def test_a_call_counts_as_right_only_where_that_can_be_told(results: Results) -> None:
    """Wrong queries whose calls are said to have been overruled tell nothing of these."""
    rows = [replace(row, agrees=False) for row in rows_of(results)[:400]]
    outcomes = outcome_rows(results)
    right = {o.query_id for o in outcomes if o.correct}
    found = calibrate(log_table(rows, outcomes))
    told = sum(row.query_id in right for row in rows)
    counted = [
        int(d.offset.source.split("with ")[-1].split(" graded")[0])
        for m in found.pool.models
        for d in m.skills["knowledge"].strategies.values()
        if "graded calls of" in d.offset.source
    ]
    assert 0 < sum(counted) == told < len(rows)


def test_models_that_the_config_does_not_have_are_left_out(results: Results) -> None:
    config = pool(model("weak"))
    found = calibrate(log_table(rows_of(results), []), config)
    assert set(found.pool.engines) == {"weak"}
    assert found.notes == ("strong: not in the config, left out",)


def test_a_folder_without_a_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        calls_of(tmp_path / "nothing")
