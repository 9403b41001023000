"""Which options of ``greedy`` do best on validation items, one setting for all data sets.

``python -m benchmarks.greedy_search`` tries the policy's defaults and every combination of a grid
(``--grid`` takes JSON with other values, ``--settings`` a list of whole settings), on the
validation split of every data set at both rates, with the tables' budget and with mixed ones. Best
is what is most often correct and on time among the settings that keep 99 % of the SLO under the
tables' budget in every cell, else what keeps most. It changes nothing: the defaults stand in the
policy. Writes ``greedy_search.csv`` and ``.md`` and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from benchmarks.cells import SLO_S, Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Played, played
from benchmarks.worlds import DATASETS
from runtime.sim.workload import TIERS_S

GRID: dict[str, list[Any]] = {
    "price_idle": [0.02, 0.1],
    "price_loaded": [0.3, 0.5, 0.7, 1.0, 2.0],
    "diversity": [0.05, 0.1],
}
RATES_RPM = (10.0, 100.0)
LEAST_SLO = 99.0


@dataclass(frozen=True, slots=True)
class Score:
    """A setting over its cells, in percent: with the tables' budget, and with mixed ones."""

    options: dict[str, Any]
    least_slo: float
    accuracy: float
    correct_on_time: float
    mixed_slo: float
    mixed_correct_on_time: float
    latency_s: float

    @property
    def merit(self) -> tuple[float, float]:
        """What settings are compared by."""
        mean = (self.correct_on_time + self.mixed_correct_on_time) / 2
        return min(self.least_slo, LEAST_SLO), mean


def settings(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The defaults, then every combination."""
    return [{}, *(dict(zip(grid, values, strict=True)) for values in product(*grid.values()))]


def cells_of(
    options: dict[str, Any],
    points: Sequence[str],
    rates: Sequence[float],
    queries: int,
    common_: Common,
) -> list[Cell]:
    greedy = replace(contender("greedy"), options=options)
    return [
        Cell(
            dataset,
            rate,
            greedy,
            queries,
            point(name),
            common_.seed,
            budgets_s,
            split="val",
            world=common_.world,
        )
        for name in points
        for rate in rates
        for dataset in DATASETS
        for budgets_s in ((SLO_S,), TIERS_S)
    ]


def score(options: dict[str, Any], cells: Sequence[Cell], runs: Sequence[Played]) -> Score:
    fixed = [r.row for c, r in zip(cells, runs, strict=True) if len(c.budgets_s) == 1]
    mixed = [r.row for c, r in zip(cells, runs, strict=True) if len(c.budgets_s) > 1]
    return Score(
        options=options,
        least_slo=min(r.slo for r in fixed),
        accuracy=float(np.mean([r.accuracy for r in fixed])),
        correct_on_time=float(np.mean([r.correct_on_time for r in fixed])),
        mixed_slo=float(np.mean([r.slo for r in mixed])),
        mixed_correct_on_time=float(np.mean([r.correct_on_time for r in mixed])),
        latency_s=float(np.mean([r.latency_mean_s for r in fixed])),
    )


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--grid", type=json.loads, default=GRID)
    parser.add_argument("--settings", type=json.loads, help="a list of options, in place of a grid")
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES_RPM))
    parser.add_argument("--queries", type=int, default=500)
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("greedy_search", options)
    queries = 10 if options.quick else args.queries
    tried = settings(args.grid) if args.settings is None else args.settings
    groups = [cells_of(o, args.points, args.rates, queries, options) for o in tried]
    cells = [cell for group in groups for cell in group]
    runs, report.cpu_s = run_cells(cells, played, jobs=options.jobs, title="greedy_search")
    size = len(groups[0])
    scores = [
        score(o, group, runs[i * size : (i + 1) * size])
        for i, (o, group) in enumerate(zip(tried, groups, strict=True))
    ]
    _write(report, scores)
    best = max(scores, key=lambda s: s.merit)
    report.finish(
        {"best": best.options, "least_slo": round(best.least_slo, 1), "tried": len(tried)}
    )


def _write(report: Report, scores: Sequence[Score]) -> None:
    head = ["options", "least SLO %", "accuracy %", "correct and on time %", "mixed: SLO %",
            "mixed: correct and on time %", "mean s"]  # fmt: skip
    ranked = sorted(scores, key=lambda s: s.merit, reverse=True)
    rows = [[_said(s.options), s.least_slo, s.accuracy, s.correct_on_time, s.mixed_slo,
             s.mixed_correct_on_time, s.latency_s] for s in ranked]  # fmt: skip
    report.write(head, rows)
    report.add("Best first. Means over points, rates and data sets; of SLO the least.")
    report.add(table(head, [[str(r[0]), *(f"{v:.1f}" for v in r[1:])] for r in rows]))


def _said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in options.items()) or "the policy's defaults"


if __name__ == "__main__":
    main()
