"""What the fake engine says: a text, a JSON object or a tool call, and made-up log-probabilities.

The parts of a request that shape an answer are kept, so that a client can check that they arrive:
``response_format``, ``tools`` with a ``tool_choice`` that wants a call, ``stop``, ``seed`` and
``logprobs``. What works on a real model's probabilities (temperature, penalties, biases) has
nothing to work on here.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

from actors.fake_text import TOKEN_CHARS, answer_text, count_prompt_tokens, made_up_answer
from actors.protocol import EngineRefused, EngineRequest, ToolCallDelta
from runtime.types import Message, Sampling, TokenLogprob

_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class FakeReply:
    """Either ``text``, or ``tool_calls`` whose arguments are empty."""

    text: str
    tool_calls: tuple[ToolCallDelta, ...] = ()
    finish_reason: str = "stop"

    @property
    def num_tokens(self) -> int:
        spelled = self.text or "".join(f"{c.name}{c.arguments}" for c in self.tool_calls)
        return max(1, -(-len(spelled) // TOKEN_CHARS))


def prompt_tokens(request: EngineRequest) -> int:
    """The tokens of what the request makes a model read."""
    sampling = request.sampling
    more = [Message("system", text) for text in (sampling.tools,) if text]
    return count_prompt_tokens([*_messages(request), *more])


def reply(model: str, request: EngineRequest, answer_tokens: int) -> FakeReply:
    """The whole reply of ``model``; raises ``EngineRefused`` for tools that it cannot read."""
    sampling = request.sampling
    if (call := _tool_call(request.call_id, sampling)) is not None:
        named = sampling.tool_choice != '"required"'
        # As OpenAI and vLLM have it: a call that the caller named ends with `stop`.
        return FakeReply("", (call,), "stop" if named else "tool_calls")
    if sampling.response_format is not None:
        text = _json_text(model, request)
    else:
        seed = sampling.seed
        text = answer_text(model, _messages(request), answer_tokens, request.max_tokens, seed)
    return FakeReply(_stopped(text, sampling.stop))


def logprobs(text: str, num_top: int | None) -> tuple[TokenLogprob, ...] | None:
    """Made-up log-probabilities of the tokens of ``text``; ``None`` where none were asked for."""
    if num_top is None:
        return None
    tokens = [text[i : i + TOKEN_CHARS] for i in range(0, len(text), TOKEN_CHARS)]
    return tuple(_logprob(token, num_top) for token in tokens)


def _logprob(token: str, num_top: int) -> TokenLogprob:
    own = -(zlib.crc32(token.encode("utf-8", "surrogatepass")) % 100) / 1000
    others = [(f"fake{rank}", own - rank) for rank in range(1, num_top)]
    return TokenLogprob(token, own, ((token, own), *others)[:num_top])


def _messages(request: EngineRequest) -> tuple[Message, ...]:
    if request.prompt is None:
        return request.messages
    return (Message("user", request.prompt),)


def _tool_call(call_id: str, sampling: Sampling) -> ToolCallDelta | None:
    choice = json.loads(sampling.tool_choice or '"auto"')
    if sampling.tools is None or choice in ("none", "auto"):
        return None
    names = [tool["function"]["name"] for tool in json.loads(sampling.tools)]
    name = names[0] if choice == "required" else choice["function"]["name"]
    if name not in names:
        raise EngineRefused("request", f"no tool {name!r}")
    return ToolCallDelta(0, f"call-{call_id}", name, "{}")


def _json_text(model: str, request: EngineRequest) -> str:
    schema = json.loads(request.sampling.response_format or "{}").get("json_schema", {})
    if (wanted := schema.get("schema")) is not None:
        value = made_up(wanted)
    else:
        value = {"engine": "fake", "answer": made_up_answer(model, _messages(request))}
    return json.dumps(value)


def made_up(schema: Any, depth: int = 0) -> Any:
    """A value under a JSON schema, for the keywords that most schemas consist of.

    Raises:
        EngineRefused: the schema is not one, or uses what is not known here.
    """
    if depth > _DEEPEST or not isinstance(schema, dict):
        raise EngineRefused("request", "the fake engine cannot follow this JSON schema")
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        return made_up(schema["anyOf"][0], depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        listed = schema.get("properties", {})
        return {name: made_up(inner, depth + 1) for name, inner in listed.items()}
    if kind == "array":
        return [made_up(schema.get("items", {}), depth + 1)] * max(1, schema.get("minItems", 1))
    plain = {"string": "fake", "integer": 0, "number": 0.5, "boolean": False, "null": None}
    if kind not in plain:
        raise EngineRefused("request", f"the fake engine does not know type {kind!r}")
    return plain[kind]


def _stopped(text: str, stop: tuple[str, ...]) -> str:
    cuts = [text.find(word) for word in stop if word and word in text]
    return text[: min(cuts)] if cuts else text
