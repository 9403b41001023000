"""The RLlib algorithm of a training run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rl.callback import TrainingCallback
from rl.config import TrainConfig
from rl.connector import LagrangianBatch
from rl.env_runner import EXECUTOR, PLANNER, SimEnvRunner, spaces_of
from rl.executor import ExecutorModule, ExecutorSizes
from rl.learner import InfraLearner
from rl.planner import PlannerModule, PlannerSizes
from rl.spaces import Layout
from rl.worlds import TrainingWorld


def module_spec(config: TrainConfig, layout: Layout) -> MultiRLModuleSpec:
    """Planner and executor for a layout."""
    spaces, network = spaces_of(layout), config.network
    about = layout.as_json()
    planner = PlannerSizes(film=network.film, question=network.question)
    executor = ExecutorSizes(question=network.question)
    # Without prices or a budget of money the second multiplier stays at 0 (appendix C).
    money = config.lagrange.initial if config.workload.budget_usd is not None else 0.0
    start = (config.lagrange.initial, money)
    return MultiRLModuleSpec(
        rl_module_specs={
            PLANNER: RLModuleSpec(
                PlannerModule,
                observation_space=spaces[PLANNER][0],
                action_space=spaces[PLANNER][1],
                model_config={"layout": about, "sizes": asdict(planner)},
            ),
            EXECUTOR: RLModuleSpec(
                ExecutorModule,
                observation_space=spaces[EXECUTOR][0],
                action_space=spaces[EXECUTOR][1],
                model_config={
                    "layout": about,
                    "sizes": asdict(executor),
                    "multipliers": list(start),
                },
            ),
        }
    )


def agent_to_module(agent_id: Any, *_: Any, **__: Any) -> str:
    return str(agent_id)


def algorithm_config(
    config: TrainConfig, world: TrainingWorld | None = None, out: Path | None = None
) -> PPOConfig:
    """Everything RLlib needs; ``out`` is where the callback keeps the best policy.

    What is ours goes through ``env_config`` and ``learner_config_dict``: attributes of a subclass
    would vanish in Tune.
    """
    world = world or TrainingWorld(config)
    plain = config.plain()
    ppo = PPOConfig().framework("torch")
    ppo.api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
    ppo.environment(
        env=None,
        env_config={"train": plain, "out": None if out is None else str(out.resolve())},
        disable_env_checking=True,
    )
    ppo.multi_agent(
        policies={PLANNER, EXECUTOR},
        policy_mapping_fn=agent_to_module,
        policies_to_train=[PLANNER, EXECUTOR],
        count_steps_by="env_steps",
    )
    ppo.rl_module(rl_module_spec=module_spec(config, world.layout))
    ppo.env_runners(
        env_runner_cls=SimEnvRunner,
        num_env_runners=config.env_runners,
        batch_mode="complete_episodes",
    )
    ppo.training(
        lr=config.ppo.lr,
        gamma=1.0,
        grad_clip=config.ppo.grad_clip,
        num_epochs=config.ppo.mini_epochs,
        minibatch_size=1,  # the learner makes its own minibatches
        train_batch_size_per_learner=1,  # one sample of a runner is a batch
        use_kl_loss=False,
    )
    ppo.learners(
        num_learners=0,
        learner_class=InfraLearner,
        learner_config_dict={"train": plain, "epoch_queries": world.num_train},
        learner_connector=lambda *_: LagrangianBatch(config),
        add_default_connectors_to_learner_pipeline=False,
    )
    ppo.callbacks(TrainingCallback)
    ppo.debugging(seed=config.seed, log_level="ERROR")
    ppo.reporting(
        min_time_s_per_iteration=0,
        min_sample_timesteps_per_iteration=0,
        metrics_num_episodes_for_smoothing=1,
    )
    return ppo
