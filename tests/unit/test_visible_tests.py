from __future__ import annotations

from pathlib import Path

import pytest

from runtime import visible_tests as module
from runtime.datasets import load_folder
from runtime.sandbox import Status, run_tests
from runtime.visible_tests import MAX_TESTS, asked_function, visible_tests

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not in {DATA}")
MBPP = """Write a function to add.
Your code should pass these tests:

assert add(1, 2) == 3
assert add([1],
           [2]) == [1, 2]
assert add("a", "b") == "ab\""""

HUMANEVAL = '''from typing import List

def below(xs: List[int], t: int) -> bool:
    """ Are all numbers below the threshold?
    >>> below([1, 2, 4, 10], 100)
    True
    >>> xs = [1, 20]
    >>> below(xs, 5)
    False
    >>> below(None, 1)
    Traceback (most recent call last):
    TypeError: no
    >>> type(below(xs, 1))
    <class 'bool'>
    """
'''


def test_the_asserts_of_a_question():
    assert visible_tests(MBPP) == (
        "assert add(1, 2) == 3",
        "assert add([1],\n           [2]) == [1, 2]",
        'assert add("a", "b") == "ab"',
    )


def test_the_doctests_of_a_question_each_by_itself():
    tests = visible_tests(HUMANEVAL)
    assert tests == (
        "assert (below([1, 2, 4, 10], 100)) == (True)",
        "xs = [1, 20]\nassert (below(xs, 5)) == (False)",
        "xs = [1, 20]\nassert repr(type(below(xs, 1))) == \"<class 'bool'>\"",
    )


@pytest.mark.parametrize(
    ("line", "test"),
    [
        ("choose(12, 15) = 14", "assert (choose(12, 15)) == (14)"),
        ("choose([1], 'a==b') == -1", "assert (choose([1], 'a==b')) == (-1)"),
        ("* choose(2) ➞ [1, 2].", "assert (choose(2)) == ([1, 2])"),
        ('choose("x") => "y"', "assert (choose('x')) == (\"y\")"),
        ("choose(1) should return None", "assert (choose(1)) == (None)"),
        (">>> choose(1) > 2 # a remark\n    True", "assert (choose(1) > 2) == (True)"),
    ],
)
def test_other_ways_to_show_what_a_function_gives(line, test):
    assert visible_tests(f'def choose(x):\n    """Examples:\n    {line}\n    """\n') == (test,)


@pytest.mark.parametrize(
    "line", ["other(1) = 2", "choose(x) = 2", "choose(1) = x + 1", "choose = 3", "if choose(1) = 2"]
)
def test_lines_that_only_look_like_it(line):
    assert visible_tests(f'def choose(x):\n    """Examples:\n    {line}\n    """\n') == ()


@pytest.mark.parametrize(
    "question",
    [
        "",
        "What is 1 + 1?",
        "We assert that\nassert is a word = it is",
        "assert " + "(" * 3000,
        "assert x == '" + "a" * 3000 + "'",
        ">>>no doctest",
        "    >>> f(1)\n  wrong indent",
    ],
)
def test_questions_that_show_no_tests(question):
    assert visible_tests(question) == ()


def test_the_function_that_is_asked_for():
    assert asked_function(HUMANEVAL) == "below"
    assert asked_function("def help(): pass\ndef main(x):\n    pass") == "main"
    assert asked_function(MBPP) == "add"
    assert asked_function("Sort.\nassert set(order([2, 1])) == {1, 2}") == "order"
    assert asked_function("Sum.\nassert sum(1, 2) == 3") == "sum"
    assert asked_function("What is 1 + 1?") is None


@needs_data
@pytest.mark.parametrize("dataset", ["humaneval", "mbpp"])
def test_the_data_sets_show_their_functions(dataset):
    items = load_folder(DATA, dataset, "test")
    assert [i.id for i in items if asked_function(i.question) != i.entry_point] == []


def test_not_more_than_a_few():
    assert len(visible_tests("".join(f"assert f({n})\n" for n in range(100)))) == MAX_TESTS


def test_they_tell_programs_apart():
    right = "def below(xs, t): return all(x < t for x in xs)"
    wrong = "def below(xs, t): return True"
    tests = visible_tests(HUMANEVAL)
    assert run_tests(right, tests).status is Status.PASSED
    assert run_tests(wrong, tests).passed == (True, False, True)


def test_many_broken_tests_are_not_all_tried(monkeypatch):
    tried = []
    monkeypatch.setattr(module, "_parsed", lambda text: tried.append(text))
    assert visible_tests("assert (\n" * 10_000) == ()
    assert len(tried) <= 20 * 60
