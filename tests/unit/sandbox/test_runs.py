from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from runtime.errors import SandboxUnavailable
from runtime.jail.children import NUM_IDS
from runtime.jail.launcher import first_id
from runtime.sandbox import (
    Status,
    TestJob,
    check_available,
    run_script,
    run_tests,
    run_tests_many,
)

ADD = "def add(a, b):\n    return a + b\n"
TESTS = ("assert add(1, 2) == 3",)


def test_a_right_program_passes():
    verdict = run_tests(ADD, TESTS)
    assert (verdict.status, verdict.passed, verdict.detail) == (Status.PASSED, (True,), "")


def test_each_test_has_its_own_verdict():
    verdict = run_tests(ADD, [*TESTS, "assert add(2, 2) == 5", "assert add('a', 'b') == 'ab'"])
    assert (verdict.status, verdict.passed) == (Status.FAILED, (True, False, True))
    assert "assert add(2, 2) == 5" in verdict.detail
    assert "last result: 4" in verdict.detail


def test_the_first_variant_that_compiles_is_the_program():
    broken = "def add(a, b):\n  return a +\n"
    assert run_tests((broken, ADD), TESTS).status is Status.PASSED
    verdict = run_tests((broken, "1 +"), TESTS)
    assert verdict.status is Status.FAILED
    assert verdict.detail.startswith("SyntaxError")


RIGHT = {
    "changes its argument": (
        "def fill(xs, d, s):\n    xs.append(4); xs[0] = 9; d['k'] = 1; s.clear()",
        "xs, d, s = [1], {}, {5}\nfill(xs, d, s)\nassert (xs, d, s) == ([9, 4], {'k': 1}, set())",
    ),
    "objects of its own": (
        "class Node:\n    def __init__(self, v):\n        self.v, self.left = v, None\n"
        "def depth(n):\n    return 0 if n is None else 1 + depth(n.left)",
        "root = Node(1)\nroot.left = Node(2)\nassert depth(root) == 2 and root.left.v == 2",
    ),
    "equality of its own objects": (
        "class P:\n    def __init__(self, x): self.x = x\n"
        "    def __eq__(self, other): return self.x == other.x\ndef make(x): return P(x)",
        "assert make(1) == P(1) and make(1) != P(2)",
    ),
    "a generator": (
        "def count(n):\n    yield from range(n)",
        "g = count(3)\nassert next(g) == 0 and list(g) == [1, 2] and list(g) == []",
    ),
    "a container of its own": (
        "from collections import deque\ndef f(): return deque([1, 2])",
        "d = f()\nassert len(d) == 2 and d[1] == 2 and 2 in d and 3 not in d and d\n"
        "assert d == deque([1, 2])",
    ),
    "its own exception": (
        "class Bad(Exception): pass\ndef f(x):\n    if x: raise Bad('no')\n    raise KeyError('k')",
        "try:\n    f(0)\nexcept KeyError:\n    pass\nelse:\n    assert False\n"
        "try:\n    f(1)\nexcept Exception as e:\n    assert 'Bad: no' in str(e)\n"
        "else:\n    assert False",
    ),
    "plain data of every kind": (
        "def same(*xs, **k):\n    return (*xs, k)",
        "v = (1, -2**70, 2.5, float('inf'), 'é\\ud800', b'\\xff', bytearray(b'a'), 1j,\n"
        "     [None, True], {1: (2,), (3,): {4}}, frozenset([5]), range(2, 9, 3), int, '')\n"
        "assert same(*v, a=1) == (*v, {'a': 1})",
    ),
    "numbers of the library": (
        "from fractions import Fraction\nfrom decimal import Decimal\n"
        "def f(): return Fraction(1, 3), Decimal('0.10')",
        "from fractions import Fraction as F\nfrom decimal import Decimal as D\n"
        "assert f() == (F(1, 3), D('0.1')) and str(f()[1]) == '0.10'",
    ),
    "subclasses of plain data": (
        "from collections import Counter, OrderedDict, namedtuple\nP = namedtuple('P', 'x y')\n"
        "def f(): return [Counter('aab'), OrderedDict(a=1), P(1, 2)]",
        "assert f() == [{'a': 2, 'b': 1}, {'a': 1}, (1, 2)]",
    ),
    "many digits": ("def f(n): return 10 ** n", "assert f(6000) == 10 ** 6000"),
    "much data": ("def f(n): return list(range(n))", "assert f(200000)[-1] == 199999"),
    "prints a lot": ("def f():\n    print('x' * 10**6)\n    return 1", "assert f() == 1"),
    "a main part that asks": (
        "def f(): return 1\nif __name__ == '__main__':\n    print(input())",
        "assert f() == 1",
    ),
    "files in its folder": (
        "def f():\n    open('a', 'w').write('hi')\n    return open('/tmp/a').read()",
        "assert f() == 'hi'",
    ),
    "a dataclass and a thread": (
        "from dataclasses import dataclass\nfrom threading import Thread\n"
        "@dataclass\nclass D:\n    x: int\n"
        "def f():\n    xs = []\n    t = Thread(target=lambda: xs.append(D(3).x))\n"
        "    t.start(); t.join()\n    return xs",
        "assert f() == [3]",
    ),
    "recursion": ("def f(n): return n and 1 + f(n - 1)", "assert f(800) == 800"),
    "most of the library": (
        "import re, math, heapq, bisect, json, string, random, hashlib, itertools, functools\n"
        "import copy, datetime, operator, statistics, array, cmath, sys, typing, zlib, decimal\n"
        "def f(): return math.gcd(12, 18), hashlib.md5(b'a').hexdigest()[:4]",
        "assert f() == (6, '0cc1')",
    ),
}


@pytest.mark.parametrize("name", list(RIGHT))
def test_programs_that_pass(name):
    program, test = RIGHT[name]
    verdict = run_tests(program, [test])
    assert (verdict.status, verdict.detail) == (Status.PASSED, "")


def test_a_program_may_have_the_name_of_a_builtin_only_where_that_is_tested():
    program = "def sum(a, b): return a + b\ndef all(xs): return True\ndef f(): return [0]"
    assert run_tests(program, ["assert sum(10, 5) == 15"], "sum").status is Status.PASSED
    assert run_tests(program, ["assert sum(10, 5) == 15"]).status is Status.FAILED
    assert run_tests(program, ["assert all(f())"], "f").status is Status.FAILED


def test_a_program_does_the_same_each_time():
    program = "def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'})"
    [first] = {run_script(f"{program}\nprint(f())").output for _ in range(3)}
    assert first.count(",") == 5


def test_many_are_answered_in_order():
    jobs = [TestJob((ADD,), (f"assert add({n}, 1) == {n + 1 + n % 2}",)) for n in range(8)]
    passed = [v.status is Status.PASSED for v in run_tests_many(jobs, workers=2)]
    assert passed == [n % 2 == 0 for n in range(8)]
    assert run_tests_many([]) == []


def test_it_works_from_threads():
    with ThreadPoolExecutor(4) as pool:
        verdicts = list(
            pool.map(lambda n: run_tests(ADD, [f"assert add({n}, 0) == {n}"]), range(8))
        )
    assert {v.status for v in verdicts} == {Status.PASSED}


# --- where it cannot be had -------------------------------------------------------------------

UNFIT = {
    "one user id": ('exec unshare --user --map-root-user {python} "$@"', "only 1 user ids"),
    "no right to map ids": (
        'exec setpriv --bounding-set=-all --inh-caps=-all {python} "$@"',
        "user ids of its own",
    ),
    "no namespaces": (
        "exec unshare --user --map-root-user sh -c "
        '\'echo 0 >/proc/sys/user/max_user_namespaces; exec {python} "$@"\' sh "$@"',
        "namespaces are not allowed",
    ),
    "no Python": ("exit 3", "did not start"),
}


@pytest.mark.parametrize("name", list(UNFIT))
def test_where_there_is_no_sandbox_nothing_runs(name, tmp_path, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("takes rights away that only root has")
    command, why = UNFIT[name]
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n" + command.format(python=sys.executable) + "\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    leave = f"open({str(tmp_path / 'ran')!r}, 'w')\ndef add(a, b): return a + b"
    for run in (
        lambda: run_tests(leave, TESTS),
        lambda: run_tests_many([TestJob((leave,), TESTS)] * 3),
        lambda: run_script(leave),
        check_available,
    ):
        with pytest.raises(SandboxUnavailable, match=why):
            run()
    assert not (tmp_path / "ran").exists()


def test_another_system_than_linux_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxUnavailable, match="needs Linux namespaces, this is darwin"):
        run_script("print(1)")


def test_ids_are_taken_from_the_top_of_what_there_is():
    whole, container = ["0 0 4294967295"], ["0 100000 65536", "65536 5 2"]
    assert first_id(whole, 1) + NUM_IDS <= 2**31
    assert first_id(whole, 1) != first_id(whole, 2)
    for pid in (1, 77, 4_194_303):
        assert 32_000 < first_id(container, pid) <= 65_536 - NUM_IDS
    with pytest.raises(OSError, match="only 1 user ids"):
        first_id(["0 1000 1"], 1)
