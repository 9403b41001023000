"""What endpoints offer, as a pool: names, contexts, and clear errors; and the config of one."""

import pytest

from actors.deployments import build_model
from actors.display import found_lines
from actors.endpoint_discovery import discover, endpoint_args, pool_name
from actors.transport import free_port
from runtime.config import parse_config
from runtime.errors import ConfigError
from tests.conftest import app_args, model_args
from tests.stand_in import SERVED, standing_in


@pytest.fixture
def server():
    with standing_in() as server:
        yield server


def front(*urls, api_key_env=None, max_num_seqs=8):
    found = discover(list(urls), api_key_env)
    return found, parse_config(endpoint_args(found, api_key_env, max_num_seqs))


def test_an_endpoint_becomes_a_pool(server):
    found, config = front(server.url)
    (model,) = config.models
    assert (model.name, model.backend, model.simulated) == ("stand-in", "openai", False)
    assert (model.context_tokens, model.max_output_tokens, model.max_num_seqs) == (2048, 1024, 8)
    assert (model.endpoint.url, model.endpoint.model) == (server.url, SERVED)
    assert model.endpoint.metrics_page == f"http://{server.host}/metrics"
    assert config.embedding.backend == "hash"
    lines = " ".join(found_lines(found, config))
    for told in ("stand-in", SERVED, server.url, "2048 tokens,", "metrics read", "assumed:", "0.5"):
        assert told in lines


def test_a_host_alone_means_its_v1(server):
    found, _ = front(f"http://{server.host}", f"{server.url}/")
    assert [model.url for model in found] == [server.url]


def test_each_model_is_a_member_and_no_two_share_a_name(server):
    server.models = {"data": [{"id": "a/Qwen"}, {"id": "b/Qwen"}, {"id": "inframind"}]}
    with standing_in() as other:
        other.models = {"data": [{"id": "Qwen"}]}
        _, config = front(server.url, other.url)
    assert [m.name for m in config.models] == ["Qwen", "Qwen-2", "inframind-2", "Qwen-3"]
    assert config.models[0].endpoint.model == "a/Qwen"


def test_only_the_named_models_are_taken(server):
    server.models = {"data": [{"id": "a/Qwen"}, {"id": "a/embed"}]}
    (model,) = discover([server.url], None, ["a/Qwen"])
    assert model.served == "a/Qwen"
    with pytest.raises(ConfigError, match=r"--model other: no endpoint has it.*a/Qwen, a/embed"):
        discover([server.url], None, ["a/Qwen", "other"])


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("/root/models/smol/", "smol"),
        ("gpt 4:o", "gpt-4-o"),
        ("///", "model"),
        ("名前", "model"),
        ("-x-", "x"),
    ],
)
def test_a_name_for_the_pool(served, name):
    assert pool_name(served, []) == name


def test_what_the_endpoint_does_not_say_is_assumed_and_told(server):
    server.models, server.metrics = {"data": [{"id": "m", "max_model_len": None}]}, 404
    found, config = front(server.url)
    assert config.models[0].context_tokens == 4096
    assert config.models[0].endpoint.metrics_page is None
    assert "4096 tokens (assumed)" in found_lines(found, config)[0]
    assert "no metrics" in found_lines(found, config)[0]


@pytest.mark.parametrize(
    ("models", "told"),
    [
        ("<html>", "OpenAI's format"),
        ("[]", "OpenAI's format"),
        ('{"data": [{"name": "x"}]}', "OpenAI's format"),
        ('{"data": []}', "lists no model"),
        (401, "--api-key-env"),
        (404, "HTTP 404"),
        (500, "HTTP 500"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named(server, models, told):
    server.models = models
    with pytest.raises(ConfigError, match=told) as caught:
        front(server.url)
    assert server.url in caught.value.message


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://x/v1", "http://"),
        ("localhost:8000", "http://"),
        ("http://user:secret@x/v1", "api_key_env"),
        ("http://x:99999/v1", "[Pp]ort"),
        ("http://x/v1?a=1", "query"),
    ],
)
def test_what_is_no_url_is_refused_before_it_is_asked(url, told):
    with pytest.raises(ConfigError, match=told):
        front(url)


def test_nobody_there():
    with pytest.raises(ConfigError, match="cannot be reached"):
        front(f"http://127.0.0.1:{free_port()}/v1")


def test_the_key_is_read_from_the_environment_and_never_shown(server, monkeypatch):
    monkeypatch.setenv("STAND_IN_KEY", "sesame")
    found, config = front(server.url, api_key_env="STAND_IN_KEY")
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert config.models[0].endpoint.api_key_env == "STAND_IN_KEY"
    assert "sesame" not in config.model_dump_json() + str(found)
    monkeypatch.delenv("STAND_IN_KEY")
    with pytest.raises(ConfigError, match="STAND_IN_KEY is not set"):
        front(server.url, api_key_env="STAND_IN_KEY")


# The config.


def endpoint_model(**changes):
    endpoint = {"url": "http://127.0.0.1:8001/v1", **changes.pop("endpoint", {})}
    return model_args("m", backend="openai", endpoint=endpoint, **changes)


def test_the_metrics_are_beside_the_api_unless_told_otherwise():
    def page_of(**settings):
        model = parse_config(app_args(endpoint_model(endpoint=settings))).models[0]
        return model.endpoint.metrics_page

    assert page_of() == "http://127.0.0.1:8001/metrics"
    assert page_of(url="https://x/api/v1/") == "https://x/api/metrics"
    assert page_of(metrics_url="http://x:9/m") == "http://x:9/m"
    assert page_of(metrics_url=None) is None


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (endpoint_model(endpoint={"url": "x"}), "endpoint.url: .*http://"),
        (endpoint_model(endpoint={"url": "auto"}), "endpoint.url: .*http://"),
        (endpoint_model(endpoint={"metrics_url": "none"}), "endpoint.metrics_url"),
        (endpoint_model(endpoint={"api_key": "sesame"}), "unknown key .*'api_key_env'"),
        (endpoint_model(endpoint={"api_key_env": "sk-123"}), "endpoint.api_key_env"),
        (endpoint_model(endpoint={"poll_timeout_s": 0}), "endpoint.poll_timeout_s"),
        (endpoint_model(replicas=2), "one replica"),
        (model_args("m", backend="openai"), "endpoint"),
        (model_args("m", endpoint={"url": "http://x/v1"}), "endpoint"),
    ],
)
def test_a_config_that_cannot_be_used_names_the_key(model, told):
    with pytest.raises(ConfigError, match=told):
        parse_config(app_args(model))


def test_a_config_survives_its_way_to_the_replica():
    config = parse_config(app_args(endpoint_model(endpoint={"metrics_url": None})))
    again = parse_config(config.model_dump(mode="json"))
    assert again == config
    assert again.digest == config.digest


def test_building_asks_nobody_and_keeps_the_bound(server):
    model = parse_config(app_args(endpoint_model(endpoint={"url": server.url}))).models[0]
    built = build_model(model, monitor_name="m", namespace="n", report_period_s=0.2)
    deployment = built._bound_deployment
    assert deployment.max_ongoing_requests == model.max_num_seqs == 4
    assert deployment.ray_actor_options["num_cpus"] == 0
    assert (server.num_polls, server.num_probes, server.asked) == (0, 0, [])
