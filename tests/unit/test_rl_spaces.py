"""Layout, encoder and lanes: what is seen, what may be chosen, each question once an epoch."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from rl.config import WorkloadConfig, parse_config
from rl.lanes import SimLanes, TrainingSweeps
from rl.pools import training_pool
from rl.spaces import (
    Encoder,
    decision_of,
    layout_for,
    layout_from_json,
    plan_of,
)
from rl.vectors import load_vectors, role_vectors
from runtime.errors import ConfigError
from runtime.policy import PlanView
from runtime.sim.items import shipped
from runtime.types import Route, Stop, TaskKind

CONFIG = training_pool(Path("serve_configs/b200.yaml"))
VECTORS = load_vectors()


def lanes_over(workload: WorkloadConfig, seed: str = "s") -> tuple[SimLanes, TrainingSweeps]:
    sweeps = TrainingSweeps(CONFIG, shipped(), workload, seed)
    return SimLanes(workload.lanes, sweeps, VECTORS), sweeps


def run(source: SimLanes, encoder: Encoder, queries: int) -> list:
    """The cheapest plan and the first open action, until so many queries have ended."""
    done = []
    while len(done) < queries:
        for due in source.due():
            if isinstance(due.view, PlanView):
                seen = encoder.planner(due.view)
                assert seen.shape == (encoder.layout.planner_floats,)
                masks = seen[-len(encoder.layout.roles) :]
                role = int(np.flatnonzero(masks)[0])
                source.decide(due, plan_of(encoder.layout, due.view.task, [0, 0, *[role] * 6]))
            else:
                seen = encoder.executor(due.view)
                assert seen.shape == (encoder.layout.executor_floats,)
                mask = seen[-encoder.layout.num_actions :]
                chosen = int(np.flatnonzero(mask)[-1])
                source.decide(due, decision_of(encoder.layout, chosen))
            assert np.isfinite(seen).all()
        done += source.finished()
    return done


def test_lanes_play_queries_to_their_end_and_start_new_sweeps():
    layout = layout_for(CONFIG)
    encoder = Encoder(layout, CONFIG, role_vectors(layout, VECTORS))
    source, sweeps = lanes_over(WorkloadConfig(lanes=3, sweep_queries=4, rates_rpm=(200.0,)))
    done = run(source, encoder, 30)
    assert {answer.status for answer in (f.answer for f in done)} <= {"ok", "late"}
    assert len({f.key for f in done}) == len(done)
    assert {f.key[0] for f in done} == {0, 1, 2}
    assert max(f.key[1] for f in done) >= 2
    assert sweeps.num_drawn >= len(done)


def test_an_epoch_asks_every_question_once():
    workload = WorkloadConfig(datasets=("humaneval",), sweep_queries=33, lanes=1)
    sweeps = TrainingSweeps(CONFIG, shipped(), workload, "s")
    asked = Counter(arrival.item.item_id for arrival in sweeps().arrivals)
    assert set(asked.values()) == {1}
    assert len(asked) == sweeps.num_items
    assert sweeps.epoch == 1.0


def test_the_same_seed_offers_the_same():
    def first(seed: str) -> list:
        sweeps = TrainingSweeps(CONFIG, shipped(), WorkloadConfig(sweep_queries=20), seed)
        return [(a.at_s, a.item.item_id, a.budget_s) for a in sweeps().arrivals]

    assert first("a") == first("a")
    assert first("a") != first("b")


def test_actions_are_models_times_depths_and_stop_is_last():
    layout = layout_for(CONFIG, adaptive=True)
    every = [decision_of(layout, a) for a in range(layout.num_actions)]
    assert every[-1] == Stop()
    routes = {(r.model, r.strategy) for r in every[:-1] if isinstance(r, Route)}
    assert len(routes) == 15


def test_a_plan_has_the_roles_of_its_agents_only():
    layout = layout_for(CONFIG)
    plan = plan_of(layout, TaskKind.MATH, [2, 1, 0, 3, 5, 5, 5, 5])
    assert plan.topology == layout.topologies[2]
    assert plan.roles == (layout.roles[0][1], layout.roles[3][1])


def test_a_layout_survives_json_and_another_version_is_refused():
    layout = layout_for(CONFIG, adaptive=True)
    assert layout_from_json(layout.as_json()) == layout
    with pytest.raises(ConfigError, match="layout 99"):
        layout_from_json({**layout.as_json(), "version": 99})
    with pytest.raises(ConfigError, match="cannot be read"):
        layout_from_json({**layout.as_json(), "colour": 1})


def test_adaptive_needs_to_see_progress():
    with pytest.raises(ConfigError, match="progress"):
        layout_for(CONFIG, adaptive=True, progress=False)


def test_a_wrong_key_in_a_config_is_named():
    good = {"name": "x", "pool": "serve_configs/b200.yaml"}
    assert parse_config(good, "f").ppo.lr == 3e-4
    with pytest.raises(ConfigError, match=r"f: ppo\.learning"):
        parse_config({**good, "ppo": {"learning": 1}}, "f")
    with pytest.raises(ConfigError, match="per_step"):
        parse_config({**good, "reward": {"credit": "per_step"}, "layout": {"adaptive": True}}, "f")
    with pytest.raises(ConfigError, match="unknown data set"):
        parse_config({**good, "workload": {"datasets": ["maths"]}}, "f")
