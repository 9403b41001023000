"""The vLLM replica: first its parts without an engine, then one real engine on the CPU."""

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from actors.protocol import EngineChunk, EngineRefused, EngineRequest, whole_calls
from actors.reporting import EngineLoad, ReplicaReporter
from runtime.config import ModelConfig
from runtime.edf import engine_priority
from runtime.types import Message, Sampling, ToolCall
from tests.live import from_a_thread

with warnings.catch_warnings():  # Ray's and vLLM's own, while they are imported
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    import ray
    import ray.serve.llm
    from ray import serve
    from vllm.v1.metrics.stats import SchedulerStats

    from actors import vllm_stats
    from actors.deployments import build_model
    from actors.vllm_answer import failure
    from actors.vllm_requests import chat_request, engine_id, text_request
    from actors.vllm_server import InfraMindLLMServer, current_load, start_lock

MODEL = Path(
    os.environ.get("INFRAMIND_TEST_MODEL", "~/.cache/inframind/models/smollm2-135m-instruct")
).expanduser()

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SLOTS = 2


def make_request(
    call_id, text, *, max_tokens=24, remaining_s=60.0, stream=False, limit_s=None, **sampling
):
    messages = (Message("user", text),)
    return EngineRequest(
        call_id, messages, max_tokens, remaining_s, Sampling(**sampling), stream, limit_s
    )


# The parts.


def test_the_request_says_what_was_asked_and_no_more():
    sampling = {"temperature": 0.0, "top_p": 0.9, "seed": 7, "stop": ("END",)}
    asked = chat_request(make_request("c1", "Hi", **sampling), "m", 1000.0)
    assert (asked.temperature, asked.top_p, asked.seed, asked.stop) == (0.0, 0.9, 7, ["END"])
    assert (asked.model, asked.max_tokens, asked.request_id) == ("m", 24, "c1")
    assert asked.messages == [{"role": "user", "content": "Hi"}]
    plain = chat_request(make_request("c2", "Hi"), "m", 1000.0)
    assert not {"temperature", "top_p", "seed", "stop"} & plain.model_fields_set


def test_formats_tools_and_logprobs_go_as_they_were_sent():
    tools = '[{"type": "function", "function": {"name": "add", "parameters": {"a": null}}}]'
    choice = '{"type": "function", "function": {"name": "add"}}'
    wanted = '{"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}'
    request = make_request(
        "c1", "Hi", tools=tools, tool_choice=choice, response_format=wanted, logprobs=3,
        frequency_penalty=0.5, presence_penalty=-0.5, logit_bias=(("7", -100.0),),
        parallel_tool_calls=False,
    )  # fmt: skip
    call = ToolCall("t1", "add", "{}")
    history = (Message("assistant", "", tool_calls=(call,)), Message("tool", "5", None, (), "t1"))
    asked = chat_request(replace(request, messages=history), "m", 1000.0)
    assert asked.tools[0].function.name == asked.tool_choice.function.name == "add"
    assert asked.response_format.json_schema.json_schema == {"type": "object"}
    assert (asked.logprobs, asked.top_logprobs) == (True, 3)
    assert (asked.frequency_penalty, asked.presence_penalty) == (0.5, -0.5)
    assert (asked.logit_bias, asked.parallel_tool_calls) == ({"7": -100.0}, False)
    assert asked.messages[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    assert asked.messages[1]["tool_call_id"] == "t1"


def test_a_raw_prompt_is_a_text_completion():
    request = replace(make_request("c1", "x", logprobs=2, seed=3), messages=(), prompt="Once")
    asked = text_request(request, "m", 1000.0)
    assert (asked.prompt, asked.logprobs, asked.seed, asked.max_tokens) == ("Once", 2, 3, 24)
    assert asked.priority == engine_priority(1060.0)
    assert (engine_id(request), engine_id(make_request("c2", "x"))) == ("cmpl-c1-0", "chatcmpl-c2")


def test_the_priority_is_that_of_the_deadline_on_this_clock():
    soon, late = (
        chat_request(make_request("c", "Hi", remaining_s=s), "m", 1000.0).priority for s in (5, 60)
    )
    assert soon < late
    assert soon == engine_priority(1005.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 400, "message": "This model's maximum context length is 9 tokens."}, "context"),
        ({"code": 400, "message": "too long", "param": "input_tokens"}, "context"),
        ({"code": 400, "message": "temperature must be non-negative"}, "request"),
        ({"code": 404, "message": "no such model"}, "request"),
        ({"code": 500, "message": "maximum context length"}, None),
        ({"message": "engine died"}, None),
    ],
)
def test_only_4xx_is_the_requests_fault(error, kind):
    raised = failure(error)
    assert isinstance(raised, RuntimeError if kind is None else EngineRefused)
    assert getattr(raised, "kind", None) == kind


def test_a_record_is_read_with_what_is_held_back():
    stats = SchedulerStats(
        num_running_reqs=3, num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.5
    )
    assert vllm_stats.load_of(stats) == EngineLoad(3, 3, 0.5)


class OlderStats:
    num_running_reqs = 1
    num_waiting_reqs = 0


def test_kv_usage_has_two_names_and_missing_is_unknown():
    assert vllm_stats.load_of(OlderStats()).kv_usage is None
    older = OlderStats()
    older.gpu_cache_usage = 0.25
    assert vllm_stats.load_of(older).kv_usage == 0.25


@pytest.mark.parametrize(
    ("newest", "active", "expected"),
    [
        (None, 2, EngineLoad(0, 2, None)),
        (EngineLoad(2, 1, 0.4), 3, EngineLoad(2, 1, 0.4)),
        (EngineLoad(2, 0, 0.4), 3, EngineLoad(2, 1, 0.4)),  # one has just arrived
        (EngineLoad(2, 0, 0.4), 1, EngineLoad(1, 0, 0.4)),  # one has just left
        (EngineLoad(2, 1, 0.4), 0, EngineLoad(0, 0, 0.0)),  # records stop when it idles
        (EngineLoad(2, 1, None), 0, EngineLoad(0, 0, None)),
    ],
)
def test_the_load_is_the_record_corrected_by_what_is_there(newest, active, expected):
    assert current_load(newest, active) == expected


def sse(*deltas, finish=None, usage=None):
    choices = [{"delta": {"content": d}, "finish_reason": None} for d in deltas]
    if finish:
        choices.append({"delta": {}, "finish_reason": finish})
    return "data: " + json.dumps({"choices": choices, "usage": usage}) + "\n\n"


class ScriptedEngine:
    """Stands for Ray's engine: yields what it is given and notes what is aborted."""

    def __init__(self, *parts, then_wait=False):
        self._parts = parts
        self._then_wait = then_wait
        self._engine_client = self
        self.aborted = []

    async def chat(self, request):
        for part in self._parts:
            yield part
        if self._then_wait:
            await asyncio.sleep(60)

    async def abort(self, request_id):
        self.aborted.append(request_id)


class EnginelessServer(InfraMindLLMServer):
    def __del__(self):  # Ray's is a coroutine that only Serve awaits
        pass


def make_server(engine):
    server = EnginelessServer.__new__(EnginelessServer)
    server.engine = engine
    server._llm_config = type("Config", (), {"model_id": "m"})

    async def nowhere(report):
        pass

    server._reporter = ReplicaReporter(
        model="m",
        replica="m#1",
        max_num_seqs=SLOTS,
        period_s=0.2,
        load=lambda: EngineLoad(0, 0, None),
        send=nowhere,
    )
    return server


async def collect(server, request):
    return [chunk async for chunk in server.generate(request)]


USAGE = {"prompt_tokens": 9, "completion_tokens": 3}


async def test_an_unstreamed_answer_is_one_chunk():
    parts = [sse(""), sse("Pa", "ris"), sse(finish="length"), sse(usage=USAGE), "data: [DONE]\n\n"]
    server = make_server(ScriptedEngine(*parts))
    (chunk,) = await collect(server, make_request("c1", "Hi"))
    assert (chunk.text, chunk.finish_reason, chunk.replica) == ("Paris", "length", "m#1")
    assert (chunk.prompt_tokens, chunk.completion_tokens) == (9, 3)
    assert chunk.ttft_s >= 0
    assert server.engine.aborted == []
    assert server._reporter.report().finished == 1


async def test_tool_calls_and_logprobs_are_read_from_the_stream():
    def part(finish=None, logprobs=None, **delta):
        choice = {"delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return "data: " + json.dumps({"choices": [choice]}) + "\n\n"

    told = {"content": [{"token": "a", "logprob": -1.0, "top_logprobs": []}]}
    first = [{"index": 0, "id": "t1", "type": "function", "function": {"name": "add"}}]
    rest = [{"index": 0, "function": {"arguments": "{}"}}]
    engine = ScriptedEngine(
        part(role="assistant", content=""), part(tool_calls=first, logprobs=told),
        part(tool_calls=rest, logprobs=told), part("tool_calls"), sse(usage=USAGE),
    )  # fmt: skip
    (chunk,) = await collect(make_server(engine), make_request("c1", "Hi"))
    assert chunk.finish_reason == "tool_calls"
    assert whole_calls(chunk.tool_calls) == (ToolCall("t1", "add", "{}"),)
    assert [one.token for one in chunk.logprobs] == ["a", "a"]


async def test_a_text_completion_is_read_and_aborted_by_its_own_id():
    told = {"tokens": ["Pa"], "token_logprobs": [-0.5], "top_logprobs": [{"Pa": -0.5}]}
    choice = {"text": "Pa", "logprobs": told, "finish_reason": None}
    event = "data: " + json.dumps({"choices": [choice]}) + "\n\n"
    request = replace(make_request("c1", "x", limit_s=0.0), messages=(), prompt="Once")
    server = make_server(ScriptedEngine(event, then_wait=True))
    server.engine.completions = server.engine.chat
    (chunk,) = await collect(server, request)
    assert (chunk.text, chunk.finish_reason) == ("Pa", "length")
    assert (chunk.logprobs[0].token, chunk.logprobs[0].top) == ("Pa", (("Pa", -0.5),))
    assert server.engine.aborted == ["cmpl-c1-0"]


async def test_an_engine_that_ends_without_a_reason_failed():
    server = make_server(ScriptedEngine(sse("Pa")))
    with pytest.raises(RuntimeError):
        await collect(server, make_request("c1", "Hi"))
    aborting = make_server(ScriptedEngine(sse("Pa"), sse(finish="abort")))
    with pytest.raises(RuntimeError):
        await collect(aborting, make_request("c1", "Hi"))


async def test_an_error_in_the_middle_of_a_stream_is_raised():
    error = 'data: {"error": {"message": "boom", "code": 500}}\n\n'
    server = make_server(ScriptedEngine(sse("Pa"), error))
    with pytest.raises(RuntimeError, match="boom"):
        await collect(server, make_request("c1", "Hi", stream=True))
    assert server._reporter.report().calls == ()


async def test_a_cancelled_call_is_aborted_in_the_engine_by_its_own_id():
    server = make_server(ScriptedEngine(sse("Pa"), then_wait=True))
    call = asyncio.create_task(collect(server, make_request("c7", "Hi")))
    await asyncio.sleep(0.05)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert server.engine.aborted == ["chatcmpl-c7"]


async def test_engines_of_one_gpu_start_one_after_another(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inside, most = 0, 0

    async def start(gpu):
        nonlocal inside, most
        async with start_lock(gpu):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.05)
            inside -= 1

    await asyncio.gather(*(start("0") for _ in range(3)))
    assert most == 1
    most = 0
    await asyncio.gather(start("0"), start("1"))
    assert most == 2
    most = 0
    await asyncio.gather(*(start(None) for _ in range(3)))
    assert most == 3


async def test_the_kernel_frees_the_lock_of_a_dead_process(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"inframind-{os.getuid()}-gpu0.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
            "print('held', flush=True); time.sleep(60)",
            str(path),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"

    async def enter():
        async with start_lock("0"):
            return True

    waiting = asyncio.create_task(enter())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    async with asyncio.timeout(10):
        assert await waiting


# One real engine.


class Monitor:
    """Keeps every report and when it came."""

    def __init__(self):
        self._reports = []

    async def report_replica(self, report):
        self._reports.append((time.monotonic(), report))

    async def take(self):
        reports, self._reports = self._reports, []
        return reports


class Pool:
    """A handle to the replica, and the monitor that it reports to."""

    def __init__(self, handle, monitor):
        self._handle = handle.options(method_name="generate", stream=True)
        self._monitor = monitor

    def start(self, request):
        return self._handle.remote(request)

    def ask(self, *args, **kwargs) -> list[EngineChunk]:
        return list(self.start(make_request(*args, **kwargs)))

    def reports(self):
        return ray.get(self._monitor.take.remote())

    def wait_for(self, condition, timeout_s=30.0):
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            for _, report in self.reports():
                if condition(report):
                    return report
            time.sleep(0.02)
        pytest.fail("the replica never reported what was waited for")


@pytest.fixture(scope="module")
def pool():
    if not MODEL.is_dir():
        pytest.fail(f"{MODEL} is missing; run `inframind models prepare smollm2-135m-instruct`")
    temp = tempfile.mkdtemp(prefix="im-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=2,
        namespace="inframind-test",
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=temp,
    )
    monitor = ray.remote(num_cpus=0)(Monitor).options(name="monitor").remote()
    model = ModelConfig.model_validate(
        {
            "name": "smollm2-135m",
            "backend": "vllm",
            "source": str(MODEL),
            "context_tokens": 2048,
            "max_output_tokens": 1024,
            "max_num_seqs": SLOTS,
            "speed": {"prefill_tokens_per_s": 150, "token_s": 0.06},
            "engine": {"dtype": "float32", "enforce_eager": True},
            "env": {
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "OMP_NUM_THREADS": "1",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
            },
            "placement": {"num_cpus": 0.5},
        }
    )
    deployment = build_model(
        model, monitor_name="monitor", namespace="inframind-test", report_period_s=0.2
    )._bound_deployment
    assert deployment.max_ongoing_requests == SLOTS
    # Only here more calls than slots reach the engine, to see its own queue at work.
    app = deployment.options(max_ongoing_requests=8).bind(**deployment.init_kwargs)
    serve.start(proxy_location="Disabled")
    serve.run(app, name="vllm", route_prefix=None)
    yield Pool(from_a_thread(serve.get_deployment_handle("smollm2-135m", "vllm")), monitor)
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(temp, ignore_errors=True)


def test_an_answer_comes(pool):
    (chunk,) = pool.ask("a1", "What is the capital of France?", temperature=0.0)
    assert "Paris" in chunk.text
    assert chunk.finish_reason == "stop"
    assert chunk.prompt_tokens > 5
    assert 1 < chunk.completion_tokens <= 24
    assert chunk.ttft_s > 0
    assert chunk.replica


def test_the_cap_holds(pool):
    (chunk,) = pool.ask("a2", "Tell me a long story.", max_tokens=5)
    assert (chunk.finish_reason, chunk.completion_tokens) == ("length", 5)


@pytest.mark.parametrize("stream", [True, False])
def test_at_its_time_limit_an_answer_ends_where_it_is_and_the_engine_is_free(pool, stream):
    began_s = time.monotonic()
    asked = {"max_tokens": 1000, "limit_s": 3.0, "stream": stream}
    *_, last = chunks = pool.ask(f"l{stream}", "Tell me a very long story.", **asked)
    assert time.monotonic() - began_s < 30
    assert last.finish_reason == "length"
    assert 0 < last.completion_tokens < 1000
    assert "".join(chunk.text for chunk in chunks)
    pool.reports()  # those from before
    gone = pool.wait_for(lambda r: r.running == 0, timeout_s=10)
    assert (gone.waiting, gone.calls) == (0, ())


def test_a_stream_brings_the_same_text_in_pieces(pool):
    (whole,) = pool.ask("s1", "Count from one to ten in words.", temperature=0.0)
    pieces = pool.ask("s2", "Count from one to ten in words.", temperature=0.0, stream=True)
    assert len(pieces) > 2
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].completion_tokens == whole.completion_tokens


def test_a_prompt_over_the_context_is_refused_and_those_behind_proceed(pool):
    with pytest.raises(EngineRefused) as refused:
        pool.ask("l1", "hello " * 3000)
    assert refused.value.kind == "context"
    assert pool.ask("l2", "Hello!", max_tokens=2)


def test_what_the_sampler_refuses_is_the_requests_fault(pool):
    with pytest.raises(EngineRefused) as refused:
        pool.ask("l3", "Hello!", temperature=-1.0)
    assert refused.value.kind == "request"


def test_the_engine_runs_no_more_than_its_slots_and_the_urgent_leave_its_queue_first(pool):
    pool.reports()
    ended = []

    def ask(call_id, remaining_s, max_tokens):
        pool.ask(
            call_id,
            f"Tell me a story of {call_id}.",
            max_tokens=max_tokens,
            seed=1,
            remaining_s=remaining_s,
        )
        ended.append(call_id)

    calls = [("run1", 600, 60), ("run2", 600, 60), ("60", 60, 3), ("30", 30, 3), ("5", 5, 3)]
    threads = [threading.Thread(target=ask, args=call) for call in calls]
    for thread in threads[:2]:
        thread.start()
    pool.wait_for(lambda r: r.running == SLOTS)
    for thread in threads[2:]:
        thread.start()
        time.sleep(0.3)
    full = pool.wait_for(lambda r: r.waiting == 3)
    assert full.running == SLOTS
    assert set(full.calls) == {call[0] for call in calls}
    assert full.kv_usage > 0
    seen = []
    for thread in threads:
        while thread.is_alive():
            seen += pool.reports()
            thread.join(0.1)
    assert max(report.running for _, report in seen) <= SLOTS
    assert [c for c in ended if c in ("5", "30", "60")] == ["5", "30", "60"]
    last = pool.wait_for(lambda r: not r.calls)
    assert (last.running, last.waiting, last.kv_usage) == (0, 0, 0.0)
    assert last.e2e_s > last.ttft_s > 0
    assert 0 < last.tpot_s < 10


def test_telemetry_comes_every_quarter_of_a_second_busy_and_idle(pool):
    for busy in (True, False):
        pool.reports()
        stream = pool.start(make_request(f"t{busy}", "Tell a story.", max_tokens=512, stream=True))
        if busy:
            next(iter(stream))
        else:
            stream.cancel()
        time.sleep(4.0)
        times = [at_s for at_s, _ in pool.reports()]
        stream.cancel()
        gaps = [b - a for a, b in pairwise(times)]
        assert statistics.median(gaps) <= 0.25
        assert sum(gap <= 0.35 for gap in gaps) >= 0.8 * len(gaps)


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_call_is_gone_from_the_engine(pool, stream):
    request = make_request(f"x{stream}", "Tell a long story.", max_tokens=1000, stream=stream)
    response = pool.start(request)
    running = pool.wait_for(lambda r: request.call_id in r.calls and r.running == 1)
    assert running.kv_usage > 0
    response.cancel()
    gone = pool.wait_for(lambda r: request.call_id not in r.calls, timeout_s=10)
    assert (gone.running, gone.waiting, gone.kv_usage, gone.calls) == (0, 0, 0.0, ())
