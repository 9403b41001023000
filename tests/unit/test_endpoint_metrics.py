"""The watch over an endpoint: its load, its life, and what hangs or breaks there."""

import asyncio
import time

import pytest

from actors.endpoint_http import open_session
from actors.endpoint_metrics import EndpointDown, EndpointWatch
from actors.reporting import EngineLoad
from runtime.model_config import EndpointConfig
from runtime.window import Latencies
from tests.stand_in import SERVED, page, standing_in


@pytest.fixture
def server():
    with standing_in() as server:
        yield server


class Clock:
    def __init__(self):
        self.skipped_s = 0.0

    def __call__(self):
        return time.monotonic() + self.skipped_s


class Watched:
    """A watch with a session of its own, and calls of ours that a test sets."""

    def __init__(self, server, headers=None, **settings):
        self.own = 0
        self.clock = Clock()
        self.http = open_session()
        settings = {"poll_timeout_s": 0.3, "poll_period_s": 0.05, **settings}
        self.config = EndpointConfig(url=server.url, **settings)
        self.watch = EndpointWatch(
            self.config, SERVED, self.http, headers or {}, lambda: self.own, self.clock
        )

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.watch.stop()
        await self.http.close()


async def test_nobody_was_heard_yet_so_it_is_down(server):
    async with Watched(server) as watched:
        assert watched.watch.down
        with pytest.raises(EndpointDown, match=server.host):
            watched.watch.load()
        assert watched.watch.latencies() == Latencies()


async def test_the_load_is_that_of_the_page(server):
    server.metrics = page(3, 2, 0.5)
    async with Watched(server) as watched:
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(3, 2, 0.5)


@pytest.mark.parametrize(
    ("running", "waiting", "own_then", "own_now", "expected"),
    [
        (3, 2, 5, 5, EngineLoad(3, 2, 0.25)),  # all ours
        (3, 2, 5, 6, EngineLoad(4, 2, 0.25)),  # one more of ours since
        (3, 2, 5, 0, EngineLoad(0, 0, 0.25)),  # all of ours ended since
        (3, 0, 1, 1, EngineLoad(3, 0, 0.25)),  # two of others
        (3, 0, 1, 0, EngineLoad(2, 0, 0.25)),  # they stay when ours end
        (0, 0, 4, 4, EngineLoad(4, 0, 0.25)),  # ours are on their way there
    ],
)
async def test_the_page_is_corrected_by_our_own_calls(
    server, running, waiting, own_then, own_now, expected
):
    server.metrics = page(running, waiting)
    async with Watched(server) as watched:
        watched.own = own_then
        await watched.watch.look()
        watched.own = own_now
        assert watched.watch.load() == expected


@pytest.mark.parametrize("metrics", ["hang", 404, 500, "vllm:num_requests_running{ broken\n"])
async def test_without_a_page_only_our_own_calls_count_and_it_is_told(server, metrics):
    server.metrics = metrics
    async with Watched(server) as watched:
        watched.own = 2
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(2, 0, None)
        assert watched.watch.missing["page"] == 1


async def test_a_figure_that_the_page_lacks_is_unknown_and_counted(server):
    server.metrics = "vllm:num_requests_waiting_by_reason 9.0\nvllm:kv_cache_usage_perc 0.5\n"
    async with Watched(server) as watched:
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(0, 0, 0.5)
        assert watched.watch.missing["waiting"] == 1
        assert "kv_usage" not in watched.watch.missing


async def test_an_old_page_does_not_count(server):
    server.metrics = page(3)
    async with Watched(server) as watched:
        await watched.watch.look()
        server.metrics = 500
        watched.clock.skipped_s = 2.0
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(0, 0, None)


async def test_an_endpoint_without_metrics_is_not_asked_for_them(server):
    async with Watched(server, metrics_url=None) as watched:
        await watched.watch.look()
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(0, 0, None)
        assert server.num_polls == 0
        assert server.num_probes == 1  # it gave a sign of life a moment ago


async def test_a_hung_page_delays_no_other_endpoint(server):
    with standing_in() as other:
        server.metrics = "hang"
        async with Watched(server, poll_timeout_s=5.0) as hung, Watched(other) as well:
            hung.watch.start()
            well.watch.start()
            await asyncio.sleep(1.0)
            assert well.watch.load() == EngineLoad(0, 0, 0.25)
            assert other.num_polls > 5
            assert server.num_polls == 1


async def test_a_dead_endpoint_is_down_at_once_and_comes_back(server):
    async with Watched(server) as watched:
        await watched.watch.look()
        assert not watched.watch.down
        server.stop()
        watched.watch.suspect()
        await watched.watch.look()
        assert watched.watch.down
        server.start()
        await watched.watch.look()
        assert watched.watch.load() == EngineLoad(0, 0, 0.25)


async def test_silence_is_down_after_a_while_and_a_call_that_ends_is_life(server):
    async with Watched(server, down_after_s=10.0) as watched:
        await watched.watch.look()
        server.metrics, server.mode = "hang", "hang"
        watched.clock.skipped_s = 5.0
        await watched.watch.look()
        assert not watched.watch.down
        watched.clock.skipped_s = 11.0
        assert watched.watch.down
        watched.watch.alive()
        assert not watched.watch.down


async def test_a_failing_gateway_is_no_life(server):
    server.metrics, server.models = 502, 502
    async with Watched(server) as watched:
        await watched.watch.look()
        assert watched.watch.down


async def test_latencies_come_from_what_ended_between_two_pages(server):
    total = "vllm:e2e_request_latency_seconds"
    async with Watched(server) as watched:
        for seconds, calls in ((10.0, 5), (16.0, 8)):
            server.metrics = f"{total}_sum {seconds}\n{total}_count {calls}\n"
            await watched.watch.look()
        assert watched.watch.latencies() == Latencies(e2e_s=2.0)


@pytest.mark.parametrize("same", [True, False])
async def test_the_key_goes_to_no_other_host(server, same):
    with standing_in() as other:
        pages = server if same else other
        url = f"http://{pages.host}/metrics"
        async with Watched(server, {"Authorization": "Bearer k"}, metrics_url=url) as watched:
            await watched.watch.look()
        assert ("Authorization" in pages.headers[0]) is same
