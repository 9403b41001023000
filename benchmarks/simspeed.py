"""Speed and memory of the simulator on one core: ``python -m benchmarks.simspeed``.

The paper's five models at 100 queries a minute under load-blind policies, with the shipped quality
model on MATH; the plans differ in their calls per query. ``fixed`` asks one model, ``random`` any
of the five at any depth. Seconds are CPU seconds of this process, so that a busy machine counts
less; what is shared there (caches, hyper-threads) still slows it. The last line printed is one line
of JSON: ``calls_per_s_core`` is over all of the plans together, ``bytes_per_call`` what the process
grew by, ``cost_ratio`` the cost of a call in a run ten times as long.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.local_pool import read_serve_file
from runtime.config import AppConfig
from runtime.policy import make_policy
from runtime.sim.items import shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.quality import QualityModel
from runtime.sim.results import Results
from runtime.sim.settings import SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.speeds import calibrated_pool
from runtime.sim.workload import poisson_workload

POOL = Path(__file__).parent.parent / "serve_configs" / "b200.yaml"
RATE_PER_MIN = 100.0
MODEL = "llama-3.1-8b"
LONGER = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """A load-blind policy with its options."""

    name: str
    policy: str
    options: dict[str, Any]


PLANS = (
    Plan("one call", "fixed", {"model": MODEL}),
    Plan("CoT of 3", "fixed", {"model": MODEL, "topology": "CoT", "agents": 3}),
    Plan("Debate of 3", "fixed", {"model": MODEL, "topology": "Debate", "agents": 3}),
    Plan("random", "random", {}),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One run."""

    calls: int
    queries: int
    cpu_s: float

    @property
    def us_per_call(self) -> float:
        return self.cpu_s / self.calls * 1e6

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.cpu_s


def config_of(plan: Plan) -> AppConfig:
    """The pool with the plan's policy, deadlines soft."""
    config = read_serve_file(POOL).config
    policy = config.policy.model_copy(update={"name": plan.policy, "options": plan.options})
    return config.model_copy(update={"policy": policy, "at_deadline": "run_on"})


def run(
    plan: Plan, num_queries: int, items: tuple[SimItem, ...], engine: str
) -> tuple[Timing, Results]:
    """Simulate ``num_queries`` and take the time."""
    config = config_of(plan)
    arrivals = poisson_workload(items, rate_per_min=RATE_PER_MIN, num_queries=num_queries)
    simulation = Simulation(
        config,
        QualityModel(shipped(), seed=0),
        arrivals,
        make_policy(config),
        models=calibrated_pool(config),
        settings=SimSettings(engine="exact" if engine == "exact" else "fast"),
    )
    gc.collect()
    start = time.process_time()
    results = simulation.run()
    cpu_s = time.process_time() - start
    return Timing(len(results.calls), len(results.queries), cpu_s), results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--queries", type=int, default=1000, help="of the short runs")
    parser.add_argument("--engine", choices=["fast", "exact"], default="fast")
    args = parser.parse_args()
    items = shipped().select("math")
    run(PLANS[0], 50, items, args.engine)  # what is made once, is made
    timings = {}
    for plan in PLANS:
        timing, _ = run(plan, args.queries, items, args.engine)
        timings[plan.name] = timing
        print(
            f"{plan.name:12} {timing.calls / timing.queries:5.2f} calls a query "
            f"{timing.us_per_call:8.1f} us a call {timing.calls_per_s:8,.0f} calls/s"
        )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    longer, results = run(PLANS[1], args.queries * LONGER, items, args.engine)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    ratio = longer.us_per_call / timings[PLANS[1].name].us_per_call
    print(f"{PLANS[1].name}, {LONGER} times as long: {longer.us_per_call:.1f} us a call")
    print(
        f"bytes a call: tables {results.nbytes / longer.calls:.0f}, "
        f"growth of the process {grown / longer.calls:.0f}"
    )
    calls = sum(t.calls for t in timings.values())
    document = {
        "benchmark": "simspeed",
        "calls_per_s_core": round(calls / sum(t.cpu_s for t in timings.values())),
        "bytes_per_call": round(grown / longer.calls),
        "cost_ratio": round(ratio, 3),
        "by_plan": {name: round(t.calls_per_s) for name, t in timings.items()},
        "engine": args.engine,
        "rate_per_min": RATE_PER_MIN,
        "python": platform.python_version(),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
