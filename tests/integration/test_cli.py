"""The command line, and ``serve run`` on a file of ``serve_configs/``."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.client import Client
from actors.local_pool import wait_ready
from actors.transport import free_port

APP = "name: x, import_path: 'actors.app:build'"
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "inframind"), *args], capture_output=True, text=True, timeout=240, **kwargs
    )


def wait_for(url: str, process: subprocess.Popen[bytes], within_s: float = 150.0) -> None:
    end = time.monotonic() + within_s
    while not Client(url).healthy():
        assert process.poll() is None, "the server ended"
        assert time.monotonic() < end, "the server never answered"
        time.sleep(0.5)
    wait_ready(url)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """``serve run`` on the fake pool, in a Ray of its own."""
    port, temp = free_port(), tempfile.mkdtemp(prefix="im-run-", dir="/tmp")
    data = yaml.safe_load((ROOT / "serve_configs" / "fake.yaml").read_text())
    data["http_options"]["port"] = port
    path = Path(temp) / "fake.yaml"
    path.write_text(yaml.safe_dump(data))
    env = {**os.environ, "RAY_TMPDIR": temp, "RAY_USAGE_STATS_ENABLED": "0"}
    env.pop("RAY_ADDRESS", None)
    log = (Path(temp) / "log").open("w")
    process = subprocess.Popen(
        [str(BIN / "serve"), "run", str(path)], env=env, stdout=log, stderr=log, cwd=ROOT
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
        shutil.rmtree(temp, ignore_errors=True)


def test_ask_shows_the_answer_and_its_steps(served: str) -> None:
    asked = run("ask", "What is 17 + 25?", "--budget", "60", "--task", "math", "--url", served)
    assert asked.returncode == 0, asked.stderr
    assert "42" in asked.stdout
    assert "SIMULATED" in asked.stdout
    assert "MathSolver" in asked.stdout
    assert "budget kept" in asked.stdout


def test_ask_as_json_is_the_whole_trace(served: str) -> None:
    asked = run("ask", "Hello", "--policy", "cheapest", "--json", "--url", served)
    answer = json.loads(asked.stdout)
    assert (answer["status"], answer["policy"], answer["simulated"]) == ("ok", "cheapest", True)
    assert answer["steps"][0]["service_s"] > 0


def test_status_lists_the_five_models(served: str) -> None:
    shown = run("status", "--url", served)
    assert shown.returncode == 0
    assert "SIMULATED" in shown.stdout
    models = json.loads(run("status", "--json", "--url", served).stdout)["models"]
    assert len(models) == 5
    assert all(m["slots"] == 16 and m["running"] == 0 for m in models)


def test_a_bad_budget_is_told_by_the_server(served: str) -> None:
    asked = run("ask", "Hello", "--budget", "-3", "--url", served)
    assert asked.returncode == 1
    assert "budget_s" in asked.stderr


def test_no_server_is_a_clear_error() -> None:
    asked = run("ask", "Hello", "--url", f"http://127.0.0.1:{free_port()}")
    assert asked.returncode == 1
    assert "inframind serve" in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("applications: []", "exactly one application"),
        ("a: [", "not valid YAML"),
        (f"applications: [{{{APP}, args: {{version: 1, modles: []}}}}]", "did you mean 'models'"),
        (f"applications: [{{{APP}, args: {{version: 2, models: []}}}}]", "version"),
        ("applications: [{import_paths: x}]", "import_path"),
        ("applications: [null]", "must be mappings"),
        ("{applications: [{a: 1}], http_options: 5}", "must be mappings"),
        (f"{{applications: [{{{APP}}}], http_options: {{port: abc}}}}", "port"),
    ],
)
def test_a_bad_config_names_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    served = run("serve", "--config", str(path))
    assert served.returncode == 1
    assert "bad.yaml" in served.stderr
    assert told in " ".join(served.stderr.split())
    assert "Traceback" not in served.stderr


def test_a_missing_config_is_a_clear_error(tmp_path: Path) -> None:
    served = run("demo", "--config", str(tmp_path / "none.yaml"))
    assert served.returncode == 1
    assert "cannot be read" in " ".join(served.stderr.split())


def test_serve_stops_in_good_order_on_sigterm() -> None:
    port = free_port()
    process = subprocess.Popen(
        [str(BIN / "inframind"), "serve", "-c", "serve_configs/fake.yaml", "--port", str(port)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert any(b"ready" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=90)[0].decode()
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert "stopping" in output
    assert not Client(f"http://127.0.0.1:{port}").healthy()
