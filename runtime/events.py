"""Events into and commands out of the two state machines.

``WorkflowState`` (one query): ``WorkflowEvent`` in, ``WorkflowCommand`` out.
``DispatchState`` (one model): ``DispatchEvent`` in, ``DispatchCommand`` out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runtime.types import Answer, Broke, Call, CallResult, Decision, Plan, Speed

# --- one query -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Planned:
    """The planner chose; ``policy`` is the name of who decided."""

    plan: Plan
    policy: str


@dataclass(frozen=True, slots=True)
class Routed:
    """The executor decided on one step; ``speed`` is what is known of the chosen model. It was not
    asked where there is no money for any (``Broke``)."""

    step_id: int
    decision: Decision | Broke
    speed: Speed | None = None


@dataclass(frozen=True, slots=True)
class CallDone:
    call_id: str
    result: CallResult


class FailureKind(StrEnum):
    """Why a call ended without a result; ``of_the_model`` are those that count against it."""

    MODEL = "model"  # the engine failed
    LOST = "lost"  # the replica died or fell silent
    HUNG = "hung"  # the engine gave no token for too long
    REFUSED = "refused"  # the backlog was full
    LIMITED = "limited"  # the provider refused it for its rate; the model may be asked again
    CONTEXT = "context"  # the engine found the prompt longer than its context
    REQUEST = "request"  # the engine found the request itself at fault; no retry helps
    OPEN = "open"  # the model's breaker opened while the call waited for its turn
    TIME = "time"  # the time left allows no token on this model

    @property
    def of_the_model(self) -> bool:
        return self in (FailureKind.MODEL, FailureKind.LOST, FailureKind.HUNG)


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call ended without a result. ``streamed`` says whether its text had begun to leave;
    ``retry_after_s`` is when a full backlog is predicted to have room."""

    call_id: str
    kind: FailureKind
    message: str
    streamed: bool = False
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class CallDropped:
    """The scheduler dropped the call: its deadline passed before any model work."""

    call_id: str


@dataclass(frozen=True, slots=True)
class TelemetryChanged:
    """Steps that found no model may be asked about again."""


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The budget is used up. ``streamed`` is the part of the answer that already left."""

    streamed: str = ""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client went away."""


WorkflowEvent = (
    Planned
    | Routed
    | CallDone
    | CallFailed
    | CallDropped
    | TelemetryChanged
    | DeadlinePassed
    | Cancelled
)


@dataclass(frozen=True, slots=True)
class AskPlan:
    """Ask the planner; answer with ``Planned``."""


@dataclass(frozen=True, slots=True)
class AskRoute:
    """Ask the executor about one step; answer with ``Routed``.

    ``excluded`` are models that already failed this step; ``can_stop`` opens the stop action of
    ``Adaptive``.
    """

    step_id: int
    excluded: frozenset[str] = frozenset()
    can_stop: bool = False


@dataclass(frozen=True, slots=True)
class RunCall:
    """Take a lease, run the call; answer ``CallDone``, ``CallFailed`` or ``CallDropped``."""

    call: Call


@dataclass(frozen=True, slots=True)
class CancelCall:
    """Withdraw a call, queued or running; no event is expected back."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The one outcome of the query."""

    answer: Answer


WorkflowCommand = AskPlan | AskRoute | RunCall | CancelCall | Finish

# --- one model's queue -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseId:
    """A lease is of one incarnation of its scheduler (``epoch``)."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class Acquire:
    """Ask for a lease. Idempotent on ``call_id``.

    ``remaining_s`` is the budget left at the moment of asking, ``service_s`` the predicted time
    of this call and ``path_s`` that of the steps that must still follow it. ``hard`` deadlines
    are dropped when they pass; soft ones wait on as late.
    """

    call_id: str
    holder: str
    remaining_s: float
    service_s: float = 0.0
    path_s: float = 0.0
    hard: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """The call is over; its slot is free."""

    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Cancel:
    """Withdraw a call that waits, or give back the lease it was just granted."""

    call_id: str


@dataclass(frozen=True, slots=True)
class Held:
    """A call that runs, and the lease that it runs on; ``None`` where it runs without one."""

    call_id: str
    lease: LeaseId | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that a holder sent ``age_s`` ago, on ``lease``."""

    lease: LeaseId
    age_s: float


@dataclass(frozen=True, slots=True)
class Register:
    """A holder tells which calls it runs, on which leases.

    A lease is kept from call to call, so this is how the scheduler learns what runs on it. A call
    whose lease is of another incarnation, or was taken away, gets a new ``Grant``. ``sent`` is what
    it remembers of the last minute, told where a new incarnation may not know it.
    """

    holder: str
    held: tuple[Held, ...]
    sent: tuple[Sent, ...] = ()


@dataclass(frozen=True, slots=True)
class HolderLost:
    """A holder died: its waiting calls go, its leases stay until their engine calls are gone."""

    holder: str


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """The calls that the model's engines still run; leases of lost holders that are not among
    them are free."""

    calls: frozenset[str]


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """Slots over all replicas: the sum of their ``max_num_seqs``."""

    slots: int


@dataclass(frozen=True, slots=True)
class Limited:
    """The provider of an API model refused a request for its rate, and wants none for
    ``retry_after_s``; ``None``: it did not say for how long."""

    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed; drop what can no longer be served."""


DispatchEvent = (
    Acquire
    | Release
    | Cancel
    | Register
    | HolderLost
    | EngineCalls
    | CapacityChanged
    | Limited
    | Tick
)


@dataclass(frozen=True, slots=True)
class Grant:
    """``call_id`` may run; ``waited_s`` is its time in this queue."""

    call_id: str
    holder: str
    lease: LeaseId
    waited_s: float


@dataclass(frozen=True, slots=True)
class Drop:
    """``call_id`` passed its hard deadline while it waited."""

    call_id: str
    holder: str
    waited_s: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """The backlog is full; ``retry_after_s`` predicts when there is room."""

    call_id: str
    holder: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Lost:
    """``holder`` was given up while ``call_id`` waited; if it lives after all, it asks again."""

    call_id: str
    holder: str


DispatchCommand = Grant | Drop | Refuse | Lost


@dataclass(frozen=True, slots=True)
class Mail:
    """What a scheduler tells one holder: its commands since the last acknowledged ``number``.

    ``box`` is new when the scheduler is, or when it had taken the holder for dead: then it knows
    nothing of it. ``contended``: calls wait, or there are more leases than slots, so that no lease
    may be kept idle.
    """

    box: int
    number: int
    commands: tuple[DispatchCommand, ...] = ()
    contended: bool = False
