"""How long a model's answers are, from a log in which some were cut.

A length is lognormal, or it runs away: the share ``runaway`` of answers never ends. An answer that
was cut at m tokens says only that it would have been longer. The fit maximises the likelihood times
a prior: few answers stay near what was believed, and with none nothing changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MEAN_SD = 1.0
SPREAD_SD = 0.5
"""Standard deviations of the prior, of log mean and of the logarithm of the log lengths' own."""

RUNAWAY_WEIGHT = 30.0
"""Answers that the prior share of runaways counts for."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean and coefficient of variation of the answers that end, and the share that never do."""

    mean: float
    cv: float
    runaway: float


def fit_lengths(tokens: Sequence[int], cut: Sequence[bool], prior: Lengths) -> Lengths:
    """The lengths behind these, of which those that were ``cut`` would have been longer.

    Raises:
        ValueError: a length below one token.
    """
    if not len(tokens):
        return prior
    if min(tokens) < 1:
        raise ValueError("an answer has at least one token")
    from scipy.optimize import minimize  # only who fits needs it
    from scipy.stats import norm

    ended = np.log([t for t, c in zip(tokens, cut, strict=True) if not c])
    beyond = np.log([t for t, c in zip(tokens, cut, strict=True) if c])
    start = _to_vector(prior)
    few = max(prior.runaway, 1e-3)

    def loss(vector: Floats) -> float:
        mu, log_sd, logit = (float(v) for v in vector)
        sd, share = math.exp(log_sd), 1 / (1 + math.exp(-logit))
        likely = len(ended) * math.log1p(-share)
        likely += float(np.sum(norm.logpdf(ended, mu, sd)))
        survive = norm.sf(beyond, mu, sd)
        likely += float(np.sum(np.log(share + (1 - share) * survive + 1e-300)))
        belief = ((mu - start[0]) / MEAN_SD) ** 2 + ((log_sd - start[1]) / SPREAD_SD) ** 2
        weight = few * math.log(share) + (1 - few) * math.log1p(-share)
        return float(belief / 2 - RUNAWAY_WEIGHT * weight - likely)

    middle = float(np.median(np.concatenate([ended, beyond])))
    tried = [start, np.array([middle, start[1], start[2]])]
    found = min(
        (minimize(loss, x0, method="Nelder-Mead", options={"maxiter": 2000}) for x0 in tried),
        key=lambda result: float(result.fun),
    )
    return _from_vector(*(float(v) for v in found.x))


def _to_vector(lengths: Lengths) -> Floats:
    """Mean and logarithm of the spread of the log lengths, and the logit of the runaways."""
    variance = math.log1p(max(lengths.cv, 0.05) ** 2)
    share = min(max(lengths.runaway, 1e-4), 0.5)
    mu = math.log(lengths.mean) - variance / 2
    return np.array([mu, math.log(variance) / 2, math.log(share / (1 - share))])


def _from_vector(mu: float, log_sd: float, logit: float) -> Lengths:
    variance = math.exp(2 * log_sd)
    mean, cv = math.exp(mu + variance / 2), math.sqrt(math.expm1(variance))
    return Lengths(mean, cv, 1 / (1 + math.exp(-logit)))
