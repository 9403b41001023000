from __future__ import annotations

import pytest

from runtime.sandbox import Limits, Status, TestJob, run_tests, run_tests_many

ADD = "def add(a, b):\n    return a + b\n"
TESTS = ("assert add(1, 2) == 3",)
SHORT = Limits(wall_s=3.0, cpu_s=1)

FORGED = {
    "nothing": "",
    "a name that is no function": "add = 3",
    "only a definition of something else": "def sub(a, b):\n    return a - b",
    "a wrong answer": "def add(a, b): return a - b",
    "no answer": "def add(a, b): pass",
    "equal to everything": (
        "class Any:\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\ndef add(a, b): return Any()"
    ),
    "a number that is equal to everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
        "def add(a, b): return Any(7)"
    ),
    "leaves": "import sys\nsys.exit(0)",
    "leaves when called": "import sys\ndef add(a, b): sys.exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "leaves at once when called": "import os\ndef add(a, b): os._exit(0)",
    "says so": "print('OK')\nprint('1 passed')\ndef add(a, b):\n    print('passed')",
    "its own check": "def check(f): pass\ndef add(a, b): return 0",
    "assertions that do not count": (
        "import builtins\nclass Never(Exception): pass\nbuiltins.AssertionError = Never\n"
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 0"
    ),
    "optimised": "import sys\nsys.flags = None\n__debug__ or 0\ndef add(a, b): return 0",
    "a trace that jumps": (
        "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n"
        "def add(a, b): return 0"
    ),
    "writes verdicts everywhere": (
        "import json, os\n"
        "verdict = {'loaded': None, 'passed': [True], 'details': ['']}\n"
        "for said in (verdict, {'ended': 'done', 'guest': 0, 'verdict': verdict}):\n"
        "    data = json.dumps(said).encode()\n"
        "    for fd in range(300):\n"
        "        try: os.write(fd, len(data).to_bytes(4, 'big') + data)\n"
        "        except OSError: pass\n"
        "def add(a, b): return 0"
    ),
    "rubbish as an answer": (
        "import os\ndef add(a, b):\n    for fd in range(3, 300):\n"
        "        try: os.write(fd, b'\\xff' * 64)\n        except OSError: pass\n    return 3"
    ),
    "closes what it is asked through": "import os\ndef add(a, b): os.closerange(0, 999)\n",
    "kills the examiner": (
        "import os\ndef add(a, b):\n    for p in range(1, 400):\n        if p != os.getpid():\n"
        "            try: os.kill(p, 9)\n            except OSError: pass\n    return 0"
    ),
    "an endless answer": "def add(a, b):\n    while True: yield 3",
    "a proxy for the answer": (
        "class P:\n    def __getattr__(self, n): return lambda *a: True\n"
        "    def __bool__(self): return True\ndef add(a, b): return P()"
    ),
    "no syntax": "def add(a, b) return 3",
    "a null byte": "def add(a, b): return 3\0",
    "too deep": "x = " + "(" * 5000 + ")" * 5000,
    "too long": "#" * 2**21,
    "unwilling text": (
        "class E(Exception):\n    def __str__(self): raise self\ndef add(a, b): raise E"
    ),
}


@pytest.mark.parametrize("name", list(FORGED))
def test_a_wrong_program_never_passes(name):
    verdict = run_tests(FORGED[name], TESTS, "add", SHORT)
    assert verdict.status is not Status.PASSED
    assert verdict.passed == (False,)
    assert verdict.detail


def test_modules_that_the_tests_forgot_to_import_are_not_the_programs():
    program = """
class math:
    isclose = staticmethod(lambda *_: True)
def half(x): return {}
"""
    for answer, status in (("0", Status.FAILED), ("x / 2", Status.PASSED)):
        test = "assert math.isclose(half(3), 1.5)"
        assert run_tests(program.format(answer), [test]).status is status


def test_a_program_does_not_find_the_tests_in_its_memory():
    program = """
import gc, sys
def find():
    seen = [o for o in gc.get_objects() if isinstance(o, (str, dict, list, tuple))]
    texts = [str(o) for o in seen if o is not seen]
    frame = sys._getframe()
    while frame:
        texts += [str(v) for v in (*frame.f_locals.values(), *frame.f_globals.values())]
        frame = frame.f_back
    words = ''.join(('SECR', 'ET-')), ''.join(('PUBL', 'IC-'))
    return [sum(word in text for text in texts) > 0 for word in words]
note = ['PUBLIC-1']
"""
    jobs = [TestJob((program,), (f"assert find() == ['SECRET-{n}', True]",)) for n in "123"]
    for verdict in run_tests_many(jobs, workers=1):
        assert verdict.status is Status.FAILED
        assert "last result: [False, True]" in verdict.detail


@pytest.mark.parametrize(
    "test",
    [
        "",
        "assert True",
        "def check(f):\n    assert f(1, 2) == 3",
        "def test_add():\n    assert add(1, 2) == 3",
        "assert add",
        "import os\nos._exit(0)",
        "import sys\nsys.exit(0)",
        "add(1, 2) +",
        "while True: add(1, 2)",
        "assert add(lambda: 1, 2)",
        "raise KeyboardInterrupt",
    ],
)
def test_tests_that_test_nothing_pass_nobody(test):
    assert run_tests(ADD, [test], "add", SHORT).status is not Status.PASSED
    assert run_tests(ADD, [], "add").status is Status.FAILED
