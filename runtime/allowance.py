"""What the time left allows a call: output tokens, when to end it, how long to wait for a token."""

from __future__ import annotations

from runtime.calls import share_s, tokens_in
from runtime.config import LimitsConfig
from runtime.types import Call, Speed

WAY_BACK_S = 0.3
"""Time for an answer to come back from an engine on a busy machine."""

LEAST_STALL_S = 2.0
"""No call is given up for want of a token before; a shorter budget says nothing of a model."""

PREFILLS = 10.0
"""So many times as long as predicted may a prompt take to read."""


def max_tokens(call: Call, speed: Speed, left_s: float | None, steps_after: int) -> int:
    """The call's cap if it starts now: with a hard deadline, what the budget allows.

    0 when the call can no longer give a token in time. ``left_s`` is ``None`` without a hard
    deadline, here and below.
    """
    if left_s is None:
        return call.max_tokens
    allowed = tokens_in(left_s, steps_after, call.service_s or 0.0, call.prompt_tokens, speed)
    return min(call.max_tokens, allowed)


def limit_s(call: Call, left_s: float | None, steps_after: int) -> float | None:
    """Seconds after which the engine should end the answer where it is, if it starts now: the
    step's share of a hard budget, less what the way back may take."""
    if left_s is None:
        return None
    share = share_s(left_s, steps_after, call.service_s or 0.0)
    return share - min(WAY_BACK_S, share / 10)


def stall_s(
    call: Call, speed: Speed, left_s: float | None, steps_after: int, limits: LimitsConfig
) -> float:
    """Seconds without a token after which the engine counts as hung with this call.

    Half of the step's share of a hard budget, so that the other half is left for another model;
    at most ``limits.stall_s``, and never less than ``PREFILLS`` times the predicted prefill.
    """
    most_s = limits.stall_s
    if left_s is not None:
        most_s = min(most_s, share_s(left_s, steps_after, call.service_s or 0.0) / 2)
    prefill_s = speed.start_s + call.prompt_tokens / speed.prefill_tokens_per_s
    return max(LEAST_STALL_S, PREFILLS * prefill_s, most_s)


def program_s(call: Call, left_s: float | None, steps_after: int, limits: LimitsConfig) -> float:
    """Seconds that running the program in the call's answer may take, with all its waiting.

    Half of the step's share of a hard budget, so that an answer that is there is never late for
    its check; at most ``limits.program_s``.
    """
    if left_s is None:
        return limits.program_s
    return min(limits.program_s, share_s(left_s, steps_after, call.service_s or 0.0) / 2)
