"""``POST /v1/embeddings``: texts to vectors, by the pool's own embedding deployment."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from actors.api import budget_s
from actors.bodies import EmbeddingRequest
from actors.embedding import MAX_CHARS, Embedded
from runtime.config import AppConfig
from runtime.errors import (
    ContextExceeded,
    DeadlineExceeded,
    NoModelAnswered,
    RequestError,
    UnknownModel,
    UnsupportedParameter,
)

HASH_MODEL = "hash-384"


def model_name(config: AppConfig) -> str:
    """What the embedding model is called: the end of its source, such as ``all-minilm-l6-v2``."""
    if config.embedding.backend == "hash":
        return HASH_MODEL
    return config.embedding.source.rstrip("/").replace(":", "/").rpartition("/")[2]


async def embed(
    body: EmbeddingRequest, headers: Mapping[str, str], config: AppConfig, embedder: Any
) -> dict[str, Any]:
    """The response body.

    Raises:
        RequestError: a model that does not embed, or a text that is too long.
        DeadlineExceeded: the budget passed.
        NoModelAnswered: the embedding deployment failed.
    """
    budget = budget_s(headers, None, config)
    _check(body, config)
    try:
        async with asyncio.timeout(budget):
            result: Embedded = await embedder.embed_all.remote(body.texts)
    except TimeoutError:
        raise DeadlineExceeded(f"no embedding within {budget:g} s") from None
    except (RayError, RayServeException) as error:
        raise NoModelAnswered(f"the embedding failed: {type(error).__name__}") from None
    if result.too_long is not None:
        message = f"input.{result.too_long} has more than {result.most_tokens} tokens"
        raise ContextExceeded(message, "input")
    as_text = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": _vector(row, as_text)}
        for i, row in enumerate(result.vectors)
    ]
    usage = {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens}
    return {"object": "list", "model": body.model, "data": data, "usage": usage}


def _check(body: EmbeddingRequest, config: AppConfig) -> None:
    own = model_name(config)
    if body.model != own:
        if body.model in ("inframind", *(model.name for model in config.models)):
            message = f"{body.model} generates text and does not embed; {own} does"
            raise UnsupportedParameter(message, "model")
        raise UnknownModel(f"no model {body.model!r} embeds; {own} does", "model")
    for i, text in enumerate(body.texts):
        if not text:
            raise RequestError(f"input.{i} is empty", "input")
        if len(text) > MAX_CHARS:
            raise ContextExceeded(f"input.{i} has more than {MAX_CHARS} characters", "input")


def _vector(row: np.ndarray[Any, np.dtype[np.float32]], as_text: bool) -> str | list[float]:
    if as_text:
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return [float(value) for value in row]
