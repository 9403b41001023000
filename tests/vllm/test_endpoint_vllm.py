"""A vLLM server that runs already, fronted without a config file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from actors.endpoint_discovery import discover, endpoint_args
from actors.models import resolve_source
from actors.transport import free_port
from runtime.errors import ConfigError
from runtime.exposition import EnginePage, read_page
from tests.live import Deploy, counters, eventually

pytest.importorskip("vllm", reason="needs vLLM: make install-vllm")
pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SERVED = "HuggingFaceTB/SmolLM2-135M-Instruct"
NAME = "SmolLM2-135M-Instruct"
START_TIMEOUT_S = 400.0
SLOTS = 2
ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a vLLM server of its own on this CPU; it is what `vllm serve` starts."""
    try:
        source = resolve_source("prepared:smollm2-135m-instruct")
    except ConfigError as error:
        pytest.skip(error.message)
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "log"
    options = {
        "--model": source, "--served-model-name": SERVED, "--host": "127.0.0.1",
        "--port": str(port), "--dtype": "float32", "--max-model-len": "1024",
        "--max-num-seqs": str(SLOTS),
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
    command += [word for pair in options.items() for word in pair]
    with log.open("w") as file:
        process = subprocess.Popen(command, env={**os.environ, **ENV}, stdout=file, stderr=file)
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(1)
    raise AssertionError("vLLM never answered: " + log.read_text()[-3000:])


@pytest.fixture(scope="module")
def args(endpoint: str) -> dict[str, Any]:
    """What `inframind serve --endpoint` would serve."""
    return endpoint_args(discover([endpoint], None), None, SLOTS)


@pytest.fixture(scope="module")
def url(deploy_once: Deploy, args: dict[str, Any]) -> str:
    return deploy_once(args)


def page(endpoint: str) -> EnginePage:
    """The server's own page."""
    text = httpx.get(endpoint.removesuffix("/v1") + "/metrics", timeout=10).text
    return read_page(text, SERVED)


def ask(text: str, **body: Any) -> dict[str, Any]:
    body = {"model": NAME, "messages": [{"role": "user", "content": text}], **body}
    return {"json": {"budget_s": 120, "temperature": 0, **body}, "timeout": 150}


def test_it_is_found_with_its_context_and_its_metrics(args: dict[str, Any]) -> None:
    (model,) = args["models"]
    assert (model["name"], model["context_tokens"]) == (NAME, 1024)
    assert model["endpoint"]["metrics_url"].endswith("/metrics")


def test_every_figure_is_on_its_page(endpoint: str) -> None:
    assert page(endpoint).missing == ()


@pytest.mark.parametrize("stream", [False, True])
def test_it_answers(url: str, stream: bool) -> None:
    asked = ask("What is the capital of France?", max_tokens=24, stream=stream)
    answer = httpx.post(f"{url}/v1/chat/completions", **asked)
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.text
    if stream:
        assert answer.text.count("data: ") > 4
    else:
        assert answer.json()["usage"]["prompt_tokens"] > 10


def test_a_query_is_planned_and_answered(url: str, args: dict[str, Any]) -> None:
    body = {"question": "Who wrote Hamlet?", "task": "knowledge", "max_tokens": 24}
    answer = httpx.post(
        f"{url}/v1/queries", json={**body, "budget_s": 120, "policy": "cheapest"}, timeout=150
    ).json()
    assert (answer["status"], answer["models"]) == ("ok", [NAME])
    assert "simulated" not in answer or answer["simulated"] is False
    eventually(lambda: set(counters(args, url).values()) == {0})


def test_a_client_that_goes_away_ends_the_request_in_vllm(url: str, endpoint: str) -> None:
    text = "Count from one to one thousand in words."
    asked = ask(text, max_tokens=500, stream=True)
    with httpx.stream("POST", f"{url}/v1/chat/completions", **asked) as response:
        lines = response.iter_lines()
        next(line for line in lines if '"content"' in line and "data:" in line)
        eventually(lambda: page(endpoint).running == 1)
    eventually(lambda: page(endpoint).running == 0)


def test_latencies_are_measured_and_nothing_stays(url: str) -> None:
    def model() -> dict[str, Any]:
        return dict(httpx.get(f"{url}/v1/pool", timeout=30).json()["models"][0])

    answer = httpx.post(f"{url}/v1/chat/completions", **ask("Count to ten.", max_tokens=24))
    assert answer.status_code == 200
    eventually(lambda: model()["running"] == 0 and model()["kv_usage"] is not None, within_s=45)
    shown = model()
    assert (shown["backend"], shown["simulated"]) == ("openai", False)
    assert shown["e2e_s"] > 0


def test_what_vllm_refuses_is_a_400(url: str) -> None:
    asked = ask("Hi", max_tokens=8, logit_bias={"999999999": 1.0})
    refused = httpx.post(f"{url}/v1/chat/completions", **asked)
    assert refused.status_code == 400
    assert "HTTP 400" in refused.json()["error"]["message"]


def test_a_prompt_beyond_the_real_context_is_a_400(deploy: Deploy, endpoint: str) -> None:
    """The pool believes in a larger context than the server has."""
    args = endpoint_args(discover([endpoint], None), None, SLOTS)
    args["models"][0] |= {"context_tokens": 8192, "max_output_tokens": 64}
    asked = ask("word " * 2000, max_tokens=8)
    refused = httpx.post(f"{deploy(args)}/v1/chat/completions", **asked)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
