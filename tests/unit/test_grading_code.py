from __future__ import annotations

from pathlib import Path

import pytest

from runtime.datasets import Item, load_folder
from runtime.errors import SandboxUnavailable
from runtime.grading import grade, grade_many
from runtime.grading.code import called_tests, program_in, variants_of
from runtime.sandbox import Limits, check_available, runs
from runtime.types import TaskKind

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not in {DATA}")

PROMPT = '''from typing import List


def half(x):
    return x / 2


def halves(xs: List[float]) -> List[float]:
    """Half of each.
    >>> halves([2.0])
    [1.0]
    """
'''
BODY = "    ys = []\n    for x in xs:\n        ys.append(half(x))\n    return ys\n"
WHOLE = "def halves(xs: List[float]) -> List[float]:\n" + BODY
CHECK = "METADATA = {}\n\n\ndef check(candidate):\n    assert candidate([2.0, 4.0]) == [1.0, 2.0]\n"
HUMANEVAL = Item(
    "humaneval/x",
    "humaneval",
    TaskKind.CODE,
    PROMPT,
    BODY,
    tests=CHECK + "\n\ncheck(halves)\n",
    entry_point="halves",
)
MBPP = Item(
    "mbpp/x",
    "mbpp",
    TaskKind.CODE,
    "Print or give n.",
    "def n_of(n):\n    return n",
    tests="assert n_of(1) == 1\nassert n_of(2) == 2",
    entry_point="n_of",
)


@pytest.fixture(scope="module")
def sandbox():
    try:
        check_available()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")


@needs_data
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
@pytest.mark.parametrize("form", ["{}", "Here it is:\n```python\n{}\n```\nDone."])
def test_every_reference_solution_passes(sandbox, dataset, form):
    items = load_folder(DATA, dataset, "test")
    graded = grade_many([(i, form.format(i.answer)) for i in items])
    failed = {i.id: g.reason for i, g in zip(items, graded, strict=True) if not g.correct}
    assert failed == {}


@needs_data
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
def test_no_solution_that_only_has_the_right_name_passes(sandbox, dataset):
    items = load_folder(DATA, dataset, "test")
    graded = grade_many(
        [(i, f"def {i.entry_point}(*args, **kwargs):\n    return None") for i in items]
    )
    assert [i.id for i, g in zip(items, graded, strict=True) if g.correct] == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (BODY, True),
        (BODY.lstrip(), True),  # the first indentation lost
        ("\n".join(line[4:] for line in BODY.split("\n")), True),  # all of it
        (WHOLE, True),  # with the question's import and helper
        (f"```python\n{WHOLE}```", True),
        (f"```\n{PROMPT}{BODY}\n```", True),
        (f"```python\n{BODY}```", True),
        (f"1. So:\n   ```python\n{WHOLE}   ```", True),
        (f"```python\n{WHOLE}", True),  # cut off before the fence
        (f"```python\n{WHOLE}```\nFor example:\n```python\nprint(halves([2.0]))\n```", True),
        (f"```python\ndef halves(xs):\n    return []\n```\nNo:\n```python\n{WHOLE}```", True),
        (f"from __future__ import annotations\ndef halves(xs):\n{BODY}", False),  # no half
        (
            "from __future__ import annotations\ndef halves(xs):\n    return [x / 2 for x in xs]",
            True,
        ),
        ("halves = lambda xs: [x / 2 for x in xs]", True),
        ("    return [x / 2 for x in xs", False),
        ("    pass", False),
        ("def other(xs):\n    return [x / 2 for x in xs]", False),
        ("", False),
        ("```python\n```", False),
        ("I cannot do that.", False),
        ("def check(f): pass\ndef halves(xs): return []", False),
        ("import sys\nsys.exit(0)", False),
        ("import os\nos._exit(0)", False),
        ("print('OK')", False),
        ("def halves(xs):\n    print('all tests passed')", False),
    ],
)
def test_completions_and_whole_functions(sandbox, text, right):
    found = grade(HUMANEVAL, text)
    assert found.correct is right
    assert found.reason == "right" if right else found.reason not in ("", "right")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("```python\ndef n_of(n):\n    print(1)\n    return n\n```", True),
        ("```python\nn = 3\ndef n_of(n): return n\n```", True),
        ("```python\nprint(1)\n```", False),
        ("```python\nn = 3\n```", False),
        ("def n_of(n):\n    return 1", False),
        ("def n_of(n):\n    while True: print(n)", False),
    ],
)
def test_functions_with_asserts(sandbox, text, right, monkeypatch):
    monkeypatch.setattr("runtime.grading.code.LIMITS", Limits(wall_s=3, cpu_s=1))
    assert grade(MBPP, text).correct is right


@pytest.mark.parametrize("content", ["print(1)", "n = 3", "pass", "`n`", "python", "  x = 1"])
@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "```\n{}\n```", "````py\n{}\n````"])
def test_fences_are_no_set_of_letters(content, form):
    assert program_in(form.format(content), "f") == content


def test_the_block_that_defines_the_function_is_the_program():
    text = "```\ndef f(): return 1\n```\n```\ndef f(): return 2\n```\n```\nprint(f())\n```"
    assert program_in(text, "f") == "def f(): return 2"
    assert program_in(text, "g") == "print(f())"
    assert program_in("```\nclass A: pass\n```\n```\nx = 1\n```", None) == "x = 1"


def test_only_a_question_that_begins_the_program_is_a_part_of_it():
    assert variants_of("Write a function n_of(n).", "def n_of(n): return n", "n_of") == (
        "def n_of(n): return n",
    )
    first, *_ = variants_of(PROMPT, WHOLE, "halves")
    assert first.count("def halves") == 1
    assert "def half(x)" in first


def test_a_check_that_is_only_defined_is_called():
    assert called_tests(CHECK, "halves").endswith("\ncheck(halves)\n")
    assert called_tests(HUMANEVAL.tests, "halves") == HUMANEVAL.tests
    assert called_tests(MBPP.tests, "n_of") == MBPP.tests


@pytest.mark.parametrize("wrong", ["def halves(xs): return xs", "import sys; sys.exit(0)", "x = 1"])
def test_tests_that_only_define_a_check_pass_no_wrong_program(sandbox, wrong):
    item = Item("h", "ours", TaskKind.CODE, "Halve.", BODY, tests=CHECK, entry_point="halves")
    assert not grade(item, wrong).correct
    assert grade(item, "def halves(xs): return [x / 2 for x in xs]").correct


def test_where_there_is_no_sandbox_code_is_not_graded(monkeypatch):
    def refuse(*_):
        raise SandboxUnavailable("not here")

    monkeypatch.setattr(runs.Launcher, "run", refuse)
    with pytest.raises(SandboxUnavailable):
        grade(MBPP, "def n_of(n): return n")


def test_a_batch_of_kinds_keeps_its_order(sandbox):
    math = Item("m", "math", TaskKind.MATH, "?", "4")
    pairs = [(MBPP, MBPP.answer), (math, "Answer: 4"), (MBPP, "x"), (math, "Answer: 5"), (MBPP, "")]
    assert [g.correct for g in grade_many(pairs)] == [True, True, False, False, False]
