"""How many tokens a model would write: lognormal, with parts that calls on one item share.

The logarithm of the length is a sum of five parts:

- the difficulty: ``length_per_logit`` for every logit above the data set's mean;
- the item, the same for every model: with the difficulty it makes up the share
  ``length_shared`` of the variance, which is the correlation of two models on one item;
- the model on the item, the share ``length_own``: its repeats are alike;
- the call: what is left;
- right or wrong: wrong answers are ``length_wrong_ratio`` times as long.

The mean over right and wrong answers is ``tokens_mean`` and the coefficient of variation of each is
``tokens_cv`` (CALIBRATION section 6). Of the wrong answers some run away: they never end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from runtime.sim.combine import Rules
from runtime.sim.uniforms import cumulative


@dataclass(frozen=True, slots=True)
class LengthShape:
    """Weights of the parts of one (data set, model, strategy); ``log_*_mean`` are means over items
    of the logarithm, for right and for wrong answers."""

    log_right_mean: float
    log_wrong_mean: float
    per_logit: float
    item_sd: float
    own_sd: float
    call_sd: float


def length_shape(
    tokens_mean: float, tokens_cv: float, accuracy: float, difficulty_sd: float, rules: Rules
) -> LengthShape:
    """The shape for answers of which the share ``accuracy`` is right."""
    variance = math.log1p(tokens_cv**2)
    shared = rules.length_shared * variance
    # Where lengths vary little, difficulty can explain no more than what items share.
    per_logit = min(rules.length_per_logit, math.sqrt(shared) / max(difficulty_sd, 1e-9))
    ratio = rules.length_wrong_ratio
    right_mean = tokens_mean / (accuracy + (1 - accuracy) * ratio)
    log_right_mean = math.log(right_mean) - variance / 2
    return LengthShape(
        log_right_mean=log_right_mean,
        log_wrong_mean=log_right_mean + math.log(ratio),
        per_logit=per_logit,
        item_sd=math.sqrt(max(0.0, shared - (per_logit * difficulty_sd) ** 2)),
        own_sd=math.sqrt(rules.length_own * variance),
        call_sd=math.sqrt(variance * (1 - rules.length_shared - rules.length_own)),
    )


def share_within(log_mean: float, log_sd: float, max_tokens: int) -> float:
    """The share of lognormal lengths that are at most ``max_tokens``."""
    # A length is rounded to whole tokens.
    gap = math.log(max_tokens + 0.5) - log_mean
    return cumulative(gap / log_sd) if log_sd > 0 else float(gap >= 0)
