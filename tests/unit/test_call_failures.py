"""What ends an engine call early, and what each exception of one means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ray.exceptions import ActorUnavailableError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from actors.failures import call_failed
from actors.protocol import EngineRefused, EngineStalled
from actors.stall import unless_stalled
from runtime.events import FailureKind
from runtime.types import Call, Sampling, Strategy

CALL = Call("q.0.1", "q", 0, "small", Strategy.FLASH, (), 8, 8, None, 0.0, Sampling(), True)


def from_replica(error: Exception) -> Exception:
    """As an exception of a replica's own code arrives here."""
    return RayTaskError("answer", "trace", error).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (from_replica(EngineRefused("context", "too long")), FailureKind.CONTEXT),
        (from_replica(EngineRefused("request", "no such tool")), FailureKind.REQUEST),
        (from_replica(EngineStalled(3.0)), FailureKind.HUNG),
        (from_replica(RuntimeError("CUDA error")), FailureKind.MODEL),
        (EngineStalled(3.0), FailureKind.HUNG),
        (ActorUnavailableError("gone", b"0" * 16), FailureKind.LOST),
        (ConnectionResetError("reset"), FailureKind.LOST),
        (KeyError("a fault of the engine's"), FailureKind.MODEL),
    ],
)
def test_every_exception_has_its_kind(error: Exception, kind: FailureKind) -> None:
    failed = call_failed(CALL, error, streamed=True)
    assert (failed.call_id, failed.kind) == ("q.0.1", kind)
    assert failed.message.startswith("small: ")


def test_a_full_deployment_refuses_and_one_without_replicas_is_lost() -> None:
    deployment = DeploymentID(name="small", app_name="app")
    full = BackPressureError(num_queued_requests=1, max_queued_requests=1)
    assert call_failed(CALL, full, False).kind is FailureKind.REFUSED
    gone = DeploymentUnavailableError(deployment)
    assert call_failed(CALL, gone, False).kind is FailureKind.LOST


class Parts:
    """Parts after the given pauses, and whether they were closed."""

    def __init__(self, *pauses_s: float) -> None:
        self.closed = False
        self._pauses_s = pauses_s

    async def __call__(self) -> AsyncIterator[int]:
        try:
            for number, pause_s in enumerate(self._pauses_s):
                await asyncio.sleep(pause_s)
                yield number
        finally:
            self.closed = True


async def test_steady_parts_may_take_longer_than_the_bound_together() -> None:
    parts = Parts(*[0.05] * 8)
    assert [n async for n in unless_stalled(parts(), 0.2)] == list(range(8))


@pytest.mark.parametrize("pauses_s", [(5.0,), (0.0, 0.0, 5.0)])
async def test_a_pause_beyond_the_bound_ends_them(pauses_s: tuple[float, ...]) -> None:
    parts = Parts(*pauses_s)
    with pytest.raises(EngineStalled, match=r"no token for 0\.1 s"):
        async for _ in unless_stalled(parts(), 0.1):
            pass
    assert parts.closed


async def test_without_a_bound_they_pass() -> None:
    assert [n async for n in unless_stalled(Parts(0.01)(), None)] == [0]


async def test_a_timeout_of_the_engines_own_is_not_a_stall() -> None:
    async def failing() -> AsyncIterator[int]:
        raise TimeoutError("its own")
        yield 0

    with pytest.raises(TimeoutError, match="its own"):
        [n async for n in unless_stalled(failing(), 5.0)]
