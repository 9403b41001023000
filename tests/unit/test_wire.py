"""What clients get, against the official client's own types, strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from actors import wire
from actors.protocol import EngineChunk, ToolCallDelta, merged, whole_calls
from actors.runner import Delta
from actors.text_wire import TextChunkWriter, text_completion
from runtime.types import Answer, Choice, Query, TaskKind, TokenLogprob, ToolCall, Usage

LOGPROBS = (TokenLogprob("He", -0.5, (("He", -0.5), ("I", -1.0))), TokenLogprob("y", -0.25))
CALL = ToolCall("c1", "add", '{"a": 1}')


def answer(*choices: Choice, status: str = "ok") -> Answer:
    return Answer(
        query_id="q-1", status=status, text=choices[0].text, canonical=None,
        finish_reason=choices[0].finish_reason, task=TaskKind.GENERAL, topology="IO",
        roles=("direct",), steps=(), usage=Usage(10, 5), latency_s=1.0, budget_s=9.0,
        policy="direct", choices=choices,
    )  # fmt: skip


def query(n: int = 1) -> Query:
    return Query("q-1", "Hi", 9.0, n=n)


def strictly(kind: Any, data: Any) -> Any:
    return kind.model_validate_json(json.dumps(data), strict=True)


def chunks(*events: str) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in events]


def test_a_completion_is_what_the_client_expects() -> None:
    whole = answer(
        Choice(0, "Hey", "stop", logprobs=LOGPROBS), Choice(1, "", "tool_calls", (CALL,))
    )
    got = strictly(ChatCompletion, wire.completion(whole, "small"))
    first, second = got.choices
    assert (first.message.content, first.finish_reason) == ("Hey", "stop")
    assert [t.token for t in first.logprobs.content] == ["He", "y"]
    assert first.logprobs.content[0].top_logprobs[1].bytes == [73]
    assert second.message.content is None
    assert second.message.tool_calls[0].function.arguments == '{"a": 1}'
    assert second.finish_reason == "tool_calls"
    assert got.usage.total_tokens == 15


@pytest.mark.parametrize(
    ("given", "told"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "tool_calls"),
     ("content_filter", "content_filter"), ("eos", "stop")],
)  # fmt: skip
def test_only_what_clients_know_is_a_finish_reason(given: str, told: str) -> None:
    body = wire.completion(answer(Choice(0, "Hey", given)), "small")
    assert strictly(ChatCompletion, body).choices[0].finish_reason == told


def test_a_stream_of_two_answers_is_what_the_client_expects() -> None:
    writer = wire.ChunkWriter(query(2), "small")
    opening = (ToolCallDelta(0, "c1", "add"),)
    rest = (ToolCallDelta(0, arguments='{"a": 1}'),)
    got = [
        strictly(ChatCompletionChunk, chunk)
        for chunk in chunks(
            *writer.first(),
            writer.delta(Delta("He", 1, logprobs=LOGPROBS[:1])),
            writer.delta(Delta("", 0, opening)),
            writer.delta(Delta("", 0, rest)),
            *writer.last(answer(Choice(0, "", "tool_calls", (CALL,)))),
        )
    ]
    assert [c.choices[0].index for c in got] == [0, 1, 1, 0, 0, 0, 1]
    assert got[2].choices[0].logprobs.content[0].token == "He"
    assert got[3].choices[0].delta.tool_calls[0].function.name == "add"
    assert got[4].choices[0].delta.tool_calls[0].id is None
    # The second answer is missing: the deadline cut it.
    assert [c.choices[0].finish_reason for c in got[-2:]] == ["tool_calls", "length"]
    assert got[-1].model_extra["inframind"]["status"] == "ok"


def test_text_completions_are_what_the_client_expects() -> None:
    whole = answer(Choice(0, "Hey", "length", logprobs=LOGPROBS))
    got = strictly(Completion, text_completion(whole, "small", "Oh! "))
    assert (got.choices[0].text, got.choices[0].finish_reason) == ("Oh! Hey", "length")
    assert got.choices[0].logprobs.text_offset == [0, 2]
    assert got.choices[0].logprobs.top_logprobs[0] == {"He": -0.5, "I": -1.0}
    writer = TextChunkWriter(query(), "small", "")
    pieces = [Delta(t.token, logprobs=(t,)) for t in LOGPROBS]
    events = chunks(*writer.first(), *map(writer.delta, pieces), *writer.last(whole))
    assert "".join(e["choices"][0]["text"] for e in events) == "Hey"
    told = [e["choices"][0]["logprobs"] for e in events if e["choices"][0]["logprobs"]]
    assert [t["text_offset"] for t in told] == [[0], [2]]


def test_pieces_of_an_answer_merge_in_order() -> None:
    deltas = [
        ToolCallDelta(0, "c1", "add"),
        ToolCallDelta(1, "c2", "sub", "{"),
        ToolCallDelta(0, arguments="{}"),
        ToolCallDelta(1, arguments="}"),
    ]
    parts = [EngineChunk("a", tool_calls=(d,), logprobs=LOGPROBS[:1]) for d in deltas]
    whole = merged([*parts, EngineChunk("b", "tool_calls", 3, 4)])
    assert (whole.text, whole.finish_reason, whole.completion_tokens) == ("aaaab", "tool_calls", 4)
    assert len(whole.logprobs or ()) == 4
    assert whole_calls(whole.tool_calls) == (
        ToolCall("c1", "add", "{}"),
        ToolCall("c2", "sub", "{}"),
    )
    with pytest.raises(RuntimeError):
        merged(parts)
    assert merged([EngineChunk("a"), EngineChunk("", "stop")]).logprobs is None
