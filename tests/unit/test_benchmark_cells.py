"""The harness of the tables: what is compared, on which pools, with which intervals."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from actors.log_folder import state_folder
from benchmarks import contenders, inputs
from benchmarks.cells import Cell, run_cells, simulate
from benchmarks.contenders import CONTENDERS, chosen, contender, in_order
from benchmarks.inputs import own_state
from benchmarks.loads import use
from benchmarks.points import CALIBRATED, Point, point
from benchmarks.rows import Row, interval, played, read_rows, write_rows
from benchmarks.worlds import DATASETS, World, embeddings
from runtime.config import CallLogConfig
from runtime.errors import ConfigError
from runtime.policy import make_policy

COLUMNS = (
    "pool,operating_point,dataset,rate_rpm,policy,n_offered,accuracy,accuracy_lo,accuracy_hi,"
    "latency_mean_s,latency_p50_s,latency_p90_s,slo,correct_on_time,cost_gpu_s,calls_per_query,seed"
)


def cell(policy: str = "least_loaded", **changes) -> Cell:
    return replace(Cell("math", 100.0, contender(policy), 12), **changes)


@pytest.mark.parametrize("known", CONTENDERS, ids=lambda c: c.name)
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_contender_is_a_policy_on_every_data_set(known, dataset):
    config = CALIBRATED.config(known, dataset, hard=False)
    assert make_policy(config).name == known.policy
    assert config.order == known.order
    assert config.at_deadline == "run_on"


def test_baselines_run_first_come_first_served():
    assert {c.order for c in CONTENDERS if c.kind in ("paper", "baseline")} == {"fcfs"}


def test_an_unknown_contender_or_point_is_named():
    with pytest.raises(ConfigError, match="gredy"):
        contender("gredy")
    with pytest.raises(ConfigError, match="warm"):
        point("warm")
    with pytest.raises(ConfigError, match="nothing_here"):
        chosen("nothing_here")


def test_an_order_can_be_changed_and_is_named():
    assert in_order("greedy", "fcfs").name == "greedy/fcfs"
    assert in_order("greedy", "fcfs").order == "fcfs"


def test_choices_are_kept_with_the_command_that_made_them(tmp_path, monkeypatch):
    path = tmp_path / "chosen.json"
    monkeypatch.setattr(contenders, "CHOSEN", path)
    contenders.choose("a", {"x": 1}, "python -m a")
    contenders.choose("b", {"y": 2}, "python -m b")
    contenders.choose("a", {"x": 3}, "python -m a")
    assert contenders.chosen("a") == {"x": 3}
    assert json.loads(path.read_text())["b"] == {"command": "python -m b", "value": {"y": 2}}


def test_a_point_changes_only_what_it_says():
    base = CALIBRATED.config(contender("greedy"), "math", hard=False)
    plain = CALIBRATED.engines(base)
    at = Point("x", slowdown=2.0, max_num_seqs=8, per_model=(("llama-3.2-3b", 32),))
    config = at.config(contender("greedy"), "math", hard=True)
    assert config.at_deadline == "finish"
    seqs = {m.name: m.max_num_seqs for m in config.models}
    assert seqs.pop("llama-3.2-3b") == 32
    assert set(seqs.values()) == {8}
    for model in config.models:
        known = base.model(model.name).speed
        assert model.speed.token_s == pytest.approx(2 * known.token_s)
        assert model.speed.prefill_tokens_per_s == pytest.approx(known.prefill_tokens_per_s / 2)
    for name, engine in at.engines(config).items():
        assert engine.a_s == pytest.approx(2 * plain[name].a_s)
        assert engine.kv_tokens == plain[name].kv_tokens


def test_gpus_are_shared_unless_a_point_says_otherwise():
    config = CALIBRATED.config(contender("greedy"), "math", hard=False)
    gpus = [engine.gpus for engine in CALIBRATED.engines(config).values()]
    assert len(set(gpus)) == 2
    alone = Point("alone", shared_gpus=False).engines(config)
    assert {engine.gpus for engine in alone.values()} == {()}


def test_a_cap_holds_for_policies_that_cap_calls_themselves():
    at = Point("short", cap=300)
    calls = simulate(cell("moa", point=at)).calls
    assert calls["max_tokens"].max() == 300
    assert calls["completion_tokens"].max() <= 300


def test_policies_see_the_same_queries():
    one, other = simulate(cell("least_loaded")), simulate(cell("single_best"))
    for results in (one, other):
        order = np.argsort(results.queries["query"])
        assert results.queries["arrival_s"][order].tolist() == pytest.approx(
            [a.at_s for a in cell().arrivals()]
        )
        assert results.queries.named("item")[order].tolist() == [
            a.item.item_id for a in cell().arrivals()
        ]


def test_a_cell_is_the_same_wherever_it_runs():
    cells = [cell(), cell("cascade")]
    here, _ = run_cells(cells, played, jobs=1)
    there, cpu_s = run_cells(cells, played, jobs=2)
    assert [p.row for p in here] == [p.row for p in there]
    assert cpu_s > 0


def test_masrouter_reads_the_questions():
    vectors = embeddings()
    items = [i.item_id for d in DATASETS for i in World().items(d)]
    assert set(items) == set(vectors)
    assert all(np.linalg.norm(vectors[i]) == pytest.approx(1.0, abs=0.01) for i in items[:50])
    plans = simulate(cell("masrouter", queries=30)).queries
    assert len(set(plans.named("topology"))) > 1


def test_rarer_shared_mistakes_change_only_that_parameter():
    base, never = World().calibration(), World(same_wrong=0.0).calibration()
    assert never.parameters.datasets["math"].same_wrong.value == 0.0
    assert never.parameters.datasets["math"].tau == base.parameters.datasets["math"].tau
    assert never.items == base.items


def test_hard_deadlines_end_queries_in_time():
    slow = Point("slow", slowdown=20.0)
    soft, hard = (
        simulate(cell("single_best", point=slow, hard=h, budgets_s=(10.0,))).summary()
        for h in (False, True)
    )
    assert soft.latency_p90_s > 10.0
    assert hard.latency_p90_s <= 10.1


def test_rows_have_the_agreed_columns_and_survive_the_file(tmp_path):
    row = played(cell(), simulate(cell())).row
    unknown = replace(row, policy="other", cost_gpu_s=math.nan)
    path = tmp_path / "rows.csv"
    write_rows(path, [row, unknown])
    assert path.read_text().splitlines()[0] == COLUMNS
    assert ",".join(f.name for f in fields(Row)) == COLUMNS
    back = read_rows(path)
    assert back[0].policy == "least_loaded"
    assert back[0].latency_mean_s == pytest.approx(row.latency_mean_s, abs=1e-4)
    assert math.isnan(back[1].cost_gpu_s)


def test_an_interval_of_equal_values_is_a_point():
    assert interval(np.ones(20), [f"i{i}" for i in range(20)]) == (1.0, 1.0)


def test_an_interval_is_that_of_the_mean_where_every_item_came_once():
    values = np.array([0.0, 1.0] * 200)
    low, high = interval(values, [f"i{i}" for i in range(400)])
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 20, rel=0.1)


def test_repeats_of_an_item_are_no_further_evidence():
    once = interval(np.array([0.0, 1.0] * 20), [f"i{i}" for i in range(40)])
    often = interval(np.array([0.0, 1.0] * 20 * 10), [f"i{i % 40}" for i in range(400)])
    assert often == pytest.approx(once, abs=0.02)


def test_use_counts_what_waits_and_what_runs():
    shown = use(cell("moa", queries=30), simulate(cell("moa", queries=30)))
    assert sum(m.calls for m in shown.models.values()) == 30 * 6
    assert sum(shown.routes.values()) == pytest.approx(1.0)
    assert sum(shown.topologies.values()) == pytest.approx(1.0)
    slow = shown.models["deepseek-r1-distill-qwen-32b"]
    quick = shown.models["llama-3.2-3b"]
    assert slow.step_s > quick.step_s
    assert slow.deepest_queue > quick.mean_queue
    assert 0 < slow.slots_percent <= 100


def test_a_live_benchmark_leaves_the_users_state_alone(monkeypatch):
    monkeypatch.setenv("INFRAMIND_STATE", "/srv/state")
    with own_state() as folder:
        assert state_folder(CallLogConfig()) == folder / "calls"
        assert folder.is_dir()
    assert state_folder(CallLogConfig()) == Path("/srv/state/calls")
    assert not folder.exists()


def test_questions_of_live_benchmarks_come_from_a_folder_or_the_hub(monkeypatch):
    monkeypatch.setattr(inputs, "load_hub", lambda name, split: (f"hub {name} {split}",))
    monkeypatch.setattr(inputs, "load_folder", lambda at, name, split: (f"{at} {name} {split}",))
    assert inputs.items_to_test(None, ["math"]) == [("hub math test",)]
    assert inputs.items_to_test(Path("here"), ["mbpp"]) == [("here mbpp test",)]
