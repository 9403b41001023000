"""Table 2: accuracy, latency and SLO of every policy on five data sets under load.

``python -m benchmarks.table2`` simulates 5 data sets x {10, 50, 100} req/min x all policies with a
budget of 300 s, at the operating points ``calibrated`` and ``matched``, and at ``tuned`` with the
load at 0.5, 0.8, 1.0 and 1.5 of the capacity that ``benchmarks.tuned`` measured. Deadlines are soft
(latencies are whole); cells with late answers are run once more with hard ones for a column of
their own. Writes
``table2.csv``, ``.md`` and ``.png`` (with another ``--queries``: ``table2_N``), with hard deadlines
``table2_hard.csv``, and prints one line of JSON.

``--pool live --url URL [--data FOLDER]`` offers the same to a running pool, with real graders.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import paper
from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import CONTENDERS, Contender, chosen, contender
from benchmarks.goals import as_json, goals, section
from benchmarks.live_runner import live_cells
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Played, Row, interval, played, write_rows
from benchmarks.worlds import DATASETS

RATES_RPM = (10.0, 50.0, 100.0)
LOADS = (0.5, 0.8, 1.0, 1.5)
POINTS = ("calibrated", "matched", "tuned")
DEFAULT_QUERIES = 500
Key = tuple[str, str, float, str]


def rates(name: str, dataset: str, given: Sequence[float] = RATES_RPM) -> Sequence[float]:
    """The arrival rates (req/min) of an operating point; those of ``tuned`` follow its capacity."""
    if name != "tuned":
        return given
    capacity = float(chosen("tuned")["capacity_rpm"][dataset])
    return [round(load * capacity, 1) for load in LOADS]


def grid(
    points: Iterable[str],
    datasets: Sequence[str],
    policies: Sequence[Contender],
    queries: int,
    options: Common,
    rates_rpm: Sequence[float] = RATES_RPM,
) -> list[Cell]:
    """All cells, with soft deadlines."""
    return [
        Cell(
            dataset=dataset,
            rate_rpm=rate,
            contender=policy,
            queries=queries,
            point=point(name),
            seed=options.seed,
            world=options.world,
        )
        for name in points
        for dataset in datasets
        for rate in rates(name, dataset, rates_rpm)
        for policy in policies
    ]


def key(row: Row) -> Key:
    return row.operating_point, row.dataset, row.rate_rpm, row.policy


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=DEFAULT_QUERIES, help="of each cell")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--policies", nargs="+", default=[c.name for c in CONTENDERS])
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"], choices=POINTS)
    parser.add_argument("--stem", help="name of the files; by default table2, table2_QUERIES")
    parser.add_argument("--no-hard", dest="hard", action="store_false", help="soft deadlines only")
    parser.add_argument("--pool", choices=("simulated", "live"), default="simulated")
    parser.add_argument("--url", help="of the live pool")
    parser.add_argument("--data", type=Path, help="of a live pool: a folder; else from the hub")
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES_RPM))
    args = parser.parse_args()
    options = Common.of(args)
    policies = [contender(name) for name in args.policies]
    queries = 20 if options.quick else args.queries
    if args.pool == "live":
        if not args.url:
            parser.error("--pool live needs --url")
        live_cells(args.url, args.data, args.datasets, args.rates, policies, queries, options)
        return
    stem = args.stem or ("table2" if queries == DEFAULT_QUERIES else f"table2_{queries}")
    report = Report("table2", options, args.datasets, stem)
    cells = grid(args.points, args.datasets, policies, queries, options, args.rates)
    runs, report.cpu_s = run_cells(cells, played, jobs=options.jobs, title=stem)
    found = {key(run.row): run for run in runs}
    write_rows(report.path("csv"), (run.row for run in runs))
    hard: dict[Key, Row] = {}
    if args.hard:
        hard, cpu_s = _hard(cells, runs, options)
        report.cpu_s += cpu_s
        write_rows(options.out / f"{stem}_hard.csv", hard.values())
    reached = goals([run.row for run in runs])
    report.add(f"## Goals, {queries} queries a cell")
    report.add(section(reached))
    for point_name in args.points:
        _section(report, point_name, found, hard)
    report.draw(draw([run.row for run in runs], args.points))
    report.finish({"cells": len(runs), "queries": queries, **as_json(reached)})


def _hard(
    cells: Sequence[Cell], runs: Sequence[Played], options: Common
) -> tuple[dict[Key, Row], float]:
    """The rows with hard deadlines. Where all was on time no deadline passes: the row is the same,
    but for the cap that a hard budget puts on the tokens of a call, which is not counted there."""
    late = [c for c, run in zip(cells, runs, strict=True) if run.row.slo < 100.0]
    again, cpu_s = run_cells(
        [replace(cell, hard=True) for cell in late], played, jobs=options.jobs, title="hard"
    )
    rows = {key(run.row): run.row for run in runs}
    return rows | {key(run.row): run.row for run in again}, cpu_s


# --- tables ----------------------------------------------------------------------------------


def _section(
    report: Report, point_name: str, found: Mapping[Key, Played], hard: Mapping[Key, Row]
) -> None:
    """One table per rate, a line per policy and data set."""
    report.add(f"## {point_name}{_about(point_name)}")
    for dataset in dict.fromkeys(k[1] for k in found if k[0] == point_name):
        report.add(f"### {point_name}: {dataset}")
        rows = [run for k, run in found.items() if k[:2] == (point_name, dataset)]
        report.add(table(_HEAD, [_line(run, found, hard) for run in rows]))


def _about(point_name: str) -> str:
    about = {
        "matched": "slowdown",
        "tuned": "max_num_seqs",
    }
    if point_name not in about:
        return ""
    return f" ({about[point_name]}: {chosen(point_name)[about[point_name]]})"


_HEAD = [
    "req/min",
    "policy",
    "accuracy % (95 %)",
    "mean s",
    "p50 s",
    "p90 s",
    "SLO %",
    "correct and on time %",
    "to greedy, paired (95 %)",
    "hard: correct and on time %",
    "GPU s",
    "calls",
    "paper: accuracy, mean s, SLO",
]


def _line(run: Played, found: Mapping[Key, Played], hard: Mapping[Key, Row]) -> list[str]:
    r = run.row
    theirs = paper.TABLE2.get((r.dataset, r.rate_rpm, _paper_name(r)))
    in_hard = hard.get(key(r))
    return [
        f"{r.rate_rpm:g}",
        r.policy,
        f"{r.accuracy:.1f} ({r.accuracy_lo:.1f}-{r.accuracy_hi:.1f})",
        f"{r.latency_mean_s:.1f}",
        f"{r.latency_p50_s:.1f}",
        f"{r.latency_p90_s:.1f}",
        f"{r.slo:.1f}",
        f"{r.correct_on_time:.1f}",
        _paired(run, found.get((*key(r)[:3], "greedy"))),
        f"{in_hard.correct_on_time:.1f}" if in_hard else "",
        f"{r.cost_gpu_s:.2f}",
        f"{r.calls_per_query:.2f}",
        f"{theirs.accuracy:g}, {theirs.latency_s:g}, {theirs.slo:g}" if theirs else "",
    ]


def _paper_name(row: Row) -> str:
    """Where the paper has InfraMind, greedy stands: not learned, but aware of the same things."""
    return "inframind" if row.policy == "greedy" else row.policy


def _paired(run: Played, reference: Played | None) -> str:
    """Correct and on time less the reference's on the very same queries, in points."""
    if reference is None or reference is run:
        return ""
    difference = run.correct_on_time - reference.correct_on_time
    low, high = interval(difference, run.items)
    return f"{100 * difference.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


# --- the figure ----------------------------------------------------------------------------


def draw(rows: Sequence[Row], points: Sequence[str]) -> plt.Figure:
    """Correct and on time by policy, at the highest rate of each point, a panel a data set."""
    datasets = list(dict.fromkeys(r.dataset for r in rows))
    policies = list(dict.fromkeys(r.policy for r in rows))
    figure, axes = plt.subplots(
        1,
        len(datasets),
        figsize=(3 * len(datasets) + 1.5, 0.3 * len(policies) + 1.5),
        sharey=True,
        squeeze=False,
    )
    height = 0.8 / len(points)
    for axis, dataset in zip(axes[0], datasets, strict=True):
        for number, name in enumerate(points):
            shown = [r for r in rows if (r.operating_point, r.dataset) == (name, dataset)]
            highest = max(r.rate_rpm for r in shown)
            values = {r.policy: r.correct_on_time for r in shown if r.rate_rpm == highest}
            places = np.arange(len(policies)) + number * height
            axis.barh(
                places,
                [values.get(p, 0.0) for p in policies],
                height,
                label=f"{name}, {highest:g}/min",
            )
        axis.set(title=dataset, xlim=(0, 100), xlabel="correct and on time (%)")
        axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.09), frameon=False)
    axes[0][0].set_yticks(np.arange(len(policies)) + 0.4 - height / 2, policies)
    axes[0][0].invert_yaxis()
    return figure


if __name__ == "__main__":
    main()
