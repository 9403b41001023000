"""The side of the program under test: load it, and do with its objects what the examiner asks.

Everything here runs in the program's own process, which may change any of it. It guards nothing.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from runtime.frames import read_frame, write_frame
from runtime.jail.values import decode, encode

_MAX_MESSAGE_CHARS = 500


def answer_calls(variants: list[str], requests: int, responses: int) -> None:
    """Load the first variant that compiles, then serve requests until there are no more."""
    host = _Host()
    try:
        host.load(variants)
        write_frame(responses, {"v": None})
    except BaseException as error:
        write_frame(responses, _described(error))
        return
    while True:
        try:
            request = read_frame(requests)
        except EOFError:
            return
        try:
            response = host.serve(request)
        except BaseException as error:
            response = _described(error)
        write_frame(responses, response)


def run_as_main(source: str) -> int:
    """Run ``source`` as a script; gives the exit status that Python would."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(compile(source, "<program>", "exec"), module.__dict__)
    except SystemExit as leaving:
        status = _exit_status(leaving.code)
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        sys.__excepthook__(type(error), error.with_traceback(trace), trace)
        status = 1
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    sys.stdout.flush()
    return status


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0) & 255
    print(code, file=sys.stderr)
    return 1


class _Host:
    """The program's namespace, and the objects that the examiner holds, by number."""

    def __init__(self) -> None:
        self._module = types.ModuleType("solution")
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}

    def load(self, variants: list[str]) -> None:
        sys.modules["solution"] = self._module
        exec(_first_that_compiles(variants), self._module.__dict__)

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        match request:
            case {"names": names}:
                known = self._module.__dict__
                return {"v": {n: self._encoded(known[n]) for n in names if n in known}}
            case {"get": [target, name]}:
                return {"v": self._encoded(getattr(self._decoded(target), name))}
            case {"set": [target, name, value]}:
                setattr(self._decoded(target), name, self._decoded(value))
                return {"v": None}
            case {"method": [target, name, args]}:
                target = self._decoded(target)
                function = getattr(type(target), name, None) or getattr(builtins, name)
                return {"v": self._encoded(function(target, *map(self._decoded, args)))}
            case {"call": [target, args, kwargs]}:
                return self._call(target, args, kwargs)
        raise ValueError("no such request")

    def _call(self, target: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        values = [self._decoded(arg) for arg in args]
        named = {name: self._decoded(value) for name, value in kwargs.items()}
        result = self._encoded(self._decoded(target)(*values, **named))
        after = [self._encoded(v) if isinstance(v, (list, dict, set)) else None for v in values]
        return {"v": result, "after": after}

    def _encoded(self, value: Any) -> Any:
        return encode(value, self._keep)

    def _keep(self, value: Any) -> dict[str, Any]:
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)  # kept for good, so that its id stays its own
        return {"o": number}

    def _decoded(self, data: Any) -> Any:
        return decode(data, self._objects.__getitem__)


def _first_that_compiles(variants: list[str]) -> types.CodeType:
    first: Exception | None = None
    for source in variants:
        try:
            return compile(source, "<program>", "exec")
        except (SyntaxError, ValueError) as error:
            first = first or error
    raise first or ValueError("no program")


def _described(error: BaseException) -> dict[str, Any]:
    try:
        message = str(error)[:_MAX_MESSAGE_CHARS]
    except BaseException:
        message = ""
    return {"e": [type(error).__name__, message]}
