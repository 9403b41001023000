"""RLlib's env runner over simulated worlds: no environment, many lanes, one episode per query.

An episode has two agents, ``planner`` with one step and ``executor`` with one per decision. Steps
carry facts, never rewards: the learner makes these from its own multipliers, which a runner's copy
lags behind.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.callbacks.utils import make_callback
from ray.rllib.core.columns import Columns
from ray.rllib.env import INPUT_ENV_SINGLE_SPACES, INPUT_ENV_SPACES
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.metrics import (
    NUM_AGENT_STEPS_SAMPLED,
    NUM_AGENT_STEPS_SAMPLED_LIFETIME,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
    SAMPLE_TIMER,
    WEIGHTS_SEQ_NO,
)

from rl.config import TrainConfig, parse_config
from rl.lanes import SimLanes, TrainingSweeps
from rl.rollout import Choose, Record, Rollout
from rl.spaces import Layout
from rl.statistics import batch_sums
from rl.worlds import TrainingWorld

PLANNER, EXECUTOR = "planner", "executor"
FACTS = "facts"
"""Column of both agents. Executor: time, money, work, loaded work, solved, on time. Planner: time,
money (NaN without a budget), work, loaded work, solved, on time, task, latency share, unclipped."""
EXECUTOR_FACTS, PLANNER_FACTS = 6, 8


def spaces_of(layout: Layout) -> dict[str, Any]:
    """Observation and action spaces of both agents, as RLlib wants them."""
    counts = [layout.planner_masks[2]] * layout.max_agents
    seen = {
        PLANNER: gym.spaces.Box(-np.inf, np.inf, (layout.planner_floats,), np.float32),
        EXECUTOR: gym.spaces.Box(-np.inf, np.inf, (layout.executor_floats,), np.float32),
    }
    done = {
        PLANNER: gym.spaces.MultiDiscrete([*layout.planner_masks[:2], *counts]),
        EXECUTOR: gym.spaces.Discrete(layout.num_actions),
    }
    both = gym.spaces.Dict(seen), gym.spaces.Dict(done)
    each = {name: (seen[name], done[name]) for name in seen}
    return {INPUT_ENV_SPACES: both, INPUT_ENV_SINGLE_SPACES: both, **each}


class SimEnvRunner(MultiAgentEnvRunner):
    """Samples complete episodes from simulations that go on from one sample to the next.

    ``env_config["train"]`` is a ``TrainConfig`` in plain form.
    """

    def __init__(self, config: Any, **kwargs: Any) -> None:
        train = parse_config(config.env_config["train"], "env_config")
        torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
        gc.set_threshold(100_000, 20, 50)  # records hold no cycles; looking for them costs a tenth
        self.train_config: TrainConfig = train
        self.world = TrainingWorld(train)
        kwargs["spaces"] = spaces_of(self.world.layout)
        super().__init__(config=config, **kwargs)
        self._begin(0)

    def _begin(self, restarts: int) -> None:
        """New lanes; ``restarts`` says how often this run had to begin anew."""
        self._restarts = restarts
        key = f"{self.config.seed}:{self.worker_index}:{restarts}"
        self._generator = torch.Generator().manual_seed(_number(key))
        workload = self.train_config.workload
        self.sweeps = TrainingSweeps(
            self.world.pool, self.world.calibration, workload, key, exclude=self.world.held_out
        )
        lanes = SimLanes(workload.lanes, self.sweeps, self.world.vectors)
        self.rollout = Rollout(
            lanes, self.world.encoder, self._chooser(PLANNER), self._chooser(EXECUTOR)
        )

    def make_env(self) -> None:
        self.env, self.num_envs = None, 0

    def get_spaces(self) -> dict[str, Any]:
        return self.spaces  # type: ignore[no-any-return]

    def assert_healthy(self) -> None:
        assert self.module is not None

    def stop(self) -> None:
        """Nothing runs outside this object."""

    def _chooser(self, name: str) -> Choose:
        def choose(seen: Any) -> Any:
            module = self.module[name]
            module.generator = self._generator
            out = module.forward_exploration({Columns.OBS: torch.from_numpy(seen)})
            return out[Columns.ACTIONS].numpy(), out[Columns.ACTION_LOGP].numpy()

        return choose

    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[MultiAgentEpisode]:
        """One episode per query: the next that end, a batch's worth, or ``num_episodes``."""
        runners = max(1, self.config.num_env_runners)
        wanted = num_episodes or -(-self.train_config.ppo.batch_queries // runners)
        self.metrics.log_value(WEIGHTS_SEQ_NO, self._weights_seq_no, window=1)
        began_s, before = time.perf_counter(), self.rollout.num_decisions
        with self.metrics.log_time(SAMPLE_TIMER):
            records = self.rollout.play(wanted)
            episodes = [self._episode(record) for record in records]
        self._log(records, self.rollout.num_decisions - before, time.perf_counter() - began_s)
        make_callback(
            "on_sample_end",
            callbacks_objects=self._callbacks,
            callbacks_functions=self.config.callbacks_on_sample_end,
            kwargs={"env_runner": self, "metrics_logger": self.metrics, "samples": episodes},
        )
        return episodes

    def _episode(self, record: Record) -> MultiAgentEpisode:
        episode = MultiAgentEpisode(agent_to_module_mapping_fn=self.config.policy_mapping_fn)
        solved, on_time = float(record.outcome.solved), float(record.on_time)
        clip = self.train_config.reward.cost_clip
        costs = record.costs(clip)
        each = [costs.time, costs.money, costs.work, costs.loaded]
        facts = np.empty((len(record.steps), EXECUTOR_FACTS), dtype=np.float32)
        for column, values in enumerate(each):
            facts[:, column] = values
        facts[:, 4:] = solved, on_time
        share = record.latency_share
        paid = record.money_share
        money = min(paid, clip) if paid == paid else np.nan
        whole = [min(share, clip), money, costs.work.sum(), costs.loaded.sum(), solved, on_time]
        of_plan = np.array([[*whole, record.task_index, share]], dtype=np.float32)
        for agent, choices, rows in ((PLANNER, [record.plan], of_plan),
                                     (EXECUTOR, record.steps, facts)):  # fmt: skip
            seen = [choice.seen for choice in choices]
            single = SingleAgentEpisode(
                agent_id=agent,
                module_id=agent,
                multi_agent_episode_id=episode.id_,
                observations=[*seen, seen[-1]],
                actions=[choice.action for choice in choices],
                rewards=[0.0] * len(choices),
                infos=[{}] * (len(choices) + 1),
                extra_model_outputs={
                    Columns.ACTION_LOGP: [choice.log_p for choice in choices],
                    FACTS: list(rows),
                },
                terminated=True,
                len_lookback_buffer=0,
            )
            episode.agent_episodes[agent] = single.to_numpy()
        episode.env_t = len(record.steps) + 1
        episode.is_terminated = True
        return episode

    def _log(self, records: list[Record], decisions: int, took_s: float) -> None:
        metrics = self.metrics
        for key, value in batch_sums(records, self.world.layout).items():
            metrics.log_value(("batch", *key), float(value), reduce="sum")
        metrics.log_value(("batch", "decisions"), decisions, reduce="sum")
        metrics.log_value(("batch", "sample_s"), took_s, reduce="sum")
        metrics.log_value(NUM_ENV_STEPS_SAMPLED, decisions, reduce="sum")
        metrics.log_value(NUM_ENV_STEPS_SAMPLED_LIFETIME, decisions, reduce="lifetime_sum")
        metrics.log_value(NUM_EPISODES, len(records), reduce="sum")
        metrics.log_value(NUM_EPISODES_LIFETIME, len(records), reduce="lifetime_sum")
        steps = {PLANNER: len(records), EXECUTOR: sum(len(r.steps) for r in records)}
        for name, number in steps.items():
            metrics.log_value((NUM_AGENT_STEPS_SAMPLED, name), number, reduce="sum")
            metrics.log_value((NUM_MODULE_STEPS_SAMPLED, name), number, reduce="sum")
            metrics.log_value(
                (NUM_AGENT_STEPS_SAMPLED_LIFETIME, name), number, reduce="lifetime_sum"
            )
            metrics.log_value(
                (NUM_MODULE_STEPS_SAMPLED_LIFETIME, name), number, reduce="lifetime_sum"
            )

    def get_metrics(self) -> Any:
        return self.metrics.reduce()

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state(*args, **kwargs)
        return {**state, "restarts": self._restarts}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restored lanes begin new sweeps: a simulation in flight is not saved."""
        super().set_state({k: v for k, v in state.items() if k != "restarts"})
        if (restarts := state.get("restarts")) is not None:
            self._begin(restarts + 1)


def _number(text: str) -> int:
    from random import Random

    return Random(text).getrandbits(62)
