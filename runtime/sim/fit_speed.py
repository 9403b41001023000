"""An engine's speed from the calls that it served: robust regression on what was going on.

For call i with n_i output tokens, P_i prompt tokens and service time S_i (CALIBRATION section 8)::

    S_i = D + (n_i + h_i) * (a + c * b_i + d * K_i / 1000) + (P_i + R_i) / r

b_i and K_i are the calls that ran beside it (itself included) and their KV tokens, averaged over
the iterations of its time; R_i is what was read of other prompts meanwhile, for which it waited;
h_i is 1/2 where the engine was busy when it came (it waits for the iteration that is on). All of
them follow from the log's own intervals. The time of the first token gives a second equation.

Iterations are shorter where few run, so averages over them need the speed that is looked for: the
fit is repeated with its own result. Errors are relative and weighed by Huber's rule. Where the data
say little, as of c at one constant load, a weak prior keeps its value, and the result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.sim.parameters import EngineParameters, Parameter, Status
from runtime.sim.pool import SimModel

Floats = npt.NDArray[np.float64]

MIN_CALLS = 20
ROUNDS = 6
HUBER = 1.5
"""Residuals beyond so many standard deviations count less."""

LEAST_SD = 0.003
LEARNED = 0.5
"""A parameter counts as measured where the data at least halve its prior's standard deviation."""


@dataclass(frozen=True, slots=True)
class ServedCalls:
    """Calls that one replica served, one entry each; times in seconds on one clock.

    ``first_s`` is the engine's own time to the first token, ``nan`` where it is not known.
    ``whole`` are those that ended by themselves and are fitted; the others only took part.
    """

    began_s: Floats
    ended_s: Floats
    first_s: Floats
    prompt_tokens: Floats
    output_tokens: Floats
    whole: npt.NDArray[np.bool_]

    @property
    def service_s(self) -> Floats:
        return self.ended_s - self.began_s


def fit_speed(replicas: Sequence[ServedCalls], prior: SimModel | None = None) -> EngineParameters:
    """The speed of the engine whose replicas served these calls.

    Args:
        replicas: the calls of each.
        prior: what was believed before; by default a guess from the calls themselves, held less.

    Raises:
        ValueError: there are fewer than ``MIN_CALLS`` calls to fit.
    """
    count = sum(int(r.whole.sum()) for r in replicas)
    if count < MIN_CALLS:
        raise ValueError(f"{count} whole calls, at least {MIN_CALLS} are needed")
    guess = _vector(_guess(replicas))
    centre = guess if prior is None else _vector(prior)
    # What was believed may be far off: it is held no tighter than a first look at the calls allows.
    seen = np.maximum(guess, _least_spread(guess))
    spread = np.maximum(centre, seen) if prior is not None else 2.0 * seen
    values, sd = guess, spread
    for _ in range(ROUNDS):
        rows = [_equations(r, values) for r in replicas]
        design = np.concatenate([a for a, _ in rows])
        target = np.concatenate([y for _, y in rows])
        values, sd = _solve(design, target, centre, spread, values)
    return _parameters(replicas, values, sd, spread, count)


# --- the parameters as a vector: a, c, d, 1 / r, D -----------------------------------------------


def _vector(model: SimModel) -> Floats:
    per_token_s = 1 / model.prefill_tokens_per_s
    return np.array([model.a_s, model.c_s, model.d_s_per_1k, per_token_s, model.dispatch_s])


def _least_spread(centre: Floats) -> Floats:
    """What each may be off by, at least: in parts of an iteration."""
    a_s = centre[0]
    return np.array([a_s, 0.1 * a_s, 0.05 * a_s, 1e-3 * a_s, 0.5 * a_s + 0.01])


def _guess(replicas: Sequence[ServedCalls]) -> SimModel:
    """A start from the calls: the quick ones show an iteration, the first tokens a prompt."""
    per_token, reading = [], []
    for calls in replicas:
        long = calls.whole & (calls.output_tokens >= 4)
        per_token.append(calls.service_s[long] / calls.output_tokens[long])
        read = calls.whole & (calls.first_s > 0)
        reading.append(calls.first_s[read] / np.maximum(calls.prompt_tokens[read], 1))
    iterations, prompts = np.concatenate(per_token), np.concatenate(reading)
    a_s = float(np.quantile(iterations, 0.1)) if len(iterations) else 0.02
    prompt_s = float(np.quantile(prompts, 0.2)) if len(prompts) else a_s / 20
    return SimModel(max(a_s, 1e-6), 0.0, 0.0, 1 / max(prompt_s, 1e-9))


# --- what was going on ---------------------------------------------------------------------------


def _equations(calls: ServedCalls, values: Floats) -> tuple[Floats, Floats]:
    """Rows of coefficients with their right sides, both as shares of the time that they explain."""
    timeline = _Timeline(calls, values)
    whole = calls.whole
    began, ended = calls.began_s[whole], calls.ended_s[whole]
    prompts, service_s = calls.prompt_tokens[whole], calls.service_s[whole]
    turns = calls.output_tokens[whole] + 0.5 * timeline.busy(began)
    rows = [timeline.coefficients(began, ended, prompts, turns, 1.0)]
    targets = [service_s]
    first_s = calls.first_s[whole]
    known = first_s > 0
    if known.any():
        began, prompts, first_s = began[known], prompts[known], first_s[known]
        turns = 1 + 0.5 * timeline.busy(began)
        rows.append(timeline.coefficients(began, began + first_s, prompts, turns, 0.0))
        targets.append(first_s)
    design, target = np.concatenate(rows), np.concatenate(targets)
    # A first token may come within a clock's tick; such a time is no measure of itself.
    scale = np.maximum(target, 0.2 * np.median(target) * np.ones_like(target))
    return design / scale[:, None], target / scale


class _Timeline:
    """Integrals over time of who ran and what was read, as steps between the log's moments."""

    def __init__(self, calls: ServedCalls, values: Floats) -> None:
        a_s, c_s, d_s, read_s, _ = values
        began, ended = calls.began_s, calls.ended_s
        prompts, outputs = calls.prompt_tokens, calls.output_tokens
        reads = np.maximum(prompts * read_s, 1e-9)
        slope = outputs / np.maximum(calls.service_s, 1e-9)
        self._began, self._ended = np.sort(began), np.sort(ended)
        self._times = times = np.unique(np.concatenate([began, ended, began + reads]))
        running = _steps(times, began, ended, np.ones_like(began))
        growth = _steps(times, began, ended, slope)
        # K(t) of a call is P + slope * (t - began): its part without t is a step, too.
        base = _steps(times, began, ended, prompts - slope * began)
        gaps = np.diff(times)
        middle = times[:-1] + gaps / 2
        kv_tokens = base + growth * middle
        rate = _steps(times, began, began + reads, prompts / reads)
        reading = np.minimum(_steps(times, began, began + reads, np.ones_like(began)), 1.0)
        self._read = _integral(rate, gaps)
        turns_per_s = (1 - 0.98 * reading) / (a_s + c_s * running + d_s * kv_tokens / 1e3)
        self._turns = _integral(turns_per_s, gaps)
        self._run = _integral(turns_per_s * running, gaps)
        self._kv = _integral(turns_per_s * kv_tokens, gaps)

    def busy(self, at_s: Floats) -> Floats:
        """1 where somebody ran when a call came, else 0."""
        came = np.searchsorted(self._began, at_s, side="left")
        left = np.searchsorted(self._ended, at_s, side="right")
        return (came > left).astype(float)

    def coefficients(
        self, start_s: Floats, end_s: Floats, prompts: Floats, turns: Floats, whole: float
    ) -> Floats:
        """Of (a, c, d, 1 / r, D) in the time from ``start_s`` to ``end_s``."""
        passed = np.maximum(self._over(self._turns, start_s, end_s), 1e-9)
        running = np.maximum(self._over(self._run, start_s, end_s) / passed, 1.0)
        kv_tokens = np.maximum(self._over(self._kv, start_s, end_s) / passed, prompts)
        read = self._over(self._read, start_s, end_s)
        columns = [
            turns,
            turns * running,
            turns * kv_tokens / 1e3,
            np.maximum(read, prompts),
            np.full_like(turns, whole),
        ]
        return np.stack(columns, axis=1)

    def _over(self, integral: Floats, start_s: Floats, end_s: Floats) -> Floats:
        at_end = np.interp(end_s, self._times, integral)
        over: Floats = at_end - np.interp(start_s, self._times, integral)
        return over


def _steps(times: Floats, starts: Floats, ends: Floats, heights: Floats) -> Floats:
    """The sum of steps of these heights, in each gap between two of ``times``."""
    change = np.zeros(len(times))
    np.add.at(change, np.searchsorted(times, starts), heights)
    np.add.at(change, np.searchsorted(times, ends), -heights)
    return np.cumsum(change)[:-1]


def _integral(heights: Floats, gaps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(heights * gaps)])


# --- the solution --------------------------------------------------------------------------------


def _solve(
    design: Floats, target: Floats, centre: Floats, spread: Floats, start: Floats
) -> tuple[Floats, Floats]:
    """Values that are not negative, and their standard deviations; Huber's weights, iterated."""
    from scipy.optimize import lsq_linear  # only who fits needs it

    values = start
    for _ in range(12):
        residual = design @ values - target
        sd = max(LEAST_SD, 1.4826 * float(np.median(np.abs(residual))))
        weight = np.sqrt(np.minimum(1.0, HUBER * sd / np.maximum(np.abs(residual), 1e-12))) / sd
        rows = np.concatenate([design * weight[:, None], np.diag(1 / spread)])
        right = np.concatenate([target * weight, centre / spread])
        # In units of the prior's spread: the parameters differ by orders of magnitude.
        found = lsq_linear(rows * spread, right, bounds=(0, np.inf), method="bvls").x * spread
        done = np.allclose(found, values, rtol=1e-6, atol=1e-12)
        values = found
        if done:
            break
    scaled = rows * spread
    return values, np.sqrt(np.diag(np.linalg.inv(scaled.T @ scaled))) * spread


def _parameters(
    replicas: Sequence[ServedCalls], values: Floats, sd: Floats, spread: Floats, count: int
) -> EngineParameters:
    values = np.maximum(values, [1e-9, 0.0, 0.0, 1e-12, 0.0])
    learned = sd < LEARNED * spread
    texts = [_source(bool(known), count) for known in learned]
    statuses = [Status.MEASURED if known else Status.ASSUMED for known in learned]
    low, high = np.maximum(values - 2 * sd, 0.0), values + 2 * sd
    # The fourth is seconds per prompt token; its own unit is the other way round.
    shown, least, most = values.copy(), low.copy(), high.copy()
    shown[3], least[3], most[3] = 1 / values[3], 1 / high[3], 1 / max(low[3], values[3] / 100)
    parts = [
        Parameter(float(shown[i]), statuses[i], texts[i], float(least[i]), float(most[i]))
        for i in range(5)
    ]
    errors, bias = _errors(replicas, values)
    return EngineParameters(
        a_s=parts[0],
        c_s=parts[1],
        d_s_per_1k=parts[2],
        prefill_tokens_per_s=parts[3],
        dispatch_s=parts[4],
        num_calls=count,
        num_replicas=len(replicas),
        error_median=float(np.median(errors)),
        error_p90=float(np.quantile(errors, 0.9)),
        bias=bias,
    )


def _source(known: bool, count: int) -> str:
    if known:
        return f"{count} calls of the pool's own log"
    return f"prior: {count} calls of the pool's own log do not tell it"


def _errors(replicas: Sequence[ServedCalls], values: Floats) -> tuple[Floats, float]:
    """Relative errors of the service times without their sign, and the error of their sum."""
    predicted, seen = [], []
    for calls in replicas:
        timeline, whole = _Timeline(calls, values), calls.whole
        began = calls.began_s[whole]
        turns = calls.output_tokens[whole] + 0.5 * timeline.busy(began)
        prompts = calls.prompt_tokens[whole]
        rows = timeline.coefficients(began, calls.ended_s[whole], prompts, turns, 1.0)
        predicted.append(rows @ values)
        seen.append(calls.service_s[whole])
    guess, truth = np.concatenate(predicted), np.concatenate(seen)
    bias = float(guess.sum() / max(truth.sum(), 1e-12) - 1)
    return np.abs(guess / np.maximum(truth, 1e-9) - 1), bias
