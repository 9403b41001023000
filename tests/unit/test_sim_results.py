"""The tables of a run: what they hold, how large they get, what is made of them."""

import math

import numpy as np
import pytest

from runtime.sim.columns import Columns, Names
from runtime.sim.filler import core_of, filler, padded
from runtime.sim.results import Results
from runtime.token_estimate import count_tokens
from tests.sim_case import FixedOutcomes, at, engine, model, pool, simulate


def test_columns_keep_numbers_and_names():
    table = Columns({"n": "i", "who": "b", "x": "d"}, {"who": Names(["a"])})
    for n, who, x in ((1, "a", 0.5), (2, "b", math.nan), (-3, "a", 1e9)):
        table.append(n, table.names["who"].number(who), x)
    assert list(table["n"]) == [1, 2, -3]
    assert list(table.named("who")) == ["a", "b", "a"]
    assert [row["who"] for row in table.rows()] == ["a", "b", "a"]
    assert len(table) == 3
    assert table.nbytes == 3 * (4 + 1 + 8)
    with pytest.raises(ValueError, match=r"longer|shorter"):
        table.append(1, 2)


def test_a_million_calls_fit_in_less_than_a_gigabyte():
    results = simulate(pool(), at(*((0.1 * n, 60.0) for n in range(50))))
    per_call = results.nbytes / len(results.calls)
    assert per_call < 200


def test_shares_are_of_all_that_were_offered():
    config = pool(model("only", max_num_seqs=1), limits={"max_queries_in_flight": 3})
    arrivals = at((0.0, 60.0), (0.0, 1.5), (0.0, 60.0), (0.0, 60.0))
    results = simulate(config, arrivals, models={"only": engine()})
    summary = results.summary()
    assert summary.n_offered == 4
    assert summary.accuracy == 75.0  # right, though one was late; one was refused
    assert summary.slo == summary.correct_on_time == 50.0
    assert summary.answered == 75.0
    assert summary.latency_p50_s == pytest.approx(2.0)
    assert summary.latency_mean_s == pytest.approx(2.0)
    assert summary.calls_per_query == 0.75
    assert summary.cost_gpu_s == pytest.approx(0.75)
    assert list(results.on_time()).count(True) == 2


def test_wrong_answers_count_for_the_slo_only():
    results = simulate(pool(), at((0.0, 60.0)), FixedOutcomes(text="Answer: 7"))
    summary = results.summary()
    assert (summary.slo, summary.accuracy, summary.correct_on_time) == (100.0, 0.0, 0.0)


def test_of_nothing_there_are_no_figures():
    summary = Results(("m",)).summary()
    assert summary.n_offered == 0
    assert math.isnan(summary.accuracy)
    assert math.isnan(summary.latency_mean_s)


def test_what_was_never_granted_has_no_times():
    config = pool(model("only", max_num_seqs=1), at_deadline="finish")
    results = simulate(config, at((0.0, 60.0), (0.0, 0.5)), models={"only": engine()})
    (row,) = [r for r in results.calls.rows() if r["query"] == 1]
    assert math.isnan(row["granted_s"])
    assert math.isnan(row["first_token_s"])
    assert row["running"] == -1
    assert np.isfinite(results.calls["ended_s"]).all()


@pytest.mark.parametrize("tokens", [1, 5, 63, 64, 65, 1000, 4096])
def test_filler_is_as_long_as_it_is_counted(tokens):
    assert count_tokens(filler(tokens)) == pytest.approx(tokens, abs=1)


@pytest.mark.parametrize("core", ["Answer: 42", "```python\nx = 1\n```", "Answer: C"])
def test_padding_comes_off_again(core):
    text = padded(core, 300)
    assert core_of(text) == core
    assert count_tokens(text) == pytest.approx(300, abs=12)
    assert core_of(core) == core
    assert core_of(filler(100)) == ""
