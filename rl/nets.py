"""Planner and executor in numpy, as they are served: equal to the torch modules, without torch.

``tests`` hold them to 1e-5 of ``rl.planner`` and ``rl.executor``. A decision is one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np

from rl.spaces import TASKS, Array, Layout
from runtime.embedding import EMBEDDING_DIM
from runtime.errors import ConfigError

Tensors = Mapping[str, Array]

_NORM_EPSILON = 1e-5
_CLOSED = np.float32(-1e9)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An index and the probabilities it was drawn from."""

    index: int
    probabilities: Array


class ExecutorNet:
    """Observations [executor_floats] to probabilities [num_actions]."""

    def __init__(self, tensors: Tensors, layout: Layout, *, question: bool = True) -> None:
        self._t = tensors
        self._question = question
        ends = np.cumsum([2 * EMBEDDING_DIM, 1, layout.system_floats, layout.progress_floats])
        self._texts, self._budget, self._system, self._progress = (int(e) for e in ends)
        self._has_progress = layout.progress_floats > 0

    def logits(self, seen: Array) -> Array:
        """Masked, [num_actions]."""
        t = self._t
        texts = seen[: self._texts]
        if not self._question:
            texts = np.concatenate([np.zeros(EMBEDDING_DIM, np.float32), texts[EMBEDDING_DIM:]])
        semantic = self._norm("semantic_norm", _relu(self._linear("semantic", texts)))
        heads = [
            _relu(self._linear("budget", seen[self._texts : self._budget])),
            _relu(self._linear("system", seen[self._budget : self._system])),
        ]
        if self._has_progress:
            heads.append(_relu(self._linear("progress", seen[self._system : self._progress])))
        resource = _relu(self._linear("resource", np.concatenate(heads)))
        merged = np.concatenate([semantic, self._norm("resource_norm", resource)])
        hidden = _relu(self._linear("merge", merged))
        scores = t["action.weight"] @ hidden + t["action.bias"]
        masked: Array = np.where(seen[self._progress :] > 0.5, scores, _CLOSED)
        return masked

    def choose(self, seen: Array, rng: Random | None) -> Drawn:
        """Drawn from ``rng``, or the likeliest without one."""
        return _draw(self.logits(seen), rng)

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = self._t[f"{name}.weight"] @ x + self._t[f"{name}.bias"]
        return out

    def _norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean()
        scaled = centred / np.sqrt((centred * centred).mean() + _NORM_EPSILON)
        out: Array = scaled * self._t[f"{name}.weight"] + self._t[f"{name}.bias"]
        return out


class PlannerNet:
    """Observations [planner_floats] to plans."""

    def __init__(
        self, tensors: Tensors, layout: Layout, *, film: bool = True, question: bool = True
    ) -> None:
        self._t = tensors
        self._film, self._question = film, question
        self._layout = layout
        splits = (EMBEDDING_DIM, layout.summary_floats, *layout.planner_masks)
        self._ends = [int(e) for e in np.cumsum(splits)]

    def choose(self, seen: Array, rng: Random | None) -> tuple[list[int], list[Drawn]]:
        """The action, [2 + max_agents], and what each of its decisions that hold was drawn from:
        topology, number of agents, one role per agent."""
        t, ends = self._t, self._ends
        topologies, counts, roles = (seen[a:b] for a, b in pairwise(ends[1:]))
        context = self._context(seen)
        topology = _draw(_masked(self._linear("topology", context), topologies), rng)
        context = context + t["topology_vectors.weight"][topology.index]
        hidden = _relu(self._linear("count_hidden", context))
        count = _draw(_masked(self._linear("count", hidden), counts), rng)
        context = context + t["count_vectors.weight"][count.index]
        drawn = [topology, count]
        for _ in range(count.index + 1):
            logits = self._linear("role", _relu(self._linear("role_hidden", context)))
            role = _draw(_masked(logits, roles), rng)
            context = context + t["role_vectors.weight"][role.index]
            drawn.append(role)
        chosen = [d.index for d in drawn]
        return chosen + [0] * (2 + self._layout.max_agents - len(chosen)), drawn

    def _context(self, seen: Array) -> Array:
        question = seen[: self._ends[0]]
        if not self._question:
            question = np.zeros_like(question)
        if self._film:
            hidden = _relu(self._linear("film_hidden", seen[self._ends[0] : self._ends[1]]))
            gamma, beta = np.split(self._linear("film", hidden), 2)
            question = (1 + gamma) * question + beta
        mean = self._linear("mean", _relu(self._linear("encoder", question)))
        task = self._linear("task_context", _softmax(self._linear("task", mean)))
        return _relu(self._linear("context", mean) + task)

    def _linear(self, name: str, x: Array) -> Array:
        out: Array = self._t[f"{name}.weight"] @ x + self._t[f"{name}.bias"]
        return out


_UNSERVED = ("value", "decoder", "log_var")
"""Parts that only train."""


def served(state: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors of a module's state that serving needs, by name within its ``net``."""
    names = {name: name.removeprefix("net.") for name in state if name.startswith("net.")}
    return {
        short: np.ascontiguousarray(state[name], dtype=np.float32)
        for name, short in names.items()
        if not short.startswith(_UNSERVED)
    }


def check_shapes(executor: Tensors, planner: Tensors, layout: Layout) -> None:
    """Raises ``ConfigError`` where tensors are missing or do not fit the layout."""
    wanted = {
        ("executor", "action.weight"): layout.num_actions,
        ("planner", "topology.weight"): layout.planner_masks[0],
        ("planner", "count.weight"): layout.planner_masks[1],
        ("planner", "role.weight"): layout.planner_masks[2],
        ("planner", "task.weight"): len(TASKS),
    }
    found = {"executor": executor, "planner": planner}
    for (net, name), rows in wanted.items():
        if name not in found[net] or found[net][name].shape[0] != rows:
            raise ConfigError(f"tensor {net}.{name} is missing or does not fit the layout")
    try:
        seen = np.ones(layout.executor_floats, np.float32)
        if not np.isfinite(ExecutorNet(executor, layout).logits(seen)).all():
            raise ConfigError("the executor's tensors are not finite")
        drawn = PlannerNet(planner, layout, film="film.weight" in planner).choose(
            np.ones(layout.planner_floats, np.float32), None
        )[1]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"tensors do not fit the layout: {error}") from None
    if not all(np.isfinite(d.probabilities).all() for d in drawn):
        raise ConfigError("the planner's tensors are not finite")


def _draw(logits: Array, rng: Random | None) -> Drawn:
    probabilities = _softmax(logits)
    if rng is None:
        return Drawn(int(probabilities.argmax()), probabilities)
    sums = np.cumsum(probabilities)
    index = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return Drawn(min(index, len(sums) - 1), probabilities)


def _softmax(logits: Array) -> Array:
    raised = np.exp(logits - logits.max())
    out: Array = raised / raised.sum()
    return out


def _relu(x: Array) -> Array:
    out: Array = np.maximum(x, np.float32(0.0))
    return out


def _masked(logits: Array, mask: Array) -> Array:
    out: Array = np.where(mask > 0.5, logits, _CLOSED)
    return out
