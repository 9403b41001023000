"""GPTSwarm (Zhuge et al., 2024): a graph of agents whose edges were learned, frozen at test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.committed import CallOptions, Committed, plain_roles
from runtime.policy import PlanView, StepView
from runtime.topology import SWARM, SWARM_DECIDE, topologies_for, useful_agents
from runtime.types import AgentGraph, Plan, TaskKind

SHIPPED = Path(__file__).parent / "artefacts" / "gptswarm.json"
FORMAT = 1
_EDGE_PROBABILITY = 0.5
_DATASET_OF_TASK = {TaskKind.MATH: "math", TaskKind.CODE: "mbpp", TaskKind.KNOWLEDGE: "mmlu_pro"}

Edge = tuple[int, int]
Choose = Callable[[int], bool]


def edge_space(agents: int) -> tuple[Edge, ...]:
    """Every edge that can be learned, in the fixed order in which a graph is realised: the pairs of
    agents in both directions, then each agent to the decision, which has the number ``agents``."""
    pairs = [(i, j) for i in range(agents) for j in range(agents) if i != j]
    return (*pairs, *((i, agents) for i in range(agents)))


def realise(agents: int, choose: Choose) -> tuple[AgentGraph, tuple[int, ...]]:
    """Walk the edges in order and keep those that ``choose`` takes by index.

    An edge that would close a cycle is skipped, not chosen on. Returns the graph, with no final
    agent where none was chosen, and the indices that ``choose`` was asked about.
    """
    edges: list[Edge] = []
    final: list[int] = []
    asked: list[int] = []
    for index, (source, to) in enumerate(edge_space(agents)):
        if to < agents and _reaches(to, source, edges):
            continue
        asked.append(index)
        if not choose(index):
            continue
        if to == agents:
            final.append(source)
        else:
            edges.append((source, to))
    return AgentGraph(tuple(edges), tuple(final)), tuple(asked)


def _reaches(start: int, goal: int, edges: list[Edge]) -> bool:
    seen = {start}
    while grown := {to for source, to in edges if source in seen} - seen:
        seen |= grown
    return goal in seen


@dataclass(frozen=True, slots=True)
class Swarm:
    """A frozen graph over ``models``, without what does not reach the decision."""

    models: tuple[str, ...]
    graph: AgentGraph


def freeze(models: tuple[str, ...], probabilities: Sequence[float]) -> Swarm:
    """The graph of the edges above one half, pruned.

    Where no edge to the decision is above it, the likeliest of them is kept, the earliest of
    equals.
    """
    kept, _ = realise(len(models), lambda index: probabilities[index] > _EDGE_PROBABILITY)
    to_decision = probabilities[-len(models) :]
    likeliest = max(range(len(models)), key=lambda agent: to_decision[agent])
    return pruned(models, AgentGraph(kept.edges, kept.final or (likeliest,)))


def pruned(models: tuple[str, ...], graph: AgentGraph) -> Swarm:
    """``graph`` over ``models`` without the agents that do not lead to a final one."""
    useful = sorted(useful_agents(graph))
    number = {agent: i for i, agent in enumerate(useful)}
    edges = tuple((number[i], number[j]) for i, j in graph.edges if j in number)
    final = tuple(number[i] for i in graph.final)
    return Swarm(tuple(models[agent] for agent in useful), AgentGraph(edges, final))


def independent(models: tuple[str, ...]) -> Swarm:
    """Every agent alone, all of them voting: the swarm of a pool that none was trained for."""
    return Swarm(models, AgentGraph((), tuple(range(len(models)))))


def swarm_plan(swarm: Swarm, task: TaskKind, split: bool = False) -> Plan:
    """One agent per model of the swarm; voted on where answers can be compared, else decided."""
    topology = SWARM if SWARM in topologies_for(task) else SWARM_DECIDE
    graph = AgentGraph(swarm.graph.edges, swarm.graph.final, split)
    return Plan(topology, plain_roles(task, len(swarm.models)), task, swarm.models, graph)


def read_artefact(path: Path) -> Mapping[str, Any]:
    """``{"models": [...], "edges": {data set: [probability of each edge, ...]}}``.

    Raises:
        ConfigError: there is no such file, or it is not of this form.
    """
    try:
        content = json.loads(path.read_text())
        count = len(edge_space(len(content["models"])))
        whole = content["format"] == FORMAT and all(
            len(row) == count and all(0 <= p <= 1 for p in row) for row in content["edges"].values()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"policy gptswarm: cannot read artefact {path}: {error!r}") from None
    if not whole:
        raise ConfigError(f"policy gptswarm: {path} is not an artefact of format {FORMAT}")
    return dict(content)


class _SwarmOptions(CallOptions):
    """``dataset`` picks the graph (by default that of the task: ``math``, ``mbpp``, ``mmlu_pro``),
    ``decider`` decides where answers cannot be voted on (by default the strongest)."""

    dataset: str | None = None
    decider: str | None = None
    split_calls: bool = False
    artefact: Path | None = None


class GptSwarm(Committed):
    """One agent per pool model, the learned edges between them, and a vote. The same graph for
    every query and load.

    Adapted: agents are of the plain kind (IO) with the task's default role; an agent that reads
    others makes one call that is shown all of their answers, where the original makes one call per
    incoming answer (``split_calls``: an agent then has as many answers as there are ways to it, and
    each has a vote); code is decided by one call over the answers; a failed call is tried again on
    another model. The edges come from ``python -m rl.baselines.train gptswarm``; a pool that no
    graph was trained for votes without edges.
    """

    name = "gptswarm"
    options_type = _SwarmOptions

    def __init__(self, config: AppConfig, options: Any) -> None:
        super().__init__(config, options)
        self.check_model(options.decider, "decider")
        content = read_artefact(options.artefact or SHIPPED)
        self._swarms = {task: self._swarm(content, task) for task in TaskKind}

    def _swarm(self, content: Mapping[str, Any], task: TaskKind) -> Swarm:
        pool = tuple(model.name for model in self.config.models)
        most = self.config.limits.max_agents
        trained, graphs = tuple(content["models"]), content["edges"]
        dataset = self.options.dataset or _DATASET_OF_TASK.get(task, "")
        if self.options.dataset is not None and dataset not in graphs:
            raise ConfigError(
                f"policy {self.name}: no graph for {dataset!r}; there are {sorted(graphs)}"
            )
        if set(trained) != set(pool) or len(trained) > most or dataset not in graphs:
            if self.options.artefact is not None and set(trained) != set(pool):
                raise ConfigError(f"policy {self.name}: the artefact is for the pool {trained}")
            return independent(pool[:most])
        return freeze(trained, graphs[dataset])

    def plan(self, view: PlanView) -> Plan:
        return swarm_plan(self._swarms[view.task], view.task, self.options.split_calls)

    def decider(self, view: StepView) -> str:
        decider: str | None = self.options.decider
        return decider or self.strongest(view.plan.task, self.options.strategy)
