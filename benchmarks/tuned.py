"""What an engineer would do first to the paper's pool: ``python -m benchmarks.tuned``.

For every model the ``max_num_seqs`` (of 8 to 256) with the highest throughput: the model alone is
flooded with single Concise calls of all data sets, its memory share and KV cache as configured;
of settings within 3 % of the best the smallest counts, since more slots only share the same work.
Then the capacity of the pool so set up, per data set: the queries a minute that Mixture-of-Agents
gets done while it is flooded. It asks every model once, so this is the rate at which the pool can
give every query all it has. Writes ``tuned.csv``, ``.md``, ``.png``, the section ``tuned`` of
``chosen.json``, and prints one line of JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.cells import Cell, run_cells
from benchmarks.contenders import CONTENDERS, Contender, choose, contender
from benchmarks.points import POOL, PREFIX_HIT, Point
from benchmarks.report import Common, Report, common, table
from benchmarks.worlds import DATASETS
from rl.baselines.rollout import read_pool
from runtime.sim.results import Results

SLOTS = (8, 16, 32, 64, 128, 256)
FLOOD_RPM = 600_000.0
NEAR = 0.97
COMMAND = "python -m benchmarks.tuned"
REFERENCE = "moa"
CAPACITY_OF = (
    "moa",
    "gptswarm",
    "masrouter",
    "self_consistency",
    "single_best",
    "least_loaded",
    "cascade",
    "greedy",
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Queries a minute that a flooded pool gets done, and how often its engines ran out of KV."""

    cell: Cell
    per_minute: float
    preemptions: int


def throughput(cell: Cell, results: Results) -> Throughput:
    """From the first tenth of the answers to the last tenth but one."""
    done_s = np.sort(results.queries["arrival_s"] + results.queries["latency_s"])
    first, last = len(done_s) // 10, len(done_s) - 1 - len(done_s) // 10
    per_s = (last - first) / (done_s[last] - done_s[first]) if last > first else 0.0
    return Throughput(cell, 60.0 * float(per_s), sum(results.preemptions.values()))


def slots_grid(
    models: Sequence[str], slots: Sequence[int], queries: int, options: Common
) -> list[Cell]:
    """Every model alone at every number of slots, on every data set."""
    return [
        Cell(
            dataset=dataset,
            rate_rpm=FLOOD_RPM,
            contender=Contender(f"only {model}", "fixed", "baseline", options={"model": model}),
            queries=queries,
            point=Point(f"{number} slots", max_num_seqs=number, prefix_hit=PREFIX_HIT),
            seed=options.seed,
            world=options.world,
        )
        for model in models
        for number in slots
        for dataset in DATASETS
    ]


def best_slots(found: Sequence[Throughput], model: str) -> tuple[int, dict[int, float]]:
    """The smallest setting near the best, by mean throughput relative to each data set's best."""
    rates = {}
    for run in found:
        if run.cell.contender.options["model"] == model:
            rates[run.cell.dataset, run.cell.point.max_num_seqs or 0] = run.per_minute
    slots = sorted({number for _, number in rates})
    most = {d: max(rates[d, n] for n in slots) for d, _ in rates}
    mean = {n: float(np.mean([rates[d, n] / most[d] for d in most])) for n in slots}
    near = [n for n in slots if mean[n] >= NEAR * max(mean.values())]
    return min(near), mean


def main() -> None:
    args = common(argparse.ArgumentParser(description=__doc__)).parse_args()
    options = Common.of(args)
    report = Report("tuned", options)
    models = [m.name for m in read_pool(POOL).models]
    slots = SLOTS[1:3] if options.quick else SLOTS
    cells = slots_grid(models, slots, 10 if options.quick else 400, options)
    alone, cpu_s = run_cells(cells, throughput, jobs=options.jobs, title="slots")
    chosen = {model: best_slots(alone, model) for model in models}
    point = Point(
        "tuned", per_model=tuple((m, n) for m, (n, _) in chosen.items()), prefix_hit=PREFIX_HIT
    )
    flooded, report.cpu_s = run_cells(
        _flood(point, options), throughput, jobs=options.jobs, title="capacity"
    )
    report.cpu_s += cpu_s
    capacity = {
        (f.cell.point.name, f.cell.contender.name, f.cell.dataset): f.per_minute for f in flooded
    }
    _write(report, chosen, capacity)
    seqs = {m: n for m, (n, _) in chosen.items()}
    rates = {d: round(capacity["tuned", REFERENCE, d], 1) for d in DATASETS}
    if not options.quick:
        choose("tuned", {"max_num_seqs": seqs, "capacity_rpm": rates}, COMMAND)
    report.finish({"max_num_seqs": seqs, "capacity_rpm": rates})


def _flood(tuned: Point, options: Common) -> list[Cell]:
    """Floods of the tuned pool, and of the one with the paper's 16 slots for all."""
    cell = Cell(
        DATASETS[0],
        FLOOD_RPM,
        CONTENDERS[0],
        10 if options.quick else 300,
        seed=options.seed,
        world=options.world,
    )
    names = (REFERENCE,) if options.quick else CAPACITY_OF
    return [
        replace(cell, dataset=dataset, contender=contender(name), point=point)
        for point in (tuned, Point("calibrated"))
        for name in names
        for dataset in DATASETS
    ]


def _write(
    report: Report,
    chosen: dict[str, tuple[int, dict[int, float]]],
    capacity: dict[tuple[str, str, str], float],
) -> None:
    head = ["operating_point", "policy", "dataset", "capacity_rpm"]
    report.write(head, [(*where, rate) for where, rate in capacity.items()])
    slots = sorted(next(iter(chosen.values()))[1])
    report.add(
        "Throughput of each model alone by `max_num_seqs`, relative to its best; in bold the "
        f"smallest setting within {1 - NEAR:.0%} of it."
    )
    report.add(
        table(
            ["model", *map(str, slots)],
            [
                [m, *(_share(mean[n], n == best) for n in slots)]
                for m, (best, mean) in chosen.items()
            ],
        )
    )
    report.add(
        "Queries a minute that a flooded pool gets done: what each policy can do at most, at "
        "its own mix of models and depths under load. The first row is what loads of the "
        "operating point `tuned` are relative to."
    )
    policies = list(dict.fromkeys((p, c) for p, c, _ in capacity))
    report.add(
        table(
            ["point", "policy", *DATASETS],
            [[p, c, *(f"{capacity[p, c, d]:.0f}" for d in DATASETS)] for p, c in policies],
        )
    )
    figure, axes = plt.subplots(figsize=(6, 4))
    for model, (_, mean) in chosen.items():
        axes.plot(slots, [mean[n] for n in slots], marker="o", label=model)
    axes.set(
        xscale="log",
        xticks=slots,
        xticklabels=slots,
        xlabel="max_num_seqs",
        ylabel="throughput, relative to the best",
        title="One model alone, flooded",
    )
    axes.legend(fontsize=7)
    report.draw(figure)


def _share(value: float, best: bool) -> str:
    return f"**{value:.2f}**" if best else f"{value:.2f}"


if __name__ == "__main__":
    main()
