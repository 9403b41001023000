"""Topologies as graphs of steps: one step per model call (paper section 4.1).

A plan of one agent has no decision step; with more, one ``DECIDE`` step reads every answer of
the last round. ``Adaptive`` has none either: its result is the plurality.

Four more belong to baselines: ``MoA`` and ``MoA3`` (two and three layers, the last of which is one
``SYNTHESIZE`` step of no agent), ``Vote`` (independent answers, then the plurality), and ``Swarm``
and ``SwarmDecide``, whose edges the plan brings with it (``Plan.graph``).

To add a topology, write a builder and ``register_topology`` it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.errors import PlanError
from runtime.types import AgentGraph, Plan, Step, StepKind, TaskKind, Topology

DECIDER_ROLE = "Decider"
SYNTHESIZER_ROLE = "Synthesizer"

MOA = "MoA"
MOA_3 = "MoA3"
VOTE = "Vote"
SWARM = "Swarm"
SWARM_DECIDE = "SwarmDecide"

_ANY = frozenset(TaskKind)
_CANONICAL = frozenset({TaskKind.MATH, TaskKind.CODE, TaskKind.KNOWLEDGE})
_COMPARABLE = frozenset({TaskKind.MATH, TaskKind.KNOWLEDGE})


@dataclass
class GraphBuilder:
    """Collects the steps of one plan; ``follow_ups[i]`` says whether agent ``i`` checks itself."""

    roles: tuple[str, ...]
    follow_ups: tuple[bool, ...]
    graph: AgentGraph | None = None
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
        seat: int = 0,
        votes: bool = True,
    ) -> int:
        """Append a step and return its id; ``seat`` counts calls that an agent makes at once."""
        step_id = len(self.steps)
        step = Step(
            step_id=step_id,
            kind=kind,
            role=self.roles[agent],
            agent=agent + seat * len(self.roles),
            round=round_,
            depends_on=tuple(depends_on),
            own=own,
            after=tuple(after),
            votes=votes,
        )
        self.steps.append(step)
        return step_id

    def answer(
        self,
        agent: int,
        depends_on: Sequence[int] = (),
        after: Sequence[int] = (),
        seat: int = 0,
        votes: bool = True,
    ) -> int:
        """An agent's answer with the second call of its role, if it has one; returns the last."""
        first = self.add(
            StepKind.ANSWER, agent, depends_on=depends_on, after=after, seat=seat, votes=votes
        )
        if not self.follow_ups[agent]:
            return first
        return self.add(
            StepKind.FOLLOW_UP, agent, depends_on=(first,), own=first, seat=seat, votes=votes
        )

    def decide(self, answers: Sequence[int]) -> None:
        """The decision step over ``answers``; none is needed for one."""
        if len(answers) >= 2:
            self._over_all(StepKind.DECIDE, DECIDER_ROLE, answers)

    def synthesize(self, answers: Sequence[int]) -> None:
        """The last layer of a Mixture-of-Agents, over whatever of ``answers`` there will be."""
        self._over_all(StepKind.SYNTHESIZE, SYNTHESIZER_ROLE, answers)

    def _over_all(self, kind: StepKind, role: str, answers: Sequence[int]) -> None:
        last_round = self.steps[-1].round + 1
        self.steps.append(Step(len(self.steps), kind, role, -1, last_round, tuple(answers)))


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


def _moa(layers: int) -> Callable[[GraphBuilder], None]:
    """Each agent of a layer reads the whole layer before it; the last layer is one step."""

    def build(graph: GraphBuilder) -> None:
        references = [graph.answer(agent) for agent in graph.agents]
        for round_ in range(2, layers):
            references = [
                graph.add(StepKind.SYNTHESIZE, agent, round_, depends_on=references)
                for agent in graph.agents
            ]
        graph.synthesize(references)

    return build


def _vote(graph: GraphBuilder) -> None:
    for agent in graph.agents:
        graph.answer(agent)


def _swarm(graph: GraphBuilder) -> None:
    _wire(graph)


def _swarm_decide(graph: GraphBuilder) -> None:
    graph.decide(_wire(graph))


def _wire(graph: GraphBuilder) -> list[int]:
    """The plan's own edges, every agent after those that it reads; returns the final answers."""
    wires = graph.graph or _everyone_forward(len(graph.roles))
    if useful_agents(wires) != set(graph.agents):
        raise PlanError("an agent of the plan's graph does not lead to a final one")
    ends: dict[int, list[int]] = {}
    for agent in agents_in_order(len(graph.roles), wires.edges):
        inputs = [end for source, to in wires.edges if to == agent for end in ends[source]]
        votes = agent in wires.final
        shown = [(i,) for i in inputs] if wires.split and inputs else [tuple(inputs)]
        ends[agent] = [
            graph.answer(agent, depends_on=some, seat=seat, votes=votes)
            for seat, some in enumerate(shown)
        ]
    return [end for agent in sorted(wires.final) for end in ends[agent]]


def _everyone_forward(agents: int) -> AgentGraph:
    edges = tuple((i, j) for j in range(agents) for i in range(j))
    return AgentGraph(edges, tuple(range(agents)))


def useful_agents(graph: AgentGraph) -> set[int]:
    """The agents whose answers reach the decision, directly or through others."""
    useful = set(graph.final)
    while grown := {source for source, to in graph.edges if to in useful} - useful:
        useful |= grown
    return useful


def agents_in_order(agents: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Every agent after those that it reads, else by number; a cycle is a ``PlanError``."""
    order: list[int] = []
    while len(order) < agents:
        ready = [
            a
            for a in range(agents)
            if a not in order and all(source in order for source, to in edges if to == a)
        ]
        if not ready:
            raise PlanError("the plan's graph has a cycle")
        order += ready
    return order


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
    TopologySpec(MOA, _moa(2), _ANY),
    TopologySpec(MOA_3, _moa(3), _ANY),
    TopologySpec(VOTE, _vote, _COMPARABLE, votes=True),
    TopologySpec(SWARM, _swarm, _COMPARABLE, votes=True),
    TopologySpec(SWARM_DECIDE, _swarm_decide, _ANY),
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
    graph = GraphBuilder(plan.roles, tuple(follow_ups), plan.graph)
    spec.build(graph)
    return tuple(graph.steps)


def path_lengths(steps: Sequence[Step]) -> tuple[int, ...]:
    """Per step, how many steps must still follow it in sequence (its critical path)."""
    after = [0] * len(steps)
    for step in reversed(steps):
        for earlier in (*step.depends_on, *step.after):
            after[earlier] = max(after[earlier], after[step.step_id] + 1)
    return tuple(after)
