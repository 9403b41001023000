"""Orders and policies on a live pool under overload, beside their prediction: ``benchmarks.live``.

Queries of HumanEval and MBPP come open loop, at a rate that is too much for one model, with mixed
budgets. Every run offers the same queries at the same times to the same models; graders are real.
The simulator predicts every run before it begins. Two deployments are needed, since the order of
queues is the pool's: ``edf`` (late work yields) serves all policies, ``fcfs`` the load-blind one.

Last comes one line of JSON: per run ``slo``, ``accuracy``, ``correct_on_time`` and latencies, and
``edf_vs_fcfs_slo`` and ``greedy_vs_fixed_slo``, differences in points.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from actors.local_pool import ServeFile, read_serve_file, running_pool
from actors.transport import free_port
from benchmarks.inputs import items_to_test, own_state
from benchmarks.open_loop import Figures, Offer, Row, figures, graded, offer_all
from runtime.config import AppConfig, parse_config
from runtime.datasets import Item
from runtime.policy import make_policy
from runtime.sim.items import Calibration, shipped
from runtime.sim.parameters import load_models
from runtime.sim.quality import QualityModel
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival, draw_budgets, poisson

DATASETS = ("humaneval", "mbpp")
BUDGETS_S = (20.0, 40.0, 80.0, 160.0)
RESULTS = Path("benchmarks/results")

console = Console()


@dataclass(frozen=True, slots=True)
class Run:
    """A policy, with its options, and an order of the queues."""

    name: str
    order: str
    policy: str
    options: dict[str, Any]


def runs_of(model: str) -> tuple[Run, ...]:
    """The runs; ``model`` is the one that load-blind routing overloads."""
    fixed = {"model": model, "topology": "IO", "agents": 1, "strategy": "Concise"}
    return (
        Run("fixed, fcfs", "fcfs", "fixed", fixed),
        Run("fixed, edf", "edf", "fixed", fixed),
        Run("least_loaded, edf", "edf", "least_loaded", {}),
        Run("greedy, edf", "edf", "greedy", {}),
    )


def config_of(file: ServeFile, run: Run) -> dict[str, Any]:
    """The pool's args with the run's order, and its policy as the pool's own."""
    policy = {"name": run.policy, "options": run.options}
    return {**file.args, "order": run.order, "policy": policy}


def offers_of(items: Sequence[Item], rate_per_min: float, count: int, seed: int) -> list[Offer]:
    """``count`` queries at Poisson times, budgets drawn from ``BUDGETS_S``."""
    rows = zip(poisson(rate_per_min, seed), draw_budgets(BUDGETS_S, seed), range(count))  # noqa: B905
    return [Offer(at_s, items[i % len(items)], budget_s) for at_s, budget_s, i in rows]


def items_of(folder: Path | None) -> list[Item]:
    """The test items of both data sets, in turns."""
    humaneval, mbpp = items_to_test(folder, DATASETS)
    return [item for pair in zip(humaneval, mbpp, strict=False) for item in pair]


def predicted(config: AppConfig, offers: Sequence[Offer], quality: QualityModel) -> Figures:
    """What the simulator says of a run, at the speeds that the config tells."""
    known = quality.calibration.items
    arrivals = [Arrival(o.at_s, known[o.item.id].sim_item(), o.budget_s) for o in offers]
    simulation = Simulation(config, quality, arrivals, make_policy(config))
    summary = simulation.run().summary()
    return Figures(
        n_offered=summary.n_offered,
        accuracy=summary.accuracy,
        accuracy_lo=summary.accuracy,
        accuracy_hi=summary.accuracy,
        slo=summary.slo,
        correct_on_time=summary.correct_on_time,
        latency_mean_s=summary.latency_mean_s,
        latency_p90_s=summary.latency_p90_s,
    )


def measure(url: str, run: Run, offers: Sequence[Offer]) -> list[Row]:
    """Offer it all, and grade what came back."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(run.name, total=len(offers))
        rows = asyncio.run(
            offer_all(url, offers, {"policy": run.policy}, lambda n: progress.advance(task, n))
        )
    return graded(rows)


def table(found: Sequence[tuple[Run, Figures, Figures]]) -> str:
    """Measured beside predicted, as Markdown."""
    lines = [
        "| run | | accuracy % | SLO % | correct and on time % | mean s | p90 s |",
        "|---|---|---|---|---|---|---|",
    ]
    for run, live, ahead in found:
        for kind, f in (("measured", live), ("simulated before", ahead)):
            lines.append(
                f"| {run.name} | {kind} | {f.accuracy:.1f} | {f.slo:.1f} | {f.correct_on_time:.1f} "
                f"| {f.latency_mean_s:.1f} | {f.latency_p90_s:.1f} |"
            )
    return "\n".join(lines) + "\n"


def main(
    config: Annotated[Path, typer.Option("--config", "-c")] = Path("serve_configs/local.yaml"),
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; by default the hub's.")
    ] = None,
    parameters: Annotated[
        Path | None, typer.Option(help="The pool's fitted models, from `inframind calibrate`.")
    ] = None,
    overloaded: Annotated[str, typer.Option(help="The model of the load-blind runs.")] = "",
    rate: Annotated[float, typer.Option(help="Queries per minute.")] = 20.0,
    queries: Annotated[int, typer.Option(min=1)] = 100,
    seed: int = 0,
) -> None:
    """Measure orders and policies on a live pool, each predicted before."""
    file = read_serve_file(config)
    model = overloaded or file.config.models[-1].name
    offers = offers_of(items_of(data), rate, queries, seed)
    quality = QualityModel(calibration_of(parameters), seed)
    runs, found = runs_of(model), []
    for order in dict.fromkeys(run.order for run in runs):
        own = [run for run in runs if run.order == order]
        args = config_of(file, own[0])
        pool = replace(file, args=args, config=parse_config(args))
        with own_state(), running_pool(pool, free_port()) as url:
            for run in own:
                ahead = predicted(parse_config(config_of(file, run)), offers, quality)
                found.append((run, figures(measure(url, run, offers)), ahead))
                console.print(f"{run.name}: SLO {found[-1][1].slo:.1f} %", highlight=False)
    RESULTS.mkdir(parents=True, exist_ok=True)
    kind = "SIMULATED models (fake engines). " if file.simulated else ""
    head = f"{kind}{queries} queries, {rate:g} a minute, budgets {BUDGETS_S} s, seed {seed}.\n\n"
    (RESULTS / "live.md").write_text(head + table(found))
    print(json.dumps(last_line(found)))


def calibration_of(parameters: Path | None) -> Calibration:
    """The shipped items, with the pool's own models where they were fitted."""
    base = shipped()
    if parameters is None:
        return base
    return replace(base, parameters=base.parameters.with_models(*load_models(parameters)))


def last_line(found: Sequence[tuple[Run, Figures, Figures]]) -> dict[str, Any]:
    """The figures of all runs, and the two differences."""
    slo = {run.name: live.slo for run, live, _ in found}
    return {
        "benchmark": "live",
        "edf_vs_fcfs_slo": round(slo["fixed, edf"] - slo["fixed, fcfs"], 1),
        "greedy_vs_fixed_slo": round(slo["greedy, edf"] - slo["fixed, edf"], 1),
        "runs": {run.name: asdict(live) for run, live, _ in found},
        "simulated_before": {run.name: asdict(ahead) for run, _, ahead in found},
    }


if __name__ == "__main__":
    typer.run(main)
