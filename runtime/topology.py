"""Topologies as graphs of steps: one step per model call (paper section 4.1).

A plan of one agent has no decision step; with more, one ``DECIDE`` step reads every answer of
the last round. ``Adaptive`` has none either: its result is the plurality.

To add a topology, write a builder and ``register_topology`` it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.errors import PlanError
from runtime.types import Plan, Step, StepKind, TaskKind, Topology

DECIDER_ROLE = "Decider"

_ANY = frozenset(TaskKind)
_CANONICAL = frozenset({TaskKind.MATH, TaskKind.CODE, TaskKind.KNOWLEDGE})


@dataclass
class GraphBuilder:
    """Collects the steps of one plan; ``follow_ups[i]`` says whether agent ``i`` checks itself."""

    roles: tuple[str, ...]
    follow_ups: tuple[bool, ...]
    steps: list[Step] = field(default_factory=list)

    @property
    def agents(self) -> range:
        return range(len(self.roles))

    def add(
        self,
        kind: StepKind,
        agent: int,
        round_: int = 1,
        depends_on: Sequence[int] = (),
        own: int | None = None,
        after: Sequence[int] = (),
    ) -> int:
        """Append a step and return its id."""
        step_id = len(self.steps)
        step = Step(
            step_id=step_id,
            kind=kind,
            role=self.roles[agent],
            agent=agent,
            round=round_,
            depends_on=tuple(depends_on),
            own=own,
            after=tuple(after),
        )
        self.steps.append(step)
        return step_id

    def answer(self, agent: int, depends_on: Sequence[int] = (), after: Sequence[int] = ()) -> int:
        """An agent's answer with the second call of its role, if it has one; returns the last."""
        first = self.add(StepKind.ANSWER, agent, depends_on=depends_on, after=after)
        if not self.follow_ups[agent]:
            return first
        return self.add(StepKind.FOLLOW_UP, agent, depends_on=(first,), own=first)

    def decide(self, answers: Sequence[int]) -> None:
        """The decision step over ``answers``; none is needed for one."""
        if len(answers) < 2:
            return
        step_id = len(self.steps)
        last_round = self.steps[-1].round + 1
        self.steps.append(
            Step(step_id, StepKind.DECIDE, DECIDER_ROLE, -1, last_round, tuple(answers))
        )


def _independent(graph: GraphBuilder) -> None:
    graph.decide([graph.answer(agent) for agent in graph.agents])


def _chain(graph: GraphBuilder) -> None:
    answers: list[int] = []
    for agent in graph.agents:
        answers.append(graph.answer(agent, depends_on=answers[-1:]))
    graph.decide(answers)


def _full_connected(graph: GraphBuilder) -> None:
    answers: list[int] = []
    for agent in graph.agents:
        answers.append(graph.answer(agent, depends_on=tuple(answers)))
    graph.decide(answers)


def _reflection(graph: GraphBuilder) -> None:
    revised = []
    for agent in graph.agents:
        first = graph.add(StepKind.ANSWER, agent)
        revised.append(graph.add(StepKind.REVISE, agent, 2, depends_on=(first,), own=first))
    graph.decide(revised)


def _debate(graph: GraphBuilder) -> None:
    """Round 2 is behind a barrier and sees every other agent's answer; alone there is none."""
    first = [graph.answer(agent) for agent in graph.agents]
    if len(first) == 1:
        return
    graph.decide(
        [
            graph.add(StepKind.DEBATE, agent, 2, depends_on=first, own=first[agent])
            for agent in graph.agents
        ]
    )


def _adaptive(graph: GraphBuilder) -> None:
    """Two agents at once, then one at a time; the executor may stop before each further one."""
    answers: list[int] = []
    for agent in graph.agents:
        answers.append(graph.answer(agent, after=tuple(answers) if agent >= 2 else ()))


@dataclass(frozen=True)
class TopologySpec:
    """``build`` adds the steps; ``votes`` means that the result is the plurality of answers."""

    name: str
    build: Callable[[GraphBuilder], None]
    tasks: frozenset[TaskKind] = _CANONICAL
    votes: bool = False


TOPOLOGIES: dict[str, TopologySpec] = {}


def register_topology(spec: TopologySpec) -> None:
    """Make a topology known by its name; a second one of the same name is a ``PlanError``."""
    if spec.name in TOPOLOGIES:
        raise PlanError(f"topology {spec.name!r} is already registered")
    TOPOLOGIES[spec.name] = spec


for _spec in (
    TopologySpec(Topology.IO, _independent, _ANY),
    TopologySpec(Topology.COT, _independent),
    TopologySpec(Topology.CHAIN, _chain, _ANY),
    TopologySpec(Topology.FULL_CONNECTED, _full_connected),
    TopologySpec(Topology.DEBATE, _debate),
    TopologySpec(Topology.REFLECTION, _reflection, _ANY),
    TopologySpec(Topology.ADAPTIVE, _adaptive, votes=True),
):
    register_topology(_spec)


def topologies_for(task: TaskKind) -> tuple[str, ...]:
    """Topologies that may serve ``task``; free text is neither voted on nor debated."""
    return tuple(name for name, spec in TOPOLOGIES.items() if task in spec.tasks)


def build_steps(plan: Plan, follow_ups: Sequence[bool], max_agents: int = 6) -> tuple[Step, ...]:
    """The steps of ``plan``, in an order in which every step follows what it depends on.

    Args:
        plan: the planner's decision.
        follow_ups: per agent, whether its role has a second call.
        max_agents: the most agents a plan may have.

    Raises:
        PlanError: unknown topology, one that does not fit the task, or a bad number of agents.
    """
    spec = TOPOLOGIES.get(plan.topology)
    if spec is None:
        raise PlanError(f"unknown topology {plan.topology!r}; there are {sorted(TOPOLOGIES)}")
    if plan.task not in spec.tasks:
        raise PlanError(f"topology {plan.topology} does not serve task {plan.task}")
    if not 1 <= plan.num_agents <= max_agents:
        raise PlanError(f"a plan has 1 to {max_agents} agents, not {plan.num_agents}")
    graph = GraphBuilder(plan.roles, tuple(follow_ups))
    spec.build(graph)
    return tuple(graph.steps)


def path_lengths(steps: Sequence[Step]) -> tuple[int, ...]:
    """Per step, how many steps must still follow it in sequence (its critical path)."""
    after = [0] * len(steps)
    for step in reversed(steps):
        for earlier in (*step.depends_on, *step.after):
            after[earlier] = max(after[earlier], after[step.step_id] + 1)
    return tuple(after)
