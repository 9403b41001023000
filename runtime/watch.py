"""``CallWatch``: finds calls that no replica knows of any more, so that no call waits for ever.

A call lives as long as a live replica reports it, be that for hours. It is lost when for
``silent_s`` no replica has reported it: one that was reported before, or one that should long have
begun since there is room for it. Only time with news counts: while the monitor is away, nothing
is known and nobody is lost. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.telemetry import ModelLoad, PoolTelemetry

_LONGEST_GAP_S = 1.0
"""The most that one look may add: after a pause of this process its news are old, too."""


@dataclass(slots=True)
class _Watched:
    model: str
    seen: bool = False
    unseen_s: float = 0.0


class CallWatch:
    """The calls of one process that were handed to an engine."""

    def __init__(self, silent_s: float) -> None:
        self._silent_s = silent_s
        self._calls: dict[str, _Watched] = {}
        self._looked_s: float | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def began(self, call_id: str, model: str) -> None:
        """The call is on its way to a replica."""
        self._calls[call_id] = _Watched(model)

    def ended(self, call_id: str) -> None:
        """The call is over; unknown ids are ignored."""
        self._calls.pop(call_id, None)

    def look(self, snapshot: PoolTelemetry, now: float) -> list[str]:
        """Calls that are lost, each named once; ``snapshot`` is news of ``now``."""
        passed_s = 0.0 if self._looked_s is None else min(now - self._looked_s, _LONGEST_GAP_S)
        self._looked_s = now
        lost = []
        for call_id, call in self._calls.items():
            load = snapshot.models.get(call.model)
            if load is not None and call_id in load.engine_calls:
                call.seen, call.unseen_s = True, 0.0
            elif call.seen or _has_room(load):
                call.unseen_s += passed_s
                if call.unseen_s >= self._silent_s:
                    lost.append(call_id)
        for call_id in lost:
            del self._calls[call_id]
        return lost


def _has_room(load: ModelLoad | None) -> bool:
    """Whether a call that has not begun yet is not just waiting for a place at a replica."""
    if load is None or load.running is None:
        return True
    return load.running + (load.waiting or 0) < load.slots
