"""The quality model against what was measured: accuracy, correlation, repeats, lengths, votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path
from random import Random

import numpy as np
import pytest

from runtime.answers import plurality
from runtime.errors import ConfigError
from runtime.sim.items import Calibration, load_folder, shipped
from runtime.sim.outcomes import SimItem
from runtime.sim.parameters import ModelParameters, Parameter, Status
from runtime.sim.quality import QualityModel
from runtime.types import Strategy, TaskKind
from tests.drawn import FIRST, POOL, Drawn, a_call, draw_all

CONCISE, DEEPTHINK, FLASH = Strategy.CONCISE, Strategy.DEEPTHINK, Strategy.FLASH
DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")
SEEDS = {"math": 30, "mbpp": 30, "gsm_hard": 30, "humaneval": 60, "mmlu_pro": 30}
RUNAWAY_TOKENS = 32768

TARGETS = {
    "math": (0.90, 0.706, 0.70, 0.50, 0.45),
    "mbpp": (0.82, 0.74, 0.80, 0.62, 0.56),
    "gsm_hard": (0.66, 0.62, 0.62, 0.566, 0.47),
    "humaneval": (0.90, 0.848, 0.89, 0.695, 0.58),
    "mmlu_pro": (0.70, 0.663, 0.50, 0.442, 0.36),
}
"""Concise on the test split, in the order of POOL."""

MEASURED = Path(__file__).parents[3] / "shared" / "calibration"


@cache
def drawn(dataset: str) -> Drawn:
    return draw_all(shipped(), dataset, SEEDS[dataset], repeats=3)


def phi(right: np.ndarray) -> float:
    """Mean correlation over pairs of models; axes seed, model, item."""
    upper = np.triu_indices(right.shape[1], 1)
    return float(np.mean([np.corrcoef(world)[upper].mean() for world in right]))


def icc(right: np.ndarray) -> float:
    """One-way intraclass correlation of repeats; axes seed, model, item, repeat."""
    repeats = right.shape[-1]
    found = []
    for answers in right.astype(float).reshape(-1, *right.shape[2:]):
        between = repeats * answers.mean(1).var(ddof=1)
        within = answers.var(1, ddof=1).mean()
        found.append((between - within) / (between + (repeats - 1) * within))
    return float(np.mean(found))


def same_wrong(symbols: np.ndarray) -> float:
    """How often two models that are both wrong give one answer; axes seed, model, item."""
    both = same = 0
    for one, other in combinations(range(symbols.shape[1]), 2):
        wrong = (symbols[:, one] > 0) & (symbols[:, other] > 0)
        both += int(wrong.sum())
        same += int((wrong & (symbols[:, one] == symbols[:, other])).sum())
    return same / both


@pytest.mark.parametrize("dataset", DATASETS)
def test_accuracy_is_within_a_point_of_its_target(dataset):
    found = drawn(dataset).right[..., 0].mean((0, 2))
    assert np.abs(found - TARGETS[dataset]).max() < 0.01


@pytest.mark.parametrize("dataset", DATASETS)
def test_expected_accuracy_is_what_draws_show(dataset):
    quality = QualityModel(shipped(), 0)
    expected = [quality.accuracy(dataset, name, CONCISE) for name in POOL]
    assert np.abs(drawn(dataset).right[..., 0].mean((0, 2)) - expected).max() < 0.01


@pytest.mark.parametrize(
    ("dataset", "measured"),
    [
        ("math", 0.32),
        ("mbpp", 0.40),
        ("gsm_hard", 0.33),
        ("humaneval", 0.43),
        ("mmlu_pro", 0.36),
    ],
)
def test_models_are_right_on_the_same_items_as_often_as_measured(dataset, measured):
    assert phi(drawn(dataset).right[..., 0]) == pytest.approx(measured, abs=0.03)


@pytest.mark.parametrize(
    ("dataset", "repeats", "gain"),
    [
        ("math", 0.61, 0.11),
        ("mbpp", 0.69, 0.09),
        ("gsm_hard", 0.60, 0.14),
        ("humaneval", 0.75, 0.05),
        ("mmlu_pro", 0.57, 0.16),
    ],
)
def test_asking_again_gains_little(dataset, repeats, gain):
    right = drawn(dataset).right
    assert icc(right) == pytest.approx(repeats, abs=0.03)
    assert right.any(-1).mean() - right.mean() == pytest.approx(gain, abs=0.015)


def test_a_strict_majority_of_one_model_gains_nothing_on_code():
    right = drawn("mbpp").right
    assert (right.sum(-1) >= 2).mean() == pytest.approx(right.mean(), abs=0.01)


@pytest.mark.parametrize(
    ("dataset", "measured"), [("math", 0.157), ("gsm_hard", 0.436), ("mmlu_pro", 0.403)]
)
def test_wrong_answers_coincide_as_often_as_measured(dataset, measured):
    assert same_wrong(drawn(dataset).symbols[..., 0]) == pytest.approx(measured, abs=0.02)


def test_a_model_repeats_its_own_wrong_answer_more_often_than_anothers():
    symbols = drawn("math").symbols
    pair = symbols[:, 3, :, :2]
    wrong = (pair > 0).all(-1)
    repeated = (pair[..., 0] == pair[..., 1])[wrong].mean()
    assert repeated > 2 * same_wrong(symbols[..., 0])


# --- votes ----------------------------------------------------------------------------------------


def placed(calibration: Calibration, dataset: str, accuracies: tuple[float, ...]) -> Calibration:
    """The calibration with models m0, m1, ... of these accuracies on the data set."""
    base = next(m for m in calibration.parameters.models if m.name == "llama-3.1-8b")
    models = []
    for number, wanted in enumerate(accuracies):
        low, high = -8.0, 12.0
        for _ in range(40):
            middle = (low + high) / 2
            ability = Parameter(middle, Status.ASSUMED, "placed")
            skill = replace(base.skills[dataset], ability=ability)
            model = ModelParameters(f"m{number}", {dataset: skill})
            trial = replace(calibration, parameters=calibration.parameters.with_models(model))
            reached = QualityModel(trial, 0).accuracy(dataset, model.name, CONCISE)
            low, high = (middle, high) if reached < wanted else (low, middle)
        models.append(model)
    return replace(calibration, parameters=calibration.parameters.with_models(*models))


@pytest.mark.parametrize(
    ("dataset", "accuracies", "measured"),
    [
        ("mmlu_pro", (0.442, 0.415, 0.420), 0.468),
        ("gsm_hard", (0.840, 0.836, 0.828), 0.889),
        ("gsm_hard", (0.902, 0.938, 0.828, 0.840, 0.836), 0.944),
        ("math", (0.516, 0.222, 0.293), 0.515),
        ("math", (0.594, 0.485, 0.447, 0.222, 0.293), 0.595),
    ],
)
def test_plurality_gains_what_it_was_seen_to_gain(dataset, accuracies, measured):
    names = [f"m{number}" for number in range(len(accuracies))]
    symbols = draw_all(placed(shipped(), dataset, accuracies), dataset, 8, models=names).symbols
    won = []
    for answers in np.moveaxis(symbols[..., 0], 1, -1).reshape(-1, len(names)):
        votes = list(zip(map(str, answers), accuracies, strict=True))
        won.append(answers[plurality(votes)] == 0)
    assert np.mean(won) == pytest.approx(measured, abs=0.03)


# --- lengths --------------------------------------------------------------------------------------


def parameters_of(dataset: str, model: str, strategy: Strategy):
    found = next(m for m in shipped().parameters.models if m.name == model)
    return found.skills[dataset].strategies[strategy]


@pytest.mark.parametrize("dataset", DATASETS)
def test_lengths_have_their_means_and_runaways_their_share(dataset):
    tokens = drawn(dataset).tokens
    ran_away = tokens >= RUNAWAY_TOKENS
    for number, name in enumerate(POOL):
        wanted = parameters_of(dataset, name, CONCISE)
        whole = tokens[:, number][~ran_away[:, number]]
        assert whole.mean() == pytest.approx(wanted.tokens_mean.value, rel=0.04)
        spread = whole.std() / whole.mean()
        assert spread == pytest.approx(wanted.tokens_cv.value, rel=0.15)
        assert ran_away[:, number].mean() == pytest.approx(wanted.runaway.value, abs=0.005)


def test_only_wrong_answers_run_away():
    answers = drawn("math")
    assert (answers.tokens[answers.right] < RUNAWAY_TOKENS).all()
    assert (answers.tokens[~answers.right] >= RUNAWAY_TOKENS).any()


@pytest.mark.parametrize(("max_tokens", "share"), [(2048, 0.43), (4096, 0.81)])
def test_the_reasoning_model_is_cut_as_often_as_its_lengths_say(max_tokens, share):
    tokens = draw_all(shipped(), "math", 10, strategy=DEEPTHINK, models=POOL[:1]).tokens
    ended = tokens[tokens < RUNAWAY_TOKENS]
    assert (ended <= max_tokens).mean() == pytest.approx(share, abs=0.025)


@pytest.mark.parametrize("dataset", ["math", "mmlu_pro"])
def test_lengths_of_two_models_on_an_item_are_correlated(dataset):
    tokens = drawn(dataset).tokens[..., 0]
    logs = np.log(np.where(tokens < RUNAWAY_TOKENS, tokens, np.nan))
    found = []
    for one, other in combinations(range(len(POOL)), 2):
        both = ~np.isnan(logs[:, one] + logs[:, other])
        found.append(np.corrcoef(logs[:, one][both], logs[:, other][both])[0, 1])
    assert 0.39 < np.mean(found) < 0.56


def test_harder_items_take_longer():
    items = shipped().select("math")
    difficulty = [shipped().items[item.item_id].difficulty for item in items]
    tokens = drawn("math").tokens[:, 3, :, 0]
    logs = np.log(np.where(tokens < RUNAWAY_TOKENS, tokens, np.nan))
    slope = np.polyfit(difficulty, np.nanmean(logs, 0), 1)[0]
    assert 0.08 < slope < 0.15


def test_wrong_answers_are_longer():
    tokens, right = drawn("math").tokens[:, 3], drawn("math").right[:, 3]
    wrong = tokens[(tokens < RUNAWAY_TOKENS) & ~right]
    assert 1.2 < wrong.mean() / tokens[right].mean() < 1.9


def test_an_answer_that_is_cut_is_no_right_one():
    quality = QualityModel(shipped(), 0)
    name = POOL[0]
    short = quality.accuracy("math", name, DEEPTHINK, 2048)
    assert 0.35 < short < 0.45
    assert quality.accuracy("math", name, DEEPTHINK, 100_000) == pytest.approx(0.92, abs=0.01)
    item = shipped().select("math")[0]
    whole = quality.chance(item, name, DEEPTHINK)
    assert 0 < quality.chance(item, name, DEEPTHINK, 1024) < whole
    assert quality.chance(item, name, DEEPTHINK, 1024) < quality.chance(item, name, DEEPTHINK, 4096)


def test_the_share_that_is_right_and_ended_is_what_it_is_expected_to_be():
    answers = draw_all(shipped(), "math", 40, strategy=DEEPTHINK, models=POOL[:1])
    found = (answers.right & (answers.tokens <= 2048)).mean()
    expected = QualityModel(shipped(), 0).accuracy("math", POOL[0], DEEPTHINK, 2048)
    assert found == pytest.approx(expected, abs=0.015)


def test_chances_are_the_shares_of_many_calls():
    quality = QualityModel(shipped(), 3)
    for item in shipped().select("math")[:8]:
        calls = [a_call("llama-3.1-8b", query=f"q{n}") for n in range(800)]
        outcomes = [quality.draw(item, call, FIRST, ()) for call in calls]
        right = [quality.solved(item, o.text) for o in outcomes]
        short = [o.completion_tokens <= 300 for o in outcomes]
        both = np.logical_and(right, short)
        assert np.mean(right) == pytest.approx(
            quality.chance(item, "llama-3.1-8b", CONCISE), abs=0.06
        )
        assert both.mean() == pytest.approx(
            quality.chance(item, "llama-3.1-8b", CONCISE, 300), abs=0.06
        )


# --- what draws depend on -------------------------------------------------------------------------


def outcomes_of(
    quality: QualityModel, order: Callable[[list[tuple[SimItem, str]]], list[tuple[SimItem, str]]]
):
    jobs = [(item, name) for item in shipped().select("mmlu_pro")[:40] for name in POOL]
    return {
        (item.item_id, name): quality.draw(item, a_call(name), FIRST, ())
        for item, name in order(jobs)
    }


def test_draws_do_not_depend_on_their_order():
    def shuffled(jobs):
        return Random(5).sample(jobs, len(jobs))

    forward = outcomes_of(QualityModel(shipped(), 1), lambda jobs: jobs)
    assert forward == outcomes_of(QualityModel(shipped(), 1), shuffled)
    assert forward != outcomes_of(QualityModel(shipped(), 2), lambda jobs: jobs)


@pytest.mark.parametrize("change", [{"query": "other"}, {"step": 1}, {"attempt": 2}])
def test_every_call_is_a_draw_of_its_own(change):
    quality = QualityModel(shipped(), 1)
    lengths = []
    for item in shipped().select("math")[:20]:
        one = quality.draw(item, a_call("llama-3.1-8b"), FIRST, ())
        step = replace(FIRST, step_id=change.get("step", 0))
        other = quality.draw(item, a_call("llama-3.1-8b", **change), step, ())
        lengths.append(one.completion_tokens == other.completion_tokens)
    assert sum(lengths) < 5


def test_strategies_share_most_of_a_models_luck():
    quality = QualityModel(shipped(), 4)
    items = shipped().select("math")
    base = [shipped().items[i.item_id] for i in items]

    def luck(name: str, strategy: Strategy) -> np.ndarray:
        p = np.clip([quality.chance(i, name, strategy) for i in items], 1e-12, 1 - 1e-12)
        eta = np.log(p / (1 - p))
        x = [row.discrimination * row.difficulty for row in base]
        a = [row.discrimination for row in base]
        fit = np.linalg.lstsq(np.column_stack([x, a]), eta, rcond=None)[0]
        return eta - np.column_stack([x, a]) @ fit

    one = luck("llama-3.1-8b", CONCISE)
    assert np.corrcoef(one, luck("llama-3.1-8b", FLASH))[0, 1] == pytest.approx(0.8, abs=0.06)
    assert abs(np.corrcoef(one, luck("llama-3.2-3b", CONCISE))[0, 1]) < 0.1


def test_redrawing_changes_luck_and_only_difficulties_that_are_not_measured():
    quality = QualityModel(shipped(), 1)
    again = quality.redraw(Random(7))
    assert again.seed == quality.redraw(Random(7)).seed != quality.seed
    fixed = QualityModel(shipped(), again.seed)
    measured, drawn_only = shipped().select("mmlu_pro")[0], shipped().select("humaneval")[0]

    def chances(model: QualityModel, item: SimItem) -> list[float]:
        return [model.chance(item, name, CONCISE) for name in POOL]

    assert chances(again, measured) == chances(fixed, measured) != chances(quality, measured)
    assert chances(again, drawn_only) != chances(fixed, drawn_only)


def test_accuracy_stays_when_difficulties_are_redrawn():
    base = QualityModel(shipped(), 1)
    items = shipped().select("mbpp")
    found = [
        base.redraw(Random(n)).chance(item, "llama-3.1-8b", CONCISE)
        for n in range(8)
        for item in items
    ]
    assert np.mean(found) == pytest.approx(0.62, abs=0.015)


# --- what is not in the tables --------------------------------------------------------------------


def test_an_unknown_model_is_an_error_that_names_it():
    item = shipped().select("math")[0]
    with pytest.raises(ConfigError, match=r"no-such-model.*Concise.*math"):
        QualityModel(shipped(), 0).draw(item, a_call("no-such-model"), FIRST, ())


@pytest.mark.parametrize("task", list(TaskKind))
def test_items_of_no_known_set_are_drawn_like_the_nearest(task):
    quality = QualityModel(shipped(), 0)
    items = [SimItem(f"mine/{n}", "mine", task, 50) for n in range(300)]
    nearest = {"math": 0.5, "code": 0.62, "knowledge": 0.442, "general": 0.442}[task.value]
    found = [quality.chance(item, "llama-3.1-8b", CONCISE) for item in items]
    assert np.mean(found) == pytest.approx(nearest, abs=0.06)
    outcome = quality.draw(items[0], a_call("llama-3.1-8b"), FIRST, ())
    assert quality.solved(items[0], outcome.text) in (True, False)


def test_a_full_table_of_ones_own_takes_the_place_of_the_shipped():
    if not (MEASURED / "items.csv").exists():
        pytest.skip("the measured difficulties are not shipped")
    own = load_folder(MEASURED)
    assert all(own.items[i.item_id].measured for i in own.select("humaneval"))
    for dataset in ("mbpp", "humaneval"):
        found = [
            draw_all(own, dataset, SEEDS[dataset] // 2, models=[name]).right.mean() for name in POOL
        ]
        assert np.abs(np.array(found) - TARGETS[dataset]).max() < 0.013
