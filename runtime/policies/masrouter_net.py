"""MasRouter's cascade in numpy: what is left of it at test, from a safetensors artefact.

Every head compares L2-normalised 64-d vectors by their cosine, divided by a temperature. Items
(tasks, collaboration modes, roles, models) do not change after training, so that the artefact holds
their vectors and no maps of them. The module that is trained is ``rl.baselines.masrouter``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import ConfigError

Array = npt.NDArray[np.float32]

FORMAT = 1
LATENT_DIM = 64
MAX_AGENTS = 6
TASK_TEMPERATURE = 0.5
MODE_TEMPERATURE = 0.8
ROLE_TEMPERATURE = 0.5
MODEL_TEMPERATURE = 1.0
_NORM_EPSILON = 1e-5

SHAPES: Mapping[str, tuple[str | int, ...]] = {
    "task_query.weight": (LATENT_DIM, "query"),
    "task_query.bias": (LATENT_DIM,),
    "task_items": ("tasks", LATENT_DIM),
    "query_hidden.weight": (LATENT_DIM, "query"),
    "query_hidden.bias": (LATENT_DIM,),
    "query_mean.weight": (LATENT_DIM, LATENT_DIM),
    "query_mean.bias": (LATENT_DIM,),
    "mode_latents": ("modes", LATENT_DIM),
    "count.weight": (MAX_AGENTS, LATENT_DIM),
    "count.bias": (MAX_AGENTS,),
    "role_context.weight": (LATENT_DIM, 3 * LATENT_DIM),
    "role_context.bias": (LATENT_DIM,),
    "role_items": ("roles", LATENT_DIM),
    "model_context.weight": (LATENT_DIM, 3 * LATENT_DIM),
    "model_context.bias": (LATENT_DIM,),
    "model_items": ("models", LATENT_DIM),
}
"""Tensors of the artefact; a word in a shape is the number of such items, or of query floats."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A sampled plan: indices into the artefact's items. ``models`` is one per role."""

    mode: int
    roles: tuple[int, ...]
    models: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CascadeNet:
    """The trained cascade. ``roles`` are (task, name) pairs; a role serves its task only."""

    tensors: Mapping[str, Array]
    tasks: tuple[str, ...]
    modes: tuple[str, ...]
    roles: tuple[tuple[str, str], ...]
    models: tuple[str, ...]
    embedding: str

    def task_probabilities(self, query: Array) -> Array:
        """``query`` is [384]; shape [tasks]."""
        return _softmax(
            _unit(self._linear("task_query", query)) @ self.tensors["task_items"].T,
            TASK_TEMPERATURE,
        )

    def latent(self, query: Array) -> Array:
        """The mean of the query's variational code, shape [64]: no noise at test."""
        hidden = np.maximum(self._linear("query_hidden", query), 0.0)
        return self._linear("query_mean", hidden)

    def mode_probabilities(self, latent: Array) -> Array:
        """Shape [modes]."""
        return _softmax(_unit(latent) @ _unit(self.tensors["mode_latents"]).T, MODE_TEMPERATURE)

    def num_agents(self, latent: Array) -> int:
        """``clamp(round(sum of six sigmoids), 1, 6)``."""
        gates = 0.5 + 0.5 * np.tanh(self._linear("count", latent) / 2)  # the sigmoid
        return int(min(max(round(float(gates.sum())), 1), MAX_AGENTS))

    def role_probabilities(self, latent: Array, mode: int, history: Array) -> Array:
        """Over all roles, shape [roles]; ``history`` is the sum of the roles chosen so far."""
        return _softmax(self._role_logits(latent, mode, history), 1.0)

    def model_probabilities(self, latent: Array, mode: int, history: Array) -> Array:
        """Shape [models]; no model can have more than about 0.65 of five."""
        context = self._context("model_context", latent, mode, history)
        return _softmax(context @ self.tensors["model_items"].T, MODEL_TEMPERATURE)

    def sample(
        self, query: Array, *, modes: Sequence[int], roles: Sequence[int], most: int, rng: Random
    ) -> Chosen:
        """A plan for one query, among the ``modes`` and ``roles`` that its task admits."""
        latent = self.latent(query)
        mode = _draw(self.mode_probabilities(latent), modes, rng)
        history = np.zeros(LATENT_DIM, dtype=np.float32)
        chosen = []
        for _ in range(min(self.num_agents(latent), most)):
            role = _draw(self.role_probabilities(latent, mode, history), roles, rng)
            history = history + self.tensors["role_items"][role]
            chosen.append(role)
        by_model = self.model_probabilities(latent, mode, history)
        everyone = range(len(self.models))
        models = tuple(_draw(by_model, everyone, rng) for _ in chosen)
        return Chosen(mode, tuple(chosen), models)

    def _role_logits(self, latent: Array, mode: int, history: Array) -> Array:
        context = self._context("role_context", latent, mode, history)
        logits: Array = context @ self.tensors["role_items"].T / ROLE_TEMPERATURE
        return logits

    def _context(self, head: str, latent: Array, mode: int, history: Array) -> Array:
        parts = [latent, self.tensors["mode_latents"][mode], _layer_norm(history)]
        return _unit(self._linear(head, np.concatenate(parts)))

    def _linear(self, name: str, x: Array) -> Array:
        y: Array = self.tensors[f"{name}.weight"] @ x + self.tensors[f"{name}.bias"]
        return y


def load(path: Path) -> CascadeNet:
    """Read ``path`` (safetensors) and the JSON of the same name beside it.

    Raises:
        ConfigError: a file is missing or broken, a tensor is missing, misshapen or not finite.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        about = json.loads(path.with_suffix(".json").read_text())
        net = CascadeNet(
            tensors=load_file(path),
            tasks=tuple(about["tasks"]),
            modes=tuple(about["modes"]),
            roles=tuple((task, name) for task, name in about["roles"]),
            models=tuple(about["models"]),
            embedding=str(about["embedding"]),
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(f"policy masrouter: cannot read artefact {path}: {error!r}") from None
    if about.get("format") != FORMAT:
        raise ConfigError(f"policy masrouter: {path} is not of format {FORMAT}")
    _check(net, path)
    return net


def _check(net: CascadeNet, path: Path) -> None:
    known: dict[Any, int] = {
        "tasks": len(net.tasks),
        "modes": len(net.modes),
        "roles": len(net.roles),
        "models": len(net.models),
    }
    for name, shape in SHAPES.items():
        tensor = net.tensors.get(name)
        if tensor is None:
            raise ConfigError(f"policy masrouter: {path} lacks {name}")
        wanted = tuple(known.setdefault(size, tensor.shape[-1]) if isinstance(size, str) else size
                       for size in shape)  # fmt: skip
        if tensor.shape != wanted:
            raise ConfigError(
                f"policy masrouter: {path}: {name} is {tensor.shape}, must be {wanted}"
            )
        if not np.isfinite(tensor).all():
            raise ConfigError(f"policy masrouter: {path}: {name} holds numbers that are not finite")


def _draw(probabilities: Array, among: Sequence[int], rng: Random) -> int:
    return rng.choices(among, weights=[float(probabilities[i]) for i in among])[0]


def _unit(x: Array) -> Array:
    """Rows of length 1; a zero stays zero."""
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    y: Array = x / np.maximum(norm, 1e-12)
    return y


def _softmax(logits: Array, temperature: float) -> Array:
    scaled = logits / temperature
    powers = np.exp(scaled - scaled.max())
    y: Array = powers / powers.sum()
    return y


def _layer_norm(x: Array) -> Array:
    y: Array = (x - x.mean()) / np.sqrt(x.var() + _NORM_EPSILON)
    return y
