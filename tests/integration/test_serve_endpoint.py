"""``inframind serve --endpoint``: no file, clear errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actors.transport import free_port
from tests.stand_in import SERVED, TOKENS, standing_in

BIN = str(Path(sys.executable).parent / "inframind")


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN, *args], capture_output=True, text=True, timeout=120)


def test_two_endpoints_are_a_pool_without_a_file() -> None:
    with standing_in() as one, standing_in() as other:
        port = str(free_port())
        urls = ["--endpoint", one.url, "--endpoint", f"http://{other.host}"]
        process = subprocess.Popen(
            [BIN, "serve", *urls, "--port", port, "--max-num-seqs", "3"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            told = []
            for line in process.stdout:
                told.append(line.decode())
                if "ready" in told[-1]:
                    break
            text = " ".join("".join(told).split())
            assert f"stand-in: {SERVED} at" in text
            assert "stand-in-2:" in text
            assert "assumed: 2000 prompt tokens/s" in text
            assert "at most 3 calls" in text
            assert "SIMULATED" not in text
            url = f"http://127.0.0.1:{port}"
            asked = run("ask", "Hi", "--task", "general", "--url", url)
            assert asked.returncode == 0, asked.stderr
            assert "".join(TOKENS) in asked.stdout
            assert one.host in run("status", "--url", url).stdout
            pool = json.loads(run("status", "--json", "--url", url).stdout)
            assert [m["endpoint"] for m in pool["models"]] == [one.host, other.host]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=90)
        finally:
            process.kill()
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--endpoint", "http://127.0.0.1:1/v1"], "cannot be reached"),
        (["--endpoint", "nonsense"], "begins with http://"),
        (["--endpoint", "http://x/v1", "--config", "c.yaml"], "--config or --endpoint, not both"),
        (["--endpoint", "http://x/v1", "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["--endpoint", "http://x/v1", "--api-key-env", "sk-1"], "--api-key-env"),
    ],
)
def test_what_cannot_be_fronted_is_a_clear_error(args: list[str], told: str) -> None:
    served = run("serve", *args)
    assert served.returncode == 1
    assert told in " ".join(served.stderr.split())
    assert "Traceback" not in served.stderr
