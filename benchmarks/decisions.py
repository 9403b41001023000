"""What a decision of the served policy costs: ``python -m benchmarks.decisions``.

Planner and executor of a policy on the paper's pool, one decision at a time on one core, without
the embedding of the question: encoding of the view, the forward pass in numpy and the draw. The
views are those of a simulated run at 100 queries a minute. ``--artefact`` measures a trained one;
the weights do not change the cost. The last line printed is one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rl.artefact import Artefact, load
from rl.config import PointConfig
from rl.executor import ExecutorNet, ExecutorSizes
from rl.nets import served
from rl.planner import PlannerNet, PlannerSizes
from rl.policy import LearnedPolicy
from rl.pools import at_point, training_pool
from rl.spaces import Layout, layout_for
from rl.vectors import load_vectors, role_vectors
from runtime.policy import PlanView, StepView
from runtime.sim.items import shipped
from runtime.sim.quality import QualityModel
from runtime.sim.simulation import Simulation
from runtime.sim.workload import poisson_workload

POOL = Path(__file__).parent.parent / "serve_configs" / "b200.yaml"
QUERIES = 400
REPEATS = 3


def untrained(layout: Layout) -> Artefact:
    """A policy with the weights it starts from."""
    torch.manual_seed(0)
    planner, executor = PlannerNet(layout, PlannerSizes()), ExecutorNet(layout, ExecutorSizes())
    return Artefact(
        layout, _tensors(planner), _tensors(executor), role_vectors(layout, load_vectors())
    )


def _tensors(net: torch.nn.Module) -> dict[str, Any]:
    return served({f"net.{name}": value.numpy() for name, value in net.state_dict().items()})


def views(policy: LearnedPolicy) -> tuple[list[PlanView], list[StepView]]:
    """What planner and executor are shown in a run."""
    config, engines = at_point(policy.config, PointConfig(slowdown=2.0))
    vectors = load_vectors()
    arrivals = poisson_workload(
        shipped().select("math", "train"), rate_per_min=100, num_queries=QUERIES
    )
    simulation = Simulation(
        config,
        QualityModel(shipped(), 0),
        arrivals,
        models=engines,
        embed=lambda item: vectors[item.item_id],  # type: ignore[arg-type,return-value]
    )
    plans: list[PlanView] = []
    steps: list[StepView] = []
    while (view := simulation.advance()) is not None:
        if isinstance(view, PlanView):
            plans.append(view)
            simulation.decide(policy.plan(view))
        else:
            steps.append(view)
            simulation.decide(policy.route(view))
    return plans, steps


def p50_ms(decide: Callable[[Any], Any], shown: list[Any]) -> float:
    """The median time of a decision."""
    times = []
    for view in itertools.chain.from_iterable(itertools.repeat(shown, REPEATS)):
        began_ns = time.perf_counter_ns()
        decide(view)
        times.append((time.perf_counter_ns() - began_ns) * 1e-6)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artefact", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = training_pool(POOL)
    artefact = load(args.artefact) if args.artefact else untrained(layout_for(config))
    policy = LearnedPolicy.of(config, artefact)
    plans, steps = views(policy)
    found = {
        "executor_p50_ms": round(p50_ms(policy.route, steps), 4),
        "planner_p50_ms": round(p50_ms(policy.plan, plans), 4),
        "plans": len(plans),
        "steps": len(steps),
        "parameters": sum(v.size for part in (artefact.planner, artefact.executor)
                          for v in part.values()),
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
