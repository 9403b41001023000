"""The tests that a question on code shows: asserts (MBPP), doctests and the like (HumanEval)."""

from __future__ import annotations

import ast
import builtins
import doctest
import re

MAX_TESTS = 20
_MAX_CHARS = 2_000
_MAX_LINES = 20
_MAX_STARTS = 60  # each takes up to 20 parses
_DEFINED = re.compile(r"^def +(\w+) *\(", re.MULTILINE)
_GIVES = re.compile(r" *(?:==>|=>|->|➞|→|==|=|\bshould return\b|\breturns?\b) *")


def visible_tests(question: str) -> tuple[str, ...]:
    """Statements that pass on a program which does what ``question`` shows, each by itself.

    Nothing is run here; what is no Python is left out.
    """
    found = [*_asserts(question), *_doctests(question), *_equations(question)]
    return tuple(dict.fromkeys(found))[:MAX_TESTS]


def asked_function(question: str) -> str | None:
    """The function to write: the last that ``question`` defines (HumanEval), else the first that
    its asserts call and that is no builtin (MBPP); ``None`` where it does not say."""
    defined = _DEFINED.findall(question)
    if defined:
        return str(defined[-1])
    trees = [_parsed(test) for test in _asserts(question)[:1]]
    nodes = [node for tree in trees if tree for node in ast.walk(tree)]
    calls = [n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    own = [name for name in calls if not hasattr(builtins, name)]
    return next(iter(own or calls), None)


def _asserts(question: str) -> list[str]:
    lines = question.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("assert ")][:_MAX_STARTS]
    pieces = [_statement(lines[i : i + _MAX_LINES]) for i in starts]
    return [piece for piece in pieces if piece is not None]


def _statement(lines: list[str]) -> str | None:
    """As many of ``lines`` as make a statement."""
    for count in range(1, len(lines) + 1):
        text = "\n".join(lines[:count])
        if _parsed(text) is not None:
            return text
    return None


def _doctests(question: str) -> list[str]:
    # The end of the docstring is no part of what the last example prints.
    text = question.replace('"""', "\n").replace("'''", "\n")
    try:
        examples = doctest.DocTestParser().get_examples(text)
    except ValueError:  # its layout is no doctest's after all
        return []
    tests, before = [], ""
    for example in examples:
        tree = _parsed(example.source)
        if tree is None or example.exc_msg is not None:
            continue
        if example.want and len(tree.body) == 1 and isinstance(tree.body[0], ast.Expr):
            tests.append(before + _compared(tree.body[0].value, example.want.strip()))
        else:
            before += example.source
    return tests


def _equations(question: str) -> list[str]:
    """Lines such as "f(1, 2) = 3" or "f(1, 2) ➞ 3", of a function that the question defines."""
    defined = set(_DEFINED.findall(question))
    pairs = [_equation(line.strip(" *`\t-"), defined) for line in question.splitlines()]
    return [pair for pair in pairs if pair is not None]


def _equation(line: str, defined: set[str]) -> str | None:
    for sign in _GIVES.finditer(line):
        call, value = _expression(line[: sign.start()]), line[sign.end() :].rstrip(" .;`")
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            known = call.func.id in defined and _is_value(value) and _is_value(*call.args)
            return _compared(call, value) if known else None
    return None


def _compared(call: ast.expr, want: str) -> str:
    """``want`` is what Python would print: a value where it is one, else its text."""
    if _is_value(want):
        return f"assert ({ast.unparse(call)}) == ({want})"
    return f"assert repr({ast.unparse(call)}) == {want!r}"


def _is_value(*texts: str | ast.expr) -> bool:
    try:
        for text in texts:
            ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return False
    return True


def _expression(text: str) -> ast.expr | None:
    tree = _parsed(text.strip())
    match tree and tree.body:
        case [ast.Expr(value)]:
            return value
    return None


def _parsed(text: str) -> ast.Module | None:
    if len(text) > _MAX_CHARS:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
