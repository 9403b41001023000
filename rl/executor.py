"""The executor (paper section 4.2): semantic and resource pathways, joint head, value head.

The Lagrange multipliers are a buffer of it: saved, restored and synced with the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import Tensor, nn
from torch.nn import functional as F

from rl.spaces import Layout, layout_from_json
from runtime.embedding import EMBEDDING_DIM

CLOSED = -1e9
"""Logit of an action that is masked: its probability is 0, and 0 * log 0 stays finite."""


@dataclass(frozen=True, slots=True)
class ExecutorSizes:
    """Units of the layers; the defaults are the paper's. ``question`` off feeds zeros
    in place of the question's embedding."""

    semantic: int = 128
    head: int = 16
    resource: int = 64
    merge: int = 128
    question: bool = True


class ExecutorNet(nn.Module):
    """Observations [B, executor_floats] to masked logits [B, num_actions] and values [B]."""

    def __init__(self, layout: Layout, sizes: ExecutorSizes) -> None:
        super().__init__()
        self.layout, self.sizes = layout, sizes
        self.splits = (
            2 * EMBEDDING_DIM,
            1,
            layout.system_floats,
            layout.progress_floats,
            layout.num_actions,
        )
        self.semantic = nn.Linear(2 * EMBEDDING_DIM, sizes.semantic)
        self.semantic_norm = nn.LayerNorm(sizes.semantic)
        self.budget = nn.Linear(1, sizes.head)
        self.system = nn.Linear(layout.system_floats, sizes.head)
        heads = 2 * sizes.head
        if layout.progress_floats:
            self.progress = nn.Linear(layout.progress_floats, sizes.head)
            heads += sizes.head
        self.resource = nn.Linear(heads, sizes.resource)
        self.resource_norm = nn.LayerNorm(sizes.resource)
        self.merge = nn.Linear(sizes.semantic + sizes.resource, sizes.merge)
        self.action = nn.Linear(sizes.merge, layout.num_actions)
        self.value = nn.Linear(sizes.merge, 1)
        with torch.no_grad():  # near uniform at first
            self.action.weight.mul_(0.1)

    def hidden(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """``h`` of section 4.2, [B, merge], and the action mask, [B, num_actions]."""
        texts, budget, system, progress, mask = obs.split(self.splits, dim=-1)
        if not self.sizes.question:
            texts = torch.cat([torch.zeros_like(texts[..., :EMBEDDING_DIM]),
                               texts[..., EMBEDDING_DIM:]], dim=-1)  # fmt: skip
        semantic = self.semantic_norm(F.relu(self.semantic(texts)))
        heads = [F.relu(self.budget(budget)), F.relu(self.system(system))]
        if self.layout.progress_floats:
            heads.append(F.relu(self.progress(progress)))
        resource = self.resource_norm(F.relu(self.resource(torch.cat(heads, dim=-1))))
        return F.relu(self.merge(torch.cat([semantic, resource], dim=-1))), mask

    def logits(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Masked, [B, num_actions]."""
        return torch.where(mask > 0.5, self.action(hidden), CLOSED)

    def values(self, hidden: Tensor) -> Tensor:
        """Shape [B]."""
        return self.value(hidden).squeeze(-1)


class ExecutorModule(TorchRLModule, ValueFunctionAPI):
    """``ExecutorNet`` for RLlib. ``generator`` draws the actions; ``None``: torch's own."""

    generator: torch.Generator | None = None
    multipliers: Tensor

    def setup(self) -> None:
        config = self.model_config
        layout = layout_from_json(config["layout"])
        self.net = ExecutorNet(layout, ExecutorSizes(**config["sizes"]))
        start = torch.tensor(config["multipliers"], dtype=torch.float32)
        self.register_buffer("multipliers", start)  # time, money

    def _forward(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        hidden, mask = self.net.hidden(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self.net.logits(hidden, mask)}

    def _forward_exploration(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        with torch.no_grad():
            hidden, mask = self.net.hidden(batch[Columns.OBS])
            logits = self.net.logits(hidden, mask)
            actions, log_p = draw(logits, self.generator)
        return {
            Columns.ACTION_DIST_INPUTS: logits,
            Columns.ACTIONS: actions,
            Columns.ACTION_LOGP: log_p,
        }

    def _forward_inference(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        with torch.no_grad():
            hidden, mask = self.net.hidden(batch[Columns.OBS])
            logits = self.net.logits(hidden, mask)
        return {Columns.ACTION_DIST_INPUTS: logits, Columns.ACTIONS: logits.argmax(-1)}

    def _forward_train(self, batch: dict[str, Any], **_: Any) -> dict[str, Any]:
        hidden, mask = self.net.hidden(batch[Columns.OBS])
        return {
            Columns.ACTION_DIST_INPUTS: self.net.logits(hidden, mask),
            Columns.EMBEDDINGS: hidden,
        }

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Shape [B]."""
        if embeddings is None:
            embeddings, _ = self.net.hidden(batch[Columns.OBS])
        return self.net.values(embeddings)


def draw(logits: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """One index per row, and its log-probability."""
    log_p = F.log_softmax(logits, dim=-1)
    index = torch.multinomial(log_p.exp(), 1, generator=generator)
    return index[:, 0], log_p.gather(-1, index)[:, 0]
