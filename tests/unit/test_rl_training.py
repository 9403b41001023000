"""Sampling and learning: exact log-probabilities, every decision counted, rewards of the current
multiplier, seeds."""

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs the extra `rl`")
torch = pytest.importorskip("torch", reason="needs torch")

from ray.rllib.core.columns import Columns  # noqa: E402

from rl.algorithm import algorithm_config  # noqa: E402
from rl.config import parse_config  # noqa: E402
from rl.connector import LagrangianBatch, advantages, step_rewards  # noqa: E402
from rl.env_runner import EXECUTOR, FACTS, PLANNER, SimEnvRunner  # noqa: E402
from rl.learner import InfraLearner  # noqa: E402
from rl.worlds import TrainingWorld  # noqa: E402

POOL = {"name": "t", "pool": "serve_configs/b200.yaml"}
SMALL = {"workload": {"lanes": 8, "sweep_queries": 40, "rates_rpm": [60.0]},
         "ppo": {"batch_queries": 32}}  # fmt: skip


class Loop:
    """A runner and a learner as the algorithm has them, without Ray."""

    def __init__(self, **about) -> None:
        self.config = parse_config({**POOL, **SMALL, **about}, "test")
        torch.manual_seed(self.config.seed)
        rllib = algorithm_config(self.config, TrainingWorld(self.config))
        self.runner = SimEnvRunner(config=rllib, worker_index=0)
        self.learner = InfraLearner(config=rllib, module_spec=rllib.rl_module_spec)
        self.learner.build()
        self.sync()

    def sync(self) -> None:
        self.runner.module.set_state(self.learner.module.get_state())

    def batch(self, episodes):
        return LagrangianBatch(self.config)(
            rl_module=self.learner.module, batch={}, episodes=episodes
        )

    def step(self):
        episodes = self.runner.sample()
        self.learner.update(episodes=episodes)
        self.sync()
        return episodes

    def set_multiplier(self, value: float) -> None:
        self.learner.module[EXECUTOR].unwrapped().multipliers[0] = value


@pytest.fixture(scope="module")
def loop() -> Loop:
    return Loop()


@pytest.fixture(scope="module")
def episodes(loop):
    return loop.runner.sample()


def test_recorded_log_probabilities_are_those_of_the_learner(loop, episodes):
    batch = loop.batch(episodes)
    executor = loop.learner.module[EXECUTOR].unwrapped().net
    hidden, mask = executor.hidden(batch[EXECUTOR][Columns.OBS])
    log_p = executor.logits(hidden, mask).log_softmax(-1)
    again = log_p.gather(-1, batch[EXECUTOR][Columns.ACTIONS].long()[:, None])[:, 0]
    assert torch.allclose(again, batch[EXECUTOR][Columns.ACTION_LOGP], atol=1e-5)
    planner = loop.learner.module[PLANNER].unwrapped().net
    plans = planner(batch[PLANNER][Columns.OBS], batch[PLANNER][Columns.ACTIONS])
    assert torch.allclose(plans.log_p, batch[PLANNER][Columns.ACTION_LOGP], atol=1e-5)


def test_every_decision_reaches_the_learner():
    loop = Loop()
    records = loop.runner.rollout.play(40)
    episodes = [loop.runner._episode(record) for record in records]
    batch = loop.batch(episodes)
    steps = sum(len(record.outcome.answer.steps) for record in records)
    assert len(batch[PLANNER][Columns.OBS]) == len(records) >= 40
    assert len(batch[EXECUTOR][Columns.OBS]) == steps


def test_costs_sum_to_the_latency_over_the_budget_clipped():
    loop = Loop()
    clip = loop.config.reward.cost_clip
    for record in loop.runner.rollout.play(40):
        costs = record.costs(clip)
        start = record.steps[0].elapsed_s / record.outcome.answer.budget_s
        assert costs.time.sum() == pytest.approx(
            min(record.latency_share, clip) - min(start, clip), abs=1e-5
        )
        assert (costs.time >= 0).all()


def test_rewards_are_made_of_the_multiplier_as_it_is_now(loop, episodes):
    whole = {}
    for multiplier in (0.0, 0.5):
        loop.set_multiplier(multiplier)
        whole[multiplier] = loop.batch(episodes)
    loop.set_multiplier(0.2)
    for agent in (PLANNER, EXECUTOR):
        free, paid = (whole[m][agent] for m in (0.0, 0.5))
        difference = free[Columns.REWARDS] - paid[Columns.REWARDS]
        assert torch.allclose(difference, 0.5 * free[FACTS][:, 0], atol=1e-6)
        assert difference.max() > 0.01
    solved = whole[0.0][EXECUTOR][Columns.REWARDS].sum()
    assert solved == whole[0.0][PLANNER][FACTS][:, 4].sum()


def test_solved_is_credited_once_and_the_literal_form_credits_every_step():
    facts = np.array([[0.2, np.nan, 0.1, 0.4, 1, 1], [0.3, np.nan, 0.0, 0.0, 1, 1]], np.float32)
    last = np.array([False, True])
    reward = parse_config(POOL, "test").reward
    assert step_rewards(facts, last, (0.5, 9.0), reward) == pytest.approx([-0.1, 0.85])
    literal = reward.model_copy(update={"credit": "per_step"})
    assert step_rewards(facts, last, (0.5, 9.0), literal) == pytest.approx([0.9, 0.85])
    priced = reward.model_copy(update={"work_idle": 1.0, "work_loaded": 0.5})
    assert step_rewards(facts, last, (0.0, 0.0), priced) == pytest.approx([-0.3, 1.0])
    late = facts.copy()
    late[:, 5] = 0.0
    on_time = reward.model_copy(update={"solved": "on_time"})
    assert step_rewards(late, last, (0.0, 0.0), on_time) == pytest.approx([0.0, 0.0])


def test_advantages_do_not_leak_from_one_query_into_another():
    last = np.array([False, True, True])
    rewards, values = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.25, 0.0])
    assert advantages(rewards, values, last, 1.0, 1.0) == pytest.approx([0.5, 0.75, 5.0])
    assert advantages(rewards, values, last, 0.0, 1.0) == pytest.approx([-0.5, 0.75, 5.0])


def test_a_query_whose_cost_is_no_number_is_left_out_and_a_batch_of_them_is_skipped(loop):
    episodes = loop.runner.sample()
    broken = episodes[0].agent_episodes[PLANNER].extra_model_outputs[FACTS].data
    kept, broken[0, 0] = broken.copy(), np.nan
    assert len(loop.batch(episodes)[PLANNER][Columns.OBS]) == len(episodes) - 1
    before = {k: v.clone() for k, v in loop.learner.module[PLANNER].state_dict().items()}
    loop.learner.update(episodes=episodes[:1])
    after = loop.learner.module[PLANNER].state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    broken[:] = kept


def test_a_seed_gives_the_same_first_iterations_and_another_one_others():
    def first(seed: int):
        loop = Loop(seed=seed)
        for _ in range(2):
            done = loop.step()
        actions = [e.agent_episodes[EXECUTOR].actions.data.tolist() for e in done]
        return actions, loop.learner.module[EXECUTOR].unwrapped().net.action.bias.tolist()

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_learner_state_keeps_multiplier_progress_and_rate():
    loop, other = Loop(), Loop()
    loop.set_multiplier(0.7)
    loop.learner.progress.after_batch(640)
    loop.learner.progress.lr_scale = 0.25
    other.learner.set_state(loop.learner.get_state())
    assert other.learner.module[EXECUTOR].unwrapped().multipliers[0].item() == pytest.approx(0.7)
    assert other.learner.progress.queries == 640
    ((_, optimizer),) = other.learner.get_optimizers_for_module(EXECUTOR)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.25 * 3e-4)
