"""Our ``EngineRequest`` as the request of vLLM's own OpenAI layer."""

from __future__ import annotations

from typing import Any

from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

from actors.protocol import EngineRequest
from actors.request_body import request_body
from runtime.edf import engine_priority


def chat_request(request: EngineRequest, model: str, now: float) -> ChatCompletionRequest:
    """The chat completion for ``request``, which arrived at ``now``.

    It is always streamed inside the replica: that is the only way to see the first token, and
    vLLM's unstreamed path swallows a cancellation.

    Raises:
        ValueError: what vLLM's protocol refuses.
    """
    return ChatCompletionRequest(**request_body(request), **_engine_side(request, model, now))


def text_request(request: EngineRequest, model: str, now: float) -> CompletionRequest:
    """The text completion for ``request.prompt``, likewise."""
    return CompletionRequest(**request_body(request), **_engine_side(request, model, now))


def engine_id(request: EngineRequest) -> str:
    """What vLLM calls the request inside the engine."""
    call_id = request.call_id
    return f"chatcmpl-{call_id}" if request.prompt is None else f"cmpl-{call_id}-0"


def _engine_side(request: EngineRequest, model: str, now: float) -> dict[str, Any]:
    return {
        "model": model,
        "priority": engine_priority(now + request.remaining_s),
        "request_id": request.call_id,
        "stream": True,
        # Usage in every part, so that an answer that is cut has its count, too.
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
