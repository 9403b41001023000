"""Runs programs that nobody has read: a thin outside of ``runtime.jail``, which says how.

Each call starts a process that enters namespaces of its own and runs the program there, without
network, environment, or sight of the host's files and processes, within ``Limits``. Calls block
without holding the interpreter's lock, use no signals and fork nothing here, so they work from any
thread and from Ray actors. Where the sandbox cannot be had they raise ``SandboxUnavailable`` and
run nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from runtime.errors import SandboxUnavailable
from runtime.sandbox.process import Launcher, Stopper

_MAX_PROGRAM_CHARS = 2**20
_MAX_VERDICT_BYTES = 2**20
_CPU_LIMIT_STATUS = 128 + 24  # SIGXCPU


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may use; each process of it may use ``cpu_s`` and ``memory_bytes``.

    ``memory_bytes`` bounds the address space of a process and the memory of all together;
    ``file_bytes`` a file and the whole of /tmp; ``output_bytes`` what is kept of a script's output.
    """

    wall_s: float = 20.0
    cpu_s: int = 10
    memory_bytes: int = 2**30
    file_bytes: int = 16 * 2**20
    processes: int = 16
    open_files: int = 64
    output_bytes: int = 2**16


class Status(StrEnum):
    """How a run ended. Everything but ``PASSED`` is the program's fault."""

    PASSED = "passed"
    FAILED = "failed"
    TIME_LIMIT = "time limit"
    MEMORY_LIMIT = "memory limit"


@dataclass(frozen=True, slots=True)
class TestJob:
    """A program and its tests.

    The program is the first of ``variants`` that compiles. Each of ``tests`` runs in a namespace of
    its own; ``entry_point`` is the one name of the program that may hide a builtin.
    """

    __test__ = False

    variants: tuple[str, ...]
    tests: tuple[str, ...]
    entry_point: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """``passed`` has one entry per test; ``detail`` says what was wrong first."""

    status: Status
    passed: tuple[bool, ...]
    detail: str


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """What a script wrote (both streams, cut at the limit), and its exit status.

    ``exit_status`` is 128 and the signal's number where a signal ended it, ``None`` where it was
    ended for its time or memory, as ``status`` says.
    """

    status: Status
    output: str
    exit_status: int | None


def run_tests(
    program: str | Sequence[str],
    tests: Sequence[str],
    entry_point: str | None = None,
    limits: Limits | None = None,
    stopper: Stopper | None = None,
) -> Verdict:
    """Run ``tests`` on ``program`` (or on the first of several variants that compiles).

    The names that a test uses and does not define are the program's. A test passes when it ends
    without an exception and has called the program at least once. The tests run apart from the
    program, and compare plain data only: an object of a class of the program's own is equal to
    nothing but such objects. ``stopper`` can end the run from another thread.

    Raises:
        SandboxUnavailable: nothing was run.
    """
    variants = (program,) if isinstance(program, str) else tuple(program)
    job = TestJob(variants, tuple(tests), entry_point)
    with Launcher(stopper) as launcher:
        return _run_tests(launcher, job, limits or Limits())


def run_tests_many(
    jobs: Sequence[TestJob], limits: Limits | None = None, workers: int | None = None
) -> list[Verdict]:
    """``run_tests`` for many; cheaper, since ``workers`` processes run one after another.

    By default there are as many workers as processors.

    Raises:
        SandboxUnavailable: some of it could not be run.
    """
    limits = limits or Limits()
    todo = iter(enumerate(jobs))
    lock = threading.Lock()
    verdicts: dict[int, Verdict] = {}

    def work() -> None:
        with Launcher() as launcher:
            while True:
                with lock:
                    index, job = next(todo, (-1, None))
                if job is None:
                    return
                verdicts[index] = _run_tests(launcher, job, limits)

    num_workers = min(workers or len(os.sched_getaffinity(0)), len(jobs))
    if num_workers == 1:
        work()
    elif num_workers:
        with ThreadPoolExecutor(num_workers) as pool:
            for done in [pool.submit(work) for _ in range(num_workers)]:
                done.result()
    return [verdicts[i] for i in range(len(jobs))]


def run_script(
    script: str, limits: Limits | None = None, stopper: Stopper | None = None
) -> ScriptRun:
    """Run ``script`` as a program of its own, with empty standard input.

    ``stopper`` can end the run from another thread.

    Raises:
        SandboxUnavailable: it was not run.
    """
    limits = limits or Limits()
    if len(script) > _MAX_PROGRAM_CHARS:
        return ScriptRun(Status.FAILED, "the program is too long", 1)
    with Launcher(stopper) as launcher:
        result = launcher.run(limits.wall_s, _told(limits), {"script": script})
    if result is None:
        return ScriptRun(Status.FAILED, "", None)
    whole = result["ended"] == "done"
    exit_status = result["guest"] if whole else None
    return ScriptRun(_status(result, whole and exit_status == 0), result["output"], exit_status)


def check_available() -> None:
    """Raises ``SandboxUnavailable``, with what is missing, where programs cannot be run."""
    if run_script("print('yes')").output != "yes\n":
        raise SandboxUnavailable("the sandbox does not run programs here")


def _run_tests(launcher: Launcher, job: TestJob, limits: Limits) -> Verdict:
    none = (False,) * len(job.tests)
    if sum(map(len, job.variants)) > _MAX_PROGRAM_CHARS:
        return Verdict(Status.FAILED, none, "the program is too long")
    program = {"variants": job.variants}
    tests = {"tests": job.tests, "entry_point": job.entry_point}
    result = launcher.run(limits.wall_s, _told(limits), program, tests)
    match result:
        case None:
            return Verdict(Status.FAILED, none, "the sandbox ended over this program")
        case {"verdict": {"loaded": None, "passed": [*passed], "details": [*details]}} if len(
            passed
        ) == len(none):
            good = tuple(p is True for p in passed)
            detail = next((str(d) for d in details if d), "")
            return Verdict(_status(result, bool(good) and all(good)), good, detail)
        case {"verdict": {"loaded": str(error)}}:
            return Verdict(_status(result, False), none, error)
        case _:
            return Verdict(_status(result, False), none, "the tests did not end")


def _told(limits: Limits) -> dict[str, Any]:
    return {**asdict(limits), "verdict_bytes": _MAX_VERDICT_BYTES}


def _status(result: dict[str, Any], good: bool) -> Status:
    if good:
        return Status.PASSED
    if result["ended"] == "memory":
        return Status.MEMORY_LIMIT
    late = result["ended"] == "time" or result["guest"] == _CPU_LIMIT_STATUS
    return Status.TIME_LIMIT if late else Status.FAILED
