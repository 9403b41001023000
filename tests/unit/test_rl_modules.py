"""Planner and executor: sizes, masks, log-probabilities that can be computed again."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs the extra `rl`")
torch = pytest.importorskip("torch", reason="needs torch")

from rl.executor import ExecutorNet, ExecutorSizes, draw  # noqa: E402
from rl.planner import PlannerNet, PlannerSizes  # noqa: E402
from rl.pools import training_pool  # noqa: E402
from rl.spaces import layout_for  # noqa: E402

CONFIG = training_pool(Path("serve_configs/b200.yaml"))
LAYOUTS = [
    layout_for(CONFIG, age_and_mask=False, progress=False),
    layout_for(CONFIG),
    layout_for(CONFIG, adaptive=True),
    layout_for(CONFIG.model_copy(update={"models": CONFIG.models[:2]})),
]


def _name(layout) -> str:
    parts = ["stop"] * layout.stop + ["progress"] * layout.progress
    return "-".join([f"{len(layout.models)}_models", *parts])


def observations(floats: int, masks: int, rows: int = 64) -> "torch.Tensor":
    """Random features; every mask has something open."""
    generator = torch.Generator().manual_seed(1)
    obs = torch.randn(rows, floats, generator=generator)
    mask = (torch.rand(rows, masks, generator=generator) < 0.6).float()
    obs[:, -masks:] = mask
    return obs


def executor_case(layout):
    obs = observations(layout.executor_floats, layout.num_actions)
    obs[:, -layout.num_actions] = 1.0
    return ExecutorNet(layout, ExecutorSizes()), obs


def planner_case(layout):
    obs = observations(layout.planner_floats, sum(layout.planner_masks))
    start = layout.planner_floats - sum(layout.planner_masks)
    for length in layout.planner_masks:
        obs[:, start] = 1.0
        start += length
    return PlannerNet(layout, PlannerSizes()), obs


@pytest.mark.parametrize("layout", LAYOUTS, ids=_name)
def test_an_executor_never_draws_what_is_masked_and_its_log_p_is_exact(layout):
    net, obs = executor_case(layout)
    hidden, mask = net.hidden(obs)
    actions, log_p = draw(net.logits(hidden, mask), torch.Generator().manual_seed(2))
    assert (mask.gather(1, actions[:, None]) == 1).all()
    logits = net.logits(*net.hidden(obs)).detach().double().numpy()
    wanted = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    wanted -= logits.max(1, keepdims=True)
    assert np.allclose(wanted[np.arange(64), actions], log_p.detach(), atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS, ids=_name)
def test_a_plan_is_within_its_masks_and_its_log_p_can_be_computed_again(layout):
    net, obs = planner_case(layout)
    drawn = net(obs, generator=torch.Generator().manual_seed(3))
    again = net(obs, drawn.actions)
    assert torch.allclose(drawn.log_p, again.log_p, atol=1e-5)
    topology, count, role = obs.split(net.splits, dim=-1)[2:]
    assert (topology.gather(1, drawn.actions[:, :1]) == 1).all()
    assert (count.gather(1, drawn.actions[:, 1:2]) == 1).all()
    assert (role.gather(1, drawn.actions[:, 2:]) == 1).all()


def test_roles_beyond_the_number_of_agents_count_for_nothing():
    net, obs = planner_case(LAYOUTS[1])
    actions = net(obs, generator=torch.Generator().manual_seed(3)).actions
    alone = actions.clone()
    alone[:, 1] = 0
    other = alone.clone()
    other[:, 3:] = actions[:, 3:].flip(0)
    assert torch.allclose(net(obs, alone).log_p, net(obs, other).log_p)
    other[:, 2] = actions[:, 2].flip(0)
    assert not torch.allclose(net(obs, alone).log_p, net(obs, other).log_p)


def test_the_noise_of_the_vae_never_reaches_the_policy():
    net, obs = planner_case(LAYOUTS[1])
    actions = net(obs, greedy=True).actions
    losses = [net.vae_loss(net(obs, actions)) for _ in range(2)]
    assert not torch.equal(*losses)
    assert torch.equal(net(obs, actions).log_p, net(obs, actions).log_p)


def test_the_plan_follows_load_through_film_and_not_without():
    for film in (True, False):
        net = PlannerNet(LAYOUTS[1], PlannerSizes(film=film))
        _, obs = planner_case(LAYOUTS[1])
        other = obs.clone()
        other[:, 384 : 384 + LAYOUTS[1].summary_floats] += 1.0
        actions = net(obs, greedy=True).actions
        assert torch.equal(net(obs, actions).log_p, net(other, actions).log_p) is not film


def test_the_sizes_are_of_the_paper():
    layout = LAYOUTS[0]
    executor, planner = ExecutorNet(layout, ExecutorSizes()), PlannerNet(layout, PlannerSizes())
    assert executor.semantic.weight.shape == (128, 768)
    assert executor.resource.weight.shape == (64, 32)
    assert executor.merge.weight.shape == (128, 192)
    assert executor.action.weight.shape == (15, 128)
    total = sum(p.numel() for net in (executor, planner) for p in net.parameters())
    assert 0.9 * 471_000 < total < 1.1 * 471_000
