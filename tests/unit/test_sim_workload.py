"""Arrivals, items, budgets and traces."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from runtime.sim.workload import (
    TIERS_S,
    bursts,
    draw_budgets,
    draw_items,
    offer,
    poisson,
    poisson_workload,
    read_trace,
    trace_workload,
)
from tests.sim_case import SimItem, TaskKind, model, pool, simulate

ITEMS = [SimItem(f"i{n}", "set", TaskKind.MATH, 50) for n in range(20)]
TRACES = Path(__file__).parents[3] / "shared" / "traces"


def first(iterator, number):
    return list(itertools.islice(iterator, number))


def test_poisson_arrivals_have_the_rate_and_the_spread_of_their_kind():
    times = first(poisson(120.0, seed=1), 20_000)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert mean == pytest.approx(0.5, rel=0.03)
    variance = sum((g - mean) ** 2 for g in gaps) / len(gaps)
    assert variance == pytest.approx(0.25, rel=0.06)


def test_bursts_raise_the_rate_at_the_end_of_each_period():
    times = bursts(60.0, 600.0, period_s=100.0, burst_s=20.0, seed=1)
    in_burst = Counter(t % 100 >= 80 for t in itertools.takewhile(lambda t: t < 10_000, times))
    assert in_burst[True] == pytest.approx(2000 * 10, rel=0.03)
    assert in_burst[False] == pytest.approx(8000, rel=0.04)


def test_another_rate_or_other_budgets_leave_the_rest_as_it_was():
    def drawn(**changes):
        args = {"rate_per_min": 100.0, "num_queries": 50, "seed": 4, **changes}
        return poisson_workload(ITEMS, **args)

    base = drawn()
    faster, tight = drawn(rate_per_min=200.0), drawn(budgets_s=(1.0, 2.0))
    assert drawn() == base
    assert [a.item for a in faster] == [a.item for a in base]
    assert [a.at_s * 2 for a in faster] == pytest.approx([a.at_s for a in base])
    assert [(a.at_s, a.item) for a in tight] == [(a.at_s, a.item) for a in base]
    assert drawn(seed=5) != base


def test_items_come_in_order_each_once_or_as_drawn():
    assert first(draw_items(ITEMS, "in_order", 0), 21) == [*ITEMS, ITEMS[0]]
    shuffled = first(draw_items(ITEMS, "shuffled", 0), 40)
    assert shuffled[:20] != ITEMS
    assert shuffled[:20] != shuffled[20:]
    assert sorted(i.item_id for i in shuffled[20:]) == sorted(i.item_id for i in ITEMS)
    drawn = Counter(i.item_id for i in first(draw_items(ITEMS, "replaced", 0), 20))
    assert max(drawn.values()) > 1


def test_budgets_are_drawn_from_all_tiers_alike():
    counts = Counter(first(draw_budgets(TIERS_S, 0), 6000))
    assert set(counts) == set(TIERS_S)
    assert min(counts.values()) > 900
    assert set(first(draw_budgets((7.0,), 0), 5)) == {7.0}


def test_a_workload_ends_with_its_shortest_part():
    assert len(list(offer([0.0, 1.0], draw_items(ITEMS, "in_order", 0), [5.0] * 9))) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: poisson(0.0, 0),
        lambda: poisson(float("inf"), 0),
        lambda: bursts(1.0, -1.0, period_s=10, burst_s=1, seed=0),
        lambda: bursts(1.0, 1.0, period_s=10, burst_s=11, seed=0),
        lambda: next(draw_items([], "in_order", 0)),
        lambda: next(draw_budgets((), 0)),
        lambda: next(draw_budgets((0.0,), 0)),
    ],
)
def test_what_cannot_be_drawn_is_refused(make):
    with pytest.raises(ValueError, match=r"above zero|no items"):
        make()


def trace(tmp_path, *lines, header="arrival_s,input_tokens,output_tokens"):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([header, *lines]))
    return path


def test_a_trace_is_replayed_with_its_times_and_lengths(tmp_path):
    rows = read_trace(trace(tmp_path, "0.5,1000,30", "2.25,64,200"))
    arrivals, outcomes = trace_workload(rows, budgets_s=(60.0,))
    results = simulate(pool(model("only")), arrivals, outcomes)
    queries = sorted(results.queries.rows(), key=lambda row: row["query"])
    assert [q["arrival_s"] for q in queries] == [0.5, 2.25]
    calls = sorted(results.calls.rows(), key=lambda row: row["query"])
    assert [c["completion_tokens"] for c in calls] == [30, 200]
    assert calls[0]["prompt_tokens"] - calls[1]["prompt_tokens"] == pytest.approx(936, abs=2)
    assert {q["solved"] for q in queries} == {0}
    assert {q["status"] for q in queries} == {"ok"}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["0.0,10,x"], "line 2: output_tokens is 'x', not a number"),
        (["0.0,10,5", "1.0,0,5"], "line 3: input_tokens is 0; it must be at least 1"),
        (["2.0,10,5", "1.0,10,5"], "line 3: arrival_s is 1.0; it must be at least 2"),
        (["nan,10,5"], "line 2: arrival_s is nan"),
        (["0.0,10"], "line 2: output_tokens is None, not a number"),
    ],
)
def test_a_bad_row_is_named(tmp_path, lines, told):
    with pytest.raises(ValueError, match=rf"trace\.csv: {told}"):
        read_trace(trace(tmp_path, *lines))


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(ValueError, match="no column output_tokens"):
        read_trace(trace(tmp_path, header="arrival_s,input_tokens"))


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not here")
@pytest.mark.parametrize("name", ["azure_llm_2023_code.csv", "azure_llm_2023_conv.csv"])
def test_the_shared_traces_can_be_read(name):
    rows = read_trace(TRACES / name)
    assert len(rows) > 5000
    assert rows[0].arrival_s == 0.0
