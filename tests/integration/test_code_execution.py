"""Programs that models write, run by a live pool: good, bad and hostile ones, through HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.errors import SandboxUnavailable
from runtime.sandbox import check_available
from tests.conftest import app_args, model_args
from tests.live import Deploy, counters, eventually, replica_pids
from tests.sandboxes import alive
from tests.stand_in import SERVED, StandIn, standing_in

QUESTION = """Write a function that squares a number.

assert square(1) == 1
assert square(2) == 4
assert square(3) == 9
"""
RIGHT = "def square(n): return n * n"
WRONG = "def square(n): return n"
HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "endless loop": "while True: pass",
    "ten gigabytes": "x = bytearray(10 * 2**30)\n" + RIGHT,
    "writes outside": "open({outside!r}, 'w').write('x')\n" + RIGHT,
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)\n" + RIGHT,
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\n" + RIGHT,
}


class Launchers:
    """The sandboxes that one process was seen to start."""

    def __init__(self, parent: int) -> None:
        self.seen: set[int] = set()
        self._parent = parent
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def now(self) -> set[int]:
        """Those that run now."""
        found = set()
        for entry in Path(f"/proc/{self._parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for pid in entry.read_text().split():
                    if b"runtime.jail.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.add(int(pid))
        return found

    def nothing_left(self) -> bool:
        return not self.now() and alive(sorted(self.seen)) == []

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.seen |= self.now()


@pytest.fixture(scope="module")
def server() -> Iterator[StandIn]:
    with standing_in() as one:
        yield one


@pytest.fixture(scope="module")
def args(server: StandIn) -> dict[str, Any]:
    writer = model_args(
        "writer",
        backend="openai",
        endpoint={"url": server.url, "model": SERVED, "poll_period_s": 0.1},
        context_tokens=4096,
    )
    return app_args(writer, policy={"name": "cascade"}, code_execution="sandbox")


@pytest.fixture(scope="module")
def pool_url(deploy_once: Deploy, args: dict[str, Any]) -> str:
    try:
        check_available()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
    return deploy_once(args)


@pytest.fixture
def launchers(pool_url: str) -> Iterator[Launchers]:
    (pid,) = replica_pids(pool_url, "ingress")
    watch = Launchers(pid)
    yield watch
    watch.stop()


@pytest.fixture
def url(
    pool_url: str, args: dict[str, Any], server: StandIn, launchers: Launchers
) -> Iterator[str]:
    """The pool; after each test nothing runs in it, nor of what it ran."""
    server.asked.clear()
    yield pool_url
    server.token_s = 0.01
    eventually(lambda: set(counters(args, pool_url).values()) == {0}, within_s=30)
    eventually(lambda: in_flight(pool_url)["programs"] == 0, within_s=30)
    eventually(launchers.nothing_left, within_s=30)


def in_flight(url: str) -> dict[str, int]:
    return dict(httpx.get(f"{url}/v1/pool").json()["in_flight"])


def writes(server: StandIn, program: str) -> None:
    server.write = lambda body: [f"```python\n{program}\n```"]


def ask(url: str, **body: Any) -> dict[str, Any]:
    body = {"question": QUESTION, "task": "code", "budget_s": 100, **body}
    return dict(httpx.post(f"{url}/v1/queries", json=body, timeout=120).json())


def results(answer: dict[str, Any]) -> list[str | None]:
    return [step["tests"] for step in answer["steps"]]


def user_messages(server: StandIn) -> list[str]:
    return [body["messages"][-1]["content"] for body in server.asked]


def test_the_pool_says_that_it_runs_code(url: str) -> None:
    assert httpx.get(f"{url}/v1/pool").json()["code_execution"] == "sandbox"


def test_right_programs_agree_and_that_is_enough(url: str, server: StandIn) -> None:
    writes(server, RIGHT)
    answer = ask(url)
    assert (answer["status"], answer["topology"]) == ("ok", "Adaptive")
    assert answer["canonical"] == "111"
    answered = [step for step in answer["steps"] if step["status"] == "ok"]
    assert [(s["program"], s["tests"], s["answer"]) for s in answered] == [
        ("passed", "111", "111")
    ] * 2
    assert RIGHT in answer["text"]
    assert len(server.asked) == 2


def test_programs_that_are_wrong_alike_are_not_enough(
    url: str, server: StandIn, launchers: Launchers
) -> None:
    writes(server, WRONG)
    answer = ask(url)
    assert (answer["status"], answer["canonical"]) == ("ok", "100")
    assert results(answer) == ["100"] * 4
    # The last role repairs what it has written, and is shown what came of it.
    shown = user_messages(server)[-1]
    assert "<output>\n2 of 3 tests in the question fail:\nassert square(2) == 4" in shown
    assert launchers.seen


def test_the_one_program_that_passes_more_wins(url: str, server: StandIn) -> None:
    """Three answers are wrong alike; the repair of one of them is right."""

    def write(body: dict[str, Any]) -> list[str]:
        repairs = "<output>" in body["messages"][-1]["content"]
        return [f"```python\n{RIGHT if repairs else WRONG}\n```"]

    server.write = write
    answer = ask(url)
    assert sorted(results(answer)) == ["100", "100", "100", "111"]
    assert (answer["canonical"], answer["status"]) == ("111", "ok")
    assert RIGHT in answer["text"]


def test_a_question_without_tests_is_answered_as_ever(url: str, server: StandIn) -> None:
    writes(server, RIGHT)
    answer = ask(url, question="Write a function that squares a number.")
    assert (answer["status"], answer["canonical"]) == ("ok", None)
    assert set(results(answer)) == {None}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_program_fails_its_tests_and_nothing_else(
    name: str, url: str, server: StandIn, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    tmp_path.chmod(0o777)
    program = HOSTILE[name].replace("{outside!r}", repr(str(outside)))
    writes(server, program.replace("{port}", str(server.port)))
    connections = len(server.connections)
    answer = ask(url)
    assert (answer["status"], answer["canonical"]) == ("ok", None)
    assert results(answer) == ["000"] * 4
    assert not {step["program"] for step in answer["steps"]} & {"passed"}
    assert not outside.exists()
    assert len(server.asked) == 4  # nobody else has called
    assert len(server.connections) <= connections + 4
    writes(server, RIGHT)
    assert ask(url)["canonical"] == "111"
    assert in_flight(url)["programs_not_run"] == 0


def test_who_goes_away_takes_the_program_along(
    url: str, server: StandIn, launchers: Launchers
) -> None:
    writes(server, "while True: pass")
    target = httpx.URL(f"{url}/v1/queries")
    body = json.dumps({"question": QUESTION, "task": "code", "budget_s": 1000}).encode()
    head = f"POST {target.path} HTTP/1.1\r\nhost: {target.host}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((target.host, target.port)) as client:
        client.sendall(head.encode() + body)
        eventually(lambda: bool(launchers.now()), within_s=30)
        assert in_flight(url)["programs"] > 0
    eventually(lambda: in_flight(url)["programs"] == 0, within_s=30)
    assert len(server.asked) == 2  # no later step was begun; the fixture sees that nothing is left


def test_programs_of_long_queries_are_run_as_well(url: str, server: StandIn) -> None:
    writes(server, RIGHT)
    record = httpx.post(
        f"{url}/v1/queries",
        json={"question": QUESTION, "task": "code", "budget_s": 100},
        headers={"prefer": "respond-async, wait=60"},
        timeout=120,
    ).json()
    answer = record.get("answer") or record
    assert answer["canonical"] == "111"
