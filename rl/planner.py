"""The planner (paper section 4.1): FiLM of ``z0`` on the question, then a cascade on a VAE's code.

Task -> collaboration -> number of agents -> roles, each head reading what was chosen before it. The
code in the policy path is the VAE's mean: its noise enters the reconstruction only, so that
log-probabilities can be computed again exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn
from torch.nn import functional as F

from rl.executor import CLOSED
from rl.spaces import TASKS, Layout, layout_from_json
from runtime.embedding import EMBEDDING_DIM

_MIN_LOG_VAR, _MAX_LOG_VAR = -6.0, 4.0


@dataclass(frozen=True, slots=True)
class PlannerSizes:
    """Units of the layers. The paper gives the planner's no sizes, only the total of both. ``film``
    off leaves the question as it is; ``question`` off feeds zeros instead of its embedding."""

    film_hidden: int = 128
    vae_hidden: int = 224
    latent: int = 64
    context: int = 64
    film: bool = True
    question: bool = True


@dataclass(frozen=True, slots=True)
class Cascade:
    """A batch of plans. ``actions`` is [B, 2 + max_agents]; ``log_p`` and ``entropy`` sum over all
    decisions that hold; ``values`` are [B]."""

    actions: Tensor
    log_p: Tensor
    entropy: Tensor
    task_logits: Tensor
    values: Tensor
    modulated: Tensor
    mean: Tensor
    log_var: Tensor


class PlannerNet(nn.Module):
    """Observations [B, planner_floats] to plans."""

    def __init__(self, layout: Layout, sizes: PlannerSizes) -> None:
        super().__init__()
        self.layout, self.sizes = layout, sizes
        self.splits = (EMBEDDING_DIM, layout.summary_floats, *layout.planner_masks)
        width = sizes.context
        self.film_hidden = nn.Linear(layout.summary_floats, sizes.film_hidden)
        self.film = nn.Linear(sizes.film_hidden, 2 * EMBEDDING_DIM)
        self.encoder = nn.Linear(EMBEDDING_DIM, sizes.vae_hidden)
        self.mean = nn.Linear(sizes.vae_hidden, sizes.latent)
        self.log_var = nn.Linear(sizes.vae_hidden, sizes.latent)
        self.decoder_hidden = nn.Linear(sizes.latent, sizes.vae_hidden)
        self.decoder = nn.Linear(sizes.vae_hidden, EMBEDDING_DIM)
        self.task = nn.Linear(sizes.latent, len(TASKS))
        self.task_context = nn.Linear(len(TASKS), width)
        self.context = nn.Linear(sizes.latent, width)
        topologies, counts, roles = layout.planner_masks
        self.topology = nn.Linear(width, topologies)
        self.topology_vectors = nn.Embedding(topologies, width)
        self.count_hidden = nn.Linear(width, width)
        self.count = nn.Linear(width, counts)
        self.count_vectors = nn.Embedding(counts, width)
        self.role_hidden = nn.Linear(width, width)
        self.role = nn.Linear(width, roles)
        self.role_vectors = nn.Embedding(roles, width)
        self.value = nn.Linear(width, 1)
        with torch.no_grad():  # near uniform at first, and FiLM near the identity
            for layer in (self.topology, self.count, self.role, self.film):
                layer.weight.mul_(0.1)

    def forward(
        self,
        obs: Tensor,
        actions: Tensor | None = None,
        *,
        greedy: bool = False,
        generator: torch.Generator | None = None,
    ) -> Cascade:
        """Plans for ``obs``: those of ``actions``, the likeliest, or drawn ones."""
        question, summary, *masks = obs.split(self.splits, dim=-1)
        if not self.sizes.question:
            question = torch.zeros_like(question)
        modulated = self._film(question, summary)
        hidden = F.relu(self.encoder(modulated))
        mean = self.mean(hidden)
        task_logits = self.task(mean)
        task = self.task_context(task_logits.detach().softmax(-1))
        context = F.relu(self.context(mean) + task)
        steps = _Steps(actions, greedy, generator)
        topology = steps.take(_masked(self.topology(context), masks[0]))
        context = context + self.topology_vectors(topology)
        count = steps.take(_masked(self.count(F.relu(self.count_hidden(context))), masks[1]))
        context = context + self.count_vectors(count)
        for place in range(self.layout.max_agents):
            logits = self.role(F.relu(self.role_hidden(context)))
            role = steps.take(_masked(logits, masks[2]), holds=count >= place)
            context = context + self.role_vectors(role)
        return Cascade(
            actions=torch.stack(steps.chosen, dim=-1),
            log_p=steps.log_p,
            entropy=steps.entropy,
            task_logits=task_logits,
            values=self.value(F.relu(self.context(mean) + task)).squeeze(-1),
            modulated=modulated,
            mean=mean,
            log_var=self.log_var(hidden).clamp(_MIN_LOG_VAR, _MAX_LOG_VAR),
        )

    def vae_loss(self, cascade: Cascade) -> Tensor:
        """Squared error of the reconstruction plus KL to N(0, 1), per row, [B]."""
        mean, log_var = cascade.mean, cascade.log_var
        code = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        restored = self.decoder(F.relu(self.decoder_hidden(code)))
        error = ((restored - cascade.modulated.detach()) ** 2).mean(-1)
        return error - 0.5 * (1 + log_var - mean**2 - log_var.exp()).mean(-1)

    def _film(self, question: Tensor, summary: Tensor) -> Tensor:
        """Equation 4; ``gamma`` is 1 plus what the layer gives."""
        if not self.sizes.film:
            return question
        gamma, beta = self.film(F.relu(self.film_hidden(summary))).chunk(2, dim=-1)
        return (1 + gamma) * question + beta


class _Steps:
    """Takes one decision after another, and sums their log-probabilities and entropies."""

    def __init__(
        self, actions: Tensor | None, greedy: bool, generator: torch.Generator | None
    ) -> None:
        self._given = None if actions is None else actions.long()
        self._greedy, self._generator = greedy, generator
        self.chosen: list[Tensor] = []
        self.log_p: Tensor = torch.zeros(())
        self.entropy: Tensor = torch.zeros(())

    def take(self, logits: Tensor, holds: Tensor | None = None) -> Tensor:
        """The next decision, [B]; where it does not hold it counts for nothing."""
        log_p = F.log_softmax(logits, dim=-1)
        if self._given is not None:
            chosen = self._given[:, len(self.chosen)]
        elif self._greedy:
            chosen = log_p.argmax(-1)
        else:
            chosen = torch.multinomial(log_p.exp(), 1, generator=self._generator)[:, 0]
        weight = torch.ones(len(logits)) if holds is None else holds.float()
        self.chosen.append(chosen)
        self.log_p = self.log_p + weight * log_p.gather(-1, chosen[:, None])[:, 0]
        self.entropy = self.entropy - weight * (log_p.exp() * log_p).sum(-1)
        return chosen


class PlannerModule(TorchRLModule):
    """``PlannerNet`` for RLlib. ``generator`` draws the plans; ``None``: torch's own."""

    generator: torch.Generator | None = None

    def setup(self) -> None:
        config = self.model_config
        self.net = PlannerNet(layout_from_json(config["layout"]), PlannerSizes(**config["sizes"]))

    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        with torch.no_grad():
            plans = self.net(batch[Columns.OBS], generator=self.generator)
        return {Columns.ACTIONS: plans.actions, Columns.ACTION_LOGP: plans.log_p}

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        with torch.no_grad():
            plans = self.net(batch[Columns.OBS], greedy=True)
        return {Columns.ACTIONS: plans.actions, Columns.ACTION_LOGP: plans.log_p}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        plans = self.net(batch[Columns.OBS], batch[Columns.ACTIONS])
        return {
            Columns.ACTION_LOGP: plans.log_p,
            "entropy": plans.entropy,
            "task_logits": plans.task_logits,
            "values": plans.values,
            "vae": self.net.vae_loss(plans),
        }


def _masked(logits: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask > 0.5, logits, CLOSED)
