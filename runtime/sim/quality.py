"""The quality model: who answers what right, how long the answers are, how wrong ones coincide.

An item-response model with a persistent part (CALIBRATION section 4). For model m with strategy s
on item i::

    eta = k * a_i * (theta_m + offset_s - b_i) + tau * u
    k   = sqrt(1 + (tau / 1.7)**2)          so that averaging over u gives back a_i
    p   = g + (1 - g) * sigmoid(eta);       each call is right with probability p

u ~ N(0, 1) is drawn once per (model, item) and shared by the strategies with the correlation
``strategy_correlation``: asking the same model again helps little, asking another one does.
``runtime.sim.combine`` says what a step makes of the answers that it is shown,
``runtime.sim.symbols`` how wrong answers coincide, ``runtime.sim.lengths`` how long answers are.

Every draw is a function of a key (``runtime.sim.uniforms``): persistent ones of (seed, item, model,
strategy), a call's of these and (query, step, attempt).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from runtime.sim.combine import Attempt, Shown, combine
from runtime.sim.items import TASKS, Calibration
from runtime.sim.lengths import LengthShape, share_within
from runtime.sim.outcomes import Outcome, Seen, SimItem
from runtime.sim.scales import Scales
from runtime.sim.symbols import (
    RIGHT,
    attractor_weight,
    decode,
    encode,
    num_wrong,
    wrong_symbol,
)
from runtime.sim.uniforms import quantile, uniforms
from runtime.types import Call, Step, Strategy, TaskKind


@dataclass(frozen=True, slots=True)
class _Wrongs:
    """Wrong answers to an item: how many, the weight of the first, and each model's favourite."""

    num: int
    weight: float
    favourites: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Cell:
    """What stays the same for a (model, item, strategy)."""

    p_right: float
    skill: float
    strength: float
    log_right: float
    log_wrong: float
    log_sd: float
    runaway_if_wrong: float


class QualityModel:
    """Draws answers; implements ``runtime.sim.outcomes.OutcomeModel``.

    ``code_execution`` says that programs are run on the tests in their prompt. The same
    calibration and seed give the same answers.
    """

    def __init__(
        self,
        calibration: Calibration,
        seed: int,
        *,
        code_execution: bool = False,
        difficulty_key: str | None = None,
    ) -> None:
        """``difficulty_key`` draws anew the difficulties that are not measured."""
        self.calibration = calibration
        self.seed = seed
        self.code_execution = code_execution
        self.difficulty_key = difficulty_key
        self.rules = calibration.parameters.plain_rules()
        self._scales = Scales(calibration, self.rules)
        self._runaway_tokens = round(self.rules.runaway_tokens)
        self._cells: dict[tuple[str, str, Strategy], _Cell] = {}
        self._wrongs: dict[str, _Wrongs] = {}

    def redraw(self, rng: Random) -> QualityModel:
        """The same model with new luck, and new difficulties where they are not measured."""
        return QualityModel(
            self.calibration,
            rng.getrandbits(63),
            code_execution=self.code_execution,
            difficulty_key=str(rng.getrandbits(63)),
        )

    # --- what the simulator asks -------------------------------------------------------------

    def draw(self, item: SimItem, call: Call, step: Step, seen: Sequence[Seen]) -> Outcome:
        """The answer of ``call``, uncut.

        Raises:
            ConfigError: nothing is known of the model, or of it on this kind of task.
        """
        model, strategy = call.model, call.strategy
        cell = self._cell(item, model, strategy)
        attempt = call.call_id.rpartition(".")[2]
        u = uniforms(
            f"call/{self.seed}/{item.item_id}/{model}/{strategy}"
            f"/{call.query_id}/{step.step_id}/{attempt}"
        )
        wrong = self._wrong(item, model, u[3], u[4])
        symbol = RIGHT if u[0] < cell.p_right else wrong
        if seen:
            shown = self._shown(item, step, seen)
            symbol = combine(step.kind, Attempt(symbol, wrong, cell.skill), shown, self.rules, u)
        return Outcome(encode(item, symbol), self._tokens(cell, symbol, u[5], u[6]))

    def solved(self, item: SimItem, text: str) -> bool:
        """Whether ``text`` holds the right answer."""
        return decode(item, text) == RIGHT

    def behaviour(self, item: SimItem, text: str) -> str | None:
        """What a program does on the tests in its prompt, taken as one test: 1 where it passes,
        else 0; ``None`` for what is no program, and where code is not executed."""
        symbol = decode(item, text)
        if symbol is None or item.task is not TaskKind.CODE or not self.code_execution:
            return None
        return "0" if self._fails(item, symbol) else "1"

    # --- what policies' bounds and reports ask -----------------------------------------------

    def chance(
        self, item: SimItem, model: str, strategy: Strategy, max_tokens: int | None = None
    ) -> float:
        """Probability that a first call is right, and ended within ``max_tokens`` if given.

        This is the item's own probability, with the persistent luck in it, but before the call is
        drawn.
        """
        cell = self._cell(item, model, strategy)
        if max_tokens is None:
            return cell.p_right
        return cell.p_right * share_within(cell.log_right, cell.log_sd, max_tokens)

    def accuracy(
        self, dataset: str, model: str, strategy: Strategy, max_tokens: int | None = None
    ) -> float:
        """Mean of first calls over the test items, and over all seeds: right answers that end
        within ``max_tokens`` if given. It is what a policy may know as its prior."""
        return self._scales.accuracy(dataset, TASKS[dataset], model, strategy, max_tokens)

    # --- persistent parts --------------------------------------------------------------------

    def _cell(self, item: SimItem, model: str, strategy: Strategy) -> _Cell:
        key = (item.item_id, model, strategy)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = self._new_cell(item, model, strategy)
        return cell

    def _new_cell(self, item: SimItem, model: str, strategy: Strategy) -> _Cell:
        scale = self._scales.of(item, model, strategy)
        difficulty, slope = self._scales.item(item, self.difficulty_key)
        eta = scale.slope * slope * (scale.ability - difficulty)
        eta += scale.tau * self._luck(item, model, strategy)
        p_right = scale.guess + (1 - scale.guess) / (1 + math.exp(-eta))
        shape = scale.length
        shift = self._length_shift(item, model, shape, difficulty - scale.difficulty_mean)
        return _Cell(
            p_right=p_right,
            skill=p_right / scale.pool_accuracy,
            strength=scale.ability,
            log_right=shape.log_right_mean + shift,
            log_wrong=shape.log_wrong_mean + shift,
            log_sd=shape.call_sd,
            runaway_if_wrong=scale.runaway_if_wrong,
        )

    def _luck(self, item: SimItem, model: str, strategy: Strategy) -> float:
        """u: standard normal per (model, item, strategy), correlated over strategies."""
        shared = self.rules.strategy_correlation
        key = f"luck/{self.seed}/{item.item_id}/{model}"
        own = quantile(uniforms(f"{key}/{strategy}")[0])
        return math.sqrt(shared) * quantile(uniforms(key)[0]) + math.sqrt(1 - shared) * own

    def _length_shift(
        self, item: SimItem, model: str, shape: LengthShape, above_mean: float
    ) -> float:
        key = f"length/{self.seed}/{item.item_id}"
        of_item = quantile(uniforms(key)[0])
        of_model = quantile(uniforms(f"{key}/{model}")[0])
        return shape.per_logit * above_mean + shape.item_sd * of_item + shape.own_sd * of_model

    # --- one call ----------------------------------------------------------------------------

    def _wrong(self, item: SimItem, model: str, which: float, uniform: float) -> int:
        """A wrong answer of ``model``: the one it always has for the item, or a new one."""
        wrongs = self._wrongs.get(item.item_id)
        if wrongs is None:
            num = num_wrong(item)
            weight = attractor_weight(self._scales.same_wrong(item), num)
            wrongs = self._wrongs[item.item_id] = _Wrongs(num, weight, {})
        if which >= self.rules.wrong_persistence:
            return wrong_symbol(wrongs.weight, wrongs.num, uniform)
        favourite = wrongs.favourites.get(model)
        if favourite is None:
            own = uniforms(f"wrong/{self.seed}/{item.item_id}/{model}")[0]
            favourite = wrong_symbol(wrongs.weight, wrongs.num, own)
            wrongs.favourites[model] = favourite
        return favourite

    def _shown(self, item: SimItem, step: Step, seen: Sequence[Seen]) -> list[Shown]:
        shown = []
        for each in seen:
            symbol = decode(item, each.text)
            if symbol is not None:
                strength = self._cell(item, each.model, each.strategy).strength
                own = each.step.step_id == step.own
                shown.append(Shown(symbol, strength, own, self._fails(item, symbol)))
        return shown

    def _fails(self, item: SimItem, symbol: int) -> bool:
        """Whether a program is seen to fail the tests in its prompt; the same one always does."""
        if symbol == RIGHT or item.task is not TaskKind.CODE or not self.code_execution:
            return False
        fails = self._scales.fails_visible(item)
        return uniforms(f"tests/{self.seed}/{item.item_id}/{symbol}")[0] < fails

    def _tokens(self, cell: _Cell, symbol: int, uniform: float, runaway: float) -> int:
        if symbol == RIGHT:
            log_mean = cell.log_right
        elif runaway < cell.runaway_if_wrong:
            return self._runaway_tokens
        else:
            log_mean = cell.log_wrong
        return max(1, round(math.exp(log_mean + cell.log_sd * quantile(uniform))))
