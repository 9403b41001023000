"""The served policy: equal to torch, refused where it does not fit, read without pickle."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

pytest.importorskip("ray.rllib", reason="needs the extra `rl`")
torch = pytest.importorskip("torch", reason="needs torch")

from rl.artefact import Artefact, load, save  # noqa: E402
from rl.config import PointConfig  # noqa: E402
from rl.executor import ExecutorNet, ExecutorSizes  # noqa: E402
from rl.nets import ExecutorNet as ServedExecutor  # noqa: E402
from rl.nets import PlannerNet as ServedPlanner  # noqa: E402
from rl.nets import served  # noqa: E402
from rl.planner import PlannerNet, PlannerSizes  # noqa: E402
from rl.policy import LearnedPolicy  # noqa: E402
from rl.pools import at_point, training_pool  # noqa: E402
from rl.spaces import layout_for  # noqa: E402
from rl.vectors import load_vectors, role_vectors  # noqa: E402
from runtime.errors import ConfigError  # noqa: E402
from runtime.policy import make_policy  # noqa: E402
from runtime.sim.items import shipped  # noqa: E402
from runtime.sim.quality import QualityModel  # noqa: E402
from runtime.sim.simulation import Simulation  # noqa: E402
from runtime.sim.workload import poisson_workload  # noqa: E402

CONFIG = training_pool(Path("serve_configs/b200.yaml"))
VECTORS = load_vectors()


def _nets(layout, film=True):
    torch.manual_seed(1)
    return PlannerNet(layout, PlannerSizes(film=film)), ExecutorNet(layout, ExecutorSizes())


def _state(net):
    return served({f"net.{k}": v.detach().numpy() for k, v in net.state_dict().items()})


def artefact_for(layout) -> Artefact:
    planner, executor = _nets(layout)
    return Artefact(layout, _state(planner), _state(executor), role_vectors(layout, VECTORS))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "policy.safetensors"
    save(artefact_for(layout_for(CONFIG)), path)
    return path


def with_policy(config, **options):
    policy = config.policy.model_copy(update={"name": "inframind", "options": options})
    return config.model_copy(update={"policy": policy})


def _rows(floats: int, masks: tuple[int, ...], rows: int = 32):
    generator = torch.Generator().manual_seed(2)
    seen = torch.randn(rows, floats, generator=generator)
    start = floats - sum(masks)
    for length in masks:
        part = (torch.rand(rows, length, generator=generator) < 0.5).float()
        part[:, 0] = 1.0
        seen[:, start : start + length] = part
        start += length
    return seen


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_served_executor_equals_torch(adaptive):
    layout = layout_for(CONFIG, adaptive=adaptive)
    _, executor = _nets(layout)
    seen = _rows(layout.executor_floats, (layout.num_actions,))
    wanted = executor.logits(*executor.hidden(seen)).detach().numpy()
    net = ServedExecutor(_state(executor), layout)
    found = np.stack([net.logits(row) for row in seen.numpy()])
    assert np.abs(found - wanted)[wanted > -1e8].max() < 1e-5
    assert ((found < -1e8) == (wanted < -1e8)).all()


@pytest.mark.parametrize("film", [True, False])
def test_the_served_planner_equals_torch(film):
    layout = layout_for(CONFIG)
    planner, _ = _nets(layout, film)
    seen = _rows(layout.planner_floats, layout.planner_masks)
    net = ServedPlanner(_state(planner), layout, film=film)
    for row in seen:
        action, drawn = net.choose(row.numpy(), Random(3))
        log_p = sum(np.log(d.probabilities[d.index]) for d in drawn)
        with torch.no_grad():
            again = planner(row[None], torch.tensor([action])).log_p.item()
        assert log_p == pytest.approx(again, abs=1e-5)
        assert (
            net.choose(row.numpy(), None)[0][:2]
            == planner(row[None], greedy=True).actions[0, :2].tolist()
        )


def test_draws_follow_the_probabilities():
    layout = layout_for(CONFIG)
    _, executor = _nets(layout)
    net = ServedExecutor(_state(executor), layout)
    seen, rng = _rows(layout.executor_floats, (layout.num_actions,), 1)[0].numpy(), Random(4)
    drawn = [net.choose(seen, rng) for _ in range(4000)]
    counts = np.bincount([d.index for d in drawn], minlength=layout.num_actions) / len(drawn)
    assert np.abs(counts - drawn[0].probabilities).max() < 0.04
    assert counts[drawn[0].probabilities < 1e-9].sum() == 0


def test_a_saved_policy_serves_through_the_registry(saved):
    point, engines = at_point(with_policy(CONFIG, artefact=str(saved)), PointConfig())
    policy = make_policy(point)
    arrivals = poisson_workload(shipped().select("math", "train"), rate_per_min=60, num_queries=12)

    def run(policy):
        return Simulation(
            point, QualityModel(shipped(), 0), arrivals, policy, models=engines,
            embed=lambda item: VECTORS[item.item_id],
        ).run()  # fmt: skip

    first, second = run(policy), run(make_policy(point))
    assert first.summary() == second.summary()  # drawn, but seeded by query and step
    assert first.summary().answered == 100.0
    assert len(set(first.calls.named("model"))) > 1


def _refusal(config) -> str:
    with pytest.raises(ConfigError) as caught:
        make_policy(config)
    return caught.value.message


def test_a_foreign_pool_is_told_why(saved):
    smaller = CONFIG.model_copy(update={"models": CONFIG.models[:3]})
    assert "was trained for the models" in _refusal(with_policy(smaller, artefact=str(saved)))
    embedding = CONFIG.embedding.model_copy(update={"backend": "hash"})
    other = CONFIG.model_copy(update={"embedding": embedding})
    assert "reads embeddings of 'minilm'" in _refusal(with_policy(other, artefact=str(saved)))
    assert "none is shipped" in _refusal(with_policy(smaller))
    assert "artifact" in _refusal(with_policy(CONFIG, artifact=str(saved)))


def test_broken_files_are_refused(saved):
    config = with_policy(CONFIG, artefact=str(saved))
    about = json.loads(saved.with_suffix(".json").read_text())

    def told(**changes) -> str:
        saved.with_suffix(".json").write_text(json.dumps({**about, **changes}))
        return _refusal(config)

    assert "format 99" in told(format=99)
    assert "layout 7" in told(layout={**about["layout"], "version": 7})
    fewer = about["layout"]["models"][1:]
    assert "does not fit" in told(layout={**about["layout"], "models": fewer})
    saved.with_suffix(".json").write_text(json.dumps(about))
    whole = saved.read_bytes()
    saved.write_bytes(whole[:-1000])
    assert str(saved) in _refusal(config)
    saved.write_bytes(b"\x80\x04K\x01.")  # a pickle
    assert str(saved) in _refusal(config)
    saved.unlink()
    assert str(saved) in _refusal(config)


def test_what_is_saved_is_what_is_loaded(saved):
    found, wanted = load(saved), artefact_for(layout_for(CONFIG))
    assert found.layout == wanted.layout
    for part in ("planner", "executor"):
        for name, value in getattr(wanted, part).items():
            assert np.array_equal(getattr(found, part)[name], value)
    assert LearnedPolicy.of(CONFIG, found).artefact is found
