"""From a pool's call log to the parameters that the simulator loads: speed, lengths, abilities.

What the log does not tell keeps its prior: the config's assumptions where there is a config, and
otherwise what is typical of the shipped models. Every parameter says on how many rows it rests and
whether it is measured or prior.

Lengths and abilities are those of first calls, which were shown no other answer. Whether such a
call was right follows from its query's outcome where its answer is the query's, or where the query
was right and its answer is another. Where both differ from the truth nothing is known, and the call
is left out; it may have been right, so abilities of models that are often overruled are a little
high.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.config import AppConfig
from runtime.log_tables import read_table, with_outcomes
from runtime.sim.fit_lengths import Lengths, fit_lengths
from runtime.sim.fit_skills import (
    ABILITY_SD,
    OFFSET_SD,
    AccuracyCurve,
    Graded,
    fit_ability,
    offsets_of,
)
from runtime.sim.fit_speed import fit_speed
from runtime.sim.items import NEAREST, Calibration, shipped
from runtime.sim.logged_calls import LoggedCalls
from runtime.sim.parameters import (
    VERSION,
    EngineParameters,
    ModelParameters,
    Parameter,
    PoolParameters,
    Skill,
    Status,
    StrategyParameters,
)
from runtime.sim.pool import sim_model
from runtime.sim.uniforms import cumulative
from runtime.types import STRATEGIES, Strategy, TaskKind

MIN_LENGTHS = 20
MIN_RUNAWAYS = 100
"""Answers from which a mean length, and a share of runaways, counts as measured."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The parameters, and of what could not be fitted why."""

    pool: PoolParameters
    notes: tuple[str, ...]


def calls_of(folder: Path, *, simulated: bool = False, since_at: float | None = None) -> pa.Table:
    """The calls of a log with the outcomes of their queries.

    Args:
        folder: the log.
        simulated: those of fake engines instead of those of real ones.
        since_at: only what ended later, in seconds since 1970.

    Raises:
        ConfigError: there is no log, or a file of it cannot be read.
    """
    calls = read_table(folder, "calls")
    calls = calls.filter(pc.equal(calls["simulated"], simulated))
    if since_at is not None:
        start = pa.scalar(round(since_at * 1e6), pa.timestamp("us", tz="UTC"))
        calls = calls.filter(pc.greater_equal(calls["ended_at"], start))
    return with_outcomes(calls, read_table(folder, "outcomes"))


def calibrate(
    calls: pa.Table, config: AppConfig | None = None, base: Calibration | None = None
) -> Fitted:
    """Fit all models of ``calls`` (see ``calls_of``); with ``config``, those that it has."""
    base = base or shipped()
    log = LoggedCalls.read(calls)
    engines: dict[str, EngineParameters] = {}
    models: list[ModelParameters] = []
    notes: list[str] = []
    for name in sorted(set(log.model)):
        if config is not None and name not in {m.name for m in config.models}:
            notes.append(f"{name}: not in the config, left out")
            continue
        of_model = log.only(log.model == name)
        try:
            prior = None if config is None else sim_model(config.model(name))
            engines[name] = fit_speed(of_model.served(), prior)
        except ValueError as error:
            notes.append(f"{name}: speed not fitted: {error}")
        skills = _skills(of_model, name, config, base)
        if skills:
            models.append(ModelParameters(name, skills))
        else:
            notes.append(f"{name}: no first call of a plan, so neither lengths nor abilities")
    return Fitted(PoolParameters(VERSION, tuple(models), engines), tuple(notes))


# --- lengths and abilities -----------------------------------------------------------------------


def _skills(
    log: LoggedCalls, model: str, config: AppConfig | None, base: Calibration
) -> dict[str, Skill]:
    """By task kind, and by data set where outcomes name one with enough calls."""
    first = log.only(log.first_call & (log.status == "ok") & (log.strategy != ""))
    skills = {}
    for task in sorted(set(first.task)):
        mine = first.only(first.task == task)
        skills[task] = _skill(mine, model, task, TaskKind(task), config, base)
        for dataset in sorted(set(mine.dataset) - {""}):
            of_set = mine.only(mine.dataset == dataset)
            if len(of_set.model) >= MIN_LENGTHS:
                skills[dataset] = _skill(of_set, model, dataset, TaskKind(task), config, base)
    return skills


def _skill(
    log: LoggedCalls,
    model: str,
    key: str,
    task: TaskKind,
    config: AppConfig | None,
    base: Calibration,
) -> Skill:
    prior = _prior(model, key, task, config, base)
    lengths, counts = _lengths(log, prior)
    curve = AccuracyCurve(base, key, task)
    graded = {s: _graded(log.only(log.strategy == s), lengths[s]) for s in lengths}
    believed = _believed(model, task, prior, curve, config)
    ability, offsets = fit_ability(curve, graded, believed, offsets_of(prior))
    depths = {
        s: StrategyParameters(
            offsets[s].parameter(OFFSET_SD),
            _length(lengths[s].mean, counts[s], MIN_LENGTHS),
            _length(lengths[s].cv, counts[s], MIN_LENGTHS),
            _length(lengths[s].runaway, counts[s], MIN_RUNAWAYS),
        )
        for s in lengths
    }
    return Skill(ability.parameter(ABILITY_SD), depths)


def _prior(
    model: str, key: str, task: TaskKind, config: AppConfig | None, base: Calibration
) -> Skill:
    """The shipped skill of the model, else the mean of all; lengths are the config's if it has
    them."""
    known = {m.name: m for m in base.parameters.models}
    names = (key, task.value, NEAREST[task])
    skills = [known[model]] if model in known else list(known.values())
    found = [next(m.skills[n] for n in names if n in m.skills) for m in skills]
    skill = found[0] if len(found) == 1 else _mean_skill(found)
    row = config.quality.tokens.get(task, {}).get(model) if config is not None else None
    if row is None:
        return skill
    depths = {
        s: replace(d, tokens_mean=d.tokens_mean.moved(row[STRATEGIES.index(s)]))
        for s, d in skill.strategies.items()
    }
    return replace(skill, strategies=depths)


def _mean_skill(skills: list[Skill]) -> Skill:
    def mean(values: list[Parameter]) -> Parameter:
        return Parameter(float(np.mean([v.value for v in values])), Status.ASSUMED, "prior")

    def depth(strategy: Strategy) -> StrategyParameters:
        some = [s.strategies[strategy] for s in skills]
        log_mean = float(np.mean([math.log(d.tokens_mean.value) for d in some]))
        return StrategyParameters(
            mean([d.offset for d in some]),
            Parameter(math.exp(log_mean), Status.ASSUMED, "prior"),
            mean([d.tokens_cv for d in some]),
            mean([d.runaway for d in some]),
        )

    return Skill(mean([s.ability for s in skills]), {s: depth(s) for s in STRATEGIES})


def _lengths(log: LoggedCalls, prior: Skill) -> tuple[dict[Strategy, Lengths], dict[Strategy, int]]:
    """By strategy; one without answers is as much longer or shorter than believed as the others."""
    fitted: dict[Strategy, Lengths] = {}
    counts: dict[Strategy, int] = {}
    believed = {
        s: Lengths(d.tokens_mean.value, d.tokens_cv.value, d.runaway.value)
        for s, d in prior.strategies.items()
    }
    for strategy, before in believed.items():
        mine = log.only((log.strategy == strategy) & (log.output_tokens >= 1))
        counts[strategy] = len(mine.model)
        fitted[strategy] = fit_lengths(mine.output_tokens.astype(int), mine.cut, before)
    ratios = [math.log(fitted[s].mean / believed[s].mean) for s in fitted if counts[s]]
    scale = math.exp(float(np.mean(ratios))) if ratios else 1.0
    for strategy, before in believed.items():
        if not counts[strategy]:
            fitted[strategy] = replace(before, mean=before.mean * scale)
    return fitted, counts


def _length(value: float, count: int, enough: int) -> Parameter:
    source = f"{count} calls of the pool's own log"
    if count >= enough:
        return Parameter(value, Status.MEASURED, source)
    text = f"prior, with {source}" if count else "prior: no calls"
    return Parameter(value, Status.ASSUMED, text)


def _graded(log: LoggedCalls, lengths: Lengths) -> Graded:
    graded = log.only(~np.isnan(log.right))
    if not len(graded.model):
        return Graded()
    variance = math.log1p(lengths.cv**2)
    mean = math.log(lengths.mean) - variance / 2
    gaps = (np.log(graded.max_tokens + 0.5) - mean) / math.sqrt(variance)
    ends = float(np.mean([cumulative(float(gap)) for gap in gaps]))
    # Right answers that were cut are there in life, if not in the simulator.
    share = max(ends, float(np.mean(graded.right)))
    return Graded(len(graded.model), int(graded.right.sum()), min(1.0, max(share, 0.05)))


def _believed(
    model: str, task: TaskKind, prior: Skill, curve: AccuracyCurve, config: AppConfig | None
) -> float:
    """The ability that was believed: the config's expectation, else the prior skill's."""
    expected: Mapping[str, tuple[float, float, float]] = {}
    if config is not None:
        expected = config.quality.prior.get(task, {})
    if model not in expected:
        return prior.ability.value
    return curve.ability(expected[model][STRATEGIES.index(Strategy.CONCISE)])
