"""From episodes to a train batch: rewards are made here, of the learner's current multipliers.

Episodes are complete, so nothing is bootstrapped and there are no rows but decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.columns import Columns
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rl.config import PlannerConfig, PpoConfig, RewardConfig, TrainConfig
from rl.env_runner import EXECUTOR, FACTS, PLANNER

Floats = npt.NDArray[np.float32]

TASK = "task"
RETURNS = "returns"
_LEAST_SPREAD = 1e-4


def prices(facts: Floats, multipliers: tuple[float, float], reward: RewardConfig) -> Floats:
    """What each row pays, [rows]: time and money at the multipliers, work at its price. ``facts``
    are [rows, columns] of ``rl.env_runner``; money that is NaN has no budget and costs nothing."""
    time, money, work, loaded = facts[:, 0], np.nan_to_num(facts[:, 1]), facts[:, 2], facts[:, 3]
    of_work = reward.work_idle * work + reward.work_loaded * loaded
    paid: Floats = multipliers[0] * time + multipliers[1] * money + of_work
    return paid


def credit(facts: Floats, reward: RewardConfig) -> Floats:
    """``1[solved]`` per row, 0 for a late answer where only those on time count."""
    solved: Floats = facts[:, 4] * facts[:, 5] if reward.solved == "on_time" else facts[:, 4]
    return solved


def step_rewards(
    facts: Floats, last: npt.NDArray[np.bool_], multipliers: tuple[float, float],
    reward: RewardConfig,
) -> Floats:  # fmt: skip
    """Rewards of the executor: ``solved`` on the last decision of a query, or on each."""
    solved = credit(facts, reward)
    if reward.credit == "per_query":
        solved = np.where(last, solved, np.float32(0.0))
    return solved - prices(facts, multipliers, reward)


def advantages(
    rewards: Floats, values: Floats, last: npt.NDArray[np.bool_], gamma: float, decay: float
) -> Floats:
    """Generalised advantage estimates, [rows], over sequences that end where ``last`` is set."""
    found = np.zeros_like(rewards)
    ahead = after = 0.0
    for row in range(len(rewards) - 1, -1, -1):
        if last[row]:
            ahead = after = 0.0
        ahead = rewards[row] + gamma * after - values[row] + gamma * decay * ahead
        found[row], after = ahead, values[row]
    return found


def normalised(values: Floats) -> Floats:
    """Mean 0, and spread 1 where there is any."""
    spread = max(float(values.std()), _LEAST_SPREAD)
    return ((values - values.mean()) / spread).astype(np.float32)


class LagrangianBatch(ConnectorV2):
    """The whole learner pipeline: columns of both agents, rewards, advantages, value targets."""

    def __init__(self, train: TrainConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reward: RewardConfig = train.reward
        self._ppo: PpoConfig = train.ppo
        self._planner: PlannerConfig = train.planner

    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: Sequence[MultiAgentEpisode],
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Queries whose facts are not numbers are left out."""
        whole = [e for e in episodes if is_sound(e)]
        if not whole:
            return batch
        module = rl_module[EXECUTOR].unwrapped()
        multipliers = tuple(module.multipliers.tolist())
        batch[EXECUTOR] = self._executor(whole, module, multipliers)
        batch[PLANNER] = self._planner_rows(whole, rl_module[PLANNER].unwrapped(), multipliers)
        return batch

    def _executor(
        self, episodes: Sequence[MultiAgentEpisode], module: Any, multipliers: Any
    ) -> dict[str, Any]:
        rows = _columns(episodes, EXECUTOR)
        lengths = [len(e.agent_episodes[EXECUTOR]) for e in episodes]
        last = np.zeros(sum(lengths), dtype=bool)
        last[np.cumsum(lengths) - 1] = True
        rewards = step_rewards(rows[FACTS], last, multipliers, self._reward)
        with torch.no_grad():
            found = module.compute_values({Columns.OBS: torch.from_numpy(rows[Columns.OBS])})
        values = found.numpy()
        gamma = 1.0 if self._reward.credit == "per_query" else 0.0
        gained = advantages(rewards, values, last, gamma, self._ppo.gae_lambda)
        return _tensors(
            rows,
            rewards=rewards,
            advantages=normalised(gained),
            value_targets=(gained + values).astype(np.float32),
        )

    def _planner_rows(
        self, episodes: Sequence[MultiAgentEpisode], module: Any, multipliers: Any
    ) -> dict[str, Any]:
        """Utilities (eq. 6), normalised over the whole batch."""
        rows = _columns(episodes, PLANNER)
        facts = rows[FACTS]
        utility = credit(facts, self._reward) - prices(facts, multipliers, self._reward)
        gained = utility
        if self._planner.baseline == "value":
            with torch.no_grad():
                seen, done = (torch.from_numpy(rows[c]) for c in (Columns.OBS, Columns.ACTIONS))
                gained = utility - module.net(seen, done).values.numpy()
        return _tensors(
            rows,
            rewards=utility,
            advantages=normalised(gained),
            value_targets=utility.astype(np.float32),
            **{TASK: facts[:, 6].astype(np.int64)},
        )


def is_sound(episode: MultiAgentEpisode) -> bool:
    """Whether every fact is a finite number; of money a NaN says that there is no budget."""
    for agent in (PLANNER, EXECUTOR):
        facts = _facts(episode, agent)
        if not np.isfinite(np.delete(facts, 1, axis=1)).all() or np.isinf(facts[:, 1]).any():
            return False
    return True


def _facts(episode: MultiAgentEpisode, agent: str) -> Floats:
    found: Floats = episode.agent_episodes[agent].extra_model_outputs[FACTS].data
    return found


def _columns(episodes: Sequence[MultiAgentEpisode], agent: str) -> dict[str, Any]:
    singles = [e.agent_episodes[agent] for e in episodes]
    outputs = (Columns.ACTION_LOGP, FACTS)
    rows = {
        Columns.OBS: np.concatenate([s.observations.data[:-1] for s in singles]),
        Columns.ACTIONS: np.concatenate([s.actions.data for s in singles]),
    }
    rows |= {
        name: np.concatenate([s.extra_model_outputs[name].data for s in singles])
        for name in outputs
    }
    return rows


def _tensors(rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {Columns.REWARDS: more.pop("rewards"), Columns.ADVANTAGES: more.pop("advantages"),
             Columns.VALUE_TARGETS: more.pop("value_targets"), **more}  # fmt: skip
    together = {**rows, **named}
    return {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in together.items()}
