"""``ProgramRunner``: a few at a time, ended with who asked, and a failure is only of that check."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from actors import programs
from actors.local_pool import ServeFile, running_pool
from actors.pool_actors import ensure_actors
from actors.programs import NO_SANDBOX, NO_TIME, ProgramRunner
from actors.transport import free_port
from runtime.config import parse_config
from runtime.errors import ConfigError, SandboxUnavailable
from runtime.programs import Program
from runtime.sandbox import Stopper, process
from runtime.types import ProgramRun
from tests.conftest import app_args

PROGRAM = Program("text", "question", 30.0)


class Fake:
    """Stands for the sandbox: holds each run until it is let go or its stopper is used."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.now = self.most = self.stopped = 0
        self.walls: list[float] = []
        self.error: Exception | None = None

    def run(self, program: Program, wall_s: float, stopper: Stopper) -> ProgramRun:
        if self.error is not None:
            raise self.error
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.walls.append(wall_s)
        while not self.open.wait(0.005) and not stopper._stopped:
            pass
        with self.lock:
            self.now -= 1
            self.stopped += stopper._stopped
        return ProgramRun("passed", "1")


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    monkeypatch.setattr(programs, "run_program", fake.run)
    yield fake
    fake.open.set()


def runner(**limits: int) -> ProgramRunner:
    return ProgramRunner(parse_config(app_args(code_execution="sandbox", limits=limits)))


async def eventually(check) -> None:
    end = time.monotonic() + 20
    while not check():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_only_a_few_run_at_once(fake):
    run = runner(max_programs=2)
    tasks = [asyncio.create_task(run.run(PROGRAM)) for _ in range(50)]
    await eventually(lambda: fake.now == 2)
    assert run.num_running == 50
    fake.open.set()
    assert await asyncio.gather(*tasks) == [ProgramRun("passed", "1")] * 50
    assert (fake.most, run.num_running, run.num_failed) == (2, 0, 0)


async def test_a_program_gets_less_than_the_time_there_is(fake):
    fake.open.set()
    await runner().run(PROGRAM)
    (wall_s,) = fake.walls
    assert 0 < wall_s < PROGRAM.limit_s


async def test_who_goes_takes_its_run_along(fake):
    run = runner(max_programs=1)
    first, waiting = (asyncio.create_task(run.run(PROGRAM)) for _ in range(2))
    await eventually(lambda: fake.now == 1)
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    assert (first.cancelled(), waiting.cancelled(), run.num_running) == (True, True, 0)
    await eventually(lambda: fake.stopped == 1)
    assert len(fake.walls) == 1  # the one that waited never began
    fake.open.set()
    assert await run.run(PROGRAM) == ProgramRun("passed", "1")


async def test_what_takes_too_long_is_ended_and_says_nothing(fake):
    run = runner(max_programs=1)
    assert await run.run(Program("text", "question", 0.05)) == ProgramRun(NO_TIME)
    await eventually(lambda: fake.now == 0)
    assert fake.stopped == len(fake.walls)  # 0 where its turn did not come in time
    assert run.num_failed == 0  # the sandbox is not to blame


@pytest.mark.parametrize("error", [SandboxUnavailable("no ids"), OSError("no memory")])
async def test_a_sandbox_that_cannot_be_had_is_counted_and_logged(fake, error, caplog):
    run, fake.error = runner(), error
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert await run.run(PROGRAM) == ProgramRun(NO_SANDBOX)
    assert (run.num_failed, run.num_running) == (3, 0)
    assert len(caplog.records) == 1  # not one for each
    assert str(error) in caplog.text


# --- where there is no sandbox, a pool that wants it does not start ---------------------------


def test_the_app_makes_nothing_where_there_is_no_sandbox(monkeypatch):
    monkeypatch.setattr(process.sys, "platform", "darwin")
    config = parse_config(app_args(code_execution="sandbox"))
    with pytest.raises(ConfigError, match=r"code_execution is `sandbox`.*this is darwin"):
        ensure_actors(config, {}, None)


def test_serve_refuses_before_it_starts_ray(monkeypatch):
    monkeypatch.setattr(process.sys, "platform", "darwin")
    args = app_args(code_execution="sandbox")
    file = ServeFile(args, parse_config(args))
    refused = pytest.raises(ConfigError, match="README, Running generated code")
    with refused, running_pool(file, free_port()):
        pass
