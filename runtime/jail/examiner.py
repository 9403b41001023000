"""The side of the tests: run them, and reach the program only through calls to its process.

The names that the tests use and do not define are the program's. Its functions and objects are
``Remote``; plain values come as copies, so that the program has no say in how they compare.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import itertools
from typing import Any

from runtime.frames import ProtocolError, read_frame, write_frame
from runtime.jail.values import decode, encode

_MODULES = {"cmath", "collections", "copy", "itertools", "math", "operator", "random", "re"}
_MAX_DETAIL_CHARS = 400
_MAX_RESPONSE_BYTES = 8 * 2**20


class ProgramEnded(Exception):
    """The program's process is gone."""


class ProgramError(Exception):
    """The program raised an exception of a type that is not built in."""


def examine(tests: list[str], entry_point: str | None, requests: int, responses: int) -> Any:
    """Run each test in a namespace of its own.

    Returns:
        ``{"loaded": error or None, "passed": [bool], "details": [str]}``. A test passes when it
        ends without an exception and has called the program at least once.
    """
    program = _Program(requests, responses)
    try:
        program.answer()
    except Exception as error:
        return {"loaded": _message(error), "passed": [False] * len(tests), "details": []}
    details = [_run(test, entry_point, program) for test in tests]
    return {"loaded": None, "passed": [not d for d in details], "details": details}


def _run(test: str, entry_point: str | None, program: _Program) -> str:
    """Empty where the test passes, else what is wrong."""
    program.start()
    try:
        tree = ast.parse(test)
        code = compile(tree, "<test>", "exec")
        exec(code, _namespace(tree, entry_point, program))
    except BaseException as error:
        line = _line_of(error)
        shown = test.splitlines()[line - 1].strip() if line else ""
        return f"{_message(error)}: {shown}{program.last_result()}"[:_MAX_DETAIL_CHARS]
    return "" if program.num_calls else "the test never called the program"


def _namespace(tree: ast.Module, entry_point: str | None, program: _Program) -> dict[str, Any]:
    """What the tests find: modules that they forgot to import, and the program's names.

    A builtin or such a module is the program's only where it is what is tested.
    """
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    modules = used & _MODULES - {entry_point}
    wanted = {n for n in used - modules if n == entry_point or not hasattr(builtins, n)}
    own = {name: importlib.import_module(name) for name in modules}
    return {"__name__": "tests", **own, **program.names(sorted(wanted))}


def _line_of(error: BaseException) -> int:
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<test>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Program:
    """The program, as a partner that answers one request at a time."""

    def __init__(self, requests: int, responses: int) -> None:
        self._requests = requests
        self._responses = responses
        self.start()

    def start(self) -> None:
        """Another test begins."""
        self.num_calls = 0
        self._results: list[Any] = []

    def last_result(self) -> str:
        """What the last call returned, for a person to read; empty where there is none."""
        try:
            return f" (last result: {self._results[-1]!r:.150})" if self._results else ""
        except ValueError:  # a number of too many digits
            return ""

    def names(self, wanted: list[str]) -> dict[str, Any]:
        known = self._exchange({"names": wanted})["v"]
        if not isinstance(known, dict):
            raise ProtocolError("no namespace")
        return {name: self.decoded(known[name]) for name in wanted if name in known}

    def ask(self, request: dict[str, Any]) -> Any:
        return self.decoded(self._exchange(request)["v"])

    def call(self, target: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.num_calls += 1
        sent = [self.encoded(arg) for arg in args]
        named = {name: self.encoded(value) for name, value in kwargs.items()}
        response = self._exchange({"call": [{"o": target}, sent, named]})
        for arg, before, after in zip(args, sent, response.get("after") or (), strict=False):
            if after is not None and after != before:
                _replace(arg, self.decoded(after))
        result = self.decoded(response["v"])
        self._results = [] if isinstance(result, Remote) else [result]
        return result

    def encoded(self, value: Any) -> Any:
        return encode(value, _handle_of)

    def decoded(self, data: Any) -> Any:
        return decode(data, lambda number: Remote(self, number))

    def answer(self) -> Any:
        """What the program answers; its exceptions are raised here.

        Raises:
            ProgramEnded, ProtocolError, or what the program raised.
        """
        try:
            response = read_frame(self._responses, _MAX_RESPONSE_BYTES)
        except EOFError:
            raise ProgramEnded("the program ended") from None
        match response:
            case {"v": _}:
                return response
            case {"e": [str(name), str(message)]}:
                self._results = []
                raise _exception(name, message)
        raise ProtocolError("no answer")

    def _exchange(self, request: dict[str, Any]) -> Any:
        try:
            write_frame(self._requests, request)
        except BrokenPipeError:
            raise ProgramEnded("the program ended") from None
        return self.answer()


class Remote:
    """An object of the program. Never equal to a plain value, whatever its class says."""

    def __init__(self, program: _Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program.call(self._number, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return self._program.ask({"get": [{"o": self._number}, name]})

    def __setattr__(self, name: str, value: Any) -> None:
        self._program.ask({"set": [{"o": self._number}, name, self._program.encoded(value)]})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return False
        return self._number == other._number or self._method("__eq__", other) is True

    def __hash__(self) -> int:
        return hash(self._number)

    def __iter__(self) -> Any:
        return self._method("iter")

    def __next__(self) -> Any:
        return self._method("next")

    def __len__(self) -> Any:
        return self._method("len")

    def __bool__(self) -> bool:
        return self._method("bool") is True

    def __getitem__(self, key: Any) -> Any:
        return self._method("__getitem__", key)

    def __contains__(self, item: Any) -> bool:
        return any(item == kept for kept in itertools.islice(iter(self), 10**6))

    def __repr__(self) -> str:
        return str(self._method("repr"))

    def __str__(self) -> str:
        return str(self._method("str"))

    def _method(self, name: str, *args: Any) -> Any:
        sent = [self._program.encoded(arg) for arg in args]
        return self._program.ask({"method": [{"o": self._number}, name, sent]})


def _handle_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Remote):
        return {"o": value._number}
    raise TypeError(f"a test cannot give the program an object of type {type(value).__name__}")


def _replace(arg: Any, new: Any) -> None:
    """The program changed an argument in place: do the same here."""
    if type(arg) is not type(new):
        raise ProtocolError("an argument changed its type")
    arg.clear()
    arg.extend(new) if isinstance(arg, list) else arg.update(new)


def _exception(name: str, message: str) -> Exception:
    """An exception of the built-in type of that name; of no type that ends a process."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:
            pass
    return ProgramError(f"{name}: {message}")
