"""Where the models of b200.yaml land: real options, a local Ray with fake GPUs, no engine."""

import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest
import yaml

from runtime.config import ModelConfig, parse_config
from runtime.errors import ConfigError
from tests.live import from_a_thread

with warnings.catch_warnings():  # Ray's and vLLM's own, while they are imported
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    import ray
    import ray.serve.llm
    from ray import serve

    from actors.deployments import build_model

pytestmark = [
    pytest.mark.timeout(300),
    # Raised while Ray and vLLM are imported and started, none of it in our hands.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

ROOT = Path(__file__).parents[2]
GPU0 = {"deepseek-r1-distill-qwen-32b": 0.40, "qwen2.5-coder-14b": 0.18}
GPU1 = {"mistral-small-24b": 0.30, "llama-3.1-8b": 0.15, "llama-3.2-3b": 0.12}
SHARED = {"monitor_name": "monitor", "namespace": "test", "report_period_s": 0.2}


def stand_in():
    """A class that takes an engine's place and tells what it sees.

    It is local, so that replicas get it by value and do not import this module, and so vLLM.
    """

    class StandIn:
        def seen(self):
            names = ("CUDA_VISIBLE_DEVICES", "INFRAMIND_GPU", "INFRAMIND_MODEL")
            return {name: os.environ.get(name) for name in names}

    return StandIn


@pytest.fixture(scope="module")
def b200():
    file = yaml.safe_load((ROOT / "serve_configs" / "b200.yaml").read_text())
    return parse_config(file["applications"][0]["args"], "b200.yaml")


@pytest.fixture(scope="module")
def one_node():
    """One node with two fake B200 GPUs, as cluster.yaml declares them."""
    temp = tempfile.mkdtemp(prefix="im-", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=64,
        resources={"b200_gpu0": 1, "b200_gpu1": 1, "accelerator_type:B200": 1},
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=temp,
    )
    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()
    ray.shutdown()
    shutil.rmtree(temp, ignore_errors=True)


def options_of(model):
    """The deployment that ``build_model`` makes for ``model``."""
    return build_model(model, **SHARED)._bound_deployment


def bundles_of(model):
    (bundle,) = options_of(model)._replica_config.placement_group_bundles
    return bundle


def run_stand_ins(models):
    """Deploy stand-ins with the models' own options, but for the import of vLLM."""
    targets = []
    for model in models:
        deployment = options_of(model)
        actor = dict(deployment.ray_actor_options)
        actor["runtime_env"] = {"env_vars": actor["runtime_env"]["env_vars"]}
        light = deployment.options(func_or_class=stand_in(), ray_actor_options=actor)
        targets.append(serve.RunTarget(light.bind(), name=model.name, route_prefix=None))
    handles = [from_a_thread(handle) for handle in serve.run_many(targets)]
    return {
        model.name: handle.seen.remote().result(timeout_s=60)
        for model, handle in zip(models, handles, strict=True)
    }


def left(name):
    return round(ray.available_resources().get(name, 0.0), 6)


def test_each_model_asks_for_its_share_of_its_gpu_and_for_no_gpu_of_rays_choice(b200, one_node):
    for model in b200.models:
        gpu, share = (0, GPU0.get(model.name)) if model.name in GPU0 else (1, GPU1[model.name])
        bundle = {k: v for k, v in bundles_of(model).items() if v}
        assert bundle == {"CPU": 4, f"b200_gpu{gpu}": share, "accelerator_type:B200": 0.001}


def test_the_bound_on_calls_is_the_engines(b200, one_node):
    for model in b200.models:
        deployment = options_of(model)
        assert deployment.max_ongoing_requests == model.max_num_seqs == 16
        assert (deployment.name, deployment.num_replicas) == (model.name, 1)
        config = deployment.init_kwargs["llm_config"]
        assert config.engine_kwargs["max_num_seqs"] == 16
        assert config.engine_kwargs["scheduling_policy"] == "priority"
        assert config.engine_kwargs["gpu_memory_utilization"] < 1


def test_they_land_on_two_gpus_and_a_third_big_one_finds_no_room(b200, one_node):
    for name, seen in run_stand_ins(b200.models).items():
        gpu = "0" if name in GPU0 else "1"
        assert seen == {
            "CUDA_VISIBLE_DEVICES": gpu,
            "INFRAMIND_GPU": gpu,
            "INFRAMIND_MODEL": name,
        }
    assert left("b200_gpu0") == pytest.approx(1 - sum(GPU0.values()))
    assert left("b200_gpu1") == pytest.approx(1 - sum(GPU1.values()))
    big = ray.util.placement_group([{"CPU": 4, "b200_gpu0": 0.5}])
    small = ray.util.placement_group([{"CPU": 4, "b200_gpu0": 0.3}])
    assert small.wait(30)
    assert not big.wait(2)
    for group in (big, small):
        ray.util.remove_placement_group(group)


def with_placement(**placement):
    return ModelConfig.model_validate(
        {
            "name": "m",
            "backend": "vllm",
            "source": "some/model",
            "context_tokens": 4096,
            "speed": {"prefill_tokens_per_s": 1000, "token_s": 0.01},
            "placement": {"num_cpus": 2, **placement.pop("placement", {})},
            **placement,
        }
    )


def test_without_an_accelerator_a_model_asks_for_cpus_only(one_node):
    assert {k: v for k, v in bundles_of(with_placement()).items() if v} == {"CPU": 2}


def test_without_a_fixed_gpu_ray_gives_a_whole_one_to_each_worker(one_node):
    model = with_placement(
        placement={"accelerator_type": "B200"}, engine={"tensor_parallel_size": 2}
    )
    bundles = options_of(model)._replica_config.placement_group_bundles
    assert [b["GPU"] for b in bundles] == [1, 1]
    assert bundles[0]["CPU"] == 2
    env = options_of(model).ray_actor_options["runtime_env"]["env_vars"]
    assert "CUDA_VISIBLE_DEVICES" not in env


def test_a_parallel_model_on_one_gpu_is_refused(one_node):
    model = with_placement(placement={"gpu": 0}, engine={"tensor_parallel_size": 2})
    with pytest.raises(ConfigError, match="'m'"):
        build_model(model, **SHARED)
