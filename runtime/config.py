"""Strict pool and policy configs: the ``args:`` of an application in ``serve_configs/*.yaml``.

Unknown keys are errors that name the key. ``parse_config`` is the one way in.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from runtime.errors import ConfigError
from runtime.model_config import ApiConfig as ApiConfig
from runtime.model_config import Count, NonNegative, Positive, Probability, Strict
from runtime.model_config import FaultConfig as FaultConfig
from runtime.model_config import ModelConfig as ModelConfig
from runtime.model_config import SpeedConfig as SpeedConfig
from runtime.types import STRATEGIES, Strategy, TaskKind

CONFIG_VERSION = 1


class StrategyConfig(Strict):
    """Token caps of the three reasoning depths."""

    flash_tokens: Count = 256
    concise_tokens: Count = 768
    deepthink_tokens: Count = 2048

    def max_tokens(self, strategy: Strategy) -> int:
        return (self.flash_tokens, self.concise_tokens, self.deepthink_tokens)[
            STRATEGIES.index(strategy)
        ]


class QualityConfig(Strict):
    """What is expected of one call: ``prior[task][model] = [Flash, Concise, DeepThink]`` is the
    chance that it is right, and ``tokens`` in the same form how long it is.

    ``status`` says what the numbers rest on; ``/v1/pool`` and the demo show it.
    """

    status: Literal["assumed", "measured"] = "assumed"
    prior: dict[TaskKind, dict[str, tuple[Probability, Probability, Probability]]] = Field(
        default={}
    )
    tokens: dict[TaskKind, dict[str, tuple[Positive, Positive, Positive]]] = Field(default={})

    def expected(self, task: TaskKind, model: str, strategy: Strategy) -> float:
        """The prior, or 0.5 for what it does not list."""
        row = self.prior.get(task, {}).get(model)
        return 0.5 if row is None else row[STRATEGIES.index(strategy)]

    def expected_tokens(self, task: TaskKind, model: str, strategy: Strategy, cap: int) -> float:
        """Tokens of an answer; the cap for what is not listed."""
        row = self.tokens.get(task, {}).get(model)
        return cap if row is None else min(cap, row[STRATEGIES.index(strategy)])


class PolicyConfig(Strict):
    """Which policy decides, and its options (each policy documents and checks its own)."""

    name: str = "greedy"
    options: dict[str, Any] = Field(default={})
    seed: int = 0


class LimitsConfig(Strict):
    """Hard bounds. Reaching one is a clear error, never a silent cut.

    ``stall_s`` is how long an engine may give a call no token, ``silent_s`` how long no replica
    may know of a call, and ``park_s`` how long a step waits for a model past a soft deadline.
    ``program_s`` is how long the program in an answer may take, where such programs are run, and
    ``max_programs`` how many a driver of queries runs at once.
    """

    max_agents: Annotated[int, Field(ge=1, le=6)] = 6
    max_calls_per_query: Count = 40
    max_tokens_per_query: Count = 200_000
    max_attempts_per_step: Count = 3
    stall_s: Positive = 60.0
    silent_s: Positive = 5.0
    park_s: Positive = 60.0
    program_s: Positive = 10.0
    max_programs: Count = 4
    max_queries_in_flight: Count = 2000
    max_backlog_per_model: Count = 2000
    max_body_bytes: Count = 1_000_000


class BreakerConfig(Strict):
    """When a model that only fails is left alone, and for how long (see ``runtime.breaker``)."""

    failures: Count = 3
    open_s: Positive = 10.0
    max_open_s: Positive = 120.0


class TelemetryConfig(Strict):
    """How often sources report, and when their figures stop counting.

    A source silent for ``stale_after_periods`` is unknown (``None``, never 0); after
    ``gone_after_s`` it no longer counts as capacity.
    """

    report_period_s: Positive = 0.2
    stale_after_periods: Positive = 2.0
    gone_after_s: Positive = 5.0
    holder_timeout_s: Positive = 5.0


class EmbeddingConfig(Strict):
    """``minilm``: all-MiniLM-L6-v2, needs torch. ``hash``: lexical feature hashing. Both 384-d."""

    backend: Literal["minilm", "hash"] = "hash"
    source: str = "prepared:all-minilm-l6-v2"
    replicas: Count = 1
    max_batch: Count = 32
    timeout_s: Positive = 5.0


class MoneyConfig(Strict):
    """US dollars. ``per_query_usd`` is what a query may spend that does not say,
    ``max_per_query_usd`` the most that one may ask for, ``per_hour_usd`` what the pool may spend
    within any hour. ``None``: no bound."""

    per_query_usd: NonNegative | None = None
    max_per_query_usd: NonNegative | None = None
    per_hour_usd: Positive | None = None

    def query_usd(self, asked_usd: float | None) -> float | None:
        """What a query may spend that asks for ``asked_usd``; ``None``: any amount."""
        wanted = self.per_query_usd if asked_usd is None else asked_usd
        bounds = [usd for usd in (wanted, self.max_per_query_usd) if usd is not None]
        return min(bounds, default=None)


class LongQueriesConfig(Strict):
    """How long queries that were sent with ``Prefer: respond-async`` are kept, and how many.

    ``keep_s`` counts from a query's end. The bounds hold for those that run, too.
    """

    keep_s: Positive = 3600.0
    max_kept: Count = 1000
    max_kept_bytes: Count = 100_000_000


class CallLogConfig(Strict):
    """The log of calls, queries and outcomes, see ``runtime.call_log``.

    It is written by every process that drives queries, on its own node, to ``folder``; ``None`` is
    ``$INFRAMIND_STATE/calls``, else ``calls`` in the user's state folder. Files older than
    ``keep_days`` go, and the oldest of all while there are more than ``max_bytes``. Rows are kept
    in memory for at most ``flush_s``. Prompts, answers, embeddings and comments are written only
    with ``log_content``.
    """

    enabled: bool = True
    folder: Annotated[str, Field(min_length=1)] | None = None
    keep_days: Positive = 30.0
    max_bytes: Annotated[int, Field(ge=1_000_000)] = 500_000_000
    flush_s: Positive = 5.0
    log_content: bool = False


def _off(value: Any) -> Any:
    return "off" if value is False else value  # which is how YAML reads `off`


class AppConfig(Strict):
    """Everything one application needs; ``version`` is that of this schema."""

    version: Literal[1]
    models: Annotated[tuple[ModelConfig, ...], Field(min_length=1)]
    policy: PolicyConfig = PolicyConfig()
    default_budget_s: Positive = 60.0
    max_budget_s: Positive = 3600.0
    at_deadline: Literal["finish", "run_on"] = "finish"
    order: Literal["edf", "edf_plain", "fcfs"] = "edf"
    workflow_actors: Annotated[int, Field(ge=0)] = 0
    code_execution: Annotated[Literal["off", "sandbox"], BeforeValidator(_off)] = "off"
    strategies: StrategyConfig = StrategyConfig()
    quality: QualityConfig = QualityConfig()
    limits: LimitsConfig = LimitsConfig()
    breaker: BreakerConfig = BreakerConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    money: MoneyConfig = MoneyConfig()
    long_queries: LongQueriesConfig = LongQueriesConfig()
    call_log: CallLogConfig = CallLogConfig()

    @model_validator(mode="after")
    def _check(self) -> AppConfig:
        names = [m.name for m in self.models]
        if len(set(names)) != len(names):
            raise ValueError("model names must be unique")
        if clash := {n for n in names if n == "inframind" or n.startswith("inframind/")}:
            raise ValueError(f"model name {sorted(clash)} is reserved")
        known = set(names)
        for key, tables in (("prior", self.quality.prior), ("tokens", self.quality.tokens)):
            for task, rows in tables.items():
                if unknown := rows.keys() - known:
                    raise ValueError(f"quality.{key}.{task}: no such model {sorted(unknown)}")
        if self.long_queries.max_kept_bytes < 4 * self.limits.max_body_bytes:
            raise ValueError("long_queries.max_kept_bytes is below 4 times limits.max_body_bytes")
        if self.default_budget_s > self.max_budget_s:
            raise ValueError("default_budget_s is above max_budget_s")
        default_usd, most_usd = self.money.per_query_usd, self.money.max_per_query_usd
        if most_usd is not None and default_usd is not None and default_usd > most_usd:
            raise ValueError("money.per_query_usd is above money.max_per_query_usd")
        return self

    def model(self, name: str) -> ModelConfig:
        """The model called ``name``; raises ``KeyError``."""
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    @property
    def metered_models(self) -> frozenset[str]:
        """The API models."""
        return frozenset(model.name for model in self.models if model.api is not None)

    @property
    def runs_code(self) -> bool:
        """Whether programs in answers are run."""
        return self.code_execution == "sandbox"

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
    for cls in Strict.__subclasses__():
        keys |= cls.model_fields.keys()
    return sorted(keys)
