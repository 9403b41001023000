"""The learner: PPO-clip for the executor (eq. 5), normalised REINFORCE for the planner (eq. 6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from torch import Tensor
from torch.nn import functional as F

from rl.config import PlannerConfig, PpoConfig, TrainConfig, parse_config
from rl.connector import TASK, is_sound
from rl.env_runner import EXECUTOR, PLANNER
from rl.progress import Progress, progress_from_json

PROGRESS = "progress"


class InfraLearner(PPOTorchLearner):
    """``config.learner_config_dict`` holds ``train`` (a ``TrainConfig`` in plain form) and
    ``epoch_queries``. ``progress`` is saved with the optimizers."""

    progress: Progress

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return []  # the planner has no value function

    def build(self) -> None:
        torch.set_num_threads(1)
        about = self.config.learner_config_dict
        self.train_config: TrainConfig = parse_config(about["train"], "learner_config_dict")
        self.progress = Progress(about["epoch_queries"])
        super().build()

    # --- batches -----------------------------------------------------------------------------

    def _create_iterator_if_necessary(
        self, *, training_data: Any, **_: Any
    ) -> Iterator[MultiAgentBatch]:
        """Minibatches of the executor, ``mini_epochs`` times over; the planner's batch stays whole,
        ``planner.updates`` times. RLlib's own iterator would repeat the planner's rows until they
        are as many as the executor's."""
        batch = self._make_batch_if_necessary(training_data=training_data)
        steps, plans = batch.policy_batches[EXECUTOR], batch.policy_batches[PLANNER]
        ppo = self.train_config.ppo
        left = self.train_config.planner.updates
        for _ in range(ppo.mini_epochs):
            order = torch.randperm(len(steps))
            for rows in order.split(ppo.minibatch):
                part = {EXECUTOR: SampleBatch({k: v[rows] for k, v in steps.items()})}
                if left > 0:
                    part[PLANNER] = plans
                    left -= 1
                yield MultiAgentBatch(part, len(rows))

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """One batch; one in which no query finished is not learned from, but counted."""
        episodes = kwargs.get("episodes")
        if episodes is None and kwargs.get("training_data") is not None:
            episodes = kwargs["training_data"].episodes
        if episodes is not None and not any(map(is_sound, episodes)):
            self.metrics.log_value("skipped_batches", 1, reduce="lifetime_sum")
            return self.metrics.reduce()
        return super().update(*args, **kwargs)

    # --- losses ------------------------------------------------------------------------------

    def compute_loss_for_module(
        self, *, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Tensor:
        if module_id == PLANNER:
            return self._planner_loss(batch, fwd_out)
        return self._executor_loss(batch, fwd_out)

    def _executor_loss(self, batch: dict[str, Any], out: dict[str, Any]) -> Tensor:
        """Equation 5."""
        ppo = self.train_config.ppo
        log_p = F.log_softmax(out[Columns.ACTION_DIST_INPUTS], dim=-1)
        chosen = log_p.gather(-1, batch[Columns.ACTIONS].long()[:, None])[:, 0]
        gain = surrogate(chosen, batch[Columns.ACTION_LOGP], batch[Columns.ADVANTAGES], ppo.clip)
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        module = self.module[EXECUTOR].unwrapped()
        values = module.compute_values(batch, embeddings=out[Columns.EMBEDDINGS])
        value_loss = F.mse_loss(values, batch[Columns.VALUE_TARGETS])
        weight = self._entropy_weight(ppo)
        loss = -gain + ppo.value_weight * value_loss - weight * entropy
        self._note(EXECUTOR, gain=gain, entropy=entropy, value_loss=value_loss)
        return loss

    def _planner_loss(self, batch: dict[str, Any], out: dict[str, Any]) -> Tensor:
        """Equation 6, with the ratio to the stored log-probability clipped: a query may have been
        planned some batches ago."""
        settings = self.train_config.planner
        gain = surrogate(
            out[Columns.ACTION_LOGP],
            batch[Columns.ACTION_LOGP],
            batch[Columns.ADVANTAGES],
            settings.clip,
        )
        task = F.cross_entropy(out["task_logits"], batch[TASK])
        vae, entropy = out["vae"].mean(), out["entropy"].mean()
        loss = -gain + settings.task_weight * task + settings.vae_weight * vae
        loss = loss - self._entropy_weight(settings) * entropy
        if settings.baseline == "value":
            loss = loss + F.mse_loss(out["values"], batch[Columns.VALUE_TARGETS])
        reward = batch[Columns.REWARDS].mean()
        self._note(PLANNER, reward=reward, gain=gain, entropy=entropy, task_loss=task, vae_loss=vae)
        return loss

    def _entropy_weight(self, about: PpoConfig | PlannerConfig) -> float:
        return self.progress.entropy(about.entropy, about.entropy_final, self.train_config.stop)

    def _note(self, module_id: str, **values: Tensor) -> None:
        plain = {name: value.detach() for name, value in values.items()}
        self.metrics.log_dict(plain, key=module_id, window=1)

    # --- updates -----------------------------------------------------------------------------

    def compute_gradients(self, loss_per_module: dict[str, Any], **kwargs: Any) -> dict[Any, Any]:
        """Without those of a module that is not in the minibatch."""
        found = super().compute_gradients(loss_per_module, **kwargs)
        return {name: grad for name, grad in found.items() if grad is not None}

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """RLlib would set the rate back to the config's here; ``progress`` says what it is."""
        self.apply_rates()

    def apply_rates(self) -> None:
        """The learning rates that ``progress`` says."""
        rate = self.train_config.ppo.lr * self.progress.lr_scale
        factors = {EXECUTOR: 1.0, PLANNER: self.train_config.planner.lr_factor}
        for module_id, factor in factors.items():
            for _, optimizer in self.get_optimizers_for_module(module_id):
                self._set_optimizer_lr(optimizer, rate * factor)

    # --- state -------------------------------------------------------------------------------

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_state(*args, **kwargs), PROGRESS: self.progress.as_json()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state({k: v for k, v in state.items() if k != PROGRESS})
        if PROGRESS in state:
            self.progress = progress_from_json(state[PROGRESS])
            self.apply_rates()


def surrogate(log_p: Tensor, old: Tensor, gained: Tensor, clip: float) -> Tensor:
    """The mean of ``min(rho A, clip(rho) A)``; all shapes [rows]."""
    ratio = (log_p - old).exp()
    return torch.min(ratio * gained, ratio.clamp(1 - clip, 1 + clip) * gained).mean()
