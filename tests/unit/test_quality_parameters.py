"""Parameters that say where they come from: files, ranges, worlds, descriptions."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from random import Random

import numpy as np
import pytest

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.sim.describe import as_text, describe
from runtime.sim.items import load_folder, shipped
from runtime.sim.parameters import (
    Parameter,
    Status,
    draw_parameters,
    dump_models,
    load_models,
    parse_quality,
)
from runtime.sim.quality import QualityModel
from runtime.sim.speeds import calibrated_pool, engine_speed
from runtime.types import Strategy
from tests.conftest import app_args
from tests.drawn import POOL

FOLDER = files("runtime.sim") / "calibration"
SHARED = Path(__file__).parents[3] / "shared"
SIZES = {
    ("math", "train"): 519,
    ("math", "val"): 131,
    ("math", "test"): 500,
    ("mbpp", "train"): 374,
    ("mbpp", "val"): 94,
    ("mbpp", "test"): 500,
    ("gsm_hard", "train"): 500,
    ("gsm_hard", "val"): 125,
    ("gsm_hard", "test"): 500,
    ("humaneval", "train"): 33,
    ("humaneval", "val"): 10,
    ("humaneval", "test"): 131,
    ("mmlu_pro", "train"): 500,
    ("mmlu_pro", "val"): 70,
    ("mmlu_pro", "test"): 500,
}
"""Table 6 of the paper; HumanEval's val lies inside its train."""


def quality_json() -> dict:
    return json.loads((FOLDER / "quality.json").read_text())


# --- items ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dataset", "split"), SIZES)
def test_every_split_is_there(dataset, split):
    assert len(shipped().select(dataset, split)) == SIZES[dataset, split]


def test_a_set_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"no items of data set 'gpqa', split 'test'"):
        shipped().select("gpqa")


def test_nothing_per_item_comes_from_a_source_without_a_licence():
    licences = {
        row["source"]: row["licence"].split("; ")
        for row in csv.DictReader((FOLDER / "sources.csv").read_text().splitlines())
    }
    for item in shipped().items.values():
        if item.measured:
            assert any("none" not in licence for licence in licences[item.source]), item
        else:
            assert item.prior_sd is not None
            assert item.source in ("prior", "math_regression")
        if item.dataset in ("mbpp", "humaneval"):
            assert not item.measured


def test_the_shipped_difficulties_of_code_are_not_the_fitted_ones():
    path = SHARED / "calibration" / "items.csv"
    if not path.exists():
        pytest.skip("the fitted difficulties are not shipped")
    fitted = load_folder(path.parent).items
    for dataset in ("mbpp", "humaneval"):
        items = shipped().select(dataset)
        pairs = [
            (shipped().items[i.item_id].difficulty, fitted[i.item_id].difficulty) for i in items
        ]
        assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.2


def test_only_measured_items_can_be_asked_for():
    assert len(shipped().select("math", "test", measured_only=True)) == 500
    assert len(shipped().select("gsm_hard", "val", measured_only=True)) == 125
    assert shipped().select("humaneval", "val", measured_only=True) == ()


def test_sizes_of_items_are_those_of_their_texts():
    path = SHARED / "data" / "mmlu_pro.test.jsonl"
    if not path.exists():
        pytest.skip("the questions are not shipped")
    items = {i.item_id: i for i in shipped().select("mmlu_pro")}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        item = items[row["id"]]
        assert len(item.choices) == len(row["choices"])
        assert len(row["question"]) / 8 < item.question_tokens < len(row["question"])


def test_stand_ins_for_choices_are_as_long_as_the_choices_and_differ():
    for item in shipped().select("mmlu_pro")[:50]:
        row = shipped().items[item.item_id]
        words = sum(len(choice.split()) for choice in item.choices)
        assert words == pytest.approx(row.choice_tokens, abs=len(item.choices))
        assert len(set(item.choices)) == row.num_choices


# --- a folder of one's own ------------------------------------------------------------------------

ROW = "math/test/algebra/2277,math,test,1.5,0.9,2PL (9 responses)\n"


def write(folder: Path, rows: str, abilities: str | None = None) -> Path:
    (folder / "items.csv").write_text(f"question_id,dataset,split,b_draw,a_sim,src\n{rows}")
    if abilities is not None:
        (folder / "ability.csv").write_text(f"dataset,model,theta\n{abilities}")
    return folder


def test_a_folder_gives_difficulties_and_abilities(tmp_path):
    known = shipped().select("math")[0].item_id
    own = load_folder(write(tmp_path, ROW + f"{known},math,test,0.5,1.1,prior draw\n", ""))
    first, second = own.items.values()
    assert (first.difficulty, first.discrimination, first.measured) == (1.5, 0.9, True)
    assert not second.measured
    assert second.question_tokens == shipped().items[known].question_tokens > 0
    assert own.parameters == shipped().parameters
    moved = load_folder(write(tmp_path, ROW, "math,Llama-3.1-8B,2.5\n")).parameters
    abilities = {m.name: m.skills["math"].ability for m in moved.models}
    assert abilities["llama-3.1-8b"].value == 2.5
    before = {m.name: m.skills["math"].ability for m in shipped().parameters.models}
    assert abilities["llama-3.2-3b"] == before["llama-3.2-3b"]


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ("math/x,math,test,high,0.9,2PL\n", r"items.csv, line 2: could not convert"),
        (ROW + "math/x,math\n", r"items.csv, line 3"),
    ],
)
def test_a_bad_row_is_named(tmp_path, rows, error):
    with pytest.raises(ConfigError, match=error):
        load_folder(write(tmp_path, rows))


def test_a_missing_file_or_column_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"items.csv: No such file"):
        load_folder(tmp_path)
    (tmp_path / "items.csv").write_text("question_id,dataset\nx,math\n")
    with pytest.raises(ConfigError, match=r"line 2: no column 'src'"):
        load_folder(tmp_path)


# --- parameters -----------------------------------------------------------------------------------


def all_parameters(node: object, path: str = ""):
    if isinstance(node, dict) and "value" in node:
        yield path, node
    elif isinstance(node, dict):
        for key, child in node.items():
            yield from all_parameters(child, f"{path}/{key}")
    elif isinstance(node, list):
        for child in node:
            yield from all_parameters(child, f"{path}/{child['name']}")


def test_every_parameter_has_a_status_and_a_source_and_assumed_ones_a_range():
    for path, parameter in all_parameters(quality_json()):
        assert parameter["status"] in ("measured", "published", "assumed")
        assert len(parameter["source"]) >= 5, path
        if "low" in parameter:
            assert parameter["low"] <= parameter["value"] <= parameter["high"], path
    without = [
        path.rpartition("/")[2]
        for path, p in all_parameters(quality_json())
        if p["status"] == "assumed" and "low" not in p
    ]
    fixed = {"guess", "offset", "runaway", "runaway_tokens"}
    priors = {"difficulty_mean", "difficulty_sd", "discrimination"}
    assert set(without) <= fixed | priors


def test_the_pool_of_the_paper_is_there():
    assert tuple(m.name for m in shipped().parameters.models) == POOL


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda q: q.update(version=2), "version 2 cannot be read"),
        (lambda q: q["rules"].pop("anchoring"), "anchoring"),
        (lambda q: q["rules"].update(luck=q["rules"]["anchoring"]), "luck"),
        (lambda q: q["rules"]["anchoring"].update(status="sure"), "rules.anchoring.status"),
        (lambda q: q["rules"]["anchoring"].update(extra=1), "rules.anchoring.extra"),
        (lambda q: q["rules"]["anchoring"].update(low=0.9), "low must not be above high"),
        (lambda q: q["rules"]["anchoring"].pop("high"), "low and high are given together"),
        (lambda q: q["models"][0]["skills"]["math"].pop("ability"), "models.0.skills.math.ability"),
    ],
)
def test_a_broken_file_is_refused_by_name_and_key(change, error):
    quality = quality_json()
    change(quality)
    with pytest.raises(ConfigError, match=error) as raised:
        parse_quality(json.dumps(quality), "mine.json")
    assert raised.value.message.startswith("mine.json: ")


def test_models_go_to_json_and_back(tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(dump_models(shipped().parameters.models))
    assert load_models(path) == shipped().parameters.models


def test_a_file_of_models_can_add_to_the_pool(tmp_path):
    one = replace(shipped().parameters.models[3], name="mine")
    path = tmp_path / "pool.json"
    path.write_text(dump_models((one,)))
    calibration = replace(
        shipped(), parameters=shipped().parameters.with_models(*load_models(path))
    )
    mine = QualityModel(calibration, 0).accuracy("math", "mine", Strategy.CONCISE)
    assert mine == pytest.approx(0.5, abs=0.01)


def test_a_file_that_is_not_there_or_no_json_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json: No such file"):
        load_models(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match=r"bad\.json: "):
        load_models(tmp_path / "bad.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_parameter_is_a_number(value):
    with pytest.raises(ValueError, match="finite"):
        Parameter(value, Status.ASSUMED, "test")


# --- worlds ---------------------------------------------------------------------------------------


def lines_of(parameters):
    return {x.name: x for x in describe(replace(shipped(), parameters=parameters))}


def test_a_world_moves_what_is_assumed_within_its_range_and_nothing_else():
    before = lines_of(shipped().parameters)
    worlds = [lines_of(draw_parameters(shipped().parameters, Random(n))) for n in range(20)]
    for name, line in before.items():
        values = {world[name].value for world in worlds}
        if line.status is Status.ASSUMED and line.low is not None:
            assert len(values) == len(worlds), name
            assert all(line.low <= value <= line.high for value in values), name
        else:
            assert values == {line.value}, name


def test_the_same_generator_gives_the_same_world():
    one, two = (draw_parameters(shipped().parameters, Random(3)) for _ in range(2))
    assert one == two != draw_parameters(shipped().parameters, Random(4))


def test_a_strategys_effect_moves_for_all_models_together_and_abilities_alone():
    worlds = [lines_of(draw_parameters(shipped().parameters, Random(n))) for n in range(60)]

    def correlation(one: str, other: str) -> float:
        return np.corrcoef([[world[name].value for world in worlds] for name in (one, other)])[0, 1]

    same = [f"mbpp.{model}.DeepThink.offset" for model in POOL[1:3]]
    assert correlation(*same) == pytest.approx(1)
    alone = [f"mbpp.{model}.ability" for model in POOL[1:3]]
    assert abs(correlation(*alone)) < 0.35


def test_worlds_differ_in_accuracy_about_the_shipped_one():
    found = [
        QualityModel(
            replace(shipped(), parameters=draw_parameters(shipped().parameters, Random(n))), 0
        ).accuracy("mbpp", "llama-3.1-8b", Strategy.DEEPTHINK)
        for n in range(30)
    ]
    assert np.std(found) > 0.02
    assert np.mean(found) == pytest.approx(0.644, abs=0.03)


# --- description ----------------------------------------------------------------------------------


def test_a_run_says_what_it_rests_on():
    lines = describe(shipped(), ["humaneval"], ["llama-3.1-8b"])
    names = [line.name for line in lines]
    assert "rules.debater_fixes_shown" in names
    assert "humaneval.llama-3.1-8b.Concise.tokens_mean" in names
    assert not any("mmlu_pro" in name or "llama-3.2-3b" in name for name in names)
    counts = {line.source: line.value for line in lines if line.name.endswith("num_difficulties")}
    assert counts == {"prior": 164}


def test_the_table_shows_value_range_status_and_source():
    text = as_text(describe(shipped(), ["math"], ["llama-3.2-3b"]))
    head, columns, *rows = text.splitlines()
    assert head.endswith(" assumed")
    assert columns.split() == ["parameter", "value", "(range)", "status", "source"]
    row = next(r for r in rows if r.startswith("rules.debater_fixes_shown"))
    assert "0.35 (0.2 to 0.5)" in row
    assert "assumed" in row
    assert int(head.split()[0]) == len(rows)


# --- speeds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "iteration_ms", "per_seq_ms"),
    [
        (POOL[0], 12.9, 0.044),
        (POOL[1], 9.1, 0.041),
        (POOL[2], 6.8, 0.037),
        (POOL[3], 4.3, 0.034),
        (POOL[4], 2.9, 0.032),
    ],
)
def test_speeds_on_b200_are_the_kernels_and_the_host(model, iteration_ms, per_seq_ms):
    speed, kernels = engine_speed(model), engine_speed(model, host=False)
    assert 1e3 * speed.iteration_s == pytest.approx(iteration_ms, abs=0.06)
    assert 1e3 * speed.per_seq_s == pytest.approx(per_seq_ms, abs=0.0006)
    assert speed.iteration_s - kernels.iteration_s == pytest.approx(0.001)


def test_newer_gpus_are_faster():
    for model in POOL:
        times = [engine_speed(model, gpu).iteration_s for gpu in ("B200", "H200", "H100")]
        assert times == sorted(times)


def test_kv_memory_is_what_the_weights_leave():
    rows = csv.DictReader((FOLDER / "speeds.csv").read_text().splitlines())
    for row in rows:
        speed = engine_speed(row["model"], row["gpu"])
        assert speed.kv_tokens() == pytest.approx(int(row["kv_tokens_alone"]), rel=0.02)
    small = engine_speed(POOL[0]).kv_tokens(0.40)
    assert 0 < small < 50_000
    assert engine_speed(POOL[0]).kv_tokens(0.30) == 0


def test_an_unknown_gpu_or_model_is_named():
    with pytest.raises(ConfigError, match=r"'gpt-x' on B200"):
        engine_speed("gpt-x")
    with pytest.raises(ConfigError, match=r"on TPU"):
        engine_speed(POOL[0], "TPU")


def test_a_pool_gets_its_engines_from_the_table():
    args = app_args()
    args["models"][0] |= {"name": POOL[0], "placement": {"gpu": 1}}
    del args["models"][1:]
    args["models"][0]["engine"] = {"gpu_memory_utilization": 0.40}
    config = AppConfig.model_validate(args)
    engine = calibrated_pool(config, slowdown=3.0)[POOL[0]]
    speed = engine_speed(POOL[0])
    assert engine.a_s == pytest.approx(3 * speed.iteration_s)
    assert engine.kv_tokens == speed.kv_tokens(0.40)
    assert engine.gpus == ("gpu1",)
