"""Our ``EngineRequest`` as the body of OpenAI's requests, for every engine that speaks it."""

from __future__ import annotations

import json
from typing import Any

from actors.protocol import EngineRequest
from runtime.types import Message, Sampling


def request_body(request: EngineRequest) -> dict[str, Any]:
    """What was asked and no more: without model, stream options and priority.

    It is the body of a chat completion, or of a text completion where there is a ``prompt``.
    """
    sampling = request.sampling
    if request.prompt is not None:
        asked: dict[str, Any] = {"prompt": request.prompt, "logprobs": sampling.logprobs}
    else:
        messages = [_message(message) for message in request.messages]
        asked = {"messages": messages, **_chat_only(sampling)}
    asked |= {
        "max_tokens": request.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
    }
    return {key: value for key, value in asked.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        asked["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.name is not None:
        asked["name"] = message.name
    if message.tool_call_id is not None:
        asked["tool_call_id"] = message.tool_call_id
    return asked


def _chat_only(sampling: Sampling) -> dict[str, Any]:
    return {
        "logprobs": None if sampling.logprobs is None else True,
        "top_logprobs": sampling.logprobs,
        "response_format": _read(sampling.response_format),
        "tools": _read(sampling.tools),
        "tool_choice": _read(sampling.tool_choice),
        "parallel_tool_calls": sampling.parallel_tool_calls,
    }


def _read(text: str | None) -> Any:
    return None if text is None else json.loads(text)
