"""What a replica reports: nothing made up, nothing piled up, nothing that delays a call."""

import asyncio
import concurrent.futures
import itertools
import math

import pytest

from actors.protocol import EngineChunk
from actors.reporting import EngineLoad, MonitorLink, ReplicaReporter
from runtime.window import CallWindow, FinishedCall, Latencies


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def make_reporter(*, send=None, load=None, period_s=0.2, clock=None):
    async def nowhere(report):
        pass

    more = {} if clock is None else {"clock": clock}
    return ReplicaReporter(
        model="m",
        replica="m#1",
        max_num_seqs=4,
        period_s=period_s,
        load=load or (lambda: EngineLoad(0, 0, 0.0)),
        send=send or nowhere,
        **more,
    )


async def chunks_of(clock, *, tokens=11, ttft_s=1.0, e2e_s=3.0):
    clock.now += e2e_s
    yield EngineChunk("text", "stop", 5, tokens, ttft_s)


async def drain(reporter, call_id, chunks):
    return [chunk async for chunk in reporter.watch(call_id, chunks)]


async def test_no_finished_call_is_unknown_not_zero():
    report = make_reporter().report()
    assert (report.e2e_s, report.ttft_s, report.tpot_s) == (None, None, None)
    assert (report.finished, report.kv_usage) == (0, 0.0)


async def test_an_unknown_kv_usage_stays_unknown():
    reporter = make_reporter(load=lambda: EngineLoad(1, 2, None))
    report = reporter.report()
    assert (report.running, report.waiting, report.kv_usage) == (1, 2, None)


async def test_latencies_are_means_over_the_window():
    clock = Clock()
    reporter = make_reporter(clock=clock)
    (chunk,) = await drain(reporter, "a", chunks_of(clock, tokens=11, ttft_s=1.0, e2e_s=3.0))
    await drain(reporter, "b", chunks_of(clock, tokens=5, ttft_s=2.0, e2e_s=4.0))
    report = reporter.report()
    assert chunk.replica == "m#1"
    assert report.e2e_s == pytest.approx(3.5)
    assert report.ttft_s == pytest.approx(1.5)
    assert report.tpot_s == pytest.approx((0.2 + 0.5) / 2)
    assert report.finished == 2


async def test_old_calls_leave_the_window_and_the_figure_is_unknown_again():
    clock = Clock()
    reporter = make_reporter(clock=clock)
    await drain(reporter, "a", chunks_of(clock))
    clock.now += 29
    assert reporter.report().e2e_s == 3.0
    clock.now += 2
    assert reporter.report().e2e_s is None
    assert reporter.report().finished == 1


def test_the_window_keeps_the_last_64_calls():
    window = CallWindow()
    for i in range(100):
        window.add(FinishedCall(0.0, float(i), None, None))
    assert window.means(0.0) == Latencies(sum(range(36, 100)) / 64)


@pytest.mark.parametrize(("tokens", "ttft_s"), [(1, 1.0), (0, 1.0), (None, 1.0), (9, None)])
async def test_no_time_per_token_without_two_tokens(tokens, ttft_s):
    clock = Clock()
    reporter = make_reporter(clock=clock)
    await drain(reporter, "a", chunks_of(clock, tokens=tokens, ttft_s=ttft_s))
    report = reporter.report()
    assert report.tpot_s is None
    assert math.isfinite(report.e2e_s)


async def test_a_failed_and_a_closed_call_leave_no_trace():
    reporter = make_reporter()

    async def failing():
        yield EngineChunk("some")
        raise RuntimeError("engine")

    with pytest.raises(RuntimeError):
        await drain(reporter, "a", failing())
    closed = []

    async def endless():
        try:
            while True:
                yield EngineChunk("more")
        finally:
            closed.append(True)

    stream = reporter.watch("b", endless())
    await anext(stream)
    assert reporter.report().calls == ("b",)
    await stream.aclose()
    report = reporter.report()
    assert (report.calls, report.finished, report.e2e_s) == ((), 0, None)
    assert closed == [True]


async def test_a_call_leaves_the_report_before_its_last_chunk_is_delivered():
    reporter = make_reporter()
    stream = reporter.watch("a", chunks_of(Clock()))
    assert (await anext(stream)).finish_reason == "stop"
    assert reporter.report().calls == ()
    await stream.aclose()


async def test_one_id_twice_is_counted_twice():
    reporter = make_reporter()

    async def waiting():
        await asyncio.sleep(60)
        yield EngineChunk("")

    calls = [asyncio.create_task(drain(reporter, "a", waiting())) for _ in range(2)]
    await asyncio.sleep(0)
    assert reporter.report().calls == ("a", "a")
    calls[0].cancel()
    await asyncio.gather(calls[0], return_exceptions=True)
    assert reporter.report().calls == ("a",)
    calls[1].cancel()
    await asyncio.gather(calls[1], return_exceptions=True)


async def test_reports_come_every_period_and_sooner_when_a_call_starts_or_ends():
    loop, sent = asyncio.get_running_loop(), []

    async def send(report):
        sent.append((loop.time(), report.calls))

    reporter = make_reporter(send=send, period_s=5.0)
    reporter.start()
    await asyncio.sleep(0.2)
    assert len(sent) == 1
    release = asyncio.Event()

    async def call():
        await release.wait()
        yield EngineChunk("text", "stop", 5, 2, 0.1)

    task = asyncio.create_task(drain(reporter, "a", call()))
    await asyncio.sleep(0.3)
    assert [calls for _, calls in sent] == [(), ("a",)]
    release.set()
    await task
    await asyncio.sleep(0.3)
    assert [calls for _, calls in sent] == [(), ("a",), ()]
    await reporter.stop()


async def test_a_burst_of_calls_is_bounded_by_the_gap():
    loop, sent = asyncio.get_running_loop(), []

    async def send(report):
        sent.append(loop.time())

    reporter = make_reporter(send=send, period_s=5.0)
    reporter.start()
    began_s = loop.time()
    for i in range(300):
        await drain(reporter, str(i), chunks_of(Clock()))
        await asyncio.sleep(0.001)
    elapsed_s = loop.time() - began_s
    await reporter.stop()
    assert 2 <= len(sent) <= elapsed_s / 0.05 + 2
    assert min(b - a for a, b in itertools.pairwise(sent)) >= 0.045


async def test_a_monitor_that_hangs_gets_one_report_and_delays_no_call():
    started = []

    async def hang(report):
        started.append(report)
        await asyncio.sleep(60)

    reporter = make_reporter(send=hang, period_s=0.01)
    reporter.start()
    await asyncio.sleep(0.2)
    async with asyncio.timeout(1.0):
        await drain(reporter, "a", chunks_of(Clock()))
    assert len(started) == 1
    await reporter.stop()


@pytest.mark.parametrize("broken", ["send", "load"])
async def test_the_loop_survives_a_dead_monitor_and_an_unreadable_engine(broken):
    good, sent = asyncio.Event(), []

    async def send(report):
        if broken == "send" and not good.is_set():
            raise ConnectionError("no monitor")
        sent.append(report)

    def load():
        if broken == "load" and not good.is_set():
            raise AttributeError("another version")
        return EngineLoad(0, 0, None)

    reporter = make_reporter(send=send, load=load, period_s=0.01)
    reporter.start()
    async with asyncio.timeout(5.0):
        while reporter.num_failed < 2:
            await asyncio.sleep(0.01)
        assert sent == []
        good.set()
        while not sent:
            await asyncio.sleep(0.01)
    await reporter.stop()


class FakeRef:
    def __init__(self, error=None):
        self._error = error

    def future(self):
        future = concurrent.futures.Future()
        if self._error is None:
            future.set_result(None)
        else:
            future.set_exception(self._error)
        return future


class FakeActor:
    """Stands for a handle: ``actor.report_replica.remote(report)``."""

    def __init__(self, errors):
        self.errors = errors
        self.reports = []
        self.report_replica = self

    def remote(self, report):
        self.reports.append(report)
        return FakeRef(self.errors.pop(0) if self.errors else None)


async def test_the_monitor_is_looked_up_once_and_again_after_each_failure(monkeypatch):
    looked_up = []
    actor = FakeActor([None, ConnectionError("killed")])

    def look_up(self):
        looked_up.append(True)
        if len(looked_up) == 1:
            raise ValueError("not there yet")
        return actor

    monkeypatch.setattr(MonitorLink, "_look_up", look_up)
    link = MonitorLink("monitor", "im")
    outcomes = []
    for i in range(5):
        try:
            await link(i)
            outcomes.append("ok")
        except (ValueError, ConnectionError) as error:
            outcomes.append(type(error).__name__)
    assert outcomes == ["ValueError", "ok", "ConnectionError", "ok", "ok"]
    assert len(looked_up) == 3
    assert actor.reports == [1, 2, 3, 4]
