"""Virtual time: what happens when."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[Any], None]


class Agenda:
    """Actions in the order of their times, first come first served at equal times.

    ``now`` is the time of the action that runs. What is due ``soon`` runs after that action, at
    the same time and before any other.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Action, Any]] = []
        self._soon: deque[tuple[Action, Any]] = deque()
        self._numbers = itertools.count()

    @property
    def next_s(self) -> float | None:
        """When the next action is due; ``None`` with none left."""
        return self._heap[0][0] if self._heap else None

    def at(self, when_s: float, action: Action, about: Any) -> None:
        """Run ``action(about)`` at ``when_s``, which is not before ``now``."""
        heappush(self._heap, (when_s, next(self._numbers), action, about))

    def soon(self, action: Action, about: Any) -> None:
        """Run ``action(about)`` when the present action is over."""
        self._soon.append((action, about))

    def run_soon(self) -> bool:
        """Run the first of what is due soon; ``False`` if nothing is."""
        if not self._soon:
            return False
        action, about = self._soon.popleft()
        action(about)
        return True

    def run_next(self) -> None:
        """Go on to the next action and run it."""
        self.now, _, action, about = heappop(self._heap)
        action(about)
