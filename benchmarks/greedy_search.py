"""Which options of ``greedy`` do best on validation items, one setting for all data sets.

``python -m benchmarks.greedy_search`` varies one option at a time around the policy's defaults
(``--grid`` takes JSON with other values), on the validation split of every data set, with the
tables' budget and with mixed ones. Best is what is most often correct and on time among the
settings that keep 99 % of the SLO under the tables' budget, else what keeps most. It changes
nothing: the defaults stand in the policy. Writes ``greedy_search.csv`` and ``.md`` and prints one
line of JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    "price_idle": [0.0, 0.1, 0.3],
    "price_loaded": [0.0, 0.5, 1.0, 2.0],
    "margin": [0.5, 0.7],
    "diversity": [0.0, 0.05],
}
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
    """The defaults, then one change each."""
    return [{}, *({name: value} for name, values in grid.items() for value in values)]


def cells_of(
    options: dict[str, Any], points: Sequence[str], rate: float, queries: int, common_: Common
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
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--queries", type=int, default=400)
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("greedy_search", options)
    queries = 10 if options.quick else args.queries
    tried = settings(args.grid)
    groups = [cells_of(o, args.points, args.rate, queries, options) for o in tried]
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
    rows = [[json.dumps(s.options), s.least_slo, s.accuracy, s.correct_on_time, s.mixed_slo,
             s.mixed_correct_on_time, s.latency_s] for s in scores]  # fmt: skip
    report.write(head, rows)
    best = sorted(rows, key=lambda row: -row[3] - row[5])
    report.add(table(head, [[str(r[0]), *(f"{v:.1f}" for v in r[1:])] for r in best]))


if __name__ == "__main__":
    main()
