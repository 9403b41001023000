"""Calls to an endpoint: what is sent, what comes back, and what each failure there means."""

import asyncio
import contextlib
import json
import pickle
import time
from email.utils import formatdate

import pytest

from actors.endpoint_http import error_of, event_lines, open_session
from actors.endpoint_server import EndpointClient, must_stream
from actors.protocol import EngineBusy, EngineRefused, EngineRequest, EngineStalled
from actors.vllm_answer import events
from runtime.config import ModelConfig
from runtime.edf import engine_priority
from runtime.types import Message, Sampling, ToolCall
from tests.conftest import model_args
from tests.stand_in import SERVED, TOKENS, standing_in


@pytest.fixture
def server():
    with standing_in() as server:
        yield server


def make_request(**changes):
    asked = {
        "call_id": "c1",
        "messages": (Message("user", "What is 6 times 7?"),),
        "max_tokens": 24,
        "remaining_s": 60.0,
        "sampling": Sampling(),
        "stream": False,
        **changes,
    }
    return EngineRequest(**asked)


@contextlib.asynccontextmanager
async def connected(server, **settings):
    endpoint = {"url": server.url, "model": SERVED, **settings}
    model = ModelConfig.model_validate(
        model_args("stand-in", backend="openai", endpoint=endpoint, max_num_seqs=4)
    )
    async with open_session() as http:
        yield EndpointClient(model, http, {"Authorization": "Bearer key"})


async def ask(client, how, **changes):
    """The chunks of one call; ``how`` is ``whole``, ``inside`` (not passed on) or ``stream``."""
    if how == "whole":
        return [await client.whole(make_request(**changes))]
    request = make_request(stream=how == "stream", **changes)
    async with contextlib.aclosing(client.stream(request)) as chunks:
        return [chunk async for chunk in chunks]


WAYS = ("whole", "inside", "stream")


async def eventually(check, within_s=5.0):
    end = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("prompt", [None, "6 times 7 is"])
async def test_the_answer_and_its_counts(server, how, prompt):
    async with connected(server) as client:
        chunks = await ask(client, how, prompt=prompt)
    last = chunks[-1]
    assert "".join(c.text for c in chunks) == "".join(TOKENS)
    assert (last.finish_reason, last.prompt_tokens, last.completion_tokens) == ("stop", 11, 5)
    assert (last.ttft_s is None) == (how == "whole")


async def test_tokens_come_one_by_one(server):
    server.token_s = 0.1
    async with connected(server) as client:
        chunks = await ask(client, "stream")
    assert len(chunks) >= 4


async def test_what_is_sent_is_what_was_asked_and_no_more(server):
    sampling = Sampling(
        temperature=0.0, stop=("END",), logprobs=0, tools='[{"type": "function"}]',
        tool_choice='"auto"', response_format='{"type": "json_object"}', logit_bias=(("5", 1.0),),
    )  # fmt: skip
    history = (
        Message("user", "Hi"),
        Message("assistant", "", tool_calls=(ToolCall("t1", "f", "{}"),)),
        Message("tool", "42", tool_call_id="t1"),
    )
    async with connected(server) as client:
        await ask(client, "whole", sampling=sampling, messages=history)
        await ask(client, "inside")
    first, second = server.asked
    assert first == {
        "model": SERVED,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "content": "42", "tool_call_id": "t1"},
        ],
        "max_tokens": 24, "temperature": 0.0, "stop": ["END"], "logprobs": True, "top_logprobs": 0,
        "tools": [{"type": "function"}], "tool_choice": "auto",
        "response_format": {"type": "json_object"}, "logit_bias": {"5": 1.0},
    }  # fmt: skip
    assert second == {
        "model": SERVED,
        "messages": [{"role": "user", "content": "What is 6 times 7?"}],
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert server.headers[0]["Authorization"] == "Bearer key"
    assert server.headers[0]["X-Request-Id"] == "c1"


async def test_the_deadline_is_a_priority_only_where_the_endpoint_takes_one(server):
    async with connected(server, priority=True) as client:
        await ask(client, "whole", remaining_s=5.0)
        await ask(client, "whole", remaining_s=50.0)
    soon, late = (body["priority"] for body in server.asked)
    assert soon < late <= engine_priority(time.monotonic() + 50.0)


@pytest.mark.parametrize("how", WAYS)
async def test_a_connection_is_kept_for_the_next_call(server, how):
    async with connected(server) as client:
        for _ in range(5):
            await ask(client, how)
    assert len(server.connections) == 1


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("mode", ["hang", "endless"])
async def test_a_call_that_is_given_up_ends_at_the_endpoint(server, how, mode):
    server.mode, server.token_s = mode, 0.05 if how != "whole" else 1.0
    async with connected(server) as client:
        call = asyncio.create_task(ask(client, how))
        await eventually(lambda: server.running == 1)
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await eventually(lambda: server.running == 0)
    assert server.gone == 1


async def test_a_stream_that_is_closed_ends_at_the_endpoint(server):
    server.mode, server.token_s = "endless", 0.06
    async with connected(server) as client:
        chunks = client.stream(make_request(stream=True))
        assert (await anext(chunks)).text
        await chunks.aclose()
        await eventually(lambda: server.running == 0)


@pytest.mark.parametrize("how", ["inside", "stream"])
async def test_an_answer_is_cut_at_its_limit(server, how):
    server.mode, server.token_s = "endless", 0.05
    async with connected(server) as client:
        began_s = time.monotonic()
        chunks = await ask(client, how, limit_s=0.5)
        assert 0.4 < time.monotonic() - began_s < 1.5
        await eventually(lambda: server.running == 0)
    assert chunks[-1].finish_reason == "length"
    assert "".join(c.text for c in chunks).startswith(TOKENS[0])


async def test_a_silent_stream_is_cut_at_its_limit_too(server):
    server.mode = "stall"
    async with connected(server) as client:
        chunks = await ask(client, "stream", limit_s=0.5, stall_s=5.0)
    assert (chunks[-1].finish_reason, "".join(c.text for c in chunks)) == ("length", "The answer")


@pytest.mark.parametrize(("how", "mode"), [*((how, "hang") for how in WAYS), ("stream", "stall")])
async def test_a_call_without_a_token_for_too_long_has_stalled(server, how, mode):
    server.mode = mode
    async with connected(server) as client:
        with pytest.raises(EngineStalled):
            await ask(client, how, stall_s=0.3)
        await eventually(lambda: server.running == 0)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("400", EngineRefused),
        ("context", EngineRefused),
        ("413", EngineRefused),
        ("401", RuntimeError),
        ("404", RuntimeError),
        ("500", RuntimeError),
        ("502", RuntimeError),
        ("302", RuntimeError),
        ("429", EngineBusy),
        ("503", EngineBusy),
        ("garbage", RuntimeError),
    ],
)
async def test_each_status_means_one_thing(server, how, mode, kind):
    server.mode = mode
    async with connected(server) as client:
        with pytest.raises(kind) as caught:
            await ask(client, how)
    assert type(caught.value) is kind
    if kind is EngineRefused:
        assert caught.value.kind == ("context" if mode == "context" else "request")
    if kind is EngineBusy:
        assert caught.value.retry_after_s == 7.0
    copy = pickle.loads(pickle.dumps(caught.value))  # it crosses a process
    assert str(copy) == str(caught.value)
    assert len(server.asked) == 1  # tried once: retries are the workflow's


@pytest.mark.parametrize("how", ["inside", "stream"])
@pytest.mark.parametrize("mode", ["break", "error"])
async def test_a_stream_that_breaks_is_a_failure_not_an_answer(server, how, mode):
    server.mode = mode
    async with connected(server) as client:
        with pytest.raises((ConnectionError, RuntimeError)) as caught:
            await ask(client, how)
    pickle.dumps(caught.value)


async def test_nobody_there_is_a_connection_error(server):
    server.stop()
    async with connected(server) as client:
        with pytest.raises(ConnectionError, match=server.host):
            await ask(client, "whole")


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b'{"error": {"message": "m"}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"object": "error", "message": "m"}', "m"),
        (b'{"detail": [{"msg": "m"}]}', "m"),
        (b'["m"]', "m"),
        (b"plain m\xff", "m"),
        (b"", "no message"),
    ],
)
def test_every_form_of_an_error_is_read(raw, told):
    assert told in str(error_of(500, {}, raw))


@pytest.mark.parametrize(
    ("header", "retry_after_s"),
    [("3", 3.0), ("0", None), ("-5", None), ("nan", None), ("inf", 3600.0), ("1e9", 3600.0),
     ("", None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", None)],
)  # fmt: skip
def test_when_to_come_back(header, retry_after_s):
    assert error_of(429, {"Retry-After": header}, b"").retry_after_s == retry_after_s


def test_when_to_come_back_may_be_a_date():
    date = formatdate(time.time() + 100, usegmt=True)
    assert error_of(429, {"Retry-After": date}, b"").retry_after_s == pytest.approx(100, abs=5)


def test_only_429_is_a_limit_on_the_rate():
    assert error_of(429, {}, b"").limited
    assert not error_of(503, {}, b"").limited


@pytest.mark.parametrize(
    ("changes", "tpot_s", "expected"),
    [
        ({"stream": True}, 0.001, True),  # the caller streams
        ({}, None, True),  # to measure
        ({}, 0.001, False),
        ({"limit_s": 60.0, "stall_s": 30.0}, 0.01, False),
        ({"limit_s": 0.5}, 0.01, True),  # 24 tokens of 10 ms might need it
        ({"stall_s": 0.5}, 0.01, True),
    ],
)
def test_when_a_call_goes_out_as_a_stream(changes, tpot_s, expected):
    assert must_stream(make_request(**changes), tpot_s) is expected


class Pieces:
    def __init__(self, *pieces):
        self._pieces = pieces

    async def iter_any(self):
        for one in self._pieces:
            yield one


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_events_are_whole_however_the_bytes_come(size):
    texts = ["a\u2028b", "\x85", "ü€", "\r", ""]
    raw = "".join(
        f"data: {json.dumps({'t': text}, ensure_ascii=False)}\r\n\r\n" for text in texts
    ).encode()
    pieces = Pieces(*(raw[i : i + size] for i in range(0, len(raw), size)), b"data: [DONE]")
    got = [event["t"] async for part in event_lines(pieces) for event in events(part)]
    assert got == texts
