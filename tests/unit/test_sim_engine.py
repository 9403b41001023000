"""The simulated engines: against each other, by hand, and against queueing theory."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.sim.engine import FastEngine
from runtime.sim.exact import ExactEngine
from runtime.sim.kv import GrowingBlocks
from runtime.sim.pool import SimModel
from runtime.sim.replicas import build_servers
from runtime.sim.sequences import SimSequence, blocks_of
from tests.sim_case import engine, model, pool

ENGINES = (FastEngine, ExactEngine)
both = pytest.mark.parametrize("kind", ENGINES)


def step(one):
    """Go on to the engine's next event; returns who ended with it."""
    due = one.next_event_s
    one.advance(due)
    ended, one.finished = one.finished, []
    # Nobody may end before the engine said that somebody could.
    assert all(s.done_s == pytest.approx(due) for s in ended)
    return ended


def run_out(one):
    """Let an engine run until nothing is left; returns what ended, in order."""
    ended = []
    while one.next_event_s < math.inf:
        ended += step(one)
    return ended


# --- by hand -----------------------------------------------------------------------------------


@both
def test_one_call_alone_takes_what_the_formula_says(kind):
    model = SimModel(0.01, 0.002, 0.5, 1000.0)
    one = kind(model, 4)
    call = SimSequence("a", (0.0, 0), prompt_tokens=100, target_tokens=4)
    one.add(call, 2.0)
    run_out(one)
    # Read: 0.01 + 0.002 + 100 / 1000; then three tokens over 100, 101 and 102 of KV.
    first = 2.0 + 0.112
    assert call.first_token_s == pytest.approx(first)
    assert call.done_s == pytest.approx(first + 3 * 0.012 + 0.5 * (100 + 101 + 102) / 1e3)
    assert call.done_s - 2.0 == pytest.approx(model.alone_s(100, 4))
    assert one.gpu_s(9.0) == pytest.approx(call.done_s - 2.0)
    assert not one.busy


@both
def test_a_call_that_comes_in_the_middle_of_an_iteration_waits_for_its_end(kind):
    one = kind(engine(), 4)
    first, second = (SimSequence(i, (0.0, n), 10, 10) for n, i in enumerate("ab"))
    one.add(first, 0.0)
    one.add(second, 0.025)
    run_out(one)
    assert first.done_s == pytest.approx(0.10)
    assert second.first_token_s == pytest.approx(0.04)
    assert second.done_s == pytest.approx(0.13)


@both
def test_a_prompt_that_is_read_slows_those_who_decode(kind):
    one = kind(engine(prefill_tokens_per_s=1000.0), 4)
    first, second = SimSequence("a", (0.0, 0), 1, 10), SimSequence("b", (0.0, 1), 500, 2)
    one.add(first, 0.0)
    one.add(second, 0.035)
    run_out(one)
    assert first.done_s == pytest.approx(0.001 + 0.10 + 0.5)


@both
def test_a_long_prompt_is_read_in_chunks(kind):
    one = kind(engine(prefill_tokens_per_s=1000.0, chunk_tokens=200), 4)
    first, long = SimSequence("a", (0.0, 0), 1, 8), SimSequence("b", (0.0, 1), 500, 1)
    one.add(first, 0.0)
    one.add(long, 0.005)
    run_out(one)
    # 199 + 199 + 102 tokens beside one that decodes, an iteration each.
    assert long.first_token_s == pytest.approx(0.011 + 3 * 0.01 + 0.5)
    assert first.done_s == pytest.approx(0.001 + 0.08 + 0.5)


@both
def test_no_more_than_max_num_seqs_run_and_the_lowest_key_goes_first(kind):
    one = kind(engine(), 2)
    calls = [SimSequence(str(n), (key, n), 10, 10) for n, key in enumerate((5.0, 4.0, 3.0, 1.0))]
    for call in calls:
        one.add(call, 0.0)
    assert (one.num_running, one.num_waiting) == (1, 3)  # the first began before the rest came
    assert [s.call_id for s in run_out(one)] == ["0", "3", "2", "1"]


@both
def test_the_latest_is_preempted_where_memory_ends_and_reads_again(kind):
    # Six blocks of 16 tokens: two calls of 30 + 34 tokens need four each at their end.
    one = kind(engine(kv_tokens=96, prefill_tokens_per_s=100.0), 4)
    early, late = SimSequence("e", (1.0, 1), 30, 34), SimSequence("l", (2.0, 0), 30, 34)
    one.add(late, 0.0)
    one.add(early, 0.0)
    ended = run_out(one)
    assert one.num_preemptions == 1
    assert [s.call_id for s in ended] == ["e", "l"]
    # It keeps what it wrote, and reads it again with its prompt once the other is done.
    assert late.done_s > early.done_s + (30 + 15) / 100.0
    assert late.generated == 34
    assert one.kv_blocks(late.done_s) == 0


@both
def test_a_call_that_can_never_fit_is_refused_and_nothing_changes(kind):
    one = kind(engine(kv_tokens=64), 4)
    with pytest.raises(ValueError, match="never fits"):
        one.add(SimSequence("a", (0.0, 0), 60, 6), 0.0)
    assert not one.busy
    one.add(SimSequence("b", (0.0, 0), 60, 5), 0.0)
    assert len(run_out(one)) == 1


@both
def test_who_is_withdrawn_leaves_and_what_it_had_given_is_known(kind):
    one = kind(engine(c_s=0.01), 4)
    gone, stays = SimSequence("a", (0.0, 0), 10, 100), SimSequence("b", (0.0, 1), 10, 10)
    one.add(gone, 0.0)
    one.add(stays, 0.0)
    one.remove(gone, 0.1)  # iterations end at 0.02, 0.05, 0.08, 0.11
    one.remove(gone, 0.1)
    assert gone.generated == 3
    assert [s.call_id for s in run_out(one)] == ["b"]
    # Three of its ten tokens came beside the other, seven alone.
    assert stays.done_s == pytest.approx(0.02 + 3 * 0.03 + 7 * 0.02)
    assert one.kv_blocks(1.0) == 0


@both
def test_a_slower_engine_ends_its_iteration_first(kind):
    one = kind(engine(), 4)
    call = SimSequence("a", (0.0, 0), 10, 4)
    one.add(call, 0.0)
    one.set_factor(1, 3.0, 0.015)
    run_out(one)
    assert call.done_s == pytest.approx(0.02 + 2 * 0.03)
    assert one.gpu_s(9.0) == pytest.approx(0.04)


@both
def test_a_frozen_engine_gives_nothing_until_it_is_thawed(kind):
    one = kind(engine(), 4)
    call = SimSequence("a", (0.0, 0), 10, 4)
    one.add(call, 0.0)
    one.set_factor(1, math.inf, 0.015)
    one.advance(5.0)
    assert one.next_event_s == math.inf
    assert one.generated(call, 5.0) == 2
    one.set_factor(1, 1.0, 5.0)
    run_out(one)
    assert call.done_s == pytest.approx(5.02)


@both
def test_busy_engines_on_one_gpu_share_it_and_an_idle_one_takes_nothing(kind):
    mode = "fast" if kind is FastEngine else "exact"
    shared = dict.fromkeys("ab", engine(gpus=("gpu",)))
    servers = build_servers(pool(model("a"), model("b")), shared, mode)
    one, other = (server.replicas[0] for server in servers.values())
    gpu = one.gpu

    def give(replica, call, now):
        replica.expect_work(now)
        replica.engine.add(call, now)
        gpu.settle(replica, now)

    long, short = SimSequence("l", (0.0, 0), 10, 100), SimSequence("s", (0.0, 0), 10, 10)
    give(one, long, 0.0)
    give(other, short, 0.505)
    while one.engine.busy or other.engine.busy:
        now, which = min((r.engine.next_event_s, r.name) for r in (one, other))
        replica = one if which == one.name else other
        replica.engine.advance(now)
        gpu.settle(replica, now)
    # Half speed for the short one's ten iterations, and for ten of the long one meanwhile.
    assert short.done_s == pytest.approx(0.505 + 10 * 0.02)
    assert long.done_s == pytest.approx(1.0 + 10 * 0.01)
    assert one.gpu_s(9.0) + other.gpu_s(9.0) == pytest.approx(1.1)


# --- the two engines against each other ----------------------------------------------------------


def drive(kind, model, slots, seed):
    """A random life of an engine; everything that can be seen of it."""
    rng = random.Random(seed)
    acts, now = [], 0.0
    for number in range(120):
        now += rng.expovariate(2.0)
        key = (rng.random() if seed % 2 else 0.0, number)
        call = SimSequence(str(number), key, rng.randint(1, 1500), rng.randint(1, 300))
        acts.append((now, "add", call))
        if rng.random() < 0.3:
            acts.append((now + rng.random() * 5, "remove", call))
    acts += [(rng.uniform(0, now), "speed", rng.choice([0.5, 1, 2, 3])) for _ in range(20)]
    one, calls, looks = kind(model, slots), [], []
    for when, act, about in sorted(acts, key=lambda a: a[0]):
        while one.next_event_s <= when:
            step(one)
        if act == "add":
            one.add(about, when)
            calls.append(about)
        elif act == "remove":
            one.remove(about, when)
        else:
            one.set_factor(1, about, when)
        one.advance(when)
        assert not one.finished
        given = [one.generated(call, when) for call in calls]
        looks.append((one.num_waiting, one.kv_blocks(when), given))
    run_out(one)
    times = [(call.first_token_s or -1.0, call.done_s or -1.0) for call in calls]
    return times, looks, one.num_preemptions, one.gpu_s(1e6)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("kv_tokens", "slots"), [(None, 8), (8000, 16), (3000, 16), (60_000, 64)])
def test_the_fast_engine_does_what_the_exact_one_does(seed, kv_tokens, slots):
    model = SimModel(0.01, 0.0005, 0.02, 20_000.0, kv_tokens, chunk_tokens=512)
    fast, exact = (drive(kind, model, slots, seed) for kind in ENGINES)
    assert fast[0] == [pytest.approx(pair, abs=1e-6) for pair in exact[0]]
    assert fast[1] == exact[1]
    assert fast[2] == exact[2]
    assert fast[3] == pytest.approx(exact[3])
    assert (fast[2] > 0) == (kv_tokens in (3000, 8000))


# --- blocks --------------------------------------------------------------------------------------


@given(
    bases=st.lists(st.integers(-50, 2000), max_size=20),
    count=st.integers(51, 500),
    room=st.integers(0, 300),
)
@settings(deadline=None)
def test_growing_blocks_are_those_of_counting_each(bases, count, room):
    blocks = GrowingBlocks()
    for base in [*bases, 7]:
        blocks.add(base)
    blocks.remove(7)

    def counted(at):
        return sum(blocks_of(base + at) for base in bases)

    assert blocks.blocks(count) == counted(count)
    if bases:
        most = blocks.iterations_within(room, count)
        assert most == 0 or counted(count + most) <= room
        assert counted(count + most + 1) > room


# --- theory --------------------------------------------------------------------------------------


def sojourns(model, slots, rate_per_s, draw_tokens, number, seed=1):
    """Mean seconds in the system under Poisson arrivals."""
    rng, one, now, calls = random.Random(seed), FastEngine(model, slots), 0.0, []
    for n in range(number):
        now += rng.expovariate(rate_per_s)
        while one.next_event_s <= now:
            step(one)
        call = SimSequence(str(n), (0.0, n), 1, draw_tokens(rng))
        calls.append((call, now))
        one.add(call, now)
    run_out(one)
    return sum(call.done_s - came for call, came in calls) / number


def geometric(mean):
    return lambda rng: 1 + int(math.log(1.0 - rng.random()) / math.log(1.0 - 1.0 / mean))


@pytest.mark.parametrize("draw", [lambda rng: 500, geometric(500)], ids=["constant", "geometric"])
def test_sharing_the_engine_is_processor_sharing(draw):
    """M/G/1-PS: the mean sojourn is that of the service over 1 - rho, whatever its shape."""
    model = replace(engine(), a_s=1e-9, c_s=0.0002)
    service_s, rho = 500 * 0.0002, 0.6
    mean_s = sojourns(model, 10**6, rho / service_s, draw, 20_000)
    assert mean_s == pytest.approx(service_s / (1 - rho), rel=0.05)


def test_slots_are_servers():
    """M/M/c: iterations that take as long for many as for one make each slot a server."""
    servers, mean_tokens, rho = 4, 500, 0.7
    model = replace(engine(), a_s=0.002)
    service_s = mean_tokens * 0.002
    rate = rho * servers / service_s
    mean_s = sojourns(model, servers, rate, geometric(mean_tokens), 40_000)
    offered = rho * servers
    last = offered**servers / math.factorial(servers) / (1 - rho)
    waits = last / (sum(offered**k / math.factorial(k) for k in range(servers)) + last)
    expected = service_s + waits * service_s / (servers * (1 - rho))
    assert mean_s == pytest.approx(expected, rel=0.05)
