"""Python values as JSON, to cross between the program and its tests.

They are plain data by a fixed table; never pickle, since one of the two sides is not trusted. An
object of any other type stays where it is and crosses as a number.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from runtime.frames import ProtocolError

_SMALL = 2**63
_TYPES = {name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)}
_NAMES_OF_TYPES = {kind: name for name, kind in _TYPES.items()}


def encode(value: Any, handle: Callable[[Any], Any]) -> Any:
    """``value`` as JSON; ``handle`` makes JSON of an object that is no plain data.

    Subclasses of the plain types become these: a named tuple is a tuple.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int(value)
        return number if -_SMALL < number < _SMALL else {"i": hex(number)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        tag = next(tag for kind, (tag, _) in _COLLECTIONS.items() if isinstance(value, kind))
        return {tag: [encode(item, handle) for item in value]}
    if isinstance(value, dict):
        return {"d": [[encode(k, handle), encode(v, handle)] for k, v in value.items()]}
    return _encode_rare(value, handle)


def _encode_rare(value: Any, handle: Callable[[Any], Any]) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return {"y" if isinstance(value, bytes) else "Y": value.hex()}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, range):
        return {"r": [value.start, value.stop, value.step]}
    if isinstance(value, type) and value in _NAMES_OF_TYPES:
        return {"B": _NAMES_OF_TYPES[value]}
    name = (type(value).__module__, type(value).__name__)
    if name in (("decimal", "Decimal"), ("fractions", "Fraction")):
        return {"n": [name[1], str(value)]}
    return handle(value)


_COLLECTIONS: dict[type[Any], tuple[str, Callable[[list[Any]], Any]]] = {
    list: ("l", list),
    tuple: ("t", tuple),
    set: ("s", set),
    frozenset: ("f", frozenset),
}


def decode(data: Any, resolve: Callable[[Any], Any]) -> Any:
    """The value of ``encode``'s JSON; ``resolve`` gives the object of a handle.

    Raises:
        ProtocolError: the JSON is no value.
    """
    if not isinstance(data, dict):
        if isinstance(data, list):
            raise ProtocolError("a bare list")
        return data
    try:
        [(tag, content)] = data.items()
        return _decode(tag, content, resolve)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise ProtocolError(f"not a value: {type(error).__name__}") from None


def _decode(tag: str, content: Any, resolve: Callable[[Any], Any]) -> Any:
    for name, build in _COLLECTIONS.values():
        if name == tag:
            return build([decode(item, resolve) for item in content])
    match tag:
        case "d":
            return {decode(k, resolve): decode(v, resolve) for k, v in content}
        case "i":
            return int(content, 16)
        case "y":
            return bytes.fromhex(content)
        case "Y":
            return bytearray.fromhex(content)
        case "c":
            return complex(*content)
        case "r":
            return range(*content)
        case "n":
            return _number(*content)
        case "B":
            return _TYPES[content]
        case "o":
            return resolve(content)
    raise KeyError(tag)


def _number(kind: str, text: str) -> Any:
    if kind == "Decimal":
        from decimal import Decimal

        return Decimal(text)
    from fractions import Fraction

    return Fraction(text)
