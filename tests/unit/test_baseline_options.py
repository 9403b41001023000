"""What the bounds are taken over: options played on an idle pool, and who shares a GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("scipy")
from benchmarks.bound_options import all_options, measure, resources, sharing
from benchmarks.bounds import Pool, bounds
from runtime.config import AppConfig
from runtime.sim.outcomes import Outcome, SimItem
from runtime.types import Strategy, TaskKind

ITEMS = [SimItem(f"i{n}", "math", TaskKind.MATH, 20) for n in range(3)]


class Skilled:
    """``large`` is right on all items, ``small`` on the first only; all write 200 tokens."""

    def draw(self, item, call, step, seen) -> Outcome:
        right = call.model == "large" or (call.model == "small" and item.item_id == "i0")
        return Outcome("Answer: 42" if right else "Answer: 1", 200)

    def solved(self, item, text: str) -> bool:
        return "42" in text


def test_options_name_every_model_depth_and_topology_once(config: AppConfig) -> None:
    options = all_options(config, "math", TaskKind.MATH)
    assert len({o.name for o in options}) == len(options)
    assert {o.strategy for o in options} == set(Strategy)
    assert {"IO", "Reflection", "Vote", "Debate", "MoA"} <= {o.topology for o in options}
    code = {o.topology for o in all_options(config, "mbpp", TaskKind.CODE)}
    assert "Vote" not in code


def test_measured_options_are_right_when_the_model_is_and_count_its_work(
    config: AppConfig,
) -> None:
    options = [
        o for o in all_options(config, "math", TaskKind.MATH)
        if o.topology == "IO" and len(o.models) == 1 and o.name.endswith("Concise")
    ]  # fmt: skip
    found = measure(config, Skilled(), ITEMS, options, samples=2, budget_s=100.0)
    assert [o.models for o in options] == [("small",), ("middle",), ("large",)]
    assert found.chance.tolist() == [[1, 0, 1], [0, 0, 1], [0, 0, 1]]
    assert (found.work_s > 0).sum(axis=2).tolist() == [[1, 1, 1]] * 3
    late = measure(config, Skilled(), ITEMS, options, samples=1, budget_s=1.5)
    assert late.chance.tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    knows = bounds(found, Pool(0.001, np.ones(3)), 100.0)
    assert knows.own.value == pytest.approx(1.0)


def test_models_on_one_gpu_share_its_seconds(config: AppConfig) -> None:
    gpus = (0, 1, 0)
    models = tuple(
        m.model_copy(update={"placement": m.placement.model_copy(update={"gpu": gpu})})
        for m, gpu in zip(config.models, gpus, strict=True)
    )
    shared = config.model_copy(update={"models": models})
    assert resources(shared) == {"gpu0": 1.0, "gpu1": 1.0}
    assert sharing(shared).tolist() == [[1, 0], [0, 1], [1, 0]]
    two = models[1].model_copy(update={"replicas": 2, "placement": config.models[1].placement})
    apart = config.model_copy(update={"models": (two,)})
    assert resources(apart) == {"middle": 2.0}
