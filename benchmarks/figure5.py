"""Figure 5: what a policy does with its budget, at low load on MATH.

Accuracy over the budget tiers, and the shares of models and depths in the calls of each.
``python -m benchmarks.figure5`` writes ``figure5.csv``, ``.md`` and ``.png`` and prints one line of
JSON.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence

import matplotlib.pyplot as plt

from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.loads import Use, use
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from runtime.sim.workload import TIERS_S
from runtime.types import STRATEGIES

LOW_RPM = 10.0


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--dataset", default="math")
    parser.add_argument("--policy", default="greedy")
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("figure5", options, (args.dataset,))
    cells = [
        Cell(
            args.dataset,
            LOW_RPM,
            contender(args.policy),
            20 if options.quick else args.queries,
            point(name),
            options.seed,
            (budget_s,),
            world=options.world,
        )
        for name in args.points
        for budget_s in TIERS_S
    ]
    uses, report.cpu_s = run_cells(cells, use, jobs=options.jobs, title="figure5")
    _write(report, cells, uses)
    report.draw(draw(cells, uses))
    rising = {
        name: [
            round(u.played.row.accuracy, 1)
            for c, u in zip(cells, uses, strict=True)
            if c.point.name == name
        ]
        for name in args.points
    }
    report.finish({"budgets_s": list(TIERS_S), "accuracy": rising})


def by_part(shown: Use, part: int) -> dict[str, float]:
    """Shares of calls by model (``part`` 0) or depth (1)."""
    shares: dict[str, float] = defaultdict(float)
    for route, share in shown.routes.items():
        shares[route[part]] += share
    return dict(shares)


def _csv_rows(cell: Cell, shown: Use) -> Iterator[list[object]]:
    where = [cell.point.name, cell.budgets_s[0], cell.contender.name]
    r = shown.played.row
    for name in ("accuracy", "slo", "correct_on_time"):
        yield [*where, name, "", getattr(r, name)]
    parts = {
        "model": by_part(shown, 0),
        "depth": by_part(shown, 1),
        "topology": shown.topologies,
    }
    for kind, shares in parts.items():
        for name, share in sorted(shares.items()):
            yield [*where, kind, name, 100 * share]


def _write(report: Report, cells: Sequence[Cell], uses: Sequence[Use]) -> None:
    head = ["operating_point", "budget_s", "policy", "kind", "name", "value_percent"]
    pairs = zip(cells, uses, strict=True)
    report.write(head, (row for cell, shown in pairs for row in _csv_rows(cell, shown)))
    report.add(
        "The paper: accuracy rises with the budget as larger models and DeepThink are chosen."
    )
    rows = []
    for cell, shown in zip(cells, uses, strict=True):
        r = shown.played.row
        rows.append(
            [
                cell.point.name,
                f"{cell.budgets_s[0]:g}",
                f"{r.accuracy:.1f}",
                f"{r.slo:.1f}",
                f"{r.correct_on_time:.1f}",
                f"{r.latency_mean_s:.1f}",
                _said(by_part(shown, 0)),
                _said(by_part(shown, 1)),
                _said(shown.topologies),
            ]
        )
    report.add(
        table(
            [
                "point",
                "budget s",
                "accuracy %",
                "SLO %",
                "correct and on time %",
                "mean s",
                "models",
                "depths",
                "topologies",
            ],
            rows,
        )
    )


def _said(shares: dict[str, float]) -> str:
    most = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in most if share >= 0.01)


def draw(cells: Sequence[Cell], uses: Sequence[Use]) -> plt.Figure:
    points = list(dict.fromkeys(c.point.name for c in cells))
    figure, axes = plt.subplots(len(points), 3, figsize=(14, 3.4 * len(points)), squeeze=False)
    for line, name in zip(axes, points, strict=True):
        shown = [u for c, u in zip(cells, uses, strict=True) if c.point.name == name]
        places = range(len(TIERS_S))
        rows = [u.played.row for u in shown]
        low = [r.accuracy - r.accuracy_lo for r in rows]
        high = [r.accuracy_hi - r.accuracy for r in rows]
        line[0].errorbar(
            places, [r.accuracy for r in rows], yerr=[low, high], marker="o", label="accuracy"
        )
        line[0].plot(
            places, [r.correct_on_time for r in rows], marker="s", label="correct and on time"
        )
        line[0].set(title=f"{name}: quality (%)", ylim=(0, 100))
        line[0].legend(fontsize=7, loc="lower right")
        orders = (list(shown[0].models), [str(s) for s in STRATEGIES])
        for axis, part, title in ((line[1], 0, "models"), (line[2], 1, "depths")):
            _stack(axis, [by_part(u, part) for u in shown], orders[part])
            axis.set(title=f"{name}: {title} (share of calls)", ylim=(0, 1))
        for axis in line:
            axis.set_xticks(places, [f"{b:g}" for b in TIERS_S])
            axis.set_xlabel("budget (s)")
    return figure


def _stack(axis: plt.Axes, shares: Sequence[dict[str, float]], order: Sequence[str]) -> None:
    """Bars in the order and colours of ``order``, which are the same in every row."""
    bottom = [0.0] * len(shares)
    seen = {name for share in shares for name in share}
    for name in sorted(seen, key=order.index):
        values = [s.get(name, 0.0) for s in shares]
        colour = f"C{order.index(name)}"
        axis.bar(range(len(shares)), values, bottom=bottom, label=name, color=colour)
        bottom = [b + v for b, v in zip(bottom, values, strict=True)]
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


if __name__ == "__main__":
    main()
