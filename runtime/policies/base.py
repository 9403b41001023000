"""What the hand-written policies share: typed options, default roles, prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from runtime.config import AppConfig, ModelConfig
from runtime.errors import ConfigError
from runtime.policy import Policy
from runtime.roles import roles_for
from runtime.types import Plan, TaskKind


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


def make_plan(task: TaskKind, topology: str, agents: int) -> Plan:
    """A plan with the first ``agents`` roles of the task, repeated if there are fewer."""
    names = [role.name for role in roles_for(task)]
    return Plan(topology, tuple(names[i % len(names)] for i in range(agents)), task)


def unit_price(model: ModelConfig) -> tuple[float, float]:
    """Sort key of cost: money per token, then seconds per token; no price means free."""
    price = model.price.output if model.price else 0.0
    return price, model.speed.token_s + model.speed.token_s_per_seq
