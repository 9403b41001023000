"""From a request body to a ``Query``: what is honoured, where, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.embedding_create_params import EmbeddingCreateParams

from actors.api import chat_query, check_size, native_query, parse_body, text_query
from actors.bodies import Body, ChatRequest, EmbeddingRequest, QueryRequest, TextRequest
from runtime.config import AppConfig
from runtime.errors import ContextExceeded, RequestError, UnknownModel, UnsupportedParameter
from runtime.types import Message, Query, ToolCall

HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"default": None}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def chat(config: AppConfig, **body: Any) -> Query:
    raw = json.dumps({"model": "small", "messages": HI, **body}).encode()
    return chat_query(parse_body(raw, ChatRequest), {}, config)


def text(config: AppConfig, **body: Any) -> Query:
    raw = json.dumps({"model": "small", "prompt": "Once", **body}).encode()
    return text_query(parse_body(raw, TextRequest), {}, config)


def test_every_parameter_of_a_call_reaches_the_sampling(config: AppConfig) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"x": None}}}
    sampling = chat(
        config, temperature=0.5, top_p=0.9, seed=-3, max_tokens=50, max_completion_tokens=40,
        stop=["END", "."], frequency_penalty=1, presence_penalty=-1.5, logit_bias={"50256": -100},
        logprobs=True, top_logprobs=4, response_format=wanted, tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "add"}}, parallel_tool_calls=False,
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, -3)
    assert (sampling.max_tokens, sampling.stop) == (40, ("END", "."))
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1, -1.5)
    assert (sampling.logit_bias, sampling.logprobs) == ((("50256", -100),), 4)
    assert json.loads(sampling.response_format or "") == wanted
    assert json.loads(sampling.tools or "") == [TOOL]
    assert json.loads(sampling.tool_choice or "")["function"] == {"name": "add"}
    assert sampling.parallel_tool_calls is False


def test_what_was_not_asked_is_left_to_the_engine(config: AppConfig) -> None:
    query = chat(config, tools=[], logprobs=False, n=1, response_format={"type": "text"})
    assert query.sampling == type(query.sampling)()
    assert query.n == 1


def test_logprobs_alone_ask_for_no_alternatives(config: AppConfig) -> None:
    assert chat(config, logprobs=True).sampling.logprobs == 0


def test_tool_history_stays_as_it_was_sent(config: AppConfig) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "1 + 2?", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "3"}]},
    ]
    query = chat(config, messages=messages, tools=[TOOL])
    assert query.context == (
        Message("system", "Be brief."),
        Message("user", "1 + 2?", name="ann"),
        Message("assistant", "", tool_calls=(ToolCall("c1", "add", '{"a": 1}'),)),
    )
    assert query.last == Message("tool", "3", tool_call_id="c1")
    with pytest.raises(UnsupportedParameter, match="pool model"):
        chat(config, model="inframind", messages=messages)


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty", "temperature", "top_p"])
def test_the_sampler_of_a_plan_is_the_callers(config: AppConfig, name: str) -> None:
    assert getattr(chat(config, model="inframind", **{name: 0.5}).sampling, name) == 0.5


@pytest.mark.parametrize("name", sorted(ChatRequest.not_served))
def test_what_is_not_served_is_refused_unless_it_asks_for_nothing(
    config: AppConfig, name: str
) -> None:
    for value in (None, *ChatRequest.not_served[name]):
        chat(config, **{name: value})
    with pytest.raises(UnsupportedParameter) as refused:
        chat(config, **{name: "something"})
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (ChatRequest, chat_params.CompletionCreateParamsBase),
        (TextRequest, text_params.CompletionCreateParamsBase),
        (EmbeddingRequest, EmbeddingCreateParams),
    ],
)
def test_what_the_official_client_can_send_is_served_or_refused(
    kind: type[Body], params: Any
) -> None:
    """Also what only a newer client than this table knows."""
    required = {n: "x" for n, f in kind.model_fields.items() if f.is_required()}
    for name in set(params.__annotations__) - set(kind.model_fields):
        with pytest.raises(RequestError) as refused:
            parse_body(json.dumps({**required, name: {"x": 1}}).encode(), kind)
        assert refused.value.param in (name, "messages")


def test_a_text_completion_has_openais_default_length(config: AppConfig) -> None:
    query = text(config, prompt=["Once"], logprobs=2, n=3, best_of=3, suffix="")
    assert (query.question, query.raw_prompt, query.n) == ("Once", True, 3)
    assert (query.sampling.max_tokens, query.sampling.logprobs) == (16, 2)
    assert query.direct_model == "small"
    with pytest.raises(UnknownModel):
        text(config, model="gpt-9")
    with pytest.raises(UnsupportedParameter):
        text(config, model="inframind")


def test_the_native_form_refuses_what_it_would_ignore(config: AppConfig) -> None:
    def native(**body: Any) -> Query:
        raw = json.dumps({"question": "Hi", **body}).encode()
        return native_query(parse_body(raw, QueryRequest), {}, config)

    native(stop=None, n=1, top_p=1)
    for name, value in (("stop", "x"), ("top_p", 0.5), ("tools", [TOOL]), ("n", 2)):
        with pytest.raises(UnsupportedParameter) as refused:
            native(**{name: value})
        assert refused.value.param == name


def test_long_tools_are_refused_at_the_door(config: AppConfig) -> None:
    tool = {"type": "function", "function": {"name": "add", "description": "x" * 100_000}}
    with pytest.raises(ContextExceeded):
        check_size(chat(config, tools=[tool]), config)


def test_a_policy_for_a_model_by_name_is_refused(config: AppConfig) -> None:
    with pytest.raises(RequestError, match="policy"):
        chat(config, policy="greedy")
    assert chat(config, model="inframind", policy="greedy").policy == "greedy"


@pytest.mark.parametrize(
    ("kind", "wrong", "param"),
    [
        (TextRequest, {"prompt": ["a", 5]}, "prompt"),
        (TextRequest, {}, "prompt"),
        (ChatRequest, {"messages": 5}, "messages"),
        (ChatRequest, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        (
            ChatRequest,
            {"messages": [{"role": "user", "content": [{"type": "image", "text": ""}]}]},
            "messages.0.content.0.type",
        ),
        (ChatRequest, {"messages": [{"role": "user", "bla": 1}]}, "messages.0.bla"),
        (ChatRequest, {"messages": [{"content": "x"}]}, "messages.0.role"),
        (
            ChatRequest,
            {"messages": [], "tool_choice": {"type": "function"}},
            "tool_choice.function",
        ),
        (ChatRequest, {"messages": [], "stop": ["a", ""]}, "stop.1"),
        (ChatRequest, {"messages": [], "logit_bias": {"x": 1}}, "logit_bias.x"),
        (ChatRequest, {"messages": [], "blub": 1}, "blub"),
    ],
)
def test_an_error_names_the_field_as_the_request_does(
    kind: type[Body], wrong: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        parse_body(json.dumps({"model": "m", **wrong}).encode(), kind)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: ")
