"""Table 4: GSM-Hard on a hybrid pool (budget 100 s) and on one of API models alone (500 s).

The pools are ``serve_configs/hybrid.yaml`` and ``api.yaml``; what providers limit, charge and take
is assumed. No policy here weighs money: the runtime offers it the models that a query's money and
the pool's hour still pay for. ``python -m benchmarks.table4`` writes ``table4.csv``, ``.md`` and
``.png`` and prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import paper
from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.points import POOL, Point
from benchmarks.report import Common, Report, common, table
from benchmarks.rows import Played, played, write_rows
from runtime.sim.describe import describe_apis
from runtime.sim.results import Results

DATASET = "gsm_hard"
POLICIES = ("masrouter", "gptswarm", "moa", "least_loaded", "cascade", "greedy")
BUDGETS_S = {"hybrid": 100.0, "api": 500.0}


@dataclass(frozen=True, slots=True)
class Paid:
    """A cell, the share of its calls that went to API models, how many queries ended with an
    error, and US dollars per 1,000 queries."""

    played: Played
    api_percent: float
    errors_percent: float
    dollars: float


def paid(cell: Cell, results: Results) -> Paid:
    config = cell.point.config(cell.contender, cell.dataset, cell.hard)
    apis = [m.name for m in config.models if m.api is not None]
    to_api = np.isin(results.calls.named("model"), apis)
    errors = results.queries.named("status") == "error"
    spent = np.nansum(results.queries["cost_usd"]) / len(results.queries)
    return Paid(
        played(cell, results),
        100 * float(to_api.mean()),
        100 * float(errors.mean()),
        1000 * float(spent),
    )


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=500)
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("table4", options, (DATASET,))
    cells = [
        Cell(
            DATASET,
            rate,
            contender(policy),
            20 if options.quick else args.queries,
            Point(pool, pool=POOL.parent / f"{pool}.yaml"),
            options.seed,
            (budget_s,),
            world=options.world,
        )
        for pool, budget_s in BUDGETS_S.items()
        for rate in paper.RATES_RPM
        for policy in POLICIES
    ]
    runs, report.cpu_s = run_cells(cells, paid, jobs=options.jobs, title="table4")
    write_rows(report.path("csv"), (run.played.row for run in runs))
    count = len(describe_apis())
    report.add(
        f"Providers: {count} more parameters, all assumed. Where the paper has InfraMind, greedy "
        "stands. The paper does not say which models were behind APIs, nor their limits. A query "
        "may spend 0.01 US dollars and a pool 5 an hour, as the configs say."
    )
    head = ["pool", "req/min", "policy", "accuracy %", "mean s", "p90 s", "SLO %",
            "correct and on time %", "calls", "to APIs %", "US$ per 1,000", "errors %",
            "paper: accuracy, s, SLO"]  # fmt: skip
    report.add(table(head, [_line(run) for run in runs]))
    report.draw(draw([run.played for run in runs]))
    slo = {
        f"{r.operating_point}/{r.policy}/{r.rate_rpm:g}": round(r.slo, 1)
        for r in (run.played.row for run in runs)
    }
    report.finish({"slo": slo})


def _line(run: Paid) -> list[str]:
    r = run.played.row
    name = "inframind" if r.policy == "greedy" else r.policy
    theirs = paper.TABLE4.get((r.operating_point, r.rate_rpm, name))
    return [
        *(r.operating_point, f"{r.rate_rpm:g}", r.policy, f"{r.accuracy:.1f}"),
        *(f"{r.latency_mean_s:.1f}", f"{r.latency_p90_s:.1f}", f"{r.slo:.1f}"),
        *(f"{r.correct_on_time:.1f}", f"{r.calls_per_query:.2f}"),
        *(f"{run.api_percent:.0f}", f"{run.dollars:.2f}", f"{run.errors_percent:.0f}"),
        f"{theirs.accuracy:g}, {theirs.latency_s:g}, {theirs.slo:g}" if theirs else "",
    ]


def draw(runs: Sequence[Played]) -> plt.Figure:
    """SLO over the rate, a panel for each pool."""
    figure, axes = plt.subplots(1, len(BUDGETS_S), figsize=(10, 3.6))
    for axis, (pool, budget_s) in zip(axes, BUDGETS_S.items(), strict=True):
        for number, policy in enumerate(POLICIES):
            rows = [p.row for p in runs if (p.row.operating_point, p.row.policy) == (pool, policy)]
            axis.plot(
                [r.rate_rpm for r in rows],
                [r.slo for r in rows],
                marker="ov^sDx"[number],
                linestyle=("-", "--")[number % 2],
                label=policy,
            )
        axis.set(
            title=f"{pool}, budget {budget_s:g} s",
            xlabel="req/min",
            ylabel="SLO (%)",
            ylim=(0, 105),
        )
    axes[1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure


if __name__ == "__main__":
    main()
