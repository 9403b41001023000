"""MasRouter's cascade as a torch module, and its training (Yue et al., 2025).

Served by ``runtime.policies.masrouter_net``, with the same probabilities. Every head compares
L2-normalised 64-d vectors by their cosine over a temperature. The number of agents is the sum of
six Bernoulli gates in training, so that it has a log-probability like every other decision; the
rounded mean of that sum, which is the sum of the six sigmoids, is what is served.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from runtime.policies.masrouter_net import (
    LATENT_DIM,
    MAX_AGENTS,
    MODE_TEMPERATURE,
    MODEL_TEMPERATURE,
    ROLE_TEMPERATURE,
    TASK_TEMPERATURE,
)

QUERY_DIM = 384
_NOISE = 0.1
_PRIOR_STD = 0.1


@dataclass(frozen=True, slots=True)
class ItemVectors:
    """Embeddings, [n, 384] each, of what is chosen among; ``role_tasks`` is the index of each
    role's task, -1 for roles of a task that no example has."""

    tasks: Tensor
    modes: Tensor
    roles: Tensor
    models: Tensor
    role_tasks: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """Decisions for a batch. ``roles`` and ``models`` are [batch, 6], of which the first
    ``counts`` of a row hold; ``log_probability`` sums over all that hold."""

    modes: Tensor
    counts: Tensor
    roles: Tensor
    models: Tensor
    log_probability: Tensor


@dataclass(frozen=True, slots=True)
class RouterTraining:
    epochs: int = 8
    batch: int = 16
    learning_rate: float = 0.01
    vae_weight: float = 0.001
    seed: int = 0


class Vae(nn.Module):
    """384 -> 64 ReLU -> (mu, log var) 64 -> 64 ReLU -> 384."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(QUERY_DIM, LATENT_DIM)
        self.mean = nn.Linear(LATENT_DIM, LATENT_DIM)
        self.log_var = nn.Linear(LATENT_DIM, LATENT_DIM)
        self.decoder = nn.Sequential(
            nn.Linear(LATENT_DIM, LATENT_DIM), nn.ReLU(), nn.Linear(LATENT_DIM, QUERY_DIM)
        )

    def forward(self, x: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The code of each row and the loss: squared error plus KL to N(0, 0.1^2). ``noise`` is
        standard normal, [rows, 64]; without it the code is its mean."""
        hidden = F.relu(self.hidden(x))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        code = mean if noise is None else mean + _NOISE * noise * torch.exp(0.5 * log_var)
        error = F.mse_loss(self.decoder(code), x)
        return code, error + _kl(mean, log_var)


def _kl(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL(N(mean, exp(log_var)) || N(0, 0.1^2)), averaged over rows and dimensions."""
    prior = torch.tensor(_PRIOR_STD**2)
    per_dimension = torch.log(prior) - log_var + (log_var.exp() + mean**2) / prior - 1.0
    return 0.5 * per_dimension.mean()


class MasRouterModule(nn.Module):
    """The cascade: task, mode, count, roles, models."""

    def __init__(self, items: ItemVectors) -> None:
        super().__init__()
        self.items = items
        self.task_query = nn.Linear(QUERY_DIM, LATENT_DIM)
        self.task_item = nn.Linear(QUERY_DIM, LATENT_DIM)
        self.query_vae, self.mode_vae = Vae(), Vae()
        self.count = nn.Linear(LATENT_DIM, MAX_AGENTS)
        self.role_item = nn.Linear(QUERY_DIM, LATENT_DIM)
        self.role_context = nn.Linear(3 * LATENT_DIM, LATENT_DIM)
        self.model_item = nn.Linear(QUERY_DIM, LATENT_DIM)
        self.model_context = nn.Linear(3 * LATENT_DIM, LATENT_DIM)

    def task_logits(self, query: Tensor) -> Tensor:
        return _cosines(self.task_query(query), self.task_item(self.items.tasks)) / TASK_TEMPERATURE

    def mode_logits(self, latent: Tensor, modes: Tensor) -> Tensor:
        return _cosines(latent, modes) / MODE_TEMPERATURE

    def role_logits(self, latent: Tensor, mode: Tensor, history: Tensor) -> Tensor:
        context = self.role_context(_context(latent, mode, history))
        return _cosines(context, self.role_item(self.items.roles)) / ROLE_TEMPERATURE

    def model_logits(self, latent: Tensor, mode: Tensor, history: Tensor) -> Tensor:
        context = self.model_context(_context(latent, mode, history))
        return _cosines(context, self.model_item(self.items.models)) / MODEL_TEMPERATURE

    def sample(
        self, latent: Tensor, modes: Tensor, tasks: Tensor, generator: torch.Generator
    ) -> Sampled:
        """Plans for a batch, and their log-probability, for ``latent`` [batch, 64] and the modes'
        latents; ``tasks`` [batch] says which roles are open."""
        mode, log_p = _draw(self.mode_logits(latent, modes), generator)
        gates = torch.sigmoid(self.count(latent))
        open_ = torch.bernoulli(gates.detach(), generator=generator)
        log_p = log_p - F.binary_cross_entropy(gates, open_, reduction="none").sum(1)
        counts = open_.sum(1).clamp(1, MAX_AGENTS).long()
        roles, history, role_log_p = self._roles(latent, modes[mode], tasks, counts, generator)
        logits = self.model_logits(latent, modes[mode], history)
        draws = [_draw(logits, generator) for _ in range(MAX_AGENTS)]
        model_log_p = sum((p * _holds(counts, i) for i, (_, p) in enumerate(draws)), log_p * 0.0)
        models = torch.stack([model for model, _ in draws], dim=1)
        return Sampled(mode, counts, roles, models, log_p + role_log_p + model_log_p)

    def _roles(
        self,
        latent: Tensor,
        mode: Tensor,
        tasks: Tensor,
        counts: Tensor,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        items = F.normalize(self.role_item(self.items.roles), dim=-1)
        closed = self.items.role_tasks[None, :] != tasks[:, None]
        history, log_p = torch.zeros_like(latent), torch.zeros(len(latent))
        chosen = []
        for i in range(MAX_AGENTS):
            logits = self.role_logits(latent, mode, history).masked_fill(closed, -torch.inf)
            role, role_log_p = _draw(logits, generator)
            holds = _holds(counts, i)
            log_p = log_p + role_log_p * holds
            history = history + items[role] * holds[:, None]
            chosen.append(role)
        return torch.stack(chosen, dim=1), history, log_p


def _cosines(left: Tensor, right: Tensor) -> Tensor:
    return F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).T


def _context(latent: Tensor, mode: Tensor, history: Tensor) -> Tensor:
    return torch.cat([latent, mode, F.layer_norm(history, (LATENT_DIM,))], dim=-1)


def _draw(logits: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One index per row, and its log-probability."""
    log_p = F.log_softmax(logits, dim=-1)
    index = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
    return index[:, 0], log_p.gather(1, index)[:, 0]


def _holds(counts: Tensor, place: int) -> Tensor:
    return (counts > place).float()


Reward = Callable[[Sequence[int], Sampled], Sequence[float]]
"""``U = solved - c * cost`` of every example (by index) of a batch."""


def train_router(
    module: MasRouterModule,
    queries: Tensor,
    tasks: Tensor,
    reward: Reward,
    settings: RouterTraining,
) -> list[float]:
    """Adam over shuffled batches; returns the mean utility of every epoch.

    Loss: task cross-entropy + mean(-log pi * U) + 0.001 * VAE.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.Adam(module.parameters(), lr=settings.learning_rate)
    means = []
    for _ in range(settings.epochs):
        order = torch.randperm(len(queries), generator=generator)
        total = 0.0
        for rows in order.split(settings.batch):
            utilities = _step(module, queries[rows], tasks[rows], rows.tolist(), reward, optimizer,
                              settings.vae_weight, generator)  # fmt: skip
            total += sum(utilities)
        means.append(total / len(queries))
    return means


def _step(
    module: MasRouterModule,
    queries: Tensor,
    tasks: Tensor,
    rows: Sequence[int],
    reward: Reward,
    optimizer: torch.optim.Optimizer,
    vae_weight: float,
    generator: torch.Generator,
) -> Sequence[float]:
    noise = torch.randn(len(queries), LATENT_DIM, generator=generator)
    latent, query_loss = module.query_vae(queries, noise)
    num_modes = len(module.items.modes)
    mode_noise = torch.randn(num_modes, LATENT_DIM, generator=generator)
    modes, mode_loss = module.mode_vae(module.items.modes, mode_noise)
    sampled = module.sample(latent, modes, tasks, generator)
    utilities = reward(rows, sampled)
    policy_loss = -(sampled.log_probability * torch.tensor(utilities)).mean()
    task_loss = F.cross_entropy(module.task_logits(queries), tasks)
    loss = task_loss + policy_loss + vae_weight * (query_loss + mode_loss)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return utilities


@torch.no_grad()
def tensors_to_serve(module: MasRouterModule) -> dict[str, Tensor]:
    """What ``runtime.policies.masrouter_net`` needs: item vectors in place of the maps of items."""
    modes, _ = module.mode_vae(module.items.modes)
    layers = {
        "task_query": module.task_query,
        "query_hidden": module.query_vae.hidden,
        "query_mean": module.query_vae.mean,
        "count": module.count,
        "role_context": module.role_context,
        "model_context": module.model_context,
    }
    tensors = {
        "task_items": F.normalize(module.task_item(module.items.tasks), dim=-1),
        "mode_latents": modes,
        "role_items": F.normalize(module.role_item(module.items.roles), dim=-1),
        "model_items": F.normalize(module.model_item(module.items.models), dim=-1),
    }
    for name, layer in layers.items():
        tensors[f"{name}.weight"], tensors[f"{name}.bias"] = layer.weight, layer.bias
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
