"""How a step's answer comes of its own attempt and of the answers that it is shown.

Answers are symbols (``runtime.sim.symbols``). *Own attempt* is what the model would answer alone;
*own answer* is the same agent's earlier one. An unfinished answer is none: it is not seen.

==================  ================================================================================
step                rule (names are those of ``Rules``; all are assumed, CALIBRATION section 7)
==================  ================================================================================
answer, direct      The own attempt. Shown other answers (Chain, FullConnected, GPTSwarm's edges): a
                    right attempt stays, with ``debater_keeps_right`` where a wrong answer is shown;
                    a wrong one turns right with ``debater_fixes_shown`` where a right answer is
                    shown, else it takes over a shown wrong one with ``anchoring``.
debate              A right own answer stays with ``debater_keeps_right``; a wrong one turns right
                    with ``debater_fixes_shown`` where another shows a right answer, else with
                    ``debater_fixes_alone``; else it takes over a shown wrong one with
                    ``anchoring``.
revise, follow_up   A right own answer stays with ``reviewer_keeps_right``; a wrong one turns right
                    with ``reviewer_fixes_wrong``, or with ``reviewer_fixes_failing`` where code is
                    executed and the answer fails the visible tests; else it stays.
decide, synthesize  The plurality of the answers shown, ties to the strongest member; with
                    ``aggregator_strongest`` the strongest member's instead. Where code is executed,
                    answers that fail the visible tests do not count while one passes. The step's
                    own skill has no part in it, only whether it ends in time.
no answer shown     Every kind of step then makes its own attempt.
==================  ================================================================================

A right answer that is not kept becomes a shown wrong one, else a new wrong one. Where a wrong one
turns right, the rate is multiplied by (p / mean p of the pool) ** ``skill_tilt``, p being the
model's probability on the item: who cannot solve it can hardly repair it. With 0 every model
repairs alike whatever the item, which lets debates gain far more than was ever published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.sim.symbols import RIGHT
from runtime.sim.uniforms import Uniforms
from runtime.types import StepKind

_OVER_ALL = (StepKind.DECIDE, StepKind.SYNTHESIZE)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rates of the rules above and of what is shared between draws, as plain numbers.

    ``strategy_correlation`` is that of a model's luck on an item across strategies.
    ``wrong_persistence`` is the chance that a model, wrong on an item, writes the wrong answer
    that it always has for it. The lengths are explained in ``runtime.sim.lengths``.
    """

    reviewer_keeps_right: float
    reviewer_fixes_wrong: float
    reviewer_fixes_failing: float
    debater_keeps_right: float
    debater_fixes_alone: float
    debater_fixes_shown: float
    anchoring: float
    aggregator_strongest: float
    skill_tilt: float
    strategy_correlation: float
    wrong_persistence: float
    length_shared: float
    length_own: float
    length_per_logit: float
    length_wrong_ratio: float
    runaway_tokens: float


@dataclass(frozen=True, slots=True)
class Shown:
    """An earlier answer: its symbol, how strong its model is there, whether it is the agent's own,
    and whether it fails the visible tests (``False`` where nothing is executed)."""

    symbol: int
    strength: float
    own: bool = False
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """What the model would answer alone, a new wrong answer for when it gives up a right one, and
    its skill on the item relative to the pool's mean."""

    symbol: int
    wrong: int
    skill: float = 1.0


def combine(
    kind: StepKind, attempt: Attempt, shown: Sequence[Shown], rules: Rules, u: Uniforms
) -> int:
    """The symbol that the step answers with. Of ``u`` the numbers 1 (which way) and 2 (which of
    the shown) are used here."""
    if kind in (StepKind.DECIDE, StepKind.SYNTHESIZE):
        return _aggregate(shown, rules, u[1]) if shown else attempt.symbol
    own = next((s for s in shown if s.own), None)
    others = [s.symbol for s in shown if not s.own]
    if own is None:
        return _influenced(attempt, others, rules, u) if others else attempt.symbol
    if kind is StepKind.DEBATE:
        return _debated(own.symbol, attempt, others, rules, u)
    return _reviewed(own, attempt, rules, u[1])


def _influenced(attempt: Attempt, others: Sequence[int], rules: Rules, u: Uniforms) -> int:
    if attempt.symbol == RIGHT:
        wrong = [s for s in others if s != RIGHT]
        if not wrong or u[1] < rules.debater_keeps_right:
            return RIGHT
        return _pick(wrong, u[2])
    fixes = rules.debater_fixes_shown if RIGHT in others else 0.0
    return _or_wrong(attempt.symbol, attempt, others, fixes, rules, u)


def _debated(own: int, attempt: Attempt, others: Sequence[int], rules: Rules, u: Uniforms) -> int:
    if own == RIGHT:
        if u[1] < rules.debater_keeps_right:
            return RIGHT
        wrong = [s for s in others if s != RIGHT]
        return _pick(wrong, u[2]) if wrong else attempt.wrong
    fixes = rules.debater_fixes_shown if RIGHT in others else rules.debater_fixes_alone
    return _or_wrong(own, attempt, others, fixes, rules, u)


def _or_wrong(
    own: int, attempt: Attempt, others: Sequence[int], fixes: float, rules: Rules, u: Uniforms
) -> int:
    """A wrong answer that turns right with ``fixes``, follows a wrong one that is shown, or
    stays."""
    chance = _tilted(fixes, attempt, rules)
    if u[1] < chance:
        return RIGHT
    wrong = [s for s in others if s != RIGHT]
    if wrong and u[1] < chance + (1 - chance) * rules.anchoring:
        return _pick(wrong, u[2])
    return own


def _reviewed(own: Shown, attempt: Attempt, rules: Rules, u: float) -> int:
    if own.symbol == RIGHT:
        return RIGHT if u < rules.reviewer_keeps_right else attempt.wrong
    fixes = rules.reviewer_fixes_failing if own.fails else rules.reviewer_fixes_wrong
    return RIGHT if u < _tilted(fixes, attempt, rules) else own.symbol


def _aggregate(shown: Sequence[Shown], rules: Rules, u: float) -> int:
    passing = [s for s in shown if not s.fails] or shown
    strongest = max(passing, key=_strength)
    if u < rules.aggregator_strongest:
        return strongest.symbol
    votes: dict[int, int] = {}
    for each in passing:
        votes[each.symbol] = votes.get(each.symbol, 0) + 1
    most = max(votes.values())
    return max((s for s in passing if votes[s.symbol] == most), key=_strength).symbol


def _strength(shown: Shown) -> float:
    return shown.strength


def _tilted(rate: float, attempt: Attempt, rules: Rules) -> float:
    if not rules.skill_tilt:
        return rate
    return min(1.0, rate * math.pow(attempt.skill, rules.skill_tilt))


def _pick(symbols: Sequence[int], u: float) -> int:
    return symbols[int(u * len(symbols))]
