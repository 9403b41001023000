"""OpenAI's format on live actors with the fake engine: each field is honoured or refused."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.integration.test_http import POOL, ask, model_args
from tests.live import Deploy, counters, engines_idle, eventually

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("look_up", "add")
]
ADD: Any = {"type": "function", "function": {"name": "add"}}
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "people": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["big", "old"]}},
    },
    "required": ["city", "people", "tags"],
}
JSON_CITY: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
ARGS = {
    **POOL,
    "default_budget_s": 29.0,
    "limits": {"max_calls_per_query": 6},
    "policy": {"name": "fixed", "options": {"topology": "IO", "agents": 2}},
}


@pytest.fixture(scope="module")
def url(deploy_once: Deploy) -> str:
    return deploy_once(ARGS)


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )


@pytest.fixture(scope="module")
def lenient(url: str) -> openai.OpenAI:
    """For what the client's own types do not allow though OpenAI sends it: a null finish reason
    in chunks of a text completion, vectors as base64."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/{path}", json=body, timeout=60)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The JSON objects of a stream."""
    lines = response.text.split("\n\n")
    assert [line for line in lines if line][-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# --- tools -----------------------------------------------------------------------------------


def test_a_tool_loop_with_the_official_client(client: openai.OpenAI) -> None:
    messages: list[Any] = ask("How much is 2 + 3?")
    first = client.chat.completions.create(
        model="small", messages=messages, tools=TOOLS, tool_choice="required"
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls or ()
    assert (call.type, call.function.name, call.function.arguments) == ("function", "look_up", "{}")
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "5"},
    ]
    second = client.chat.completions.create(model="small", messages=messages, tools=TOOLS)
    assert second.choices[0].finish_reason == "stop"
    assert "fake" in (second.choices[0].message.content or "")
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_a_named_tool_is_called_and_streams_in_pieces(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="small", messages=ask("Hi"), tools=TOOLS, tool_choice=ADD, stream=True
    )
    chunks = [chunk.choices[0] for chunk in stream]
    deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert [d.function.name for d in deltas if d.function and d.function.name] == ["add"]
    assert "".join(d.function.arguments or "" for d in deltas if d.function) == "{}"
    assert len([d.id for d in deltas if d.id]) == 1
    assert chunks[-1].finish_reason == "stop"


# --- response_format -------------------------------------------------------------------------


class City(BaseModel):
    city: str
    people: int


@pytest.mark.parametrize("model", ["small", "inframind"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_answer_follows_the_schema(url: str, model: str, stream: bool) -> None:
    body = {"model": model, "messages": ask("A city?"), "response_format": JSON_CITY}
    response = post(url, "chat/completions", **body, stream=stream)
    if stream:
        deltas = [e["choices"][0]["delta"] for e in events(response)]
        text = "".join(d.get("content", "") for d in deltas)
    else:
        text = response.json()["choices"][0]["message"]["content"]
    assert json.loads(text) == {"city": "fake", "people": 0, "tags": ["big"]}


def test_the_official_client_parses_a_model_of_its_own(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="inframind", messages=ask("A city?"), response_format=City
    )
    assert parsed.choices[0].message.parsed == City(city="fake", people=0)


def test_voted_answers_all_keep_the_format_and_are_compared_as_json(deploy: Deploy) -> None:
    policy = {"name": "fixed", "options": {"topology": "Adaptive", "agents": 3}}
    url = deploy({**ARGS, "policy": policy})
    body = {
        "model": "inframind", "messages": ask("What is 17 + 25?"), "task": "math",
        "response_format": {"type": "json_object"},
    }  # fmt: skip
    answer = post(url, "chat/completions", **body).json()
    assert answer["inframind"]["topology"] == "Adaptive"
    text = answer["choices"][0]["message"]["content"]
    assert json.loads(text) == {"engine": "fake", "answer": "42"}
    streamed = events(post(url, "chat/completions", **body, stream=True))
    pieces = [e["choices"][0]["delta"].get("content") for e in streamed]
    assert [p for p in pieces if p] == [text]


# --- n, seed, stop, logprobs -----------------------------------------------------------------


def test_n_answers_are_n_calls_with_seeds_that_follow(client: openai.OpenAI) -> None:
    def texts(**more: Any) -> list[str | None]:
        answer = client.chat.completions.create(model="small", messages=ask("Tell me."), **more)
        assert [c.index for c in answer.choices] == list(range(len(answer.choices)))
        assert answer.usage is not None
        assert answer.usage.total_tokens == (
            answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
        return [c.message.content for c in answer.choices]

    three = texts(n=3, seed=7)
    assert len(three) == 3
    assert len(set(three)) > 1
    assert three == [texts(seed=7 + i)[0] for i in range(3)]


def test_usage_sums_all_steps(url: str, client: openai.OpenAI) -> None:
    one, three = (
        client.chat.completions.create(model="small", messages=ask("Tell me."), n=n).usage
        for n in (1, 3)
    )
    assert one is not None
    assert three is not None
    assert three.prompt_tokens == 3 * one.prompt_tokens
    native = post(url, "queries", question="What is 6 + 7?", task="math", policy="random").json()
    done = [s for s in native["steps"] if s["status"] == "ok"]
    assert native["usage"]["completion_tokens"] == sum(s["completion_tokens"] for s in done)


def test_n_answers_stream_side_by_side(url: str) -> None:
    body = {"model": "small", "messages": ask("Tell me."), "n": 2, "seed": 7}
    whole = post(url, "chat/completions", **body).json()["choices"]
    chunks = events(post(url, "chat/completions", **body, stream=True))
    for index in range(2):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == whole[index]["message"]["content"]
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
    assert [c for c in chunks if "inframind" in c] == chunks[-1:]
    eventually(lambda: set(counters(ARGS, url).values()) == {0})
    eventually(lambda: engines_idle(url))


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_spell_the_answer(url: str, stream: bool) -> None:
    body = {"model": "small", "messages": ask("Hi"), "logprobs": True, "top_logprobs": 3}
    response = post(url, "chat/completions", **body, stream=stream)
    if stream:
        choices = [e["choices"][0] for e in events(response)]
        told = [one for c in choices if c["logprobs"] for one in c["logprobs"]["content"]]
        text = "".join(c["delta"].get("content", "") for c in choices)
    else:
        choice = response.json()["choices"][0]
        told, text = choice["logprobs"]["content"], choice["message"]["content"]
    assert "".join(one["token"] for one in told) == text
    assert all(one["logprob"] <= 0 and len(one["top_logprobs"]) == 3 for one in told)
    assert bytes(told[0]["bytes"]).decode() == told[0]["token"]


@pytest.mark.parametrize("model", ["small", "inframind"])
def test_stop_words_end_the_answer(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=ask("Tell me of the sea."), stop="engine", extra_body={"task": "math"}
    )
    assert answer.choices[0].message.content == "[fake "
    assert answer.choices[0].finish_reason == "stop"


def test_history_and_system_messages_reach_the_engine(client: openai.OpenAI) -> None:
    def prompt_tokens(*before: dict[str, str]) -> int:
        answer = client.chat.completions.create(model="small", messages=[*before, *ask("Hi")])
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    alone = prompt_tokens()
    told = {"role": "system", "content": "Be brief. " * 20}
    said = {"role": "assistant", "content": "Well then. " * 20}
    assert prompt_tokens(told) > alone + 20
    assert prompt_tokens(told, said) > prompt_tokens(told) + 20


# --- refused ---------------------------------------------------------------------------------

ONE_CALL_ONLY = {
    "tools": TOOLS,
    "n": 2,
    "logprobs": True,
    "logit_bias": {"50256": -100},
}


@pytest.mark.parametrize("field", ONE_CALL_ONLY)
def test_what_is_of_one_call_is_refused_for_a_plan_of_agents(url: str, field: str) -> None:
    response = post(
        url,
        "chat/completions",
        model="inframind",
        messages=ask("x"),
        **{field: ONE_CALL_ONLY[field]},
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_parameter")
    assert (error["param"], error["type"]) == (field, "invalid_request_error")
    assert "pool model" in error["message"]


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"top_k": 5}, "invalid_request", "top_k"),
        ({"n": 9}, "invalid_request", "n"),
        ({"n": 7}, "invalid_request", "n"),  # above this pool's limit of calls
        ({"top_logprobs": 2}, "invalid_request", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_request", "top_logprobs"),
        ({"frequency_penalty": 3}, "invalid_request", "frequency_penalty"),
        ({"logit_bias": {"the": 1}}, "invalid_request", "logit_bias.the"),
        ({"tool_choice": "required"}, "invalid_request", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "invalid_request", "tool_choice"),
        ({"tools": [{"type": "web"}]}, "invalid_request", "tools.0.type"),
        ({"response_format": {"type": "xml"}}, "invalid_request", "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "invalid_request", "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "schema": {"type": "object", "properties": {"x": {"type": "odd"}}}}}},
         "invalid_request", None),  # the engine's own refusal
        ({"stream_options": {"include_usage": True}}, "invalid_request", "stream_options"),
        ({"policy": "greedy"}, "invalid_request", "policy"),
        ({"messages": [*ask("x"), {"role": "assistant", "content": "y"}]},
         "invalid_request", "messages"),
        ({"messages": [{"role": "tool", "content": "y"}]},
         "invalid_request", "messages.0.tool_call_id"),
        ({"messages": [{"role": "assistant"}, *ask("x")]},
         "invalid_request", "messages.0.content"),
    ],
)  # fmt: skip
def test_bad_fields_are_named(url: str, more: dict[str, Any], code: str, param: str | None) -> None:
    body = {"model": "small", "messages": ask("x"), **more}
    response = post(url, "chat/completions", **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param), error


def test_an_error_of_a_query_has_its_id_and_the_clients_own_exception(
    client: openai.OpenAI,
) -> None:
    odd: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "odd"}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="small", messages=ask("x"), response_format=odd)
    body: Any = refused.value.body
    assert body["query_id"].startswith("q-")
    assert (body["type"], body["code"]) == ("invalid_request_error", "invalid_request")


# --- finish_reason ---------------------------------------------------------------------------


def test_where_there_is_no_answer_there_is_no_finish_reason(deploy: Deploy) -> None:
    hung = model_args("hung", fake={"faults": {"hang_rate": 1.0}})
    url = deploy({**ARGS, "models": [hung], "quality": {}})
    body = {"model": "hung", "messages": ask("Hi"), "budget_s": 1}
    nothing = post(url, "chat/completions", **body)
    assert (nothing.status_code, nothing.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert nothing.json()["error"]["type"] == "server_error"
    last = events(post(url, "chat/completions", **body, stream=True))[-1]
    assert last["error"]["code"] == "deadline_exceeded"
    native = post(url, "queries", question="Hi", budget_s=1).json()
    assert (native["status"], native["finish_reason"]) == ("error", None)


# --- text completions ------------------------------------------------------------------------


def test_a_text_completion_with_the_official_client(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="small", prompt="Tell me of the sea.", logprobs=2)
    assert answer.object == "text_completion"
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert choice.logprobs.text_offset == [4 * i for i in range(16)]
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs or ())
    whole = client.completions.create(
        model="small", prompt=["What is 17 + 25?"], max_tokens=400, echo=True, n=2, best_of=2
    )
    assert [c.index for c in whole.choices] == [0, 1]
    assert whole.choices[1].text.startswith("What is 17 + 25?[fake")
    assert whole.choices[1].text.endswith("Answer: 42")
    assert whole.choices[1].finish_reason == "stop"


def test_a_text_completion_streams_the_same(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "small", "prompt": "Tell me.", "max_tokens": 400}
    whole = client.completions.create(**asked, echo=True).choices[0].text
    stream = lenient.completions.create(
        **asked, echo=True, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("more", "status", "code", "param"),
    [
        ({"model": "inframind"}, 400, "unsupported_parameter", "model"),
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"prompt": ""}, 400, "invalid_request", "prompt"),
        ({"prompt": [1, 2]}, 400, "invalid_request", "prompt"),
        ({"prompt": ["a", "b"]}, 400, "invalid_request", "prompt"),
        ({"suffix": "end"}, 400, "unsupported_parameter", "suffix"),
        ({"best_of": 3}, 400, "unsupported_parameter", "best_of"),
        ({"echo": True, "logprobs": 1}, 400, "unsupported_parameter", "echo"),
        ({"logprobs": 6}, 400, "invalid_request", "logprobs"),
        ({"tools": TOOLS}, 400, "invalid_request", "tools"),
        ({"prompt": "word " * 5000}, 400, "context_length_exceeded", None),
    ],
)
def test_bad_text_completions_are_refused(
    url: str, more: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    response = post(url, "completions", **{"model": "small", "prompt": "Hi", **more})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert (error["param"] or "").startswith(param or "")


# --- embeddings ------------------------------------------------------------------------------


def test_embeddings_with_the_official_client(client: openai.OpenAI, lenient: openai.OpenAI) -> None:
    texts = ["sort a list", "sort the list", "the capital of France"]
    plain = client.embeddings.create(model="hash-384", input=texts, encoding_format="float")
    as_base64 = lenient.embeddings.create(model="hash-384", input=texts)  # the client's default
    assert [item.index for item in plain.data] == [0, 1, 2]
    for one, other in zip(plain.data, as_base64.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding)
    sort, again, capital = (item.embedding for item in plain.data)
    near, far = (sum(a * b for a, b in zip(sort, v, strict=True)) for v in (again, capital))
    assert near > far + 0.2
    assert plain.usage.prompt_tokens == 10
    single = client.embeddings.create(model="hash-384", input=texts[0], encoding_format="float")
    assert single.data[0].embedding == pytest.approx(sort)


@pytest.mark.parametrize(
    ("more", "status", "code", "param"),
    [
        ({"model": "small"}, 400, "unsupported_parameter", "model"),
        ({"model": "inframind"}, 400, "unsupported_parameter", "model"),
        ({"model": "ada"}, 404, "model_not_found", "model"),
        ({"dimensions": 64}, 400, "unsupported_parameter", "dimensions"),
        ({"input": []}, 400, "invalid_request", "input"),
        ({"input": ["a", ""]}, 400, "invalid_request", "input"),
        ({"input": ["a"] * 257}, 400, "invalid_request", "input"),
        ({"input": "a" * 20_000}, 400, "context_length_exceeded", "input"),
        ({"encoding_format": "int8"}, 400, "invalid_request", "encoding_format"),
    ],
)
def test_bad_embedding_requests_are_refused(
    url: str, more: dict[str, Any], status: int, code: str, param: str
) -> None:
    response = post(url, "embeddings", **{"model": "hash-384", "input": "x", **more})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert error["param"].startswith(param)


def test_many_texts_embed_in_the_order_that_they_came(url: str) -> None:
    texts = [f"text number {i}" for i in range(256)]
    data = post(url, "embeddings", model="hash-384", input=texts).json()["data"]
    last = post(url, "embeddings", model="hash-384", input=texts[-1]).json()["data"][0]
    assert len(data) == 256
    assert data[-1]["embedding"] == pytest.approx(last["embedding"])
