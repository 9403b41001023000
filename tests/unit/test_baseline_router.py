"""MasRouter's cascade: its arithmetic, its bounds, its training, and what serves it."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest

from runtime.config import AppConfig
from runtime.errors import ConfigError
from runtime.policies.masrouter_net import (
    LATENT_DIM,
    MAX_AGENTS,
    SHAPES,
    CascadeNet,
    load,
)
from runtime.policy import make_policy

MODES = ("IO", "CoT", "Chain", "FullConnected", "Debate", "Reflection")
ROLES = (("math", "MathSolver"), ("math", "Scientist"), ("code", "BugFixer"))
SIZES = {"query": 384, "tasks": 2, "modes": 6, "roles": 3, "models": 5}
ABOUT = {
    "format": 1,
    "embedding": "minilm",
    "tasks": ["math", "code"],
    "modes": MODES,
    "roles": ROLES,
    "models": ["m0", "m1", "m2", "m3", "m4"],
}


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {name: [SIZES.get(s, s) for s in shape] for name, shape in SHAPES.items()}
    made = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name in ("task_items", "role_items", "model_items"):
        made[name] /= np.linalg.norm(made[name], axis=1, keepdims=True)
    return made


def net(**changes: np.ndarray) -> CascadeNet:
    return CascadeNet(
        {**tensors(), **changes}, ("math", "code"), MODES, ROLES, tuple(ABOUT["models"]), "minilm"
    )


def query(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=384).astype(np.float32)


# --- sharpness and counts --------------------------------------------------------------------


def test_no_model_of_five_gets_more_than_its_cosines_allow() -> None:
    """The favourite at cosine 1 and all others at -1: e / (e + 4 / e) = 0.649."""
    towards = np.zeros((5, LATENT_DIM), dtype=np.float32)
    towards[:, 0] = [1, -1, -1, -1, -1]
    weight = np.zeros((LATENT_DIM, 3 * LATENT_DIM), dtype=np.float32)
    bias = np.zeros(LATENT_DIM, dtype=np.float32)
    bias[0] = 1000.0
    sharp = net(model_items=towards, **{"model_context.weight": weight, "model_context.bias": bias})
    shares = sharp.model_probabilities(sharp.latent(query()), 0, np.zeros(LATENT_DIM))
    assert shares[0] == pytest.approx(math.e / (math.e + 4 / math.e), abs=1e-5)
    assert shares[0] < 0.65


@pytest.mark.parametrize("seed", range(5))
def test_every_head_is_a_distribution_within_its_bound(seed: int) -> None:
    cascade, latent = net(), net().latent(query(seed))
    zero = np.zeros(LATENT_DIM, dtype=np.float32)
    for shares, temperature in (
        (cascade.task_probabilities(query(seed)), 0.5),
        (cascade.mode_probabilities(latent), 0.8),
        (cascade.role_probabilities(latent, 1, zero), 0.5),
        (cascade.model_probabilities(latent, 1, zero), 1.0),
    ):
        assert shares.sum() == pytest.approx(1.0, abs=1e-5)
        high, low = math.exp(1 / temperature), math.exp(-1 / temperature)
        assert shares.max() <= high / (high + (len(shares) - 1) * low) + 1e-5


@pytest.mark.parametrize(
    ("gates", "agents"),
    [
        ([-20] * 6, 1),
        ([20] * 6, 6),
        ([0] * 6, 3),
        ([20, 20, 0.5, -20, -20, -20], 3),
        ([20, 20, -0.5, -20, -20, -20], 2),
    ],
)
def test_the_number_of_agents_is_the_rounded_sum_of_six_sigmoids(
    gates: list[float], agents: int
) -> None:
    weight = np.zeros((MAX_AGENTS, LATENT_DIM), dtype=np.float32)
    bias = np.array(gates, dtype=np.float32)
    cascade = net(**{"count.weight": weight, "count.bias": bias})
    assert cascade.num_agents(cascade.latent(query())) == agents


def test_samples_keep_to_what_is_open_and_follow_the_probabilities() -> None:
    cascade, latent = net(), net().latent(query())
    chosen = [
        cascade.sample(query(), modes=[0, 2], roles=[0, 1], most=6, rng=Random(i))
        for i in range(2000)
    ]
    assert {c.mode for c in chosen} == {0, 2}
    assert {role for c in chosen for role in c.roles} == {0, 1}
    assert {len(c.roles) for c in chosen} == {cascade.num_agents(latent)}
    shares = cascade.mode_probabilities(latent)
    share = Counter(c.mode for c in chosen)[0] / 2000
    assert share == pytest.approx(shares[0] / (shares[0] + shares[2]), abs=0.04)


def test_no_more_agents_than_allowed() -> None:
    bias = np.full(MAX_AGENTS, 20.0, dtype=np.float32)
    chosen = net(**{"count.bias": bias * 100}).sample(
        query() * 0, modes=[0], roles=[0], most=2, rng=Random(0)
    )
    assert len(chosen.models) == 2


# --- the artefact ----------------------------------------------------------------------------


def write(folder: Path, made: dict[str, np.ndarray], **changes: object) -> Path:
    from safetensors.numpy import save_file

    path = folder / "router.safetensors"
    save_file(made, path)
    path.with_suffix(".json").write_text(json.dumps({**ABOUT, **changes}))
    return path


def test_an_artefact_comes_back_as_it_was(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, tensors()))
    assert np.allclose(loaded.mode_probabilities(loaded.latent(query())),
                       net().mode_probabilities(net().latent(query())))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("count.bias", np.zeros(5, dtype=np.float32), "count.bias is"),
        ("model_items", np.zeros((4, 64), dtype=np.float32), "model_items is"),
        ("count.bias", np.full(6, np.nan, dtype=np.float32), "not finite"),
    ],
)
def test_a_wrong_tensor_is_refused(tmp_path: Path, name: str, value: np.ndarray, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(write(tmp_path, {**tensors(), name: value}))


def test_a_missing_tensor_another_format_and_a_truncated_file_are_refused(tmp_path: Path) -> None:
    short = tensors()
    del short["role_items"]
    with pytest.raises(ConfigError, match="lacks role_items"):
        load(write(tmp_path, short))
    with pytest.raises(ConfigError, match="format"):
        load(write(tmp_path, tensors(), format=7))
    path = write(tmp_path, tensors())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot read"):
        load(path)
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "none.safetensors")


def test_an_artefact_of_another_pool_is_refused(config: AppConfig, tmp_path: Path) -> None:
    path = write(tmp_path, tensors())
    settings = config.policy.model_copy(
        update={"name": "masrouter", "options": {"artefact": str(path)}}
    )
    with pytest.raises(ConfigError, match="for the pool"):
        make_policy(config.model_copy(update={"policy": settings}))


# --- training --------------------------------------------------------------------------------


def module(seed: int = 0):
    torch = pytest.importorskip("torch")
    from rl.baselines.masrouter import ItemVectors, MasRouterModule

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    items = ItemVectors(
        tasks=torch.randn(2, 384),
        modes=torch.randn(6, 384),
        roles=torch.randn(3, 384),
        models=torch.randn(5, 384),
        role_tasks=torch.tensor([0, 0, 1]),
    )
    return MasRouterModule(items)


def served(router) -> CascadeNet:
    from rl.baselines.masrouter import tensors_to_serve

    made = {name: tensor.numpy() for name, tensor in tensors_to_serve(router).items()}
    return CascadeNet(made, ("math", "code"), MODES, ROLES, tuple(ABOUT["models"]), "minilm")


def test_what_is_served_has_the_probabilities_of_the_module() -> None:
    torch = pytest.importorskip("torch")
    router = module()
    cascade, x = served(router), query()
    batch = torch.from_numpy(x)[None]
    with torch.no_grad():
        latent, _ = router.query_vae(batch)
        modes, _ = router.mode_vae(router.items.modes)
        history = torch.nn.functional.normalize(router.role_item(router.items.roles), dim=-1)
        history = history[:1] + history[1:2]
        heads = [
            router.task_logits(batch),
            router.mode_logits(latent, modes),
            router.role_logits(latent, modes[2:3], history),
            router.model_logits(latent, modes[2:3], history),
        ]
        expected = [head.softmax(-1)[0].numpy() for head in heads]
        gates = torch.sigmoid(router.count(latent)).sum().item()
    mine, past = cascade.latent(x), history[0].numpy()
    got = [
        cascade.task_probabilities(x),
        cascade.mode_probabilities(mine),
        cascade.role_probabilities(mine, 2, past),
        cascade.model_probabilities(mine, 2, past),
    ]
    for ours, theirs in zip(got, expected, strict=True):
        assert np.allclose(ours, theirs, atol=1e-5)
    assert cascade.num_agents(mine) == min(max(round(gates), 1), 6)


def test_every_decision_has_a_log_probability_and_a_gradient() -> None:
    torch = pytest.importorskip("torch")
    router = module()
    latent, _ = router.query_vae(torch.randn(4, 384))
    modes, _ = router.mode_vae(router.items.modes)
    tasks = torch.tensor([0, 0, 1, 1])
    sampled = router.sample(latent, modes, tasks, torch.Generator().manual_seed(0))
    for row, count in enumerate(sampled.counts.tolist()):
        open_roles = {0, 1} if tasks[row] == 0 else {2}
        assert set(sampled.roles[row, :count].tolist()) <= open_roles
    assert (sampled.log_probability < 0).all()
    sampled.log_probability.sum().backward()
    for head in (router.count, router.role_context, router.model_context, router.query_vae.mean):
        assert head.weight.grad.abs().sum() > 0
    assert router.mode_vae.mean.weight.grad.abs().sum() > 0


def test_the_log_probability_is_that_of_the_sample() -> None:
    """Over many samples of one query, modes come as often as the module says."""
    torch = pytest.importorskip("torch")
    router = module()
    with torch.no_grad():
        latent, _ = router.query_vae(torch.randn(1, 384))
        modes, _ = router.mode_vae(router.items.modes)
        many = latent.repeat(4000, 1)
        sampled = router.sample(
            many, modes, torch.zeros(4000, dtype=torch.long), torch.Generator().manual_seed(0)
        )
        shares = router.mode_logits(latent, modes).softmax(-1)[0]
        counts = torch.sigmoid(router.count(latent)).sum().item()
    observed = torch.bincount(sampled.modes, minlength=6) / 4000
    assert torch.allclose(observed, shares, atol=0.03)
    assert sampled.counts.float().mean().item() == pytest.approx(counts, abs=0.1)


def test_training_prefers_the_model_that_pays_and_cannot_take_it_alone() -> None:
    torch = pytest.importorskip("torch")
    from rl.baselines.masrouter import RouterTraining, train_router

    router = module()
    queries = torch.nn.functional.normalize(torch.randn(64, 384), dim=-1)
    tasks = torch.arange(64) % 2

    def reward(rows, sampled):
        first = sampled.models[:, 0]
        return [1.0 if model == 3 else 0.0 for model in first.tolist()]

    means = train_router(router, queries, tasks, reward, RouterTraining(epochs=20))
    cascade, zero = served(router), np.zeros(LATENT_DIM, dtype=np.float32)
    latent = cascade.latent(queries[0].numpy())
    shares = cascade.model_probabilities(latent, 0, zero)
    assert shares.argmax() == 3
    assert 0.45 < shares[3] < 0.65
    assert means[-1] > means[0] + 0.1
    guesses = [cascade.task_probabilities(q).argmax() for q in queries.numpy()]
    assert np.mean(np.array(guesses) == tasks.numpy()) > 0.9


def test_the_vae_pays_for_codes_that_leave_the_prior() -> None:
    torch = pytest.importorskip("torch")
    from rl.baselines.masrouter import _kl

    at_prior = _kl(torch.zeros(1, 64), torch.full((1, 64), 2 * math.log(0.1)))
    assert at_prior.item() == pytest.approx(0.0, abs=1e-6)
    away = _kl(torch.full((1, 64), 0.2), torch.full((1, 64), 2 * math.log(0.1)))
    assert away.item() == pytest.approx(0.5 * 0.2**2 / 0.1**2, rel=1e-5)
