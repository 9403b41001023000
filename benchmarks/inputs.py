"""What benchmarks share: questions that were never asked before, and free ports."""

from __future__ import annotations

import itertools
import socket

_numbers = itertools.count()


def question() -> str:
    """Some sixty words of arithmetic."""
    number = next(_numbers)
    return f"Shop {number} sells pens at {number % 17} dollars each. How much do 8 pens cost? " * 3


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
