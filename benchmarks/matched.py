"""Which one factor on the speed of all engines fits the paper's baselines best.

``python -m benchmarks.matched`` runs MoA, GPTSwarm and MasRouter on the five data sets at 10, 50
and 100 req/min, with as many queries as the paper's test sets have, at every factor of a grid, and
compares the mean latencies of the 45 cells with the paper's. Best is the factor with the most cells
within a factor of 2, of equals the one with the least mean |log ratio|. Writes ``matched.csv``,
``.md`` and ``.png``, the section ``matched`` of ``chosen.json``, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import paper
from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import PAPERS, choose, contender
from benchmarks.points import Point
from benchmarks.report import Common, Report, common, table
from runtime.sim.results import Results

FACTORS = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0)
WITHIN = 2.0
COMMAND = "python -m benchmarks.matched"


@dataclass(frozen=True, slots=True)
class Fit:
    """A cell at one factor, beside the paper's."""

    factor: float
    dataset: str
    rate_rpm: float
    policy: str
    latency_s: float
    slo: float

    @property
    def theirs(self) -> paper.Figures:
        return paper.TABLE2[self.dataset, self.rate_rpm, self.policy]

    @property
    def ratio(self) -> float:
        return self.latency_s / self.theirs.latency_s

    @property
    def within(self) -> bool:
        return 1 / WITHIN <= self.ratio <= WITHIN


def grid(factors: Sequence[float], scale: float = 1.0, seed: int = 0) -> list[Cell]:
    """All cells; ``scale`` shortens the runs."""
    return [
        Cell(
            dataset=dataset,
            rate_rpm=rate,
            contender=contender(policy),
            queries=max(1, round(scale * paper.QUERIES[dataset])),
            point=Point("matched", slowdown=factor),
            seed=seed,
        )
        for factor in factors
        for dataset in paper.DATASETS
        for rate in paper.RATES_RPM
        for policy in PAPERS
    ]


def fit(cell: Cell, results: Results) -> Fit:
    summary = results.summary()
    return Fit(
        cell.point.slowdown,
        cell.dataset,
        cell.rate_rpm,
        cell.contender.name,
        summary.latency_mean_s,
        summary.slo,
    )


def score(fits: Sequence[Fit]) -> tuple[int, float]:
    """Cells within a factor of 2, and the mean |log ratio|."""
    return sum(f.within for f in fits), float(np.mean([abs(math.log(f.ratio)) for f in fits]))


def best(fits: Sequence[Fit]) -> float:
    """The factor that fits best."""

    def key(factor: float) -> tuple[int, float]:
        within, error = score([f for f in fits if f.factor == factor])
        return within, -error

    return max(sorted({f.factor for f in fits}), key=key)


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--factors", type=float, nargs="+", default=list(FACTORS))
    parser.add_argument("--keep", action="store_true", help="other factors of the last run's CSV")
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("matched", options)
    cells = grid(args.factors, 0.02 if options.quick else 1.0, options.seed)
    fits, report.cpu_s = run_cells(cells, fit, jobs=options.jobs, title="matched")
    if args.keep and report.path("csv").exists():
        fits = [*_kept(report.path("csv"), args.factors), *fits]
    factor = best(fits)
    within, error = score([f for f in fits if f.factor == factor])
    _write(report, fits, factor)
    if not options.quick:
        choose("matched", {"slowdown": factor}, COMMAND)
    report.finish(
        {
            "slowdown": factor,
            "cells_within_2x": within,
            "cells": sum(f.factor == factor for f in fits),
            "mean_abs_log_ratio": round(error, 3),
        }
    )


_HEAD = [
    "slowdown",
    "dataset",
    "rate_rpm",
    "policy",
    "latency_mean_s",
    "paper_latency_s",
    "ratio",
    "within_2x",
    "slo",
    "paper_slo",
]


def _write(report: Report, fits: Sequence[Fit], factor: float) -> None:
    report.write(_HEAD, map(_row, fits))
    by_factor: dict[float, list[Fit]] = {}
    for f in fits:
        by_factor.setdefault(f.factor, []).append(f)
    report.add(
        f"Speed divided by **{factor:g}** fits best. Mean latencies, ours over the paper's; "
        f"a cell counts where the ratio is between 1/{WITHIN:g} and {WITHIN:g}."
    )
    scores = [(x, *score(group)) for x, group in sorted(by_factor.items())]
    head = ["slowdown", "cells within 2x", "mean abs. log ratio"]
    report.add(table(head, [[f"{x:g}", str(n), f"{e:.2f}"] for x, n, e in scores]))
    shown = by_factor[factor]
    head = ["data set", "req/min", "policy", "mean s", "paper s", "ratio", "SLO %", "paper %"]
    report.add(table(head, [_line(f) for f in shown]))
    _draw(report, shown)


def _kept(path: Path, anew: Sequence[float]) -> list[Fit]:
    """The fits of an earlier run at factors that were not run ``anew``."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    fits = [
        Fit(
            float(r["slowdown"]),
            r["dataset"],
            float(r["rate_rpm"]),
            r["policy"],
            float(r["latency_mean_s"]),
            float(r["slo"]),
        )
        for r in rows
    ]
    return [f for f in fits if f.factor not in anew]


def _row(f: Fit) -> list[object]:
    ours = [f.factor, f.dataset, f.rate_rpm, f.policy, f.latency_s]
    return [*ours, f.theirs.latency_s, f.ratio, int(f.within), f.slo, f.theirs.slo]


def _line(f: Fit) -> list[str]:
    ratio = f"{f.ratio:.2f}" if f.within else f"**{f.ratio:.2f}**"
    seconds = [f"{f.latency_s:.0f}", f"{f.theirs.latency_s:.0f}", ratio]
    where = [f.dataset, f"{f.rate_rpm:g}", paper.NAMES[f.policy]]
    return [*where, *seconds, f"{f.slo:.0f}", f"{f.theirs.slo:.0f}"]


def _draw(report: Report, fits: Sequence[Fit]) -> None:
    figure, axes = plt.subplots(figsize=(5, 5))
    for policy in PAPERS:
        rows = [f for f in fits if f.policy == policy]
        axes.scatter(
            [f.theirs.latency_s for f in rows],
            [f.latency_s for f in rows],
            label=paper.NAMES[policy],
        )
    ends = np.array([20.0, 3000.0])
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.fill_between(ends, ends / WITHIN, ends * WITHIN, color="grey", alpha=0.15)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="paper, mean latency (s)",
        ylabel="simulated (s)",
        title=f"Baselines at speed / {fits[0].factor:g}",
    )
    axes.legend()
    report.draw(figure)


if __name__ == "__main__":
    main()
