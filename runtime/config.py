"""Strict pool and policy configs: the ``args:`` of an application in ``serve_configs/*.yaml``.

Unknown keys are errors that name the key. ``parse_config`` is the one way in.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runtime.errors import ConfigError
from runtime.types import STRATEGIES, Strategy, TaskKind

CONFIG_VERSION = 1

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpeedConfig(_Strict):
    """What is assumed of a model's speed until telemetry has measured it.

    One engine iteration with ``b`` sequences takes ``token_s + token_s_per_seq * b`` seconds and
    gives each of them one token.
    """

    prefill_tokens_per_s: Positive
    token_s: Positive
    token_s_per_seq: NonNegative = 0.0


class FaultConfig(_Strict):
    """Faults that the fake engine injects, drawn per call from ``seed``."""

    error_rate: Probability = 0.0
    hang_rate: Probability = 0.0
    slow_rate: Probability = 0.0
    slow_factor: Positive = 4.0
    seed: int = 0


class FakeConfig(_Strict):
    """The fake engine: real time and real bookkeeping, made-up text. Never a quality figure."""

    kv_tokens: Count = 65536
    answer_tokens: Count = 120
    speedup: Positive = 1.0
    faults: FaultConfig = FaultConfig()


class PlacementConfig(_Strict):
    """Where a replica runs. ``resources`` are Ray custom resources, one per GPU on a shared node.

    ``gpu`` is the device index that the engine sees; replicas with the same ``gpu`` on a node
    start one after another, since vLLM measures free memory while it starts.
    """

    accelerator_type: str | None = None
    resources: dict[str, Positive] = {}
    num_cpus: NonNegative = 1.0
    gpu: int | None = Field(default=None, ge=0)


class PriceConfig(_Strict):
    """US dollars per million tokens."""

    input: NonNegative
    output: NonNegative


class ModelConfig(_Strict):
    """One model of the pool.

    ``source`` is a hub id, a folder, or ``prepared:NAME`` (see ``inframind models list``).
    ``engine`` goes to vLLM as it is; keys that this file sets itself are refused there.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    backend: Literal["vllm", "fake"]
    source: str | None = None
    context_tokens: Count
    max_output_tokens: Count = 2048
    max_num_seqs: Count = 16
    replicas: Count = 1
    speed: SpeedConfig
    engine: dict[str, Any] = {}
    env: dict[str, str] = {}
    fake: FakeConfig = FakeConfig()
    placement: PlacementConfig = PlacementConfig()
    price: PriceConfig | None = None
    request_router: str | None = None

    @property
    def simulated(self) -> bool:
        """Whether its text is made up; every answer that it takes part in says so."""
        return self.backend == "fake"

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.backend == "vllm" and not self.source:
            raise ValueError(f"model {self.name!r}: backend vllm needs `source`")
        taken = {"max_num_seqs", "max_model_len", "scheduling_policy", "enable_prefix_caching"}
        if clash := taken & self.engine.keys():
            raise ValueError(f"model {self.name!r}: `engine` may not set {sorted(clash)}")
        if self.max_output_tokens >= self.context_tokens:
            raise ValueError(f"model {self.name!r}: max_output_tokens must be below context_tokens")
        return self


class StrategyConfig(_Strict):
    """Token caps of the three reasoning depths."""

    flash_tokens: Count = 256
    concise_tokens: Count = 768
    deepthink_tokens: Count = 2048

    def max_tokens(self, strategy: Strategy) -> int:
        return (self.flash_tokens, self.concise_tokens, self.deepthink_tokens)[
            STRATEGIES.index(strategy)
        ]


class QualityConfig(_Strict):
    """Probability that one call is right: ``prior[task][model] = [Flash, Concise, DeepThink]``.

    ``status`` says what the numbers rest on; ``/v1/pool`` and the demo show it.
    """

    status: Literal["assumed", "measured"] = "assumed"
    prior: dict[TaskKind, dict[str, tuple[Probability, Probability, Probability]]] = {}

    def expected(self, task: TaskKind, model: str, strategy: Strategy) -> float:
        """The prior, or 0.5 for what it does not list."""
        row = self.prior.get(task, {}).get(model)
        return 0.5 if row is None else row[STRATEGIES.index(strategy)]


class PolicyConfig(_Strict):
    """Which policy decides, and its options (each policy documents and checks its own)."""

    name: str = "greedy"
    options: dict[str, Any] = {}
    seed: int = 0


class LimitsConfig(_Strict):
    """Hard bounds. Reaching one is a clear error, never a silent cut."""

    max_agents: Annotated[int, Field(ge=1, le=6)] = 6
    max_calls_per_query: Count = 40
    max_tokens_per_query: Count = 200_000
    max_attempts_per_step: Count = 3
    max_queries_in_flight: Count = 2000
    max_backlog_per_model: Count = 2000
    max_body_bytes: Count = 1_000_000


class TelemetryConfig(_Strict):
    """How often sources report, and when their figures stop counting.

    A source silent for ``stale_after_periods`` is unknown (``None``, never 0); after
    ``gone_after_s`` it no longer counts as capacity.
    """

    report_period_s: Positive = 0.2
    stale_after_periods: Positive = 2.0
    gone_after_s: Positive = 5.0
    holder_timeout_s: Positive = 5.0


class EmbeddingConfig(_Strict):
    """``minilm``: all-MiniLM-L6-v2, needs torch. ``hash``: lexical feature hashing. Both 384-d."""

    backend: Literal["minilm", "hash"] = "hash"
    source: str = "prepared:all-minilm-l6-v2"
    replicas: Count = 1
    max_batch: Count = 32
    timeout_s: Positive = 5.0


class AppConfig(_Strict):
    """Everything one application needs; ``version`` is that of this schema."""

    version: Literal[1]
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    policy: PolicyConfig = PolicyConfig()
    default_budget_s: Positive = 60.0
    max_budget_s: Positive = 3600.0
    at_deadline: Literal["finish", "run_on"] = "finish"
    order: Literal["edf", "edf_plain", "fcfs"] = "edf"
    workflow_actors: Count = 1
    strategies: StrategyConfig = StrategyConfig()
    quality: QualityConfig = QualityConfig()
    limits: LimitsConfig = LimitsConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()

    @model_validator(mode="after")
    def _check(self) -> AppConfig:
        names = [m.name for m in self.models]
        if len(set(names)) != len(names):
            raise ValueError("model names must be unique")
        if clash := {n for n in names if n == "inframind" or n.startswith("inframind/")}:
            raise ValueError(f"model name {sorted(clash)} is reserved")
        known = set(names)
        for task, rows in self.quality.prior.items():
            if unknown := rows.keys() - known:
                raise ValueError(f"quality.prior.{task}: no such model {sorted(unknown)}")
        if self.default_budget_s > self.max_budget_s:
            raise ValueError("default_budget_s is above max_budget_s")
        return self

    def model(self, name: str) -> ModelConfig:
        """The model called ``name``; raises ``KeyError``."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    @property
    def digest(self) -> str:
        """Short, stable id of this config; actors of one version carry it in their names."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


def parse_config(args: Mapping[str, Any], origin: str = "config") -> AppConfig:
    """Check ``args`` and return the config.

    Raises:
        ConfigError: names ``origin``, the path of each key at fault and, for an unknown key,
            the nearest known one.
    """
    try:
        return AppConfig.model_validate(args)
    except ValidationError as error:
        lines = [_explain(item, args) for item in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None


def _explain(item: Any, args: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in item["loc"]) or "(top level)"
    if item["type"] != "extra_forbidden":
        return f"{path}: {item['msg']}"
    near = difflib.get_close_matches(str(item["loc"][-1]), _all_keys(), n=1)
    return f"{path}: unknown key" + (f" (did you mean {near[0]!r}?)" if near else "")


def _all_keys() -> list[str]:
    keys: set[str] = set()
    for cls in _Strict.__subclasses__():
        keys |= cls.model_fields.keys()
    return sorted(keys)
