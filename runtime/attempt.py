"""One attempt at a call between its place in the queue and the engine: why it does not begin."""

from __future__ import annotations

from runtime.events import CallDropped, CallFailed, Drop, FailureKind, Refuse
from runtime.leasing import Verdict
from runtime.types import Call


def denied(call: Call, verdict: Verdict | None) -> CallDropped | CallFailed | None:
    """What a verdict other than a lease means for the call; ``None`` where it may go on."""
    if isinstance(verdict, Drop):
        return CallDropped(call.call_id)
    if isinstance(verdict, Refuse):
        message = f"the backlog of {call.model} is full"
        after_s = verdict.retry_after_s
        return CallFailed(call.call_id, FailureKind.REFUSED, message, retry_after_s=after_s)
    return None


def too_late(call: Call, admitted: bool, max_tokens: int) -> CallFailed | None:
    """Why a call whose turn has come does not go to the engine after all.

    Args:
        call: it has its lease.
        admitted: whether the model's breaker lets it pass.
        max_tokens: what the time left allows it to write.
    """
    if not admitted:
        message = f"{call.model} is left alone since it only fails"
        return CallFailed(call.call_id, FailureKind.OPEN, message)
    if max_tokens < 1:
        message = f"the time left allows no token on {call.model}"
        return CallFailed(call.call_id, FailureKind.TIME, message)
    return None
