"""What servers that run already offer, and the args of a pool of it: no config file needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from actors.endpoint_http import auth_headers, same_origin
from runtime.errors import ConfigError
from runtime.exposition import EnginePage, read_page
from runtime.model_config import EndpointConfig

TIMEOUT_S = 5.0
ASSUMED_CONTEXT_TOKENS = 4096
ASSUMED_SPEED = {"prefill_tokens_per_s": 2000, "token_s": 0.02}
MAX_OUTPUT_TOKENS = 2048
RESERVED = "inframind"
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class FoundModel:
    """One model of an endpoint. ``context_tokens`` is ``None`` where the endpoint does not say;
    ``metrics_url`` where no page there has a figure of ours."""

    name: str
    url: str
    served: str
    context_tokens: int | None
    metrics_url: str | None


def discover(
    urls: list[str], api_key_env: str | None, wanted: Sequence[str] = ()
) -> list[FoundModel]:
    """Ask each endpoint for its models; only those ``wanted``, by the endpoint's name, if any are.

    An endpoint does not tell which of its models only embed: name the others.

    Raises:
        ConfigError: names the URL that is none, cannot be reached or does not list any model, or
            the model that none of them lists.
    """
    found: list[FoundModel] = []
    listed: list[str] = []
    # As the replicas will: directly, whatever proxy the environment names.
    with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
        for url in dict.fromkeys(_base(url) for url in urls):
            endpoint = _endpoint(url, api_key_env)
            headers = auth_headers(endpoint)
            for item in _models(http, endpoint, headers):
                listed.append(item["id"])
                if wanted and item["id"] not in wanted:
                    continue
                name = pool_name(item["id"], [model.name for model in found])
                context = item.get("max_model_len")
                context = context if isinstance(context, int) and context > 1 else None
                page = _metrics(http, endpoint, headers, item["id"])
                found.append(FoundModel(name, endpoint.url, item["id"], context, page))
    if missing := sorted({*wanted} - {*listed}):
        raise ConfigError(f"--model {missing[0]}: no endpoint has it; they list {_named(listed)}")
    return found


def endpoint_args(
    found: list[FoundModel], api_key_env: str | None, max_num_seqs: int
) -> dict[str, Any]:
    """The args of a pool of ``found``; what is not known of a model is assumed."""
    return {
        "version": 1,
        "models": [_model_args(model, api_key_env, max_num_seqs) for model in found],
        "embedding": {"backend": "hash"},
    }


def pool_name(served: str, taken: list[str]) -> str:
    """A name for the pool from what the endpoint calls the model: the part after the last slash.

    A number makes it unique.
    """
    last = served.rstrip("/").rsplit("/", 1)[-1]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "model"
    names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 4)))
    return next(one for one in names if one not in (RESERVED, *taken))


def _model_args(model: FoundModel, api_key_env: str | None, max_num_seqs: int) -> dict[str, Any]:
    context = model.context_tokens or ASSUMED_CONTEXT_TOKENS
    return {
        "name": model.name,
        "backend": "openai",
        "endpoint": {
            "url": model.url,
            "model": model.served,
            "api_key_env": api_key_env,
            "metrics_url": model.metrics_url,
        },
        "context_tokens": context,
        "max_output_tokens": min(MAX_OUTPUT_TOKENS, context // 2),
        "max_num_seqs": max_num_seqs,
        "speed": ASSUMED_SPEED,
    }


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _base(url: str) -> str:
    """``url`` as a client's base URL: where it names only the host, ``/v1`` is meant."""
    url = url.strip().rstrip("/")
    return f"{url}/v1" if not urlsplit(url).path else url


def _endpoint(url: str, api_key_env: str | None) -> EndpointConfig:
    try:
        return EndpointConfig(url=url, api_key_env=api_key_env)
    except ValidationError as error:
        first = error.errors()[0]
        option = "--api-key-env" if first["loc"] == ("api_key_env",) else f"--endpoint {url}"
        raise ConfigError(f"{option}: {first['msg'].removeprefix('Value error, ')}") from None


def _models(
    http: httpx.Client, endpoint: EndpointConfig, headers: dict[str, str]
) -> list[dict[str, Any]]:
    url = f"{endpoint.url}/models"
    try:
        response = http.get(url, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"{url} cannot be reached: {error or type(error).__name__}") from None
    if response.status_code in (401, 403):
        wanted = "a key: name its variable with --api-key-env" if not headers else "another key"
        raise ConfigError(f"{url} wants {wanted} (HTTP {response.status_code})")
    if response.status_code != 200:
        raise ConfigError(f"{url} answers HTTP {response.status_code}; is the path right?")
    try:
        listed = response.json()["data"]
        models = [item for item in listed if isinstance(item["id"], str) and item["id"]]
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{url} does not answer in OpenAI's format") from None
    if not models:
        raise ConfigError(f"{url} lists no model")
    return models


def _metrics(
    http: httpx.Client, endpoint: EndpointConfig, headers: dict[str, str], served: str
) -> str | None:
    url = endpoint.metrics_page
    assert url is not None
    try:
        response = http.get(url, headers=headers if same_origin(url, endpoint.url) else {})
        page = read_page(response.text, served) if response.status_code == 200 else None
    except httpx.TimeoutException:
        return url  # it is busy: there may be a page later
    except (httpx.HTTPError, ValueError):
        return None
    return url if page is not None and _tells(page) else None


def _tells(page: EnginePage) -> bool:
    return page.running is not None or page.kv_usage is not None
