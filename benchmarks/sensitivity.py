"""How the ranking of policies depends on what is assumed: ``python -m benchmarks.sensitivity``.

One setting at a time is changed at the operating point (``max_num_seqs``, the cap on tokens,
sharing of GPUs, how often wrong answers coincide), a row each: correct and on time of every policy,
mean of the five data sets, and their ranking. Writes ``sensitivity.csv``, ``.md`` and ``.png`` and
prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import kendalltau

from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.points import Point, point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Played, played, write_rows
from benchmarks.worlds import DATASETS, World

POLICIES = (
    "moa",
    "gptswarm",
    "masrouter",
    "self_consistency",
    "single_best",
    "least_loaded",
    "cascade",
    "greedy",
)

Setting = tuple[str, Point, World]


def settings(base: Point, world: World) -> list[Setting]:
    """The base first, then one change each."""
    slots = [(f"max_num_seqs {n}", replace(base, max_num_seqs=n), world) for n in (8, 32, 64)]
    caps = [(f"cap {n} tokens", replace(base, cap=n), world) for n in (512, 1024, 4096)]
    agree = [
        (f"wrong answers coincide x {x:g}", base, replace(world, same_wrong=x))
        for x in (0.0, 0.5, 1.5)
    ]
    alone = ("a GPU for each model", replace(base, shared_gpus=False), world)
    return [("base: 16 slots, cap 2048, shared GPUs", base, world), *slots, *caps, alone, *agree]


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rate", type=float, default=100.0, help="queries per minute")
    parser.add_argument("--point", default="calibrated")
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("sensitivity", options)
    changes = settings(point(args.point), options.world)
    base = Cell(
        DATASETS[0],
        args.rate,
        contender(POLICIES[0]),
        20 if options.quick else args.queries,
        seed=options.seed,
    )
    cells = [
        replace(
            base,
            dataset=dataset,
            contender=contender(name),
            world=world,
            point=replace(at, name=f"{at.name}: {said}"),
        )
        for said, at, world in changes
        for name in POLICIES
        for dataset in DATASETS
    ]
    runs, report.cpu_s = run_cells(cells, played, jobs=options.jobs, title="sensitivity")
    write_rows(report.path("csv"), (run.row for run in runs))
    means = mean_by(runs, [said for said, *_ in changes], "correct_on_time")
    report.add(
        f"{args.point}, {args.rate:g} req/min, {base.queries} queries a cell. Correct and on time "
        "(%), mean of the data sets; in brackets the rank. Kendall's tau compares each "
        "ranking with the first. Priors of the policies stay those of the base."
    )
    report.add(
        table(
            ["setting", *POLICIES, "tau"],
            [_line(said, row, means[0]) for (said, *_), row in zip(changes, means, strict=True)],
        )
    )
    slo = mean_by(runs, [said for said, *_ in changes], "slo")
    report.add("SLO (%), mean of the data sets:")
    report.add(
        table(
            ["setting", *POLICIES],
            [
                [said, *(f"{v:.1f}" for v in row)]
                for (said, *_), row in zip(changes, slo, strict=True)
            ],
        )
    )
    report.draw(draw([said for said, *_ in changes], means))
    taus = {
        said: round(tau(row, means[0]), 2) for (said, *_), row in zip(changes, means, strict=True)
    }
    first = {
        said: POLICIES[int(np.argmax(row))] for (said, *_), row in zip(changes, means, strict=True)
    }
    report.finish({"tau": taus, "first": first})


def mean_by(runs: Sequence[Played], names: Sequence[str], figure: str) -> np.ndarray:
    """[settings, policies]: mean of a figure over the data sets; runs are in the grid's order."""
    values = np.array([getattr(run.row, figure) for run in runs])
    return values.reshape(len(names), len(POLICIES), len(DATASETS)).mean(axis=2)


def tau(row: np.ndarray, base: np.ndarray) -> float:
    """Kendall's rank correlation of two rankings."""
    return float(kendalltau(row, base).statistic)


def _line(said: str, row: np.ndarray, base: np.ndarray) -> list[str]:
    ranks = (-row).argsort().argsort() + 1
    cells = [f"{v:.1f} ({r})" for v, r in zip(row, ranks, strict=True)]
    return [said, *cells, f"{tau(row, base):.2f}"]


def draw(names: Sequence[str], means: np.ndarray) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(names) + 1.5))
    image = axes.imshow(means, aspect="auto", vmin=0, vmax=100)
    axes.set_xticks(range(len(POLICIES)), POLICIES, rotation=30, ha="right", fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    figure.colorbar(image, label="correct and on time (%)")
    return figure


if __name__ == "__main__":
    main()
