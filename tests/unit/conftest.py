"""Unit tests never start Ray."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


def _running() -> bool:
    ray = sys.modules.get("ray")
    return bool(ray is not None and ray.is_initialized())


@pytest.fixture(autouse=True)
def _no_ray() -> Iterator[None]:
    """Fail a unit test that starts Ray."""
    before = _running()
    yield
    if _running() and not before:
        sys.modules["ray"].shutdown()
        pytest.fail("a unit test started Ray")
