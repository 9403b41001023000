"""GPTSwarm's edges, learned by REINFORCE over sampled graphs (Zhuge et al., 2024).

Every edge has a logit, 0 at the start. An iteration samples one graph per question, and moves the
logits along ``(U - baseline) * grad log p``, where ``U`` is 1 if the graph answered right. The
baseline is a moving average of ``U``. A graph in which nothing reaches the decision has ``U = 0``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch

from runtime.policies.gptswarm import edge_space, realise
from runtime.types import AgentGraph

Utility = Callable[[int, AgentGraph], float]
"""Of a question's index and a graph; only asked about graphs that have a final agent."""


@dataclass(frozen=True, slots=True)
class SwarmTraining:
    iterations: int = 200
    questions: int = 4
    learning_rate: float = 0.1
    baseline_decay: float = 0.9
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LearnedEdges:
    """``probabilities`` in the order of ``edge_space``; ``utilities`` are the means over each
    iteration."""

    probabilities: tuple[float, ...]
    utilities: tuple[float, ...]


def sample_graph(logits: torch.Tensor, rng: Random) -> tuple[AgentGraph, torch.Tensor]:
    """A graph over the agents that ``logits`` ([edges]) are for, and its log-probability.

    Edges that were skipped because they close a cycle have no part in the probability.
    """
    chances = torch.sigmoid(logits.detach()).tolist()
    taken: set[int] = set()

    def choose(index: int) -> bool:
        if rng.random() < chances[index]:
            taken.add(index)
        return index in taken

    graph, asked = realise(_num_agents(len(logits)), choose)
    signs = torch.tensor([1.0 if i in taken else -1.0 for i in asked])
    return graph, torch.nn.functional.logsigmoid(signs * logits[list(asked)]).sum()


def surrogate(
    log_probabilities: torch.Tensor, utilities: Sequence[float], baseline: float
) -> torch.Tensor:
    """The loss whose gradient is the REINFORCE estimate."""
    advantages = torch.tensor(utilities, dtype=log_probabilities.dtype) - baseline
    return -(log_probabilities * advantages).mean()


def train_edges(
    agents: int, num_questions: int, utility: Utility, settings: SwarmTraining
) -> LearnedEdges:
    """Learn one graph; questions are drawn with replacement."""
    rng = Random(settings.seed)
    logits = torch.zeros(len(edge_space(agents)), requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=settings.learning_rate)
    baseline: float | None = None
    means: list[float] = []
    for _ in range(settings.iterations):
        samples = [sample_graph(logits, rng) for _ in range(settings.questions)]
        utilities = [
            utility(rng.randrange(num_questions), graph) if graph.final else 0.0
            for graph, _ in samples
        ]
        mean = sum(utilities) / len(utilities)
        loss = surrogate(
            torch.stack([log_p for _, log_p in samples]),
            utilities,
            mean if baseline is None else baseline,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        decay = settings.baseline_decay
        baseline = mean if baseline is None else decay * baseline + (1 - decay) * mean
        means.append(mean)
    return LearnedEdges(tuple(torch.sigmoid(logits).tolist()), tuple(means))


def _num_agents(num_edges: int) -> int:
    """``n * (n - 1)`` pairs and ``n`` edges to the decision are ``n ** 2``."""
    return round(num_edges**0.5)
