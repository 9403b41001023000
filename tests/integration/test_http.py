"""The HTTP API on live actors with the fake engine."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest

from tests.live import Deploy, counters, engines_idle, eventually, finished_calls


def model_args(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": 8,
        "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.002},
        "placement": {"num_cpus": 0.1},
        "fake": {"answer_tokens": 40},
        **changes,
    }


POOL = {
    "version": 1,
    "models": [model_args("small"), model_args("large", speed={
        "prefill_tokens_per_s": 20_000, "token_s": 0.004})],
    "quality": {"prior": {t: {"small": [0.3, 0.4, 0.5], "large": [0.6, 0.7, 0.8]}
                          for t in ("math", "code", "knowledge", "general")}},
    "default_budget_s": 30.0,
    "max_budget_s": 600.0,
    "limits": {"max_body_bytes": 200_000},
}  # fmt: skip


@pytest.fixture(scope="module")
def url(deploy_once: Deploy) -> str:
    return deploy_once(POOL)


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# --- the official client ---------------------------------------------------------------------


def test_plain_completion_with_the_official_client(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="inframind", messages=ask("What is 17 + 25?"), extra_body={"task": "math"}
    )
    answer = raw.parse()
    assert "42" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert raw.headers["x-inframind-query-id"] == answer.id
    assert raw.headers["x-inframind-topology"] in ("IO", "Reflection", "Adaptive", "Debate")
    assert set(raw.headers["x-inframind-models"].split(",")) <= {"small", "large"}
    assert 0 < int(raw.headers["x-inframind-budget-left-ms"]) < 30_000


def test_streaming_with_the_official_client(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="inframind",
        messages=ask("Tell me something about the sea."),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"task": "general"},
    )
    assert raw.headers["x-inframind-query-id"].startswith("q-")
    assert raw.headers["x-inframind-topology"]
    chunks = list(raw.parse())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert "fake" in text
    last = [c for c in chunks if c.choices][-1]
    assert last.choices[0].finish_reason in ("stop", "length")
    told = last.model_extra["inframind"]
    assert told["models"]
    assert told["budget_left_ms"] > 0
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def test_a_stream_is_comments_chunks_and_done(url: str) -> None:
    body = {"model": "inframind", "messages": ask("Hello"), "stream": True, "task": "general"}
    lines = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text.split("\n\n")
    kinds = [line.split(":", 1)[0] for line in lines if line]
    assert set(kinds) == {"", "data"}
    assert any(line.startswith(": step 0") for line in lines)
    assert [line for line in lines if line][-1] == "data: [DONE]"


def test_values_that_ask_for_nothing_are_taken(url: str) -> None:
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logprobs": False, "tools": []}
    body = {"model": "small", "messages": ask("Hi"), "max_tokens": 2, "n": 1, **neutral}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_a_pool_model_by_its_own_name(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="small", messages=ask("Hello"), max_tokens=5
    )
    answer = raw.parse()
    assert answer.model == "small"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 5
    assert answer.choices[0].finish_reason == "length"
    assert raw.headers["x-inframind-models"] == "small"


def test_the_native_form_has_the_whole_trace(url: str) -> None:
    body = {
        "question": "Which planet is red?",
        "choices": ["Venus", "Mars", "Earth"],
        "budget_s": 20,
    }
    answer = httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()
    assert answer["task"] == "knowledge"
    assert answer["status"] == "ok"
    assert answer["canonical"] in ("A", "B", "C")
    assert answer["kept_budget"]
    assert {s["status"] for s in answer["steps"]} <= {"ok", "stopped"}
    for step in (s for s in answer["steps"] if s["status"] == "ok"):
        assert step["model"] in ("small", "large")
        assert step["strategy"] in ("Flash", "Concise", "DeepThink")
        assert step["completion_tokens"] > 0
        assert step["queue_s"] >= 0
        assert step["service_s"] > 0
        assert step["budget_left_s"] > 0


@pytest.mark.parametrize(
    "policy", ["random", "fixed", "cheapest", "least_loaded", "greedy", "cascade"]
)
def test_every_policy_answers(url: str, policy: str) -> None:
    body = {"question": "What is 6 + 7?", "task": "math", "policy": policy}
    answer = httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()
    assert (answer["status"], answer["policy"]) == ("ok", policy)


# --- budgets ---------------------------------------------------------------------------------

BAD_HEADERS = ("0", "-5", "nan", "inf", "1e5", "5s", "", "10,5", "0x10", "+5", "9" * 400)
BAD_BODIES = (0, -1, -(10**400), "10", "10s", True, [], {}, -0.001)


@pytest.mark.parametrize("value", BAD_HEADERS)
def test_malformed_budget_headers_are_refused(url: str, value: str) -> None:
    response = httpx.post(
        f"{url}/v1/chat/completions",
        json={"model": "inframind", "messages": ask("Hi")},
        headers={"x-inframind-budget-ms": value},
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_budget")
    assert error["param"] == "x-inframind-budget-ms"


@pytest.mark.parametrize("value", BAD_BODIES)
@pytest.mark.parametrize("path", ["chat/completions", "queries"])
def test_malformed_body_budgets_are_refused(url: str, value: Any, path: str) -> None:
    body: dict[str, Any] = {"budget_s": value, "messages": ask("Hi")}
    if path == "chat/completions":
        body["model"] = "inframind"
    response = httpx.post(f"{url}/v1/{path}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_budget")
    assert error["param"] == "budget_s"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_budgets_that_are_not_finite_are_refused(url: str, word: str) -> None:
    raw = json.dumps({"model": "inframind", "messages": ask("x"), "budget_s": "?"})
    raw = raw.replace('"?"', word)
    response = httpx.post(f"{url}/v1/chat/completions", content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("header", "body", "effective_ms"),
    [(None, None, 30_000), ("5000", None, 5000), (None, 7, 7000), ("5000", 7, 5000),
     ("9000", 7, 7000), ("999999999", None, 600_000), (None, 10**300, 600_000)],
)  # fmt: skip
def test_the_smaller_budget_counts_and_the_largest_is_clamped(
    url: str, header: str | None, body: float | None, effective_ms: int
) -> None:
    request: dict[str, Any] = {"model": "small", "messages": ask("Hi"), "max_tokens": 2}
    if body is not None:
        request["budget_s"] = body
    headers = {} if header is None else {"x-inframind-budget-ms": header}
    response = httpx.post(f"{url}/v1/chat/completions", json=request, headers=headers, timeout=60)
    assert response.status_code == 200
    assert int(response.headers["x-inframind-budget-ms"]) == effective_ms


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "inframind", "messages": []}, 400, "invalid_request", "messages"),
        ({"model": "inframind"}, 400, "invalid_request", "messages"),
        ({"messages": ask("x")}, 400, "invalid_request", "model"),
        ({"model": "gpt-9", "messages": ask("x")}, 404, "model_not_found", "model"),
        ({"model": "inframind", "messages": ask(" ")}, 400, "invalid_request", "messages"),
        ({"model": "inframind", "messages": ask("x"), "policy": "best"},
         400, "invalid_request", "policy"),
        ({"model": "inframind", "messages": ask("x"), "max_tokens": 0},
         400, "invalid_request", "max_tokens"),
        ({"model": "inframind", "messages": ask("x"), "temperature": 9},
         400, "invalid_request", "temperature"),
        ({"model": "inframind", "messages": ask("x"), "bugdet_s": 3},
         400, "invalid_request", "bugdet_s"),
    ],
)  # fmt: skip
def test_bad_requests_name_the_field(
    url: str, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert error["param"] == param


def test_a_budget_that_no_float_can_hold_is_brought_down(url: str) -> None:
    raw = json.dumps({"model": "small", "messages": ask("x"), "max_tokens": 2, "budget_s": 10**400})
    response = httpx.post(f"{url}/v1/chat/completions", content=raw, timeout=60)
    assert response.status_code == 200
    assert int(response.headers["x-inframind-budget-ms"]) == 600_000


@pytest.mark.parametrize(
    ("field", "value"),
    [("messages", ask("\ud83d hi")), ("stop", ["\udfff"]), ("stop", [""]), ("seed", 2**70),
     ("max_tokens", 2**40)],
)  # fmt: skip
def test_texts_and_numbers_that_no_engine_takes_are_refused(
    url: str, field: str, value: Any
) -> None:
    body = {"model": "inframind", "messages": ask("x"), field: value}
    response = httpx.post(f"{url}/v1/chat/completions", content=json.dumps(body))
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")


def test_unknown_paths_and_methods_have_the_form_of_other_errors(url: str) -> None:
    for response in (httpx.get(f"{url}/v1/nothing"), httpx.get(f"{url}/v1/queries")):
        assert response.status_code in (404, 405)
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_huge_prompt_is_refused_at_once(deploy: Deploy) -> None:
    url = deploy({**POOL, "limits": {}, "default_budget_s": 36.0})
    began_s = time.monotonic()
    body = {"model": "inframind", "messages": ask("word " * 190_000)}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_not_an_object_are_refused(url: str, raw: bytes) -> None:
    response = httpx.post(f"{url}/v1/chat/completions", content=raw)
    assert response.status_code == 400


def test_a_body_beyond_the_bound_is_refused(url: str) -> None:
    body = {"model": "inframind", "messages": ask("x" * 300_000)}
    response = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_a_prompt_longer_than_every_context_is_refused_and_those_behind_proceed(url: str) -> None:
    long = {"model": "inframind", "messages": ask("word " * 30_000)}
    response = httpx.post(f"{url}/v1/chat/completions", json=long, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    short = {"model": "inframind", "messages": ask("Hi")}
    assert httpx.post(f"{url}/v1/chat/completions", json=short, timeout=60).status_code == 200


# --- what an operator looks at ---------------------------------------------------------------


def test_models_health_and_pool(url: str) -> None:
    ids = [m["id"] for m in httpx.get(f"{url}/v1/models").json()["data"]]
    assert {httpx.get(f"{url}/v1/models/{name}").json()["id"] for name in ids} == set(ids)
    missing = httpx.get(f"{url}/v1/models/nobody")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
    assert ids == ["inframind", "small", "large", "hash-384"]
    health = httpx.get(f"{url}/healthz")
    assert (health.status_code, health.json()["models_up"]) == (200, ["large", "small"])
    pool = httpx.get(f"{url}/v1/pool").json()
    assert pool["quality_prior"] == "assumed"
    assert pool["age_s"] < 5.0
    for model in pool["models"]:
        assert model["simulated"] is True
        assert model["replicas"] == 1
        assert model["slots"] == 8
        assert model["running"] is not None


# --- a client that goes away -----------------------------------------------------------------

SLOW = {
    **POOL,
    "models": [
        model_args("slow", speed={"prefill_tokens_per_s": 50_000, "token_s": 0.05},
                   max_num_seqs=2, fake={"answer_tokens": 400}),
    ],
    "quality": {},
    "policy": {"name": "fixed", "options": {"topology": "Debate", "agents": 4}},
}  # fmt: skip


def _start_and_close(url: str, body: dict[str, Any], after_s: float) -> None:
    parts = urlsplit(url)
    raw = json.dumps(body).encode()
    head = (
        f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    with socket.create_connection((parts.hostname, parts.port)) as sock:
        sock.sendall(head.encode() + raw)
        time.sleep(after_s)


@pytest.mark.parametrize("stream", [False, True])
def test_a_disconnect_aborts_every_call_and_counters_return_to_zero(
    deploy: Deploy, stream: bool
) -> None:
    args = {**SLOW, "default_budget_s": 120.0 + stream}
    url = deploy(args)
    body = {"model": "inframind", "messages": ask("Argue."), "stream": stream, "task": "math"}
    for after_s in (0.05, 1.0, 2.0):
        _start_and_close(url, body, after_s)
    eventually(lambda: set(counters(args, url).values()) == {0})
    eventually(lambda: engines_idle(url))


def test_calls_that_a_limit_cancels_before_they_began_are_not_counted_for_ever(
    deploy: Deploy,
) -> None:
    args = {**POOL, "limits": {"max_tokens_per_query": 1600}, "policy": {
        "name": "fixed", "options": {"topology": "Debate", "agents": 4}}}  # fmt: skip
    url = deploy(args)
    body = {"question": "What is 6 times 7?", "task": "math"}
    for _ in range(3):
        answer = httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()
        assert answer["error"]["code"] == "limit_exceeded"
    eventually(lambda: set(counters(args, url).values()) == {0})
    eventually(lambda: engines_idle(url))


# --- deadlines and order ---------------------------------------------------------------------


def one_slot(order: str, **changes: Any) -> dict[str, Any]:
    """One model with one slot, about half a second a call."""
    model = model_args(
        "only", max_num_seqs=1, speed={"prefill_tokens_per_s": 50_000, "token_s": 0.02},
        fake={"answer_tokens": 200},
    )  # fmt: skip
    return {**POOL, "models": [model], "quality": {}, "order": order, **changes}


async def hold_the_slot(http: httpx.AsyncClient, url: str, args: dict[str, Any]) -> Any:
    """A call of two seconds that holds the only slot when this returns."""
    body = {"model": "only", "messages": ask("Hi"), "max_tokens": 100}
    task = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=body))
    while (await asyncio.to_thread(counters, args, url))["leased"] != 1:
        await asyncio.sleep(0.02)
    return task


async def completion_order(url: str, args: dict[str, Any], budgets_ms: list[int]) -> list[int]:
    """Budgets in the order in which their calls came back."""
    done: list[int] = []

    async def one(http: httpx.AsyncClient, budget_ms: int) -> None:
        body = {"model": "only", "messages": ask("Hi"), "max_tokens": 25}
        headers = {"x-inframind-budget-ms": str(budget_ms)}
        response = await http.post(f"{url}/v1/chat/completions", json=body, headers=headers)
        assert response.status_code == 200, response.text
        done.append(budget_ms)

    async with httpx.AsyncClient(timeout=120) as http:
        tasks = [await hold_the_slot(http, url, args)]
        for budget_ms in budgets_ms:
            tasks.append(asyncio.create_task(one(http, budget_ms)))
            await asyncio.sleep(0.1)
        await asyncio.gather(*tasks)
    return done


def test_edf_orders_by_the_header_and_fcfs_does_not(deploy: Deploy) -> None:
    budgets = [90_000, 30_000, 60_000]
    args = {order: one_slot(order, default_budget_s=100.0) for order in ("edf", "fcfs")}
    edf, fcfs = (
        asyncio.run(completion_order(deploy(args[order]), args[order], budgets))
        for order in ("edf", "fcfs")
    )
    assert edf == [30_000, 60_000, 90_000]
    assert fcfs == budgets


def test_a_deadline_that_passes_in_the_queue_costs_no_model_work(deploy: Deploy) -> None:
    args = one_slot("edf", default_budget_s=31.0)
    url = deploy(args)

    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=60) as http:
            first = await hold_the_slot(http, url, args)
            late = await http.post(
                f"{url}/v1/chat/completions",
                json={"model": "only", "messages": ask("Hi"), "max_tokens": 10},
                headers={"x-inframind-budget-ms": "400"},
            )
            return [await first, late]

    whole, late = asyncio.run(run())
    assert whole.status_code == 200
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
    eventually(lambda: engines_idle(url))
    assert finished_calls(url) == 1
    eventually(lambda: set(counters(args, url).values()) == {0})


def test_a_stream_that_runs_out_of_time_ends_with_what_it_gave(deploy: Deploy) -> None:
    url = deploy(one_slot("edf", default_budget_s=32.0, at_deadline="run_on"))
    body = {
        "model": "only", "messages": ask("Hi"), "stream": True, "max_tokens": 400,
        "deadline": "hard",
    }  # fmt: skip
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=body, timeout=60,
        headers={"x-inframind-budget-ms": "1500"},
    ) as response:  # fmt: skip
        text = response.read().decode()
    assert text.rstrip().endswith("data: [DONE]")
    assert '"finish_reason": "length"' in text or '"finish_reason": "stop"' in text


def test_a_slow_engine_ends_its_answer_in_time(deploy: Deploy) -> None:
    """Four times slower than its speed: the token cap alone would be late."""
    slow = model_args("slow", speed={"prefill_tokens_per_s": 50_000, "token_s": 0.01},
                      fake={"answer_tokens": 500, "speedup": 0.25})  # fmt: skip
    url = deploy({**POOL, "models": [slow], "quality": {}, "policy": {"name": "fixed"}})
    body = {"question": "Tell me a story.", "task": "general", "budget_s": 4}
    answer = httpx.post(f"{url}/v1/queries", json=body, timeout=60).json()
    assert (answer["status"], answer["finish_reason"]) == ("ok", "length")
    assert answer["text"]
    assert 0 < answer["budget_left_s"] < 2


# --- faults of the engine --------------------------------------------------------------------


def test_a_failing_model_is_replaced_by_another(deploy: Deploy) -> None:
    broken = model_args("broken", fake={"faults": {"error_rate": 1.0}})
    url = deploy({**POOL, "models": [broken, model_args("good")], "quality": {},
                  "policy": {"name": "fixed"}})  # fmt: skip
    answer = httpx.post(f"{url}/v1/queries", json={"question": "Hi"}, timeout=60).json()
    assert answer["status"] == "ok"
    assert answer["models"] == ["good"]
    assert answer["steps"][0]["attempts"] == 2
    by_name = {"model": "broken", "messages": ask("Hi")}
    response = httpx.post(f"{url}/v1/chat/completions", json=by_name, timeout=60)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "no_model_answered")


def test_a_failed_stream_ends_with_an_error_event(deploy: Deploy) -> None:
    broken = model_args("broken", fake={"faults": {"error_rate": 1.0}})
    url = deploy({**POOL, "models": [broken], "quality": {}, "default_budget_s": 33.0})
    body = {"model": "inframind", "messages": ask("Hi"), "stream": True, "task": "general"}
    lines = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).text.split("\n\n")
    data = [json.loads(li[6:]) for li in lines if li.startswith("data: {")]
    assert data[-1]["error"]["code"] == "no_model_answered"
    assert data[-1]["error"]["query_id"].startswith("q-")


def test_a_full_backlog_is_429_with_retry_after(deploy: Deploy) -> None:
    args = one_slot("edf", default_budget_s=34.0, limits={"max_backlog_per_model": 2})
    url = deploy(args)

    async def flood() -> list[httpx.Response]:
        body = {"model": "only", "messages": ask("Hi"), "max_tokens": 25}
        async with httpx.AsyncClient(timeout=60) as http:
            posts = [http.post(f"{url}/v1/chat/completions", json=body) for _ in range(8)]
            return list(await asyncio.gather(*posts))

    responses = asyncio.run(flood())
    codes = sorted(r.status_code for r in responses)
    assert codes == [200] * 3 + [429] * 5
    refused = [r for r in responses if r.status_code == 429]
    assert all(int(r.headers["retry-after"]) >= 1 for r in refused)
    assert refused[0].json()["error"]["code"] == "overloaded"


def test_queries_in_flight_are_bounded(deploy: Deploy) -> None:
    args = one_slot("edf", default_budget_s=35.0, limits={"max_queries_in_flight": 2})
    url = deploy(args)

    async def flood() -> list[int]:
        body = {"model": "only", "messages": ask("Hi"), "max_tokens": 25}
        async with httpx.AsyncClient(timeout=60) as http:
            posts = [http.post(f"{url}/v1/chat/completions", json=body) for _ in range(6)]
            return sorted(r.status_code for r in await asyncio.gather(*posts))

    assert asyncio.run(flood()) == [200, 200, 429, 429, 429, 429]
