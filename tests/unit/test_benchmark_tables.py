"""Commands of the tables, each as a short try, and what they conclude from made-up figures."""

from __future__ import annotations

import json
import sys
from dataclasses import fields

import numpy as np
import pytest

from benchmarks import (
    bounds_table,
    compare,
    figure1,
    figure4,
    figure5,
    goals,
    live_runner,
    matched,
    overload,
    paper,
    report,
    sensitivity,
    table2,
    table3,
    tuned,
)
from benchmarks.cells import Cell
from benchmarks.contenders import CHOSEN, CONTENDERS, contender, in_order
from benchmarks.open_loop import Offer
from benchmarks.open_loop import Row as LiveRow
from benchmarks.rows import Played, Row, read_rows
from benchmarks.worlds import DATASETS, World
from runtime.datasets import Item
from runtime.types import TaskKind


def run(module, capsys, monkeypatch, out, *args: str) -> dict:
    """The last line of a command."""
    words = ["--quick", "--jobs", "1", "--out", str(out), *args]
    monkeypatch.setattr(sys, "argv", [module.__name__, *words])
    module.main()
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def row(policy: str = "greedy", point: str = "matched", rate: float = 100.0, **changes) -> Row:
    figures = {f.name: 50.0 for f in fields(Row) if f.type == "float"}
    where = {"dataset": "math", "rate_rpm": rate, "policy": policy, "n_offered": 4, "seed": 0}
    return Row(**{**figures, "pool": "simulated", "operating_point": point, **where, **changes})


def made(policy: str, on_time: list[float], point: str = "matched", **changes) -> Played:
    values = np.array(on_time)
    slo = 100 * float(values.mean())
    items = tuple(f"i{i}" for i in range(len(values)))
    return Played(row(policy, point, slo=slo, **changes), items, values, values)


def test_table2_writes_its_rows_and_says_what_is_simulated(capsys, monkeypatch, tmp_path):
    names = ["--policies", "moa", "greedy", "--datasets", "math", "--points", "calibrated"]
    line = run(table2, capsys, monkeypatch, tmp_path, *names)
    assert line["benchmark"] == "table2"
    assert line["simulated"] is True
    assert line["cells"] == 6  # 3 rates, 2 policies
    rows = read_rows(tmp_path / "table2_20.csv")
    assert {(r.policy, r.rate_rpm, r.n_offered) for r in rows} == {
        (p, rate, 20) for p in ("moa", "greedy") for rate in (10.0, 50.0, 100.0)
    }
    text = (tmp_path / "table2_20.md").read_text()
    assert "**Simulated**" in text
    assert "assumed" in text
    assert "74.8, 1160, 0.4" in text  # the paper's MoA beside ours
    assert (tmp_path / "table2_20.png").stat().st_size > 1000
    assert len(read_rows(tmp_path / "table2_20_hard.csv")) == len(rows)


@pytest.mark.parametrize("module", [figure1, figure5, table3], ids=lambda m: m.__name__)
def test_a_try_of_each_command_leaves_its_files(module, capsys, monkeypatch, tmp_path):
    before = CHOSEN.read_bytes()
    line = run(module, capsys, monkeypatch, tmp_path, "--points", "calibrated")
    name = module.__name__.rpartition(".")[2]
    assert line["benchmark"] == name
    assert "**Simulated**" in (tmp_path / f"{name}.md").read_text()
    assert (tmp_path / f"{name}.csv").stat().st_size > 100
    assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert CHOSEN.read_bytes() == before


def test_figure4_reads_the_rows_of_table2(capsys, monkeypatch, tmp_path):
    names = ["--policies", "moa", "greedy", "--datasets", "math", "--points", "calibrated"]
    run(table2, capsys, monkeypatch, tmp_path, *names, "--no-hard")
    (tmp_path / "table2_20.csv").rename(tmp_path / "table2.csv")
    line = run(figure4, capsys, monkeypatch, tmp_path)
    assert line["points"] == 6
    assert (tmp_path / "figure4_calibrated.png").stat().st_size > 1000


def test_greedy_dominates_where_it_is_quicker_and_as_right():
    rows = [
        row("greedy", latency_mean_s=10.0, accuracy=60.0),
        row("moa", latency_mean_s=20.0, accuracy=60.0),
        row("cascade", latency_mean_s=20.0, accuracy=61.0),
        row("single_best", latency_mean_s=9.0, accuracy=50.0),
    ]
    assert figure4.dominated(rows) == 1


def test_the_best_factor_has_most_cells_near_the_paper():
    def fits(factor: float, latencies: list[float]) -> list[matched.Fit]:
        cells = [("math", 10.0, "moa"), ("math", 50.0, "moa"), ("math", 10.0, "gptswarm")]
        return [
            matched.Fit(factor, *where, s, 0.0) for where, s in zip(cells, latencies, strict=True)
        ]

    theirs = [122.0, 1145.0, 84.0]
    near = fits(2.0, [1.5 * s for s in theirs])
    nearer = fits(3.0, [1.1 * s for s in theirs])
    far = fits(1.0, [theirs[0], theirs[1], 10 * theirs[2]])
    assert matched.score(near) == (3, pytest.approx(np.log(1.5)))
    assert matched.score(far)[0] == 2
    assert matched.best([*near, *far, *nearer]) == 3.0


def test_matched_compares_with_every_baseline_cell_of_the_paper():
    cells = matched.grid([1.0])
    assert len(cells) == 45
    assert {c.queries for c in cells if c.dataset == "humaneval"} == {131}
    for cell in cells:
        assert (cell.dataset, cell.rate_rpm, cell.contender.name) in paper.TABLE2


def test_the_papers_table_is_read_by_its_columns():
    figures = paper.TABLE2["mmlu_pro", 10.0, "moa"]
    assert (figures.accuracy, figures.latency_s, figures.slo) == (41.6, 124, 84.2)
    assert paper.TABLE2["math", 100.0, "inframind"].slo == 61.8
    assert len(paper.TABLE2) == 60


def test_slots_are_the_fewest_that_give_nearly_all_throughput():
    def found(slots: int, per_minute: float) -> tuned.Throughput:
        only = contender("moa").__class__("x", "fixed", "baseline", options={"model": "m"})
        at = tuned.Point(f"{slots}", max_num_seqs=slots)
        return tuned.Throughput(Cell("math", 1.0, only, point=at), per_minute, 0)

    best, mean = tuned.best_slots([found(8, 50.0), found(16, 98.0), found(32, 100.0)], "m")
    assert best == 16
    assert mean == {8: 0.5, 16: 0.98, 32: 1.0}


def test_a_flood_is_measured_between_its_ends():
    class Queries(dict):
        pass

    class Made:
        queries = Queries(arrival_s=np.zeros(21), latency_s=np.arange(21.0))
        preemptions = {"m": 2}  # noqa: RUF012

    found = tuned.throughput(Cell("math", 1.0, contender("moa")), Made())
    assert found.per_minute == pytest.approx(60.0)  # one a second
    assert found.preemptions == 2


def test_orders_are_judged_by_slo():
    runs = {"edf": [1, 1, 1, 0], "fcfs": [1, 1, 0, 0], "edf_plain": [1, 1, 1, 1]}
    cells = [Cell("math", 50.0, in_order("greedy", o)) for o in overload.ORDERS]
    groups = overload.grouped(cells, [made("greedy", runs[o]) for o in overload.ORDERS])
    found = overload.verdict(groups)
    assert found["edf_wins_over_fcfs"] == 1
    assert found["edf_losses_to_fcfs"] == {}
    assert found["edf_losses_to_edf_plain"] == {"calibrated/math/50.0/greedy": -25.0}
    assert found["mean_gain_over_fcfs"] == 25.0


def at_high(policy: str, slo: float, accuracy: float = 50.0, dataset: str = "math") -> Row:
    return row(policy, slo=slo, accuracy=accuracy, dataset=dataset)


def test_a_collapse_needs_four_data_sets():
    four = [at_high("moa", 5.0, dataset=d) for d in DATASETS[:4]]
    held = at_high("moa", 60.0, dataset=DATASETS[4])
    (goal,) = goals.goals([*four, held])
    assert goal.reached
    (goal,) = goals.goals([*four[:3], held])
    assert not goal.reached
    assert goals.goals([row("moa", point="calibrated", slo=5.0)]) == []


def test_greedy_is_compared_where_the_rival_keeps_its_slo():
    rows = [
        at_high("greedy", 100.0, 60.0),
        at_high("single_best", 100.0, 58.0),
        at_high("greedy", 99.0, 60.0, "mbpp"),
        at_high("single_best", 89.0, 90.0, "mbpp"),
        at_high("least_loaded", 100.0, 61.0),
    ]
    slo, *over = goals.goals(rows)
    assert slo.reached
    assert slo.figures == {"math": 100.0, "mbpp": 99.0}
    found = {goal.said.split()[3].removesuffix("'s"): goal for goal in over}
    assert found["single_best"].figures == {"math": 2.0, "mbpp": None}
    assert found["single_best"].reached
    assert not found["least_loaded"].reached
    assert found["moa"].figures == {}
    missed = goals.as_json([slo, *over])["missed"]
    assert list(missed.values()) == [-1.0]


def test_cells_are_near_the_papers_within_stated_bounds():
    theirs = {("math", 10.0, "moa"): paper.Figures(70.0, 100.0, 90.0),
              ("math", 10.0, "inframind"): paper.Figures(70.0, 10.0, 90.0)}  # fmt: skip
    ours = [
        row("moa", rate=10.0, accuracy=66.0, latency_mean_s=40.0, slo=75.0),
        row("greedy", rate=10.0, accuracy=80.0, latency_mean_s=19.0, slo=60.0),
    ]
    pairs = compare.matched_pairs(theirs, ours)
    assert [p.near for p in pairs] == [(True, False, True), (False, True, False)]
    assert compare.counts(pairs) == {"cells": 2, "accuracy": 1, "latency": 1, "slo": 1}
    assert compare.matched_pairs(theirs, ours[:1])[0].where == ("math", 10.0, "moa")


def test_the_comparison_is_made_from_the_rows_of_table2(capsys, monkeypatch, tmp_path):
    names = ["--policies", "moa", "greedy", "--datasets", "math", "--points", "calibrated"]
    run(table2, capsys, monkeypatch, tmp_path, *names, "--no-hard")
    (tmp_path / "table2_20.csv").rename(tmp_path / "table2.csv")
    line = run(compare, capsys, monkeypatch, tmp_path)
    assert line["calibrated"]["cells"] == 6
    assert "InfraMind / greedy" in (tmp_path / "compare.md").read_text()


def test_loads_of_the_tuned_point_follow_its_capacity(monkeypatch):
    monkeypatch.setattr(table2, "chosen", lambda _: {"capacity_rpm": {"math": 200.0}})
    assert list(table2.rates("tuned", "math")) == [100.0, 160.0, 200.0, 300.0]
    assert list(table2.rates("matched", "math")) == [10.0, 50.0, 100.0]


def test_settings_of_the_sensitivity_change_one_thing_each():
    base, world = tuned.Point("base"), World()
    changes = sensitivity.settings(base, world)
    assert changes[0][1:] == (base, world)
    for said, at, assumed in changes[1:]:
        assert (at == base) != (assumed == world), said


def test_rankings_are_compared_by_order():
    base = np.array([3.0, 2.0, 1.0])
    assert sensitivity.tau(np.array([30.0, 20.0, 10.0]), base) == pytest.approx(1.0)
    assert sensitivity.tau(np.array([1.0, 2.0, 3.0]), base) == pytest.approx(-1.0)


def test_bounds_of_a_cell_are_ordered():
    task = bounds_table.Task("calibrated", "mmlu_pro", World(), 3, 1, 500, 0)
    found = bounds_table.bound(task)
    assert [b.rate_rpm for b in found] == [10.0, 50.0, 100.0]
    for b in found:
        assert 0 <= b.own <= b.item <= b.outcome <= 100


def test_the_basis_counts_what_is_assumed():
    one, all_sets = report.basis(World(), ["math"]), report.basis(World(), DATASETS)
    assert "assumed" in one
    assert one != all_sets


def test_live_rows_count_every_query_offered():
    item = Item("m/1", "math", TaskKind.MATH, "?", "1")
    rows = [
        LiveRow(Offer(0.0, item, 300.0), "ok", 2.0, "1", True, (("m", "Flash", "ok", 0, 1, 5),)),
        LiveRow(Offer(0.1, item, 300.0), "late", 400.0, "1", True),
        LiveRow(Offer(0.2, item, 300.0), "lost", 360.0),
        LiveRow(Offer(0.3, item, 300.0), "ok", 4.0, "2", False),
    ]
    found = live_runner.row_of("math", 10.0, "greedy", rows, 0)
    assert (found.pool, found.n_offered) == ("live", 4)
    assert (found.accuracy, found.slo, found.correct_on_time) == (50.0, 50.0, 25.0)
    assert found.calls_per_query == 0.25
    assert found.latency_p50_s == 4.0  # of the three that came


def test_live_offers_follow_the_rate():
    items = [Item(f"m/{i}", "math", TaskKind.MATH, "?", "1") for i in range(3)]
    found = live_runner.offers(items, 60.0, 600, seed=1)
    assert found[-1].at_s == pytest.approx(600, rel=0.15)
    assert [o.item.id for o in found[:4]] == ["m/0", "m/1", "m/2", "m/0"]


def test_contenders_have_names_of_their_own():
    assert len({c.name for c in CONTENDERS}) == len(CONTENDERS)
