"""What any policy could reach, beside what the policies of Table 2 do reach.

The linear programs of ``benchmarks.bounds`` for every data set and rate, at the operating points.
``python -m benchmarks.bounds_table`` writes ``bounds_table.csv`` and ``.md`` and prints one line of
JSON; where ``table2.csv`` is in the folder of results, its best policy stands beside.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.bound_options import all_options, at_speed, measure, resources
from benchmarks.bounds import Options, Pool, bounds
from benchmarks.cells import SLO_S
from benchmarks.contenders import CONTENDERS
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Row, read_rows
from benchmarks.table2 import RATES_RPM
from benchmarks.worlds import DATASETS, World


@dataclass(frozen=True, slots=True)
class Bounded:
    """The three bounds of a cell, in percent of all queries offered."""

    point: str
    dataset: str
    rate_rpm: float
    own: float
    item: float
    outcome: float


@dataclass(frozen=True, slots=True)
class Task:
    """One data set at one operating point."""

    point: str
    dataset: str
    world: World
    num_items: int
    samples: int
    queries: int
    seed: int


def bound(task: Task) -> list[Bounded]:
    """The bounds at every rate; the work of an option does not depend on the rate."""
    at = point(task.point)
    config = at.config(CONTENDERS[0], task.dataset, hard=False)
    config = at_speed(config, at.engines(config))
    items = task.world.items(task.dataset)[: task.num_items]
    options = all_options(config, task.dataset, items[0].task)
    quality = task.world.quality(task.seed)
    found = measure(config, quality, items, options, samples=task.samples, budget_s=SLO_S)
    capacity = np.array(list(resources(config).values()))
    return [_solved(task, found, rate, capacity) for rate in RATES_RPM]


def _solved(task: Task, options: Options, rate: float, capacity: np.ndarray) -> Bounded:
    pool = Pool(rate / 60, capacity, task.queries / (rate / 60))
    b = bounds(options, pool, SLO_S)
    values = (100 * b.own.value, 100 * b.item.value, 100 * b.outcome.value)
    return Bounded(task.point, task.dataset, rate, *values)


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    parser.add_argument("--items", type=int, default=100, help="of each data set")
    parser.add_argument("--samples", type=int, default=4)
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("bounds_table", options)
    base = Task(
        "",
        "",
        options.world,
        5 if options.quick else args.items,
        1 if options.quick else args.samples,
        500,
        options.seed,
    )
    tasks = [replace(base, point=p, dataset=d) for p in args.points for d in DATASETS]
    found = [cell for cells in _all(tasks, options.jobs) for cell in cells]
    path = options.out / "table2.csv"
    _write(report, found, read_rows(path) if path.exists() else [], base)
    report.draw(draw(found))
    report.finish({"cells": len(found)})


def _all(tasks: Sequence[Task], jobs: int) -> list[list[Bounded]]:
    if jobs == 1:
        return [bound(task) for task in tasks]
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(bound, tasks))


def _write(report: Report, found: Sequence[Bounded], rows: Sequence[Row], base: Task) -> None:
    head = ["operating_point", "dataset", "rate_rpm", "own", "item", "outcome"]
    report.write(head, map(astuple, found))
    report.add(
        "Correct and on time (%), at most: **own**, policies that know the data set of a query and "
        "no more; **item**, that know every item's probability under every plan; **outcome**, that "
        "know what will be right. Policies that stop or route by earlier answers are not bound by "
        f"the first two. {base.num_items} items, {base.samples} plays of each plan: `item` is "
        "biased upwards by the small number of plays, and no bound counts waiting."
    )
    head = ["point", "data set", "req/min", "own", "item", "outcome", "greedy", "best of table 2"]
    report.add(table(head, [_line(b, rows) for b in found]))


def _line(b: Bounded, rows: Sequence[Row]) -> list[str]:
    where = (b.point, b.dataset, b.rate_rpm)
    here = [r for r in rows if (r.operating_point, r.dataset, r.rate_rpm) == where]
    best = max(here, key=lambda r: r.correct_on_time, default=None)
    greedy = next((r for r in here if r.policy == "greedy"), None)
    bounds = [f"{value:.1f}" for value in (b.own, b.item, b.outcome)]
    return [
        *(b.point, b.dataset, f"{b.rate_rpm:g}", *bounds),
        f"{greedy.correct_on_time:.1f}" if greedy else "",
        f"{best.correct_on_time:.1f} {best.policy}" if best else "",
    ]


def draw(found: Sequence[Bounded]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(0.35 * len(found) + 2, 4))
    names = [f"{b.point[:5]} {b.dataset} {b.rate_rpm:g}" for b in found]
    for kind in ("own", "item", "outcome"):
        axes.plot(range(len(found)), [getattr(b, kind) for b in found], marker=".", label=kind)
    axes.set_xticks(range(len(found)), names, rotation=90, fontsize=6)
    axes.set(ylabel="correct and on time, at most (%)", ylim=(0, 100))
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
