"""Programs in answers, really run: what they pass, what is told of them, and how they are ended."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from runtime.config import parse_config
from runtime.errors import ConfigError, SandboxUnavailable
from runtime.programs import Program
from runtime.run_program import MAX_SHOWN_CHARS, check_sandbox, run_program
from runtime.sandbox import Stopper, process, run_script
from tests.conftest import app_args
from tests.sandboxes import alive

QUESTION = """Write a function to square a number.

assert square(1) == 1
assert square(2) == 4
assert square(3) == 9
"""
HUMANEVAL = '''from typing import List


def below(xs: List[int], t: int) -> bool:
    """Return whether all numbers are below t.
    >>> below([1, 2, 4], 10)
    True
    >>> below([1, 20, 4], 5)
    False
    """
'''


def checked(text: str, question: str = QUESTION, wall_s: float = 20.0):
    return run_program(Program(text, question, wall_s), wall_s, Stopper())


def script(text: str, wall_s: float = 20.0):
    return run_program(Program(text, None, wall_s), wall_s, Stopper())


def fenced(code: str) -> str:
    return f"Here it is:\n```python\n{code}\n```\nThat is all."


@pytest.mark.parametrize(
    ("code", "status", "tests"),
    [
        ("def square(n): return n * n", "passed", "111"),
        ("def square(n): return 1", "failed", "100"),
        ("def square(n): return 0", "failed", "000"),
        ("def square(n) return n", "failed", "000"),
        ("def cube(n): return n ** 3", "failed", "000"),
        ("while True: pass", "time limit", "000"),
        ("x = [0] * 10**10", "failed", "000"),
    ],
)
def test_tests_of_the_question(code, status, tests):
    run = checked(fenced(code), wall_s=20.0 if status != "time limit" else 1.0)
    assert (run.status, run.tests) == (status, tests)


def test_what_failed_and_why_is_told():
    run = checked(fenced("def square(n): return n"))
    assert run.shown.splitlines()[:3] == [
        "2 of 3 tests in the question fail:",
        "assert square(2) == 4",
        "assert square(3) == 9",
    ]
    assert "AssertionError" in run.shown
    assert "last result: 2" in run.shown
    assert checked(fenced("def square(n): return n * n")).shown == (
        "All 3 tests in the question pass."
    )
    assert "SyntaxError" in checked("I do not know.").shown
    assert "ended for its time limit" in checked(fenced("while True: pass"), wall_s=1.0).shown


def test_a_function_that_continues_the_question():
    assert checked(fenced("    return all(x < t for x in xs)"), HUMANEVAL).tests == "11"
    assert checked(fenced("def below(xs: List[int], t): return True"), HUMANEVAL).tests == "10"


def test_where_the_question_shows_no_test_nothing_is_run():
    assert checked(fenced("print(1)"), "Write a program that prints 1.") is None
    assert checked(fenced("def square(n): return n * n"), QUESTION + "x" * 20_000) is None


def test_what_a_model_is_told_of_many_failures_is_bounded():
    question = "\n".join(f"assert square({'9' * 180 + str(i)}) == {i}" for i in range(20))
    run = checked(fenced("def square(n): raise ValueError('y' * 10_000)"), question)
    assert run.tests == "0" * 20
    assert len(run.shown) <= MAX_SHOWN_CHARS
    assert "and 15 more" in run.shown


def test_a_script_is_run_for_what_it_prints():
    run = script(fenced("print(6 * 7)"))
    assert (run.status, run.tests, run.shown) == ("passed", None, "42")
    assert script("```python\nprint(6 * 7)\n```\nIt prints\n```\n42\n```").shown == "42"
    assert script(fenced("x = 42")).shown == "It printed nothing."
    assert script("Answer: 42") is None
    failed = script(fenced("print(1)\n1 / 0"))
    assert failed.status == "failed"
    assert "ZeroDivisionError" in failed.shown
    endless = script(fenced("while True: print('on and on')"), wall_s=1.0)
    assert endless.status == "time limit"
    assert endless.shown.endswith("It was ended for its time limit.")
    assert len(endless.shown) <= MAX_SHOWN_CHARS


# --- ended from outside ----------------------------------------------------------------------


@pytest.mark.parametrize("num_processes", [0, 5])
def test_a_run_is_ended_from_another_thread(launched, num_processes):
    """While its sandbox starts, and while its program runs."""
    stopper, ended = Stopper(), threading.Event()
    program = Program(fenced("while True: pass"), QUESTION, 60.0)

    def run() -> None:
        with contextlib.suppress(SandboxUnavailable):  # stopped before it had started
            run_program(program, 60.0, stopper)
        ended.set()

    threading.Thread(target=run, daemon=True).start()
    end = time.monotonic() + 30
    while not launched or len(alive(launched)) < num_processes:
        assert time.monotonic() < end
        time.sleep(0.01)
    stopper.stop()
    assert ended.wait(30)  # and not its 60 s
    while alive(launched):  # the kernel ends them after the launcher
        assert time.monotonic() < end + 30
        time.sleep(0.01)


def test_what_was_stopped_before_it_began_never_begins(launched):
    stopper = Stopper()
    stopper.stop()
    with pytest.raises(SandboxUnavailable):
        run_script("print(1)", stopper=stopper)
    assert launched == []


def test_a_stopper_ends_its_own_runs_only():
    with_it, without = Stopper(), Stopper()
    assert run_script("print(1)", stopper=with_it).output == "1\n"
    with_it.stop()
    assert run_script("print(2)", stopper=without).output == "2\n"


# --- at the start ----------------------------------------------------------------------------


def test_a_pool_that_is_to_run_code_needs_the_sandbox(monkeypatch):
    wanted = parse_config(app_args(code_execution="sandbox"))
    check_sandbox(wanted)
    monkeypatch.setattr(process.sys, "platform", "darwin")
    with pytest.raises(ConfigError, match=r"code_execution is `sandbox`.*this is darwin"):
        check_sandbox(wanted)
    check_sandbox(parse_config(app_args()))
