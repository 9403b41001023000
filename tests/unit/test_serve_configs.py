"""The config files that ship: each loads, each is what it says, and cluster.yaml can be used."""

import copy
import warnings
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

with warnings.catch_warnings():  # Ray's own use of pydantic
    warnings.simplefilter("ignore")
    from ray.serve.schema import ServeDeploySchema

from actors.transport import SETTINGS
from runtime.config import parse_config
from runtime.errors import ConfigError
from runtime.sim.apis import api_speed
from runtime.types import TaskKind

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "serve_configs").glob("*.yaml"))


def read(name):
    return yaml.safe_load((ROOT / "serve_configs" / f"{name}.yaml").read_text())


def pool(name):
    return parse_config(read(name)["applications"][0]["args"], name)


def test_there_are_config_files():
    assert {"local", "fake", "b200", "hybrid", "api"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_serve_and_we_accept_the_file(path):
    data = yaml.safe_load(path.read_text())
    ServeDeploySchema.model_validate(data)
    assert data["http_options"]["host"] == "127.0.0.1"
    (application,) = data["applications"]
    assert application["import_path"] == "actors.app:build"
    config = parse_config(application["args"], path.name)
    for task in TaskKind:
        assert config.quality.prior[task].keys() == {m.name for m in config.models}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
@pytest.mark.parametrize("where", ["top", "model", "placement"])
def test_an_unknown_key_is_refused_by_name(path, where):
    args = copy.deepcopy(yaml.safe_load(path.read_text())["applications"][0]["args"])
    target = {
        "top": args,
        "model": args["models"][0],
        "placement": args["models"][0].setdefault("placement", {}),
    }[where]
    target["max_num_seq"] = 1
    with pytest.raises(ConfigError, match="max_num_seq"):
        parse_config(args, path.name)


def test_every_figure_that_is_assumed_says_so():
    assert {pool(path.stem).quality.status for path in FILES} == {"assumed"}


def test_the_fake_pool_is_labelled_fake():
    text = (ROOT / "serve_configs" / "fake.yaml").read_text()
    assert text.startswith("# A FAKE pool")
    for model in pool("fake").models:
        assert (model.backend, model.name.startswith("fake-")) == ("fake", True)


def test_the_local_pool_is_on_cpus_and_fits_two_cores():
    config = pool("local")
    assert [m.name for m in config.models] == ["smollm2-135m", "qwen2.5-coder-0.5b"]
    for model in config.models:
        assert model.source.startswith("prepared:")
        assert model.placement.accelerator_type is None
        assert model.env["OMP_NUM_THREADS"] == "1"
    assert sum(m.placement.num_cpus for m in config.models) <= 2


def test_the_b200_pool_is_the_papers():
    config = pool("b200")
    got = {
        m.source.split("/")[1]: (
            m.placement.gpu,
            m.engine["gpu_memory_utilization"],
            m.price.input,
            m.price.output,
        )
        for m in config.models
    }
    assert got == {
        "DeepSeek-R1-Distill-Qwen-32B": (0, 0.40, 0.29, 0.29),
        "Qwen2.5-Coder-14B-Instruct": (0, 0.18, 0.20, 0.20),
        "Mistral-Small-24B-Instruct-2501": (1, 0.30, 0.03, 0.11),
        "Llama-3.1-8B-Instruct": (1, 0.15, 0.02, 0.05),
        "Llama-3.2-3B-Instruct": (1, 0.12, 0.02, 0.02),
    }
    for model in config.models:
        assert (model.max_num_seqs, model.context_tokens) == (16, 16384)
        assert model.placement.accelerator_type == "B200"


def test_b200_takes_of_each_gpu_resource_what_it_takes_of_the_memory():
    for model in pool("b200").models:
        share = model.engine["gpu_memory_utilization"]
        assert model.placement.resources == {f"b200_gpu{model.placement.gpu}": share}


PRICES = {
    "deepseek-r1-distill-qwen-32b": (0.29, 0.29),
    "mistral-small-24b": (0.03, 0.11),
    "qwen2.5-coder-14b": (0.20, 0.20),
    "llama-3.1-8b": (0.02, 0.05),
    "llama-3.2-3b": (0.02, 0.02),
}


def test_the_pools_of_table_4_are_three_and_two_and_five():
    hybrid, api = pool("hybrid"), pool("api")
    assert [m.backend for m in hybrid.models] == ["vllm"] * 3 + ["openai"] * 2
    assert [m.backend for m in api.models] == ["openai"] * 5
    assert (hybrid.default_budget_s, api.default_budget_s) == (100, 500)
    for config in (hybrid, api):
        remote = [m for m in config.models if m.backend == "openai"]
        assert {m.name for m in config.models} == PRICES.keys()
        assert config.metered_models == {m.name for m in remote}
        for model in remote:
            assert (model.price.input, model.price.output) == PRICES[model.name]
            assert model.endpoint.api_key_env == "OPENROUTER_API_KEY"
            assert model.watched.metrics_page is None
    limits = [m.api.rpm_limit for m in api.models]
    assert len(set(limits)) > 2


def test_own_models_take_no_money_and_every_query_has_a_bound_on_it():
    for name in ("hybrid", "api"):
        assert pool(name).money.per_query_usd
        assert pool(name).money.max_per_query_usd
    assert [m.price for m in pool("hybrid").models if m.backend == "vllm"] == [None] * 3


def test_what_api_configs_assume_is_what_the_simulator_assumes():
    for name in ("hybrid", "api"):
        for model in pool(name).models:
            if model.api is None:
                continue
            assumed = api_speed(model.name)
            assert model.speed.start_s == assumed.ttft_s
            assert 1 / model.speed.token_s == pytest.approx(assumed.tokens_per_s, rel=1e-3)
            prices = (assumed.input_usd, assumed.output_usd)
            assert (model.price.input, model.price.output) == prices
            if name == "api":
                assert model.api.rpm_limit == assumed.rpm_limit


def test_the_same_models_are_expected_to_be_as_good_in_every_pool():
    assert pool("hybrid").quality == pool("b200").quality == pool("api").quality
    assert pool("hybrid").strategies == pool("b200").strategies == pool("api").strategies


def test_the_hybrid_pool_fits_one_gpu():
    own = [m for m in pool("hybrid").models if m.backend == "vllm"]
    assert {m.placement.gpu for m in own} == {0}
    assert sum(m.engine["gpu_memory_utilization"] for m in own) < 0.95
    for model in own:
        share = model.engine["gpu_memory_utilization"]
        assert model.placement.resources == {"b200_gpu0": share}


def cluster():
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_ray_accepts_the_cluster_file():
    validate_config(prepare_config(cluster()))


def test_the_cluster_file_is_refused_with_an_unknown_key():
    data = cluster()
    data["idle_timeout_minute"] = 5
    with pytest.raises(Exception, match="idle_timeout_minute"):
        validate_config(prepare_config(data))


# Ray does not look into node_config, resources and commands: we do.


def test_workers_are_b200_nodes_that_come_and_go():
    data = cluster()
    worker = data["available_node_types"]["b200_worker"]
    assert worker["node_config"]["InstanceType"] == "p6-b200.48xlarge"
    assert (worker["min_workers"], worker["max_workers"], data["max_workers"]) == (0, 2, 2)
    assert data["idle_timeout_minutes"] > 0
    for node in data["available_node_types"].values():
        assert node["node_config"].keys() == {"InstanceType", "ImageId", "BlockDeviceMappings"}
        assert node["node_config"]["ImageId"].startswith("ami-")


def test_the_node_has_the_resources_that_the_pool_asks_for():
    nodes = cluster()["available_node_types"]
    resources = nodes["b200_worker"]["resources"]
    assert {f"b200_gpu{i}": 1 for i in range(8)}.items() <= resources.items()
    assert resources["accelerator_type:B200"] == 1
    asked = {}
    for model in pool("b200").models:
        for name, amount in model.placement.resources.items():
            asked[name] = asked.get(name, 0) + amount
    for name, amount in asked.items():
        assert amount <= resources[name]
    assert "GPU" not in nodes["head"]["resources"]
    assert sum(m.placement.num_cpus for m in pool("b200").models) <= resources["CPU"]


def test_nothing_of_the_cluster_listens_to_the_world():
    data = cluster()
    assert "IpPermissions" not in data["provider"]["security_group"]
    (start,) = [c for c in data["head_start_ray_commands"] if "--head" in c]
    assert "--dashboard-host=127.0.0.1" in start


def test_the_setup_installs_our_wheel():
    data = cluster()
    assert list(data["file_mounts"].values()) == ["dist"]
    assert any("inframind-*.whl" in command for command in data["setup_commands"])


def test_every_node_of_the_cluster_has_the_same_fast_transport():
    data = cluster()
    for commands in (data["head_start_ray_commands"], data["worker_start_ray_commands"]):
        (start,) = (c for c in commands if "ray start" in c)
        assert (
            f"RAY_SERVE_THROUGHPUT_OPTIMIZED={SETTINGS['RAY_SERVE_THROUGHPUT_OPTIMIZED']} " in start
        )
        assert "RAY_SERVE_ENABLE_DIRECT_INGRESS=0 " in start
