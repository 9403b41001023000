"""The way of ``benchmarks.fidelity``, with a simulated pool in the place of the live one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.fidelity import offers_of, predict, prompt_excess, steps_of
from benchmarks.fidelity_report import ALL, Line, Steps, as_markdown, compare, write_csv
from benchmarks.open_loop import Offer
from runtime.datasets import Item
from runtime.policy import make_policy
from runtime.sim.calibrate import calibrate
from runtime.sim.items import TASKS, shipped
from runtime.sim.pool import SimModel
from runtime.sim.quality import QualityModel
from runtime.sim.simulation import Simulation
from runtime.sim.workload import Arrival
from runtime.types import TaskKind
from tests.sim_case import model, pool
from tests.sim_log import call_rows, log_table

# Names of the shipped table, so that their abilities and lengths are known; slow, as on a CPU.
NAMES = ("llama-3.1-8b", "llama-3.2-3b")
CPU = {NAMES[0]: SimModel(0.2, 0.02, 0.01, 150.0), NAMES[1]: SimModel(0.07, 0.01, 0.004, 300.0)}
CONFIG = pool(
    *(model(n, context_tokens=16384, max_num_seqs=8) for n in NAMES),
    policy={"name": "least_loaded"},
    strategies={"flash_tokens": 64, "concise_tokens": 128, "deepthink_tokens": 256},
)
ITEMS = [
    Item(i.item_id, "mbpp", TaskKind.CODE, "?", "pass", tests="", entry_point="f")
    for i in shipped().select("mbpp")
]


def live(offers: list[Offer], seed: int) -> list:  # type: ignore[type-arg]
    """What the log of a pool with the engines above would hold."""
    known = shipped().items
    arrivals = [Arrival(o.at_s, known[o.item.id].sim_item(), o.budget_s) for o in offers]
    quality = QualityModel(shipped(), seed)
    simulation = Simulation(CONFIG, quality, arrivals, make_policy(CONFIG), models=CPU)
    return call_rows(simulation.run(), TASKS)


def test_another_rate_is_predicted_from_the_log_of_one() -> None:
    fit_offers = offers_of(ITEMS, 12.0, 300, seed=1)
    test_offers = offers_of(ITEMS, 24.0, 300, seed=2)
    log = log_table(live(fit_offers, seed=77), [])
    fitted = calibrate(log, CONFIG)
    excess = prompt_excess(CONFIG, fit_offers, fitted.pool, steps_of(log))
    assert abs(excess) < 1.0
    predicted = predict(CONFIG, test_offers, fitted.pool, 3)
    measured = steps_of(log_table(live(test_offers, seed=78), []))
    lines = {line.quantity: line for line in compare(measured, predicted, 0) if line.model == ALL}
    assert abs(lines["latency mean, s"].error) < 15
    assert abs(lines["latency p90, s"].error) < 15
    unfitted = predict(CONFIG, test_offers, calibrate(log.slice(0, 0), CONFIG).pool, 1)
    worse = {x.quantity: x for x in compare(measured, unfitted, 0) if x.model == ALL}
    assert abs(worse["latency mean, s"].error) > 50


def steps(latency_s: float, count: int, name: str = "m") -> Steps:
    ones = np.ones(count)
    return Steps([name] * count, latency_s * ones, 10 * ones, 20 * ones)


def test_errors_are_percent_of_what_was_measured(tmp_path: Path) -> None:
    lines = compare(steps(2.0, 50), steps(2.2, 20), 0)
    mean = next(x for x in lines if (x.model, x.quantity) == (ALL, "latency mean, s"))
    assert mean.error == pytest.approx(10.0)
    assert (mean.low, mean.high) == (2.0, 2.0)
    write_csv(tmp_path / "f.csv", lines)
    assert "m,share of the steps" in (tmp_path / "f.csv").read_text().replace('"', "")
    assert "+10.0 |" in as_markdown(lines, ["about"])


def test_a_line_bounds_what_was_measured() -> None:
    assert Line("m", "x", 4.0, 3.0, 5.0, 3.0).error == -25.0
