"""The ``Prefer`` header."""

from __future__ import annotations

import pytest

from actors.prefer import MAX_WAIT_S, preferences


@pytest.mark.parametrize(
    ("headers", "respond_async", "wait_s"),
    [
        ([], False, None),
        (["respond-async"], True, None),
        (["Respond-Async"], True, None),
        (["respond-async, wait=10"], True, 10.0),
        (["wait=10", "respond-async"], True, 10.0),
        (['respond-async; foo="a, b" , wait="7"'], True, 7.0),
        (['x="respond-async, wait=3"'], False, None),
        (["wait=5, wait=9"], False, 5.0),
        (["wait=0, respond-async"], True, 0.0),
        (["wait=999999"], False, MAX_WAIT_S),
        (["wait=-1"], False, None),
        (["wait=1.5, respond-async"], True, None),
        (["wait=ten"], False, None),
        (["wait"], False, None),
        (["respond-async=yes"], False, None),
        (["not-respond-async"], False, None),
        (['"' * 999 + "respond-async"], False, None),
        ([",,;=,"], False, None),
    ],
)
def test_what_is_understood(headers: list[str], respond_async: bool, wait_s: float | None) -> None:
    found = preferences(headers)
    assert (found.respond_async, found.wait_s) == (respond_async, wait_s)


def test_what_was_applied_is_said() -> None:
    both = preferences(["respond-async, wait=10"])
    assert both.applied(waited=True) == "wait=10"
    assert both.applied(waited=False) == "respond-async, wait=10"
    assert preferences(["respond-async"]).applied(waited=False) == "respond-async"
