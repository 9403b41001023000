"""What a failed call means: the error that the query ends with if nothing else answers, and
whether the same model may be asked again."""

from __future__ import annotations

from runtime.errors import (
    ContextExceeded,
    DeadlineExceeded,
    InfraMindError,
    ModelUnavailable,
    NoModelAnswered,
    Overloaded,
    RequestError,
)
from runtime.events import CallFailed, FailureKind

SAME_MODEL_AGAIN = frozenset(
    {FailureKind.LOST, FailureKind.HUNG, FailureKind.OPEN, FailureKind.LIMITED}
)
"""These say nothing of the call itself: the same model may be asked again when it is back."""


def error_of(failed: CallFailed) -> InfraMindError:
    """The error that the failure would be to the client."""
    match failed.kind:
        case FailureKind.REQUEST:
            return RequestError(failed.message)
        case FailureKind.CONTEXT:
            return ContextExceeded(failed.message, "messages")
        case FailureKind.REFUSED | FailureKind.LIMITED:
            return Overloaded(failed.message, failed.retry_after_s)
        case FailureKind.TIME:
            return DeadlineExceeded(failed.message)
        case FailureKind.OPEN:
            return ModelUnavailable(failed.message, failed.retry_after_s)
        case FailureKind.MODEL | FailureKind.LOST | FailureKind.HUNG:
            return NoModelAnswered(failed.message)
