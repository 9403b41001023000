"""Table 3: what each mechanism is worth, by taking it out of ``greedy``.

Routing: ``quality_only`` takes the pool for idle. Scheduling: first come, first served in place of
earliest deadline first, mixed budgets. Depth: every call Flash. The paper ablates its learned
policy, which is not this one. ``python -m benchmarks.table3`` writes ``table3.csv`` and ``.md`` and
prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import matplotlib.pyplot as plt

from benchmarks import paper
from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.loads import Use, use
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import write_rows
from benchmarks.worlds import DATASETS
from runtime.sim.workload import TIERS_S

ROUTING_RPM, SCHEDULING_RPM, DEPTH_RPM = 100.0, 200.0, 50.0
_HEAD = [
    "point",
    "data set",
    "variant",
    "step latency s",
    "mean queue",
    "mean s",
    "p90 s",
    "accuracy %",
    "SLO %",
    "correct and on time %",
]


def grid(points: Sequence[str], queries: int, options: Common) -> dict[str, list[Cell]]:
    """Cells by mechanism; greedy comes first in each pair."""
    base = Cell(
        "math", ROUTING_RPM, contender("greedy"), queries, seed=options.seed, world=options.world
    )

    def pairs(
        without: str, rate: float, datasets: Sequence[str], budgets_s: tuple[float, ...]
    ) -> list[Cell]:
        return [
            replace(
                base,
                dataset=d,
                rate_rpm=rate,
                contender=contender(name),
                point=point(p),
                budgets_s=budgets_s,
            )
            for p in points
            for d in datasets
            for name in ("greedy", without)
        ]

    return {
        "routing": pairs("quality_only", ROUTING_RPM, DATASETS, (300.0,)),
        "scheduling": pairs("greedy_fcfs", SCHEDULING_RPM, DATASETS, TIERS_S),
        "depth": pairs("greedy_flash", DEPTH_RPM, ("mmlu_pro",), (300.0,)),
    }


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("table3", options)
    groups = grid(args.points, 20 if options.quick else args.queries, options)
    cells = [cell for group in groups.values() for cell in group]
    uses, report.cpu_s = run_cells(cells, use, jobs=options.jobs, title="table3")
    write_rows(report.path("csv"), (u.played.row for u in uses))
    found: dict[str, list[Use]] = {}
    rest = list(uses)
    for mechanism, group in groups.items():
        found[mechanism], rest = rest[: len(group)], rest[len(group) :]
    for mechanism, shown in found.items():
        _section(report, mechanism, shown, groups[mechanism][0])
    report.draw(draw(found))
    report.finish({m: effects(m, shown) for m, shown in found.items()})


def effects(mechanism: str, shown: Sequence[Use]) -> dict[str, float]:
    """The paper's measure of each mechanism, by operating point and data set."""
    found = {}
    for whole, without in zip(shown[::2], shown[1::2], strict=True):
        where = f"{whole.played.row.operating_point}/{whole.played.row.dataset}"
        found[where] = round(_effect(mechanism, whole, without), 2)
    return found


def _effect(mechanism: str, whole: Use, without: Use) -> float:
    if mechanism == "routing":
        return without.step_s / whole.step_s
    if mechanism == "scheduling":
        return without.played.row.latency_mean_s / whole.played.row.latency_mean_s
    return without.played.row.accuracy - whole.played.row.accuracy


def _section(report: Report, mechanism: str, shown: Sequence[Use], cell: Cell) -> None:
    measure = {
        "routing": "times the step latency",
        "scheduling": "times the mean latency",
        "depth": "points of accuracy",
    }[mechanism]
    budgets = ", ".join(f"{b:g}" for b in cell.budgets_s)
    report.add(f"## {mechanism}, {cell.rate_rpm:g} req/min, budgets {budgets} s")
    report.add(f"The paper: {paper.TABLE3[mechanism]}.")
    rows = []
    for whole, without in zip(shown[::2], shown[1::2], strict=True):
        rows += [_line(whole, ""), _line(without, f"{_effect(mechanism, whole, without):+.2f}")]
    report.add(table([*_HEAD, f"effect: {measure}"], rows))


def _line(shown: Use, effect: str) -> list[str]:
    r = shown.played.row
    return [
        r.operating_point,
        r.dataset,
        r.policy,
        f"{shown.step_s:.1f}",
        f"{shown.mean_queue:.1f}",
        f"{r.latency_mean_s:.1f}",
        f"{r.latency_p90_s:.1f}",
        f"{r.accuracy:.1f}",
        f"{r.slo:.1f}",
        f"{r.correct_on_time:.1f}",
        effect,
    ]


def draw(found: dict[str, list[Use]]) -> plt.Figure:
    """Correct and on time, with the mechanism and without, a panel each."""
    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 4.2), squeeze=False)
    for axis, (mechanism, shown) in zip(axes[0], found.items(), strict=True):
        rows = [u.played.row for u in shown]
        where = list(dict.fromkeys(f"{r.operating_point} {r.dataset}" for r in rows))
        for offset, policy in enumerate(dict.fromkeys(r.policy for r in rows)):
            values = [r.correct_on_time for r in rows if r.policy == policy]
            axis.bar([i + 0.4 * offset for i in range(len(values))], values, 0.4, label=policy)
        axis.set_xticks(
            [i + 0.2 for i in range(len(where))], where, fontsize=7, rotation=60, ha="right"
        )
        axis.set_title(mechanism, loc="left")
        axis.set(ylabel="correct and on time (%)", ylim=(0, 100))
        axis.legend(fontsize=7, loc="upper right", bbox_to_anchor=(1.0, 1.16), ncols=2)
    return figure


if __name__ == "__main__":
    main()
