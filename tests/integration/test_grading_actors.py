"""Grading and the sandbox inside Ray actors, whose methods run in threads and on event loops."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
import ray

from runtime.datasets import Item
from runtime.errors import SandboxUnavailable
from runtime.grading import grade
from runtime.sandbox import check_available, run_script
from runtime.types import TaskKind

MATH = Item("m", "math", TaskKind.MATH, "?", "2\\sqrt{3}")
CODE = Item(
    "c",
    "mbpp",
    TaskKind.CODE,
    "Give n.",
    "def f(n): return n",
    tests="assert f(3) == 3",
    entry_point="f",
)
LOOK = """
import os, socket
for place in {places!r}:
    print(os.path.exists(place))
for address in {addresses!r}:
    try:
        socket.create_connection(address, 1)
        print('reached')
    except OSError:
        print(False)
print(dict(os.environ))
"""


class Grader:
    """As a workflow actor would do it: blocking calls in threads of an async actor."""

    async def grades(self, item: Item, texts: list[str]) -> list[bool]:
        graded = await asyncio.gather(*(asyncio.to_thread(grade, item, t) for t in texts))
        return [g.correct for g in graded]

    async def seen_by_a_program(self) -> str:
        session = ray._private.worker._global_node.get_session_dir_path()
        assert os.path.exists(session)
        host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
        script = LOOK.format(
            places=["/tmp/ray", session, os.path.expanduser("~/.cache")],
            addresses=[(host, int(port))],
        )
        return (await asyncio.to_thread(run_script, script)).output


class ThreadedGrader:
    def grades(self, item: Item, texts: list[str]) -> list[bool]:
        return [grade(item, text).correct for text in texts]


@pytest.mark.parametrize("kind", [Grader, ThreadedGrader])
def test_grading_in_an_actor(serve_url, kind):
    actor = ray.remote(kind).options(num_cpus=0, max_concurrency=4).remote()
    texts = ["\\boxed{\\sqrt{12}}", "\\boxed{\\sqrt{13}}", "\\boxed{3.4}"]
    assert ray.get(actor.grades.remote(MATH, texts)) == [True, False, False]
    need_sandbox()
    programs = [CODE.answer, "def f(n): return 0", "import os\nos._exit(0)"]
    assert ray.get(actor.grades.remote(CODE, programs)) == [True, False, False]
    ray.kill(actor)


def test_a_program_in_an_actor_sees_nothing_of_ray(serve_url):
    need_sandbox()
    actor = ray.remote(Grader).options(num_cpus=0).remote()
    assert ray.get(actor.seen_by_a_program.remote()) == "False\n" * 4 + "{}\n"
    ray.kill(actor)


def need_sandbox():
    try:
        check_available()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")
