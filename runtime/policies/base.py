"""What the hand-written policies share: typed options, default roles, prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.config import AppConfig, ModelConfig
from runtime.errors import ConfigError
from runtime.policy import Policy
from runtime.roles import roles_for
from runtime.types import Plan, Strategy, TaskKind


class Options(BaseModel):
    """Options of a policy: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ConfiguredPolicy(Policy):
    """A policy made from the pool's config and its own ``Options``."""

    name = "base"
    needs_embedding = False
    options_type: type[Options] = Options

    def __init__(self, config: AppConfig, options: Any) -> None:
        self.config = config
        self.options = options

    @classmethod
    def from_config(cls, config: AppConfig, options: Mapping[str, Any]) -> Self:
        """Check ``options``; raises ``ConfigError`` that names the policy and the key."""
        try:
            checked = cls.options_type.model_validate(options)
        except ValidationError as error:
            lines = [
                f"policy.options.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()
            ]
            raise ConfigError(f"policy {cls.name}: " + "; ".join(lines)) from None
        return cls(config, checked)

    def check_model(self, name: str | None, option: str) -> None:
        """A ``ConfigError`` where ``name`` is none of the pool's models."""
        names = [model.name for model in self.config.models]
        if name is not None and name not in names:
            raise ConfigError(f"policy {self.name}: {option}: no such model {name!r}; {names} are")

    def strongest(self, task: TaskKind, strategy: Strategy, names: Sequence[str] = ()) -> str:
        """The model with the highest prior, of ``names`` or of the pool; ties to the earliest."""
        expected = self.config.quality.expected
        pool = names or [model.name for model in self.config.models]
        return max(pool, key=lambda name: expected(task, name, strategy))


def make_plan(task: TaskKind, topology: str, agents: int) -> Plan:
    """A plan with the first ``agents`` roles of the task, repeated if there are fewer."""
    names = [role.name for role in roles_for(task)]
    return Plan(topology, tuple(names[i % len(names)] for i in range(agents)), task)


def comparable(config: AppConfig, task: TaskKind) -> bool:
    """Whether answers can be compared: programs only by running them, free text never."""
    return task in (TaskKind.MATH, TaskKind.KNOWLEDGE) or (
        task is TaskKind.CODE and config.runs_code
    )


def unit_price(model: ModelConfig) -> tuple[float, float]:
    """Sort key of cost: money per token, then seconds per token; no price means free."""
    price = model.price.output if model.price else 0.0
    return price, model.speed.token_s + model.speed.token_s_per_seq
