"""Parameters of the quality model: values that say where they come from; JSON in and out.

Every ``Parameter`` is *measured* (on public outputs, by us), *published* (by others) or *assumed*,
with its source. An assumed one has a range: ``draw_parameters`` draws one world out of the ranges,
so that a policy can be held to many worlds instead of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from runtime.errors import ConfigError
from runtime.sim.combine import Rules
from runtime.types import Strategy

VERSION = 1
"""Of the JSON form. A file of another version is refused."""

_STRICT = ConfigDict(extra="forbid")


class Status(StrEnum):
    """How well a value is known."""

    MEASURED = "measured"
    PUBLISHED = "published"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number; ``low`` and ``high`` are its range, which every assumed one may have."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    value: float
    status: Status
    source: str
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError("a parameter must be a finite number")
        if (self.low is None) != (self.high is None):
            raise ValueError("low and high are given together")
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise ValueError("low must not be above high")

    def at(self, quantile: float) -> Parameter:
        """The same parameter with the value at ``quantile`` of its range, if it has one."""
        if self.low is None or self.high is None:
            return self
        return replace(self, value=self.low + quantile * (self.high - self.low))

    def moved(self, value: float) -> Parameter:
        """The same parameter at ``value``, its range moved along."""
        if self.low is None or self.high is None:
            return replace(self, value=value)
        by = value - self.value
        return replace(self, value=value, low=self.low + by, high=self.high + by)


@dataclass(frozen=True, slots=True)
class StrategyParameters:
    """One model at one depth: ability offset in logits, lengths in tokens, share of runaways."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    offset: Parameter
    tokens_mean: Parameter
    tokens_cv: Parameter
    runaway: Parameter


@dataclass(frozen=True, slots=True)
class Skill:
    """One model on one data set: its ability (Concise, in logits) and its strategies."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    ability: Parameter
    strategies: dict[Strategy, StrategyParameters]


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """One model of a pool; ``skills`` by data set, or by task kind for items of no known set."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    name: str
    skills: dict[str, Skill]


@dataclass(frozen=True, slots=True)
class EngineParameters:
    """The engine of one model as its pool's own calls show it; see ``runtime.sim.pool.SimModel``.

    ``num_calls`` calls of ``num_replicas`` replicas were fitted. Of their service times the
    prediction was off by ``error_median`` and ``error_p90`` (shares of the time, without sign), and
    by ``bias`` in the sum of all.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    a_s: Parameter
    c_s: Parameter
    d_s_per_1k: Parameter
    prefill_tokens_per_s: Parameter
    dispatch_s: Parameter
    num_calls: int
    num_replicas: int
    error_median: float
    error_p90: float
    bias: float


@dataclass(frozen=True, slots=True)
class DatasetParameters:
    """One data set.

    ``tau`` is the spread, in logits, of a model's persistent luck on an item; ``same_wrong`` how
    often two different models that are both wrong give the same answer; ``guess`` the lower
    asymptote; ``fails_visible`` how often a wrong program fails the tests in its prompt. Items
    without a difficulty of their own get one from N(``difficulty_mean``, ``difficulty_sd``), with
    ``discrimination``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    guess: Parameter
    tau: Parameter
    same_wrong: Parameter
    fails_visible: Parameter
    difficulty_mean: Parameter
    difficulty_sd: Parameter
    discrimination: Parameter


@dataclass(frozen=True, slots=True)
class QualityParameters:
    """Everything but the items. ``rules`` has one parameter for each field of ``Rules``."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    version: int
    rules: dict[str, Parameter]
    datasets: dict[str, DatasetParameters]
    models: tuple[ModelParameters, ...]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version {self.version} cannot be read, only {VERSION}")
        wanted = {field.name for field in fields(Rules)}
        if self.rules.keys() != wanted:
            raise ValueError(f"rules: not the expected names: {sorted(self.rules.keys() ^ wanted)}")

    def plain_rules(self) -> Rules:
        """The values of ``rules``."""
        return Rules(**{name: parameter.value for name, parameter in self.rules.items()})

    def with_models(self, *models: ModelParameters) -> QualityParameters:
        """Add models; one of a known name takes the place of the old one."""
        new = {model.name: model for model in (*self.models, *models)}
        return replace(self, models=tuple(new.values()))


_QUALITY: TypeAdapter[QualityParameters] = TypeAdapter(QualityParameters)


@dataclass(frozen=True, slots=True)
class PoolParameters:
    """A file of models alone, such as one fitted to a pool's own logs; ``engines`` by model."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    version: int
    models: tuple[ModelParameters, ...]
    engines: dict[str, EngineParameters] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version {self.version} cannot be read, only {VERSION}")


_POOL: TypeAdapter[PoolParameters] = TypeAdapter(PoolParameters)


def parse_quality(text: str | bytes, name: str) -> QualityParameters:
    """All parameters from JSON; ``name`` is the file's. Raises ``ConfigError``."""
    parsed: QualityParameters = _parse(_QUALITY, text, name)
    return parsed


def load_models(path: Path) -> tuple[ModelParameters, ...]:
    """Models from a JSON file. Raises ``ConfigError`` that names the file and the key."""
    return load_pool(path).models


def load_pool(path: Path) -> PoolParameters:
    """All that such a file holds. Raises ``ConfigError`` that names the file and the key."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    parsed: PoolParameters = _parse(_POOL, text, str(path))
    return parsed


def dump_models(models: tuple[ModelParameters, ...]) -> str:
    """The JSON that ``load_models`` reads."""
    return dump_pool(PoolParameters(VERSION, models))


def dump_pool(pool: PoolParameters) -> str:
    """The JSON that ``load_pool`` reads."""
    return _POOL.dump_json(pool, indent=1).decode()


def _parse(adapter: TypeAdapter[Any], text: str | bytes, name: str) -> Any:
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{name}: " + "; ".join(lines[:5])) from None


def draw_parameters(parameters: QualityParameters, rng: Random) -> QualityParameters:
    """One world: every assumed parameter that has a range is drawn uniformly from it.

    Abilities move alone. What a strategy does to ability, length and runaways on a data set moves
    for all models together: were they drawn one by one, they would cancel in the mean. Measured and
    published values stay.
    """
    quantiles: dict[str, float] = {}

    def draw(name: str, parameter: Parameter) -> Parameter:
        if parameter.status is not Status.ASSUMED:
            return parameter
        if name not in quantiles:
            quantiles[name] = rng.random()
        return parameter.at(quantiles[name])

    return replace(
        parameters,
        rules={name: draw(f"rules.{name}", rule) for name, rule in parameters.rules.items()},
        datasets={n: _drawn(n, d, draw) for n, d in parameters.datasets.items()},
        models=tuple(
            replace(m, skills={n: _drawn_skill(m.name, n, s, draw) for n, s in m.skills.items()})
            for m in parameters.models
        ),
    )


Draw = Callable[[str, Parameter], Parameter]


def _drawn(name: str, group: Any, draw: Draw) -> Any:
    """A dataclass of parameters with each one drawn under its own name."""
    names = [field.name for field in fields(group)]
    return replace(group, **{n: draw(f"{name}.{n}", getattr(group, n)) for n in names})


def _drawn_skill(model: str, dataset: str, skill: Skill, draw: Draw) -> Skill:
    strategies: Mapping[Strategy, StrategyParameters] = skill.strategies
    return Skill(
        draw(f"{dataset}.{model}.ability", skill.ability),
        {s: _drawn(f"{dataset}.{s}", p, draw) for s, p in strategies.items()},
    )
