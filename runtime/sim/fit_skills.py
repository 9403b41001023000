"""How often a model is right, from outcomes: abilities on the quality model's own scale.

With ability theta and strategy offset o_s, a first call with strategy s is right with probability
A(theta + o_s), where A averages over the data set's items and the persistent luck, and it ends
within its cap with the share w_s; what was cut counts as wrong (``runtime.sim.quality``). So of n_s
graded calls k_s ~ Binomial(n_s, w_s A(theta + o_s)). First theta is fitted to all strategies with
the offsets as believed, then each offset with that theta; both shrink towards what was believed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from runtime.sim.items import Calibration
from runtime.sim.parameters import ModelParameters, Parameter, Skill, Status, StrategyParameters
from runtime.sim.scales import Scales
from runtime.types import STRATEGIES, Strategy, TaskKind

Floats = npt.NDArray[np.float64]

ABILITY_SD = 1.0
OFFSET_SD = 0.4
"""Standard deviations, in logits, of what is believed before."""

LEARNED = 0.5
"""A value counts as measured where outcomes at least halve its standard deviation."""

_GRID = np.linspace(-8.0, 8.0, 33)
_FINE = np.linspace(-8.0, 8.0, 1601)


@dataclass(frozen=True, slots=True)
class Graded:
    """Graded first calls with one strategy; ``ends`` is the share of them that may end in time."""

    num_calls: int = 0
    num_right: int = 0
    ends: float = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value in logits with its standard deviation, from ``num_calls`` graded calls."""

    value: float
    sd: float
    num_calls: int

    def parameter(self, prior_sd: float) -> Parameter:
        """The same with its status: measured, or still mostly what was believed."""
        known = self.num_calls > 0 and self.sd < LEARNED * prior_sd
        source = f"{self.num_calls} graded calls of the pool's own log"
        if not known:
            source = f"prior, with {source}" if self.num_calls else "prior: no graded calls"
        low, high = self.value - 2 * self.sd, self.value + 2 * self.sd
        status = Status.MEASURED if known else Status.ASSUMED
        return Parameter(self.value, status, source, low, high)


class AccuracyCurve:
    """Mean accuracy on a data set, or on a task kind, as a function of ability."""

    def __init__(self, base: Calibration, dataset: str, task: TaskKind) -> None:
        self._values = [_accuracy(base, dataset, task, float(ability)) for ability in _GRID]

    def __call__(self, ability: Floats) -> Floats:
        return np.interp(ability, _GRID, self._values)

    def ability(self, accuracy: float) -> float:
        """The ability that gives this accuracy, or the nearest to it."""
        return float(np.interp(accuracy, self._values, _GRID))


def _accuracy(base: Calibration, dataset: str, task: TaskKind, ability: float) -> float:
    """Of a model of this ability, if every answer ended."""
    one, zero = Parameter(1.0, Status.ASSUMED, ""), Parameter(0.0, Status.ASSUMED, "")
    depth = StrategyParameters(zero, one, one, zero)
    skill = Skill(replace(one, value=ability), {Strategy.CONCISE: depth})
    parameters = replace(base.parameters, models=(ModelParameters("one", {dataset: skill}),))
    scales = Scales(replace(base, parameters=parameters), parameters.plain_rules())
    return scales.accuracy(dataset, task, "one", Strategy.CONCISE, None)


def fit_ability(
    curve: AccuracyCurve,
    graded: Mapping[Strategy, Graded],
    believed: float,
    offsets: Mapping[Strategy, float],
) -> tuple[Estimate, dict[Strategy, Estimate]]:
    """Ability (at Concise) and the offset of each strategy.

    Args:
        curve: accuracy by ability.
        graded: what was graded, by strategy.
        believed: the ability that was believed before.
        offsets: the offsets that were believed; all strategies that are to have one.
    """

    def likely(abilities: Floats, strategy: Strategy) -> Floats:
        one = graded.get(strategy, Graded())
        p = np.clip(one.ends * curve(abilities), 1e-6, 1 - 1e-6)
        wrong = one.num_calls - one.num_right
        log_p: Floats = one.num_right * np.log(p) + wrong * np.log1p(-p)
        return log_p

    def of_all(theta: Floats) -> Floats:
        log_p: Floats = np.sum([likely(theta + o, s) for s, o in offsets.items()], axis=0)
        return log_p

    def of_one(strategy: Strategy) -> Callable[[Floats], Floats]:
        return lambda offset: likely(ability.value + offset, strategy)

    total = sum(one.num_calls for one in graded.values())
    ability = _posterior(of_all, believed, ABILITY_SD, total)
    found = {
        s: _posterior(of_one(s), o, OFFSET_SD, graded.get(s, Graded()).num_calls)
        for s, o in offsets.items()
    }
    concise = found.get(Strategy.CONCISE)
    if concise is None:
        return ability, found
    # Offsets count from Concise, so its own moves the ability.
    moved = replace(ability, value=ability.value + concise.value)
    return moved, {s: replace(e, value=e.value - concise.value) for s, e in found.items()}


def _posterior(
    log_likelihood: Callable[[Floats], Floats], mean: float, sd: float, num_calls: int
) -> Estimate:
    """Mean and standard deviation of the posterior, on a grid, with a normal prior."""
    log_p = log_likelihood(_FINE) - ((_FINE - mean) / sd) ** 2 / 2
    weight = np.exp(log_p - log_p.max())
    weight /= weight.sum()
    middle = float(weight @ _FINE)
    return Estimate(middle, math.sqrt(float(weight @ (_FINE - middle) ** 2)), num_calls)


def offsets_of(skill: Skill) -> dict[Strategy, float]:
    """The offsets that a skill has, of all strategies."""
    return {s: skill.strategies[s].offset.value for s in STRATEGIES if s in skill.strategies}
