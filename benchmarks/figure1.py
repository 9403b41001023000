"""Figure 1: three failures of load-blind routing, with MasRouter on MATH.

(a) queues of the preferred models while others idle, (b) the latency that follows, at 100 req/min;
(c) what of the large models' GPU time goes unused at 10 req/min. ``python -m benchmarks.figure1``
writes ``figure1.csv``, ``.md`` and ``.png`` and prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib.pyplot as plt

from benchmarks import paper
from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import contender
from benchmarks.loads import ModelUse, Use, use
from benchmarks.points import point
from benchmarks.report import Common, Report, common, table

RATES_RPM = (10.0, 50.0, 100.0, 200.0)
HIGH_RPM, LOW_RPM = 100.0, 10.0
LARGE = ("deepseek-r1-distill-qwen-32b", "mistral-small-24b", "qwen2.5-coder-14b")

Uses = dict[tuple[str, float], Use]


def main() -> None:
    parser = common(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--points", nargs="+", default=["calibrated", "matched"])
    args = parser.parse_args()
    options = Common.of(args)
    report = Report("figure1", options, ("math",))
    queries = 20 if options.quick else args.queries
    cells = [
        Cell(
            "math",
            rate,
            contender("masrouter"),
            queries,
            point(name),
            options.seed,
            world=options.world,
        )
        for name in args.points
        for rate in RATES_RPM
    ]
    uses, report.cpu_s = run_cells(cells, use, jobs=options.jobs, title="figure1")
    found = {(c.point.name, c.rate_rpm): u for c, u in zip(cells, uses, strict=True)}
    _write(report, found)
    report.draw(draw(found, args.points))
    report.finish({name: failures(found, name) for name in args.points})


def failures(found: Uses, name: str) -> dict[str, float]:
    """The three failures in figures: how deep the deepest queue is beside the emptiest model's, how
    slow the slowest model beside the fastest, how much of the large models' time goes unused."""
    high, low = found[name, HIGH_RPM].models.values(), found[name, LOW_RPM].models
    queues = [m.deepest_queue for m in high]
    steps = [m.step_s for m in high if m.calls]
    unused = [100 - low[m].slots_percent for m in LARGE if m in low]
    return {
        "deepest_queue": max(queues),
        "emptiest_models_deepest_queue": min(queues),
        "slowest_model_s": round(max(steps), 1),
        "fastest_model_s": round(min(steps), 1),
        "large_models_unused_percent": round(sum(unused) / len(unused), 1),
    }


_HEAD = [
    "operating_point",
    "rate_rpm",
    "model",
    "calls",
    "mean_queue",
    "deepest_queue",
    "step_mean_s",
    "step_p90_s",
    "busy_percent",
    "slots_percent",
]


def _row(point_name: str, rate: float, model: str, m: ModelUse) -> list[object]:
    queues = [m.mean_queue, m.deepest_queue]
    shares = [m.busy_percent, m.slots_percent]
    return [point_name, rate, model, m.calls, *queues, m.step_s, m.step_p90_s, *shares]


def _write(report: Report, found: Uses) -> None:
    report.write(
        _HEAD,
        (_row(*where, model, m) for where, u in found.items() for model, m in u.models.items()),
    )
    p = paper.FIGURE1
    report.add(
        f"The paper: queues beyond {p['deepest_queue']:g} at preferred models, over "
        f"{p['slow_e2e_s']:g} s where an idle model takes under {p['idle_e2e_s']:g} s, and "
        f"{p['unused_percent']:g} % of the large models' capacity unused at low load. The last "
        "column is MasRouter in the authors' repository: step latency (s) / queue, answers capped "
        "there probably at 512 tokens. *Slots* is the mean share of `max_num_seqs` in use; *GPU* "
        "the share of the time that the model computed, as if it had its GPU alone."
    )
    rows = [
        _line(name, rate, model, shown)
        for (name, rate), shown in found.items()
        for model in shown.models
    ]
    report.add(
        table(
            [
                "point",
                "req/min",
                "model",
                "calls",
                "queue mean",
                "deepest",
                "step s",
                "p90 s",
                "GPU %",
                "slots %",
                "authors",
            ],
            rows,
        )
    )


def _line(name: str, rate: float, model: str, shown: Use) -> list[str]:
    m = shown.models[model]
    size = next(s for s in ("32b", "24b", "14b", "8b", "3b") if model.endswith(f"-{s}"))
    theirs = paper.MASROUTER_MATH.get(rate, {}).get(size)
    return [
        name,
        f"{rate:g}",
        model,
        str(m.calls),
        f"{m.mean_queue:.1f}",
        f"{m.deepest_queue:.0f}",
        f"{m.step_s:.1f}",
        f"{m.step_p90_s:.1f}",
        f"{m.busy_percent:.0f}",
        f"{m.slots_percent:.0f}",
        f"{theirs[0]:g} / {theirs[1]:g}" if theirs else "",
    ]


def draw(found: Uses, points: Sequence[str]) -> plt.Figure:
    """A row of three panels for each operating point."""
    figure, axes = plt.subplots(len(points), 3, figsize=(13, 3.6 * len(points)), squeeze=False)
    for row, name in zip(axes, points, strict=True):
        high, low = found[name, HIGH_RPM], found[name, LOW_RPM]
        models = list(high.models)
        for model in models:
            row[0].plot(high.times_s, high.models[model].queue, label=model, linewidth=1)
        row[0].set(title=f"(a) {name}: calls waiting or running, {HIGH_RPM:g}/min", xlabel="s")
        row[0].legend(fontsize=6)
        row[1].barh(models, [high.models[m].step_s for m in models])
        row[1].set(title=f"(b) mean step latency, {HIGH_RPM:g}/min", xlabel="s")
        row[2].barh(models, [low.models[m].slots_percent for m in models])
        row[2].set(title=f"(c) slots in use, {LOW_RPM:g}/min", xlabel="%", xlim=(0, 100))
        for axis in row[1:]:
            axis.tick_params(axis="y", labelsize=6)
    return figure


if __name__ == "__main__":
    main()
