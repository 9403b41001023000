"""Orders of the queues under overload and mixed budgets: ``python -m benchmarks.overload``.

Earliest deadline first with late work yielding (``edf``) against plain EDF and first come, first
served, under policies that do not react to load and one that does. A group counts where FCFS keeps
less than 95 % of its SLO. Writes ``overload.csv``, ``.md`` and ``.png`` and prints one line of
JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt

from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import in_order
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Played, interval, played, write_rows
from benchmarks.worlds import DATASETS
from runtime.sim.workload import TIERS_S

ORDERS = ("edf", "fcfs", "edf_plain")
POLICIES = ("greedy", "least_loaded", "single_best", "masrouter", "moa")
RATES_RPM = (50.0, 100.0, 200.0)
STRAINED_SLO = 95.0

Key = tuple[str, str, float, str]  # point, data set, rate, policy
Group = dict[str, Played]  # by order


def grid(points: Sequence[str], queries: int, options: Common) -> list[Cell]:
    return [
        Cell(
            dataset,
            rate,
            in_order(policy, order),
            queries,
            point(name),
            options.seed,
            TIERS_S,
            world=options.world,
        )
        for name in points
        for dataset in DATASETS
        for rate in RATES_RPM
        for policy in POLICIES
        for order in ORDERS
    ]


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("overload", options)
    cells = grid(args.points, 20 if options.quick else args.queries, options)
    runs, report.cpu_s = run_cells(cells, played, jobs=options.jobs, title="overload")
    write_rows(report.path("csv"), (run.row for run in runs))
    groups = grouped(cells, runs)
    strained = {k: g for k, g in groups.items() if g["fcfs"].row.slo < STRAINED_SLO}
    report.add(
        f"Budgets are drawn from {', '.join(f'{t:g}' for t in TIERS_S)} s, deadlines soft. "
        f"{len(strained)} of {len(groups)} groups are strained: FCFS keeps less than "
        f"{STRAINED_SLO:g} % of its SLO."
    )
    report.add(table(_HEAD, [_line(k, g) for k, g in strained.items()]))
    report.draw(draw(strained))
    report.finish(verdict(strained))


def grouped(cells: Sequence[Cell], runs: Sequence[Played]) -> dict[Key, Group]:
    groups: dict[Key, Group] = {}
    for cell, run in zip(cells, runs, strict=True):
        policy, _, order = cell.contender.name.partition("/")
        groups.setdefault((cell.point.name, cell.dataset, cell.rate_rpm, policy), {})[order] = run
    return groups


def verdict(strained: Mapping[Key, Group]) -> dict[str, object]:
    """How often late-yielding EDF keeps more of the SLO than each other order, and by how much."""
    found: dict[str, object] = {"strained": len(strained)}
    for other in ORDERS[1:]:
        gains = {k: g["edf"].row.slo - g[other].row.slo for k, g in strained.items()}
        found[f"edf_wins_over_{other}"] = sum(gain > 0 for gain in gains.values())
        found[f"edf_losses_to_{other}"] = {
            "/".join(map(str, k)): round(gain, 1) for k, gain in gains.items() if gain < 0
        }
        found[f"mean_gain_over_{other}"] = round(sum(gains.values()) / max(1, len(gains)), 2)
    return found


_HEAD = [
    "point",
    "data set",
    "req/min",
    "policy",
    *(f"SLO % {o}" for o in ORDERS),
    *(f"correct and on time % {o}" for o in ORDERS),
    "edf - fcfs, SLO points (95 %)",
]


def _line(key: Key, group: Group) -> list[str]:
    gain = group["edf"].on_time - group["fcfs"].on_time
    low, high = interval(gain, group["edf"].items)
    return [
        key[0],
        key[1],
        f"{key[2]:g}",
        key[3],
        *(f"{group[o].row.slo:.1f}" for o in ORDERS),
        *(f"{group[o].row.correct_on_time:.1f}" for o in ORDERS),
        f"{100 * gain.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})",
    ]


def draw(strained: Mapping[Key, Group]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(5, 5))
    for other in ORDERS[1:]:
        axes.scatter(
            [g[other].row.slo for g in strained.values()],
            [g["edf"].row.slo for g in strained.values()],
            s=14,
            label=f"against {other}",
        )
    axes.plot([0, 100], [0, 100], color="grey", linewidth=1)
    axes.set(
        xlabel="SLO of the other order (%)",
        ylabel="SLO of edf, late work yielding (%)",
        title="Mixed budgets, where FCFS keeps under 95 %",
    )
    axes.legend()
    return figure


if __name__ == "__main__":
    main()
