from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.frames import ProtocolError
from runtime.jail.values import decode, encode

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**62).map(lambda n: n**9)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
    | st.sampled_from([int, str, dict, ValueError]),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=8,
)


def refuse(value):
    raise TypeError


@given(values)
def test_what_goes_through_comes_out_equal_and_of_the_same_type(value):
    back = decode(json.loads(json.dumps(encode(value, refuse))), refuse)
    assert back == value
    assert typed(back) == typed(value)


def typed(value):
    """With every type in it, since True == 1 == 1.0."""
    if isinstance(value, dict):
        parts = [(typed(k), typed(v)) for k, v in value.items()]
    elif isinstance(value, (set, frozenset)):
        parts = sorted(map(typed, value), key=repr)
    elif isinstance(value, (list, tuple)):
        parts = [typed(v) for v in value]
    else:
        parts = repr(value)
    return type(value).__name__, parts


class Sly(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class SlyText(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


def test_subclasses_lose_what_they_say_of_themselves():
    back = decode(encode([Sly(3), {SlyText("a"): (Sly(1),)}], refuse), refuse)
    assert back == [3, {"a": (1,)}]
    assert back != [4, {"a": (1,)}]
    assert back != [3, {"b": (1,)}]


def test_other_objects_cross_as_their_handle():
    thing = object()
    sent = encode({"k": [thing]}, lambda value: {"o": 5} if value is thing else None)
    assert decode(sent, lambda number: f"handle {number}") == {"k": ["handle 5"]}


@pytest.mark.parametrize(
    "sent",
    [
        [],
        {},
        {"l": 5},
        {"l": [[1]]},
        {"l": [1], "t": [2]},
        {"s": [{"l": []}]},
        {"d": [[1]]},
        {"d": [[{"l": []}, 1]]},
        {"i": "many"},
        {"i": 5},
        {"y": "zz"},
        {"c": [1, 2, 3]},
        {"r": [1, 2, 0]},
        {"n": ["Decimal", "one"]},
        {"n": ["Fraction", "1/0"]},
        {"B": "open"},
        {"B": "nothing"},
        {"B": 5},
        {"x": 1},
    ],
)
def test_what_is_no_value_is_refused(sent):
    with pytest.raises(ProtocolError):
        decode(sent, refuse)


def test_numbers_of_the_library_are_exact():
    for number in (Decimal("0.10"), Decimal("1E+400"), Fraction(1, 3)):
        assert str(decode(encode(number, refuse), refuse)) == str(number)
