"""Strict configs of one model of the pool: its backend, speed, placement and price."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpeedConfig(Strict):
    """What is assumed of a model's speed until telemetry has measured it.

    ``start_s`` passes before the first token beside the reading of the prompt, such as the way to
    a remote provider. One engine iteration with ``b`` sequences that hold ``K`` tokens in the KV
    cache takes ``token_s + token_s_per_seq * b + token_s_per_1k_kv * K / 1000`` seconds and gives
    each of them one token. The last term is for the simulator; predictions leave it out.
    """

    prefill_tokens_per_s: Positive
    token_s: Positive
    token_s_per_seq: NonNegative = 0.0
    token_s_per_1k_kv: NonNegative = 0.0
    start_s: NonNegative = 0.0


class FaultConfig(Strict):
    """Faults that the fake engine injects, drawn per call from ``seed``."""

    error_rate: Probability = 0.0
    hang_rate: Probability = 0.0
    slow_rate: Probability = 0.0
    slow_factor: Positive = 4.0
    seed: int = 0


class FakeConfig(Strict):
    """The fake engine: real time and real bookkeeping, made-up text. Never a quality figure."""

    kv_tokens: Count = 65536
    answer_tokens: Count = 120
    speedup: Positive = 1.0
    faults: FaultConfig = FaultConfig()


class PlacementConfig(Strict):
    """Where a replica runs. ``resources`` are Ray custom resources, one per GPU on a shared node.

    ``gpu`` is the device index that the engine sees; replicas with the same ``gpu`` on a node
    start one after another, since vLLM measures free memory while it starts.
    """

    accelerator_type: str | None = None
    resources: dict[str, Positive] = {}
    num_cpus: NonNegative = 1.0
    gpu: int | None = Field(default=None, ge=0)


class EndpointConfig(Strict):
    """A server that runs already and speaks OpenAI's API, for ``backend: openai``.

    ``url`` is what a client would call the base URL, mostly ending in ``/v1``. ``model`` is what
    the server calls the model, where that is not the pool's name for it. ``api_key_env`` is the
    *name* of an environment variable. ``metrics_url`` is a Prometheus page: ``auto`` is ``url``
    without ``/v1``, plus ``/metrics``; ``None`` is none. An endpoint that answers nothing for
    ``down_after_s`` counts as down; where nothing else has shown that it lives it is asked for its
    models, every ``probe_period_s``. ``priority`` sends deadlines as vLLM's ``priority``, which
    only a vLLM that schedules by priority takes.
    """

    url: str
    model: Annotated[str, Field(min_length=1)] | None = None
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    metrics_url: str | None = "auto"
    poll_period_s: Positive = 0.5
    poll_timeout_s: Positive = 1.0
    down_after_s: Positive = 10.0
    probe_period_s: Positive = 5.0
    priority: bool = False

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        return _http_url(url)

    @field_validator("metrics_url")
    @classmethod
    def _check_metrics_url(cls, url: str | None) -> str | None:
        return url if url in (None, "auto") else _http_url(url)

    @property
    def host(self) -> str:
        """Host and port of ``url``, to be shown."""
        return urlsplit(self.url).netloc

    @property
    def metrics_page(self) -> str | None:
        """Where the metrics are, if anywhere."""
        if self.metrics_url != "auto":
            return self.metrics_url
        return self.url.removesuffix("/v1") + "/metrics"


def _http_url(text: str) -> str:
    """``text`` without a slash at its end; raises ValueError if it is no plain HTTP URL."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("may hold no user or password; see api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("may have no query and no fragment")
    _ = parts.port  # raises ValueError for one that is no port
    return text.rstrip("/")


class PriceConfig(Strict):
    """US dollars per million tokens."""

    input: NonNegative
    output: NonNegative


class ApiConfig(Strict):
    """A model behind a provider's API, whose load cannot be read (paper section 5.4).

    It is seen from the client's side: requests of the last 60 s over ``rpm_limit``, and an
    exponential moving average of latencies, in which each call has ``latency_weight`` and which is
    forgotten ``latency_kept_s`` after the last one. Requests beyond the limit wait here.
    """

    rpm_limit: Count
    latency_weight: Annotated[float, Field(gt=0, le=1)] = 0.2
    latency_kept_s: Positive = 120.0


API_PROBE_S = 60.0
API_DOWN_AFTER_S = 180.0
"""A provider is not to be asked every few seconds whether it is there."""


class ModelConfig(Strict):
    """One model of the pool.

    ``source`` is a hub id, a folder, or ``prepared:NAME`` (see ``inframind models list``); with
    ``backend: openai`` there is ``endpoint`` instead, and ``api`` where it is a provider's.
    ``engine`` goes to vLLM as it is; keys that this file sets itself are refused there.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    backend: Literal["vllm", "openai", "fake"]
    source: str | None = None
    context_tokens: Count
    max_output_tokens: Count = 2048
    max_num_seqs: Count = 16
    replicas: Count = 1
    speed: SpeedConfig
    engine: dict[str, Any] = {}
    env: dict[str, str] = {}
    fake: FakeConfig = FakeConfig()
    endpoint: EndpointConfig | None = None
    api: ApiConfig | None = None
    placement: PlacementConfig = PlacementConfig()
    price: PriceConfig | None = None
    request_router: str | None = None

    @property
    def simulated(self) -> bool:
        """Whether its text is made up; every answer that it takes part in says so."""
        return self.backend == "fake"

    @property
    def num_cpus(self) -> float:
        """Ray CPUs of a replica; one that only passes calls on takes none."""
        return 0.0 if self.backend == "openai" else self.placement.num_cpus

    @property
    def watched(self) -> EndpointConfig | None:
        """``endpoint`` as it is to be watched: a provider has no metrics page, and is probed at
        leisure where nothing else is said."""
        if self.endpoint is None or self.api is None:
            return self.endpoint
        rest = {"probe_period_s": API_PROBE_S, "down_after_s": API_DOWN_AFTER_S}
        given = self.endpoint.model_fields_set
        update = {key: value for key, value in rest.items() if key not in given}
        return self.endpoint.model_copy(update={**update, "metrics_url": None})

    @model_validator(mode="after")
    def _check_api(self) -> ModelConfig:
        if self.api is None:
            return self
        if self.backend == "vllm":
            raise ValueError(f"model {self.name!r}: backend vllm has no `api`: its load is read")
        if self.endpoint is not None and self.endpoint.metrics_url not in (None, "auto"):
            raise ValueError(f"model {self.name!r}: an `api` has no `metrics_url`")
        return self

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.backend == "vllm" and not self.source:
            raise ValueError(f"model {self.name!r}: backend vllm needs `source`")
        if (self.backend == "openai") != (self.endpoint is not None):
            raise ValueError(f"model {self.name!r}: backend openai, and no other, has `endpoint`")
        if self.backend == "openai" and self.replicas != 1:
            raise ValueError(
                f"model {self.name!r}: backend openai has one replica; "
                "list each endpoint as a model of its own"
            )
        taken = {"max_num_seqs", "max_model_len", "scheduling_policy", "enable_prefix_caching"}
        if clash := taken & self.engine.keys():
            raise ValueError(f"model {self.name!r}: `engine` may not set {sorted(clash)}")
        if self.max_output_tokens >= self.context_tokens:
            raise ValueError(f"model {self.name!r}: max_output_tokens must be below context_tokens")
        return self
