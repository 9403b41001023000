"""The ``Policy`` protocol, what a policy sees, and the registry of policies.

To add a policy: write a class with ``plan`` and ``route``, and ``register_policy`` a factory, or
name one in the entry point group ``inframind.policies`` of an installed package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import Any, Protocol, runtime_checkable

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.load import ModelView, PoolView
from runtime.types import Decision, Plan, Query, Step, TaskKind


@dataclass(frozen=True, slots=True)
class PlanView:
    """What the planner sees, once per query (paper section 4.1).

    ``embedding`` is the question's, 384 floats, or ``None`` where there is none.
    ``prompt_tokens`` estimates what every call must read at least. ``money_left_usd`` is what the
    query may still spend, and the pool within its hour; ``None`` for any amount.
    """

    query: Query
    task: TaskKind
    remaining_s: float
    pool: PoolView
    candidates: tuple[ModelView, ...]
    prompt_tokens: int
    embedding: Sequence[float] | None
    rng: Random
    money_left_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the canonical answers so far agree; ``leading`` is the size of the largest class.

    Programs that fail the same of the question's tests agree as well; ``failing`` says that there
    is one that fails some.
    """

    num_answers: int = 0
    num_canonical: int = 0
    leading: int = 0
    failing: bool = False

    @property
    def unanimous(self) -> bool:
        """Whether more answers would hardly change the result: at least two, all the same, and
        none that is known to be wrong."""
        same = self.num_canonical >= 2 and self.leading == self.num_answers
        return same and not self.failing


@dataclass(frozen=True, slots=True)
class StepView:
    """What the executor sees, once per step (paper section 4.2).

    ``candidates`` are the models that can take the step, in the config's order, never empty:
    their context fits, they are available, the money left pays for a short answer, and they have
    not failed this step already.
    ``steps_after`` is the length of the critical path that must follow. ``used`` are the models
    already chosen for other steps of the query, by step id. ``money_left_usd`` is what may still be
    spent with every call on its way as dear as it can be; ``None`` for any amount.
    """

    query: Query
    plan: Plan
    step: Step
    remaining_s: float
    pool: PoolView
    candidates: tuple[ModelView, ...]
    prompt_tokens: int
    steps_after: int
    agreement: Agreement
    can_stop: bool
    used: Mapping[int, str]
    embedding: Sequence[float] | None
    rng: Random
    money_left_usd: float | None = None


@runtime_checkable
class Policy(Protocol):
    """Plans queries and routes steps. Must be quick: it runs on the loop that drives the queries.

    ``needs_embedding`` says whether it reads the question's embedding; without it, and with the
    task given, nothing is embedded.
    """

    name: str
    needs_embedding: bool

    def plan(self, view: PlanView) -> Plan:
        """Choose topology, number of agents and roles."""
        ...

    def route(self, view: StepView) -> Decision:
        """Choose model and depth among ``view.candidates``, or ``Stop`` where it is open."""
        ...


PolicyFactory = Callable[[AppConfig, Mapping[str, Any]], Policy]
ENTRY_POINT_GROUP = "inframind.policies"
POLICIES: dict[str, PolicyFactory] = {}


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Make a policy known by ``name``; a second one of the same name is a ``ConfigError``."""
    if name in POLICIES:
        raise ConfigError(f"policy {name!r} is already registered")
    POLICIES[name] = factory


def make_policy(config: AppConfig, name: str | None = None) -> Policy:
    """The policy of ``config``, or the one called ``name`` with default options.

    Raises:
        ConfigError: unknown name, or options that the policy does not take.
    """
    import runtime.policies  # noqa: F401  (registers the built-in policies)

    wanted = name or config.policy.name
    options = config.policy.options if wanted == config.policy.name else {}
    factory = POLICIES.get(wanted) or _from_entry_point(wanted)
    if factory is None:
        raise ConfigError(f"unknown policy {wanted!r}; there are {', '.join(sorted(POLICIES))}")
    return factory(config, options)


def _from_entry_point(name: str) -> PolicyFactory | None:
    point = _entry_points().get(name)
    factory: PolicyFactory | None = point.load() if point else None
    return factory


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Read once: that takes tens of milliseconds."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
