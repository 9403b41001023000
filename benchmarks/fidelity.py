"""Does the simulator, fitted to a pool at one rate, predict it at another? ``benchmarks.fidelity``.

A pool is started with a call log, and gets questions open loop at ``--fit-rate``. What
``inframind calibrate`` makes of that log (speed of the engines, lengths of the answers) goes into
the simulator, which is given the arrivals of the second run before that takes place at
``--test-rate``. Compared are the latencies of steps: the wait for a lease and the service.

Errors are percent of what was measured. The measured run is one draw, so its own mean has the
interval that is shown (bootstrap, 95 %). The simulator estimates prompts from above: its questions
are shortened by what that is too much in the first run. Last comes one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import Progress

from actors.local_pool import ServeFile, read_serve_file, running_pool
from actors.transport import free_port
from benchmarks.fidelity_report import ALL, Steps, about_of, as_markdown, compare, draw, write_csv
from benchmarks.inputs import items_to_test, own_state
from benchmarks.open_loop import Offer, offer_all
from runtime.config import AppConfig, parse_config
from runtime.datasets import Item
from runtime.policy import make_policy
from runtime.sim.calibrate import calibrate, calls_of
from runtime.sim.fitted import fitted_calibration, fitted_pool
from runtime.sim.items import shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.parameters import PoolParameters, dump_pool
from runtime.sim.quality import QualityModel
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival, poisson
from runtime.token_estimate import count_tokens

RESULTS = Path("benchmarks/results")
DATASETS = ("humaneval", "mbpp")
BUDGET_S = 600.0
SETTLE_S = 3.0
"""From the last answer until its rows are surely written."""

console = Console()


# --- measured ------------------------------------------------------------------------------------


def offers_of(items: Sequence[Item], rate_per_min: float, count: int, seed: int) -> list[Offer]:
    """``count`` questions at Poisson times; another seed takes other questions, too."""
    order = np.random.default_rng(seed).permutation(len(items))
    times = zip(range(count), poisson(rate_per_min, seed), strict=False)
    return [Offer(at_s, items[order[i % len(items)]], BUDGET_S) for i, at_s in times]


def offer(url: str, offers: Sequence[Offer], what: str) -> None:
    """Offer it all, and wait until it is in the log."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(what, total=len(offers))
        asyncio.run(offer_all(url, offers, {}, lambda n: progress.advance(task, n)))
    time.sleep(SETTLE_S)


def steps_of(calls: pa.Table) -> Steps:
    """The calls of a log that got their answer."""
    rows = [r for r in calls.to_pylist() if r["status"] == "ok" and r["completion_tokens"]]
    return Steps(
        [r["model"] for r in rows],
        np.array([r["queue_s"] + r["service_s"] for r in rows]),
        np.array([float(r["completion_tokens"]) for r in rows]),
        np.array([float(r["prompt_tokens"] or r["estimated_tokens"]) for r in rows]),
    )


# --- predicted -----------------------------------------------------------------------------------


def predict(
    config: AppConfig,
    offers: Sequence[Offer],
    pool: PoolParameters,
    worlds: int,
    shorter_by: float = 0.0,
) -> Steps:
    """Steps of ``worlds`` simulations of these offers; lengths and luck are drawn anew in each.

    ``shorter_by`` tokens are taken from every question.
    """
    base = fitted_calibration(shipped(), pool)
    models = fitted_pool(config, pool.engines)
    arrivals = [Arrival(o.at_s, _shortened(o.item, shorter_by), BUDGET_S) for o in offers]
    found: list[Steps] = []
    for world in range(worlds):
        policy, quality = make_policy(config), QualityModel(base, world)
        calls = Simulation(config, quality, arrivals, policy, models=models).run().calls
        whole = calls.named("status") == "ok"
        found.append(
            Steps(
                list(calls.named("model")[whole]),
                (calls["ended_s"] - calls["asked_s"])[whole],
                calls["completion_tokens"][whole].astype(float),
                calls["prompt_tokens"][whole].astype(float),
            )
        )
    return Steps(
        [m for steps in found for m in steps.model],
        np.concatenate([steps.latency_s for steps in found]),
        np.concatenate([steps.output_tokens for steps in found]),
        np.concatenate([steps.prompt_tokens for steps in found]),
    )


def prompt_excess(
    config: AppConfig, offers: Sequence[Offer], pool: PoolParameters, measured: Steps
) -> float:
    """Tokens by which simulated prompts are longer than the engines counted them, in the mean."""
    simulated = predict(config, offers, pool, 1)
    return float(np.mean(simulated.prompt_tokens) - np.mean(measured.prompt_tokens))


def _shortened(item: Item, by: float) -> SimItem:
    known = shipped().items.get(item.id)
    sized = _sized(item) if known is None else known.sim_item()
    return replace(sized, question_tokens=max(1, round(sized.question_tokens - by)))


def _sized(item: Item) -> SimItem:
    return SimItem(item.id, item.dataset, item.task, count_tokens(item.question), item.choices)


# --- the whole -----------------------------------------------------------------------------------


def main(
    config: Annotated[Path, typer.Option("--config", "-c")] = Path("serve_configs/local.yaml"),
    data: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; by default the hub's.")
    ] = None,
    fit_rate: Annotated[float, typer.Option(help="Queries a minute of the run to fit.")] = 8.0,
    test_rate: Annotated[float, typer.Option(help="Of the run to predict.")] = 16.0,
    queries: Annotated[int, typer.Option(help="Of each run.")] = 120,
    policy: Annotated[str, typer.Option(help="The policy.")] = "least_loaded",
    worlds: Annotated[int, typer.Option(help="Simulations to average.")] = 20,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = RESULTS,
) -> None:
    """Fit at one rate, predict another, measure it, compare."""
    start_s = time.monotonic()
    items = [item for items in items_to_test(data, DATASETS) for item in items]
    fit_offers = offers_of(items, fit_rate, queries, seed)
    test_offers = offers_of(items, test_rate, queries, seed + 1)
    with tempfile.TemporaryDirectory(prefix="fidelity-", dir="/tmp") as temp:
        file = _with_log(read_serve_file(config), Path(temp), policy)
        with own_state(), running_pool(file, free_port()) as url:
            console.print("warming up")
            offer(url, offers_of(items, 60.0, 2 * len(file.config.models), seed + 2), "warm")
            warm_at = time.time()
            offer(url, fit_offers, f"{fit_rate:g}/min")
            fit_at = time.time()
            first = calls_of(Path(temp), simulated=file.simulated, since_at=warm_at)
            fitted = calibrate(first, file.config)
            measured = steps_of(first)
            excess = prompt_excess(file.config, fit_offers, fitted.pool, measured)
            # Before it is measured.
            predicted = predict(file.config, test_offers, fitted.pool, worlds, excess)
            offer(url, test_offers, f"{test_rate:g}/min")
            second = calls_of(Path(temp), simulated=file.simulated, since_at=fit_at)
    lines = compare(steps_of(second), predicted, seed)
    refitted = predict(file.config, fit_offers, fitted.pool, worlds, excess)
    own = compare(measured, refitted, seed)
    counts = {
        "fit": len(first),
        "test": len(second),
        "fit_rate": fit_rate,
        "test_rate": test_rate,
        "policy": policy,
    }
    out.mkdir(parents=True, exist_ok=True)
    text = as_markdown(lines, about_of(file, fitted, counts, own))
    write_csv(out / "fidelity.csv", lines)
    (out / "fidelity.md").write_text(text, encoding="utf-8")
    (out / "fidelity.json").write_text(dump_pool(fitted.pool), encoding="utf-8")
    pairs = (
        (f"fitted, {fit_rate:g} queries/min", measured, refitted),
        (f"predicted, {test_rate:g} queries/min", steps_of(second), predicted),
    )
    draw(out / "fidelity.png", pairs)
    print(text)
    errors = {x.quantity: abs(x.error) for x in lines if x.model == ALL}
    told = {
        "benchmark": "fidelity",
        "mean_error": round(errors["latency mean, s"], 2),
        "p90_error": round(errors["latency p90, s"], 2),
        "unit": "percent",
        "simulated_engines": file.simulated,
        "wall_s": round(time.monotonic() - start_s, 1),
    }
    print(json.dumps(told))


def _with_log(file: ServeFile, folder: Path, policy: str) -> ServeFile:
    """The same pool with a log of its own, whole latencies and this policy."""
    args = {
        **file.args,
        "policy": {"name": policy},
        "at_deadline": "run_on",
        "max_budget_s": BUDGET_S,
        "call_log": {"folder": str(folder), "flush_s": 1.0},
    }
    return replace(file, args=args, config=parse_config(args, "fidelity"))


if __name__ == "__main__":
    typer.run(main)
