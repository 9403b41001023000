"""What any policy could reach on a pool at one arrival rate: linear programs over plans.

Queries arrive at ``rate_per_s``. Each of them is given to one *option* (a model at a depth, or a
whole plan with fixed models), or to none. An option is worth the probability that its answer is
right **and** on time, and takes seconds of the pool's engines. The program maximises the share of
all offered queries that is correct and on time, so that no engine is asked for more seconds than
there are::

    max  sum_c w_c sum_o value[c, o] x[c, o]
    s.t. sum_o x[c, o] <= 1                                        for every class c of queries
         rate * sum_c w_c sum_o work_s[c, o, r] x[c, o] <= capacity[r] * (1 + budget / horizon)
         x >= 0

The three bounds differ in what tells two queries apart (the classes), and so in who is bounded:

``own``       One class per feature value that the policy sees (the data set, or the task): policies
              that know no more of a query than this, whatever they see of the load.
``item``      One class per item, worth its success *probability*: policies that know each item as
              well as can be known before any call is made.
``outcome``   One class per item, worth the *outcome* that was drawn: policies that know in advance
              which answers will be right. No policy does; what it leaves wrong none can answer.

Why each is a bound. A policy of the kind gives every class some long-run shares ``x`` of the
options, and these satisfy the constraints: ``work_s`` is the least that a call takes of an engine
(a full batch, no preemption), so that its true work fits only if this does; ``value`` counts an
answer as on time when it would be on an *idle* pool, and queueing and batching only make it later.
Shares may depend on the load: the objective and the constraints are linear in them, so that their
mean counts. An answer that is on time is finished by the last arrival + budget, hence the factor on
the capacity, with ``horizon`` the time from first to last arrival; an endless run has none.

What they assume: the options listed are all that a policy may do. A policy that adapts along the
way (it stops when answers agree, or routes a step by the answers before it) is bounded by ``own``
and ``item`` only if that plan is an option itself, with its mean work. ``outcome`` bounds it if the
options hold every draw that it could make: pass ``any_of`` of repeated draws. Where ``value`` is an
estimate, the program picks what luck favoured: its mean is never below the bound of the true
values, so that few samples make a bound looser and never wrong in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, vstack

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pool:
    """``capacity[r]``: seconds of work per second that resource r can do (an engine: its number of
    replicas; several engines on one GPU may be a further resource). ``horizon_s`` is the time from
    the first to the last arrival, ``None`` for an endless run."""

    rate_per_s: float
    capacity: Array
    horizon_s: float | None = None

    def work_per_query(self, budget_s: float) -> Array:
        """Seconds of each resource that there are per query offered."""
        late = 0.0 if self.horizon_s is None else budget_s / self.horizon_s
        return self.capacity * (1.0 + late) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Bound:
    """``value``: the share of offered queries that can be correct and on time. ``shares`` is
    [classes, options]; ``prices`` is what one more second of each resource per query would add."""

    value: float
    shares: Array
    prices: Array


def solve(value: Array, work_s: Array, weight: Array, pool: Pool, budget_s: float) -> Bound:
    """The linear program above.

    Args:
        value: [classes, options], probability of correct and on time.
        work_s: [classes, options, resources], least seconds of work.
        weight: [classes], share of the offered queries; sums to 1.
        pool: rate and capacity.
        budget_s: the longest budget of a query.

    Raises:
        ValueError: shapes that do not fit, values outside 0..1, negative or infinite work.
    """
    _check(value, work_s, weight, pool)
    classes, options = value.shape
    weighted = weight[:, None]
    one_option = _block_rows(classes, options)
    work = csr_array((work_s * weighted[:, :, None]).reshape(classes * options, -1).T)
    limits = np.concatenate([np.ones(classes), pool.work_per_query(budget_s)])
    result = linprog(
        -(value * weighted).ravel(),
        A_ub=vstack([one_option, work]),
        b_ub=limits,
        bounds=(0, None),
        method="highs",
    )
    if not result.success:
        raise ValueError(f"the linear program was not solved: {result.message}")
    prices = -np.asarray(result.ineqlin.marginals)[classes:]
    return Bound(float(-result.fun), result.x.reshape(classes, options), prices)


def _block_rows(classes: int, options: int) -> csr_array:
    """Row c sums the shares of class c."""
    rows = np.repeat(np.arange(classes), options)
    columns = np.arange(classes * options)
    return csr_array(coo_array((np.ones(len(columns)), (rows, columns))))


def _check(value: Array, work_s: Array, weight: Array, pool: Pool) -> None:
    resources = len(pool.capacity)
    if value.ndim != 2 or work_s.shape != (*value.shape, resources):
        raise ValueError(
            f"value {value.shape} and work_s {work_s.shape} must be [classes, options] and "
            f"[classes, options, {resources}]"
        )
    if weight.shape != value.shape[:1] or not np.isclose(weight.sum(), 1.0) or (weight < 0).any():
        raise ValueError("weight must be one share per class, summing to 1")
    if not ((value >= 0) & (value <= 1)).all():
        raise ValueError("value must be probabilities")
    if not (np.isfinite(work_s) & (work_s >= 0)).all():
        raise ValueError("work_s must be finite and not negative")
    if not pool.rate_per_s > 0 or (pool.capacity < 0).any():
        raise ValueError("rate_per_s must be above zero and capacity not negative")


@dataclass(frozen=True, slots=True)
class Options:
    """Every item under every option, for the three bounds.

    ``chance`` and ``drawn``, [items, options]: the probability that the answer is right and on
    time on an idle pool, and whether the drawn one was. ``work_s`` and ``drawn_work_s``, [items,
    options, resources]: expected least work, and that of the draws. ``features``: what the policy
    sees of each item.
    """

    chance: Array
    drawn: Array
    work_s: Array
    drawn_work_s: Array
    features: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bounds:
    """``own <= item <= outcome`` hold up to the luck of the draws."""

    own: Bound
    item: Bound
    outcome: Bound


def bounds(options: Options, pool: Pool, budget_s: float) -> Bounds:
    """The three bounds for items that are equally likely to be asked about."""
    items = len(options.chance)
    even = np.full(items, 1.0 / items)
    names = sorted(set(options.features))
    rows = [np.array([f == name for f in options.features]) for name in names]
    own = solve(
        value=np.stack([options.chance[row].mean(axis=0) for row in rows]),
        work_s=np.stack([options.work_s[row].mean(axis=0) for row in rows]),
        weight=np.array([row.mean() for row in rows]),
        pool=pool,
        budget_s=budget_s,
    )
    item = solve(options.chance, options.work_s, even, pool, budget_s)
    outcome = solve(options.drawn, options.drawn_work_s, even, pool, budget_s)
    return Bounds(own, item, outcome)


def any_of(outcomes: Array) -> Array:
    """[draws, items, options] -> [items, options]: whether any of the draws was right."""
    best: Array = outcomes.max(axis=0)
    return best
