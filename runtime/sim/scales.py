"""What the quality model needs of a (data set, model, strategy), worked out once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from runtime.errors import ConfigError
from runtime.sim.combine import Rules
from runtime.sim.items import NEAREST, Calibration
from runtime.sim.lengths import LengthShape, length_shape, share_within
from runtime.sim.outcomes import SimItem
from runtime.sim.parameters import DatasetParameters, Skill, StrategyParameters
from runtime.sim.uniforms import normal, quantile
from runtime.types import Strategy, TaskKind

LOGISTIC_TO_NORMAL = 1.7
"""A logistic curve of slope 1 is nearly a normal one of this standard deviation."""

_GRID = 512
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Scale:
    """One (data set, model, strategy). ``ability`` has the strategy's offset in it.

    ``slope`` is k of ``runtime.sim.quality``; ``pool_accuracy`` the mean of all models, Concise.
    """

    ability: float
    slope: float
    tau: float
    guess: float
    difficulty_mean: float
    accuracy: float
    pool_accuracy: float
    runaway_if_wrong: float
    length: LengthShape


@dataclass(frozen=True, slots=True)
class _Items:
    """Difficulties and slopes of a data set's items; a normal grid where none are known."""

    difficulty: Floats
    discrimination: Floats


class Scales:
    """Looks parameters up by data set, else by task kind, else by the nearest data set."""

    def __init__(self, calibration: Calibration, rules: Rules) -> None:
        self._calibration = calibration
        self._rules = rules
        self._models = {m.name: m for m in calibration.parameters.models}
        self._scales: dict[tuple[str, TaskKind, str, Strategy], Scale] = {}
        self._tables: dict[tuple[str, TaskKind], _Items] = {}

    def of(self, item: SimItem, model: str, strategy: Strategy) -> Scale:
        """Raises ``ConfigError`` where nothing is known of the model."""
        key = (item.dataset, item.task, model, strategy)
        if key not in self._scales:
            self._scales[key] = self._new(item.dataset, item.task, model, strategy)
        return self._scales[key]

    def item(self, item: SimItem, key: str | None) -> tuple[float, float]:
        """Difficulty and discrimination; of an item that is in no table, a draw by its id."""
        known = self._calibration.items.get(item.item_id)
        if known is not None:
            difficulty = known.difficulty if key is None else known.redrawn(key)
            return difficulty, known.discrimination
        dataset = self._dataset(item.dataset, item.task)
        spread = dataset.difficulty_sd.value * normal(f"difficulty/{key}/{item.item_id}")
        return dataset.difficulty_mean.value + spread, dataset.discrimination.value

    def same_wrong(self, item: SimItem) -> float:
        """How often two models that are both wrong agree."""
        return self._dataset(item.dataset, item.task).same_wrong.value

    def fails_visible(self, item: SimItem) -> float:
        """How often a wrong program fails the tests in its prompt."""
        return self._dataset(item.dataset, item.task).fails_visible.value

    def accuracy(
        self, dataset: str, task: TaskKind, model: str, strategy: Strategy, max_tokens: int | None
    ) -> float:
        """Mean over the test items of right answers that end within ``max_tokens``."""
        scale = self.of(SimItem("", dataset, task, 0), model, strategy)
        if max_tokens is None:
            return scale.accuracy
        table, shape = self._table(dataset, task), scale.length
        mean = shape.log_right_mean + shape.per_logit * (table.difficulty - scale.difficulty_mean)
        sd = math.hypot(shape.item_sd, shape.own_sd, shape.call_sd)
        ends = np.array([share_within(float(m), sd, max_tokens) for m in mean])
        return float(np.mean(_p_right(table, scale.ability, scale.guess, scale.tau) * ends))

    def _new(self, dataset: str, task: TaskKind, model: str, strategy: Strategy) -> Scale:
        general = self._dataset(dataset, task)
        ability, depth = self._strategy(dataset, task, model, strategy)
        table, guess, tau = self._table(dataset, task), general.guess.value, general.tau.value
        accuracy = float(np.mean(_p_right(table, ability, guess, tau)))
        spread = float(np.std(table.difficulty))
        mean, cv = depth.tokens_mean.value, depth.tokens_cv.value
        return Scale(
            ability=ability,
            slope=slope_of(tau),
            tau=tau,
            guess=guess,
            difficulty_mean=float(np.mean(table.difficulty)),
            accuracy=accuracy,
            pool_accuracy=self._pool_accuracy(dataset, task),
            runaway_if_wrong=min(1.0, depth.runaway.value / max(1 - accuracy, 1e-9)),
            length=length_shape(mean, cv, accuracy, spread, self._rules),
        )

    def _pool_accuracy(self, dataset: str, task: TaskKind) -> float:
        general = self._dataset(dataset, task)
        table, guess, tau = self._table(dataset, task), general.guess.value, general.tau.value
        skills = [s for m in self._models if (s := self._skill(m, dataset, task)) is not None]
        return float(np.mean([_p_right(table, s.ability.value, guess, tau) for s in skills]))

    def _strategy(
        self, dataset: str, task: TaskKind, model: str, strategy: Strategy
    ) -> tuple[float, StrategyParameters]:
        skill = self._skill(model, dataset, task) if model in self._models else None
        if skill is None or strategy not in skill.strategies:
            raise ConfigError(
                f"no quality parameters for model {model!r} with {strategy} on {dataset} ({task})"
            )
        depth = skill.strategies[strategy]
        return skill.ability.value + depth.offset.value, depth

    def _skill(self, model: str, dataset: str, task: TaskKind) -> Skill | None:
        skills = self._models[model].skills
        for name in (dataset, task.value, NEAREST[task]):
            if name in skills:
                return skills[name]
        return None

    def _dataset(self, dataset: str, task: TaskKind) -> DatasetParameters:
        known = self._calibration.parameters.datasets
        return known[dataset] if dataset in known else known[NEAREST[task]]

    def _table(self, dataset: str, task: TaskKind) -> _Items:
        key = (dataset, task)
        if key not in self._tables:
            self._tables[key] = self._new_table(dataset, task)
        return self._tables[key]

    def _new_table(self, dataset: str, task: TaskKind) -> _Items:
        items = [i for i in self._calibration.items.values() if i.dataset == dataset]
        items = [i for i in items if "test" in i.splits] or items
        if items:
            return _Items(
                np.array([i.difficulty for i in items]), np.array([i.discrimination for i in items])
            )
        general = self._dataset(dataset, task)
        points = np.array([quantile((i + 0.5) / _GRID) for i in range(_GRID)])
        difficulty = general.difficulty_mean.value + general.difficulty_sd.value * points
        return _Items(difficulty, np.full(_GRID, general.discrimination.value))


def _p_right(items: _Items, ability: float, guess: float, tau: float) -> Floats:
    """Probability of a right answer per item, averaged over the persistent luck."""
    eta = slope_of(tau) * items.discrimination * (ability - items.difficulty)
    p = guess + (1 - guess) / (1 + np.exp(-(eta[:, None] + tau * _NODES)))
    averaged: Floats = p @ _WEIGHTS
    return averaged


def slope_of(tau: float) -> float:
    """k of ``runtime.sim.quality``."""
    return math.sqrt(1 + (tau / LOGISTIC_TO_NORMAL) ** 2)
