"""Figure 4: quality against latency, a panel per data set and rate, from the rows of Table 2.

``python -m benchmarks.figure4`` reads ``table2.csv`` in the folder of results and writes
``figure4_<point>.png``, ``figure4.csv`` and ``.md``. It prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from benchmarks import paper
from benchmarks.cells import SLO_S
from benchmarks.report import Common, Report, common, save
from benchmarks.rows import Row, read_rows, write_rows

SEVERE_S = 3 * SLO_S
SHOWN = ("moa", "gptswarm", "masrouter", "single_best", "least_loaded", "cascade", "greedy")


def main() -> None:
    args = common(argparse.ArgumentParser(description=__doc__)).parse_args()
    options = Common.of(args)
    report = Report("figure4", options)
    rows = [r for r in read_rows(options.out / "table2.csv") if r.policy in SHOWN]
    write_rows(report.path("csv"), rows)
    report.add(
        "Accuracy over mean latency. White: within the budget of 300 s; light: beyond it; dark: "
        f"beyond {SEVERE_S:g} s. Hollow: the paper's figures, InfraMind's beside greedy's colour."
    )
    for point in dict.fromkeys(r.operating_point for r in rows):
        figure = draw([r for r in rows if r.operating_point == point], point)
        save(figure, options.out / f"figure4_{point}.png", dpi=90)
        report.add(f"![{point}](figure4_{point}.png)")
    report.finish({"points": len(rows), "dominated_by_greedy": dominated(rows)})


def dominated(rows: Sequence[Row]) -> int:
    """Cells of other policies where greedy is both quicker and at least as accurate."""
    greedy = {_where(r): r for r in rows if r.policy == "greedy"}
    others = [r for r in rows if r.policy != "greedy" and _where(r) in greedy]
    return sum(
        greedy[_where(r)].latency_mean_s < r.latency_mean_s
        and greedy[_where(r)].accuracy >= r.accuracy
        for r in others
    )


def _where(row: Row) -> tuple[str, str, float]:
    return row.operating_point, row.dataset, row.rate_rpm


def draw(rows: Sequence[Row], point: str) -> plt.Figure:
    datasets = list(dict.fromkeys(r.dataset for r in rows))
    rates = sorted({r.rate_rpm for r in rows})
    figure, axes = plt.subplots(
        len(rates),
        len(datasets),
        squeeze=False,
        sharex=True,
        layout="constrained",
        figsize=(3 * len(datasets), 2.5 * len(rates)),
    )
    colours = dict(zip(SHOWN, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for line, rate in zip(axes, rates, strict=True):
        for axis, dataset in zip(line, datasets, strict=True):
            axis.axvspan(SLO_S, SEVERE_S, color="orange", alpha=0.12)
            axis.axvspan(SEVERE_S, 1e5, color="red", alpha=0.15)
            for r in rows:
                if (r.dataset, r.rate_rpm) == (dataset, rate):
                    axis.scatter(r.latency_mean_s, r.accuracy, color=colours[r.policy])
            _theirs(axis, dataset, rate, colours)
            axis.set(xscale="log", xlim=(1, 1e4), title=f"{dataset}, {rate:g}/min")
            axis.title.set_fontsize(8)
    labels = [p for p in SHOWN if any(r.policy == p for r in rows)]
    dots = [Line2D([], [], color=colours[p], marker="o", linestyle="") for p in labels]
    hollow = Line2D([], [], color="grey", marker="o", linestyle="", fillstyle="none")
    figure.legend([*dots, hollow], [*labels, "the paper"], loc="outside upper center", ncols=8)
    figure.supxlabel(f"{point}: mean latency (s)")
    figure.supylabel("accuracy (%)")
    return figure


def _theirs(axis: plt.Axes, dataset: str, rate: float, colours: dict[str, str]) -> None:
    for name in paper.NAMES:
        if (figures := paper.TABLE2.get((dataset, rate, name))) is not None:
            colour = colours["greedy" if name == "inframind" else name]
            axis.scatter(figures.latency_s, figures.accuracy, facecolors="none", edgecolors=colour)


if __name__ == "__main__":
    main()
