"""Why an engine call raised: from an exception to the ``CallFailed`` that it means."""

from __future__ import annotations

import grpc
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from actors.protocol import EngineBusy, EngineRefused, EngineStalled
from runtime.events import CallFailed, FailureKind
from runtime.types import Call

DEFAULT_RETRY_S = 1.0


def call_failed(call: Call, error: Exception, streamed: bool, metered: bool = False) -> CallFailed:
    """``streamed``: whether some of the call's text has left. ``metered``: whether its model is
    an API model, which may be asked again within its rate."""
    if isinstance(error, EngineRefused):
        kind = FailureKind.CONTEXT if error.kind == "context" else FailureKind.REQUEST
        return CallFailed(call.call_id, kind, f"{call.model}: {error.message}")
    if isinstance(error, EngineBusy):
        message = f"{call.model}: {error.message}"
        kind = FailureKind.LIMITED if error.limited and metered else FailureKind.REFUSED
        after_s = DEFAULT_RETRY_S if error.retry_after_s is None else error.retry_after_s
        return CallFailed(call.call_id, kind, message, streamed, retry_after_s=after_s)
    message = f"{call.model}: {_first_line(error)}"
    return CallFailed(call.call_id, _kind(error), message, streamed)


def _kind(error: Exception) -> FailureKind:
    if isinstance(error, EngineStalled):
        return FailureKind.HUNG
    if isinstance(error, BackPressureError):
        return FailureKind.REFUSED
    if isinstance(error, RayTaskError):
        return FailureKind.MODEL
    # The replica died, or is not there, or what carries its answers broke.
    lost = isinstance(error, RayError | RayServeException | grpc.RpcError | OSError)
    return FailureKind.LOST if lost else FailureKind.MODEL


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[-1] if lines else 'no message'}"
