"""The fake engine: its time model on a virtual clock, its behaviour on a real, sped-up one."""

import asyncio
import contextlib
import dataclasses
import json
import math
import time

import pytest

from actors.fake_batch import FakeBatch, FakeSequence
from actors.fake_engine import FakeEngine
from actors.fake_text import answer_text, count_prompt_tokens, evaluate
from actors.protocol import EngineRefused, EngineRequest, EngineStalled
from runtime.config import ModelConfig
from runtime.types import Message, Sampling


def make_model(**changes):
    settings = {
        "name": "fake-a",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 2048,
        "max_num_seqs": 4,
        "speed": {"prefill_tokens_per_s": 1000, "token_s": 0.01, "token_s_per_seq": 0.001},
    }
    return ModelConfig.model_validate(settings | changes)


def make_sequence(arrival, *, priority=0, prompt=100, target=10, **more):
    return FakeSequence((priority, arrival), prompt, target, **more)


def make_request(call_id="c1", *, text="Why?", max_tokens=256, remaining_s=60.0, **more):
    sampling = more.pop("sampling", Sampling())
    stream = more.pop("stream", False)
    messages = (Message("user", text),)
    return EngineRequest(
        call_id, messages, max_tokens, remaining_s, sampling, stream, more.pop("limit_s", None)
    )


async def collect(engine, request):
    return [chunk async for chunk in engine.generate(request)]


def counts(engine):
    load = engine.load()
    return load.running, load.waiting, load.kv_usage


async def until(condition, timeout_s=5.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.001)


# The time model, on a virtual clock.


def test_one_sequence_takes_its_prefill_and_its_iterations():
    batch = FakeBatch(make_model())
    sequence = make_sequence(0)
    batch.add(sequence, 5.0)
    end_s = 5.0 + 100 / 1000 + 10 * (0.01 + 0.001)
    batch.advance(end_s - 0.001)
    assert (sequence.generated, sequence.done) == (9, False)
    batch.advance(end_s)
    assert (sequence.generated, sequence.done) == (10, True)
    assert sequence.first_token_s == pytest.approx(5.0 + 0.1 + 0.011)
    assert batch.alone_s(sequence) == pytest.approx(end_s - 5.0)


def test_iterations_take_longer_with_more_sequences_and_give_each_a_token():
    batch = FakeBatch(make_model())
    sequences = [make_sequence(i) for i in range(4)]
    for sequence in sequences:
        batch.add(sequence, 0.0)
    batch.advance(0.1 + 5 * (0.01 + 4 * 0.001))
    assert [s.generated for s in sequences] == [5, 5, 5, 5]


def test_speedup_divides_every_time():
    slow, fast = FakeBatch(make_model()), FakeBatch(make_model(fake={"speedup": 10}))
    assert fast.alone_s(make_sequence(0)) == pytest.approx(slow.alone_s(make_sequence(0)) / 10)


def test_late_calls_of_advance_change_nothing():
    often, once = FakeBatch(make_model()), FakeBatch(make_model())
    results = []
    for batch, times in ((often, [i / 1000 for i in range(1000)]), (once, [0.999])):
        sequences = [make_sequence(i, target=20 + 10 * i) for i in range(6)]
        for sequence in sequences:
            batch.add(sequence, 0.0)
        for now in times:
            batch.advance(now)
        results.append([(s.generated, round(s.first_token_s or 0, 6)) for s in sequences])
    assert results[0] == results[1]


def test_capacity_holds_and_waiting_goes_by_priority_then_arrival():
    batch = FakeBatch(make_model(max_num_seqs=2))
    running = [make_sequence(0, priority=50), make_sequence(1, priority=50, target=20)]
    later = [make_sequence(i, priority=p) for i, p in ((2, 30), (3, 10), (4, 20), (5, 10))]
    for sequence in running + later:
        batch.add(sequence, 0.0)
    assert batch.running == running  # a more urgent arrival displaces nobody
    assert [s.key for s in batch.waiting] == [(10, 3), (10, 5), (20, 4), (30, 2)]
    begun = []
    for step in range(2000):
        batch.advance(step / 1000)
        assert len(batch.running) <= 2
        begun += [s for s in batch.running if s not in begun]
    assert [s.key[1] for s in begun] == [0, 1, 3, 5, 4, 2]
    assert all(s.done for s in running + later)


def test_memory_pressure_throws_out_the_lowest_priority_which_ends_whole():
    batch = FakeBatch(make_model(fake={"kv_tokens": 300}))
    urgent = make_sequence(0, priority=1, prompt=100, target=80)
    loose = make_sequence(1, priority=2, prompt=100, target=80)
    batch.add(loose, 0.0)
    batch.add(urgent, 0.0)
    while not loose.done:
        assert batch.kv_used <= 300
        batch.advance(batch.next_event_s())
        if batch.num_preemptions and not urgent.done:
            assert batch.waiting == [loose]
    assert batch.num_preemptions == 1
    assert (urgent.generated, loose.generated, batch.kv_used) == (80, 80, 0)
    # 50 iterations of two, the rest of the urgent one, its own prefill again, its last 30.
    again_s = (100 + 50) / 1000
    expected_s = 0.1 + 50 * 0.012 + 30 * 0.011 + again_s + 30 * 0.011
    assert batch._at_s == pytest.approx(expected_s)


def test_an_arrival_waits_while_there_is_no_room_and_nobody_passes_the_first():
    batch = FakeBatch(make_model(fake={"kv_tokens": 300}))
    big, next_big, small = (
        make_sequence(0, prompt=200),
        make_sequence(1, prompt=150),
        make_sequence(2, prompt=10),
    )
    for sequence in (big, next_big, small):
        batch.add(sequence, 0.0)
    assert (batch.running, batch.waiting) == ([big], [next_big, small])
    batch.remove(big, 0.0)
    assert batch.running == [next_big, small]


# The engine, on the real clock.


async def test_an_answer_comes_with_its_counts():
    engine = FakeEngine(make_model(fake={"speedup": 50}))
    (chunk,) = await collect(engine, make_request(text="What is 17 + 25?"))
    assert chunk.text.startswith("[fake engine]")
    assert chunk.text.endswith("Answer: 42")
    assert chunk.finish_reason == "stop"
    assert chunk.prompt_tokens == count_prompt_tokens([Message("user", "What is 17 + 25?")])
    assert chunk.completion_tokens == math.ceil(len(chunk.text) / 4)
    assert 0 < chunk.ttft_s < 5
    assert counts(engine) == (0, 0, 0.0)


async def test_the_cap_cuts_and_says_so():
    engine = FakeEngine(make_model(fake={"speedup": 50}))
    (chunk,) = await collect(engine, make_request(max_tokens=7))
    assert (chunk.finish_reason, chunk.completion_tokens, len(chunk.text)) == ("length", 7, 28)


async def test_a_stop_word_ends_the_answer():
    engine = FakeEngine(make_model(fake={"speedup": 50}))
    request = make_request(text="What is 1 + 1?", sampling=Sampling(stop=("\nAnswer",)))
    (chunk,) = await collect(engine, request)
    assert chunk.finish_reason == "stop"
    assert "Answer" not in chunk.text


async def test_a_stream_is_the_same_text_in_pieces():
    engine = FakeEngine(make_model(fake={"answer_tokens": 200}))
    whole = make_request(text="tell me", max_tokens=600)
    (plain,), pieces = await asyncio.gather(
        collect(engine, whole),
        collect(engine, make_request(text="tell me", max_tokens=600, stream=True)),
    )
    assert "".join(p.text for p in pieces) == plain.text
    assert len(pieces) >= 5
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].completion_tokens == plain.completion_tokens


async def test_time_on_the_real_clock_follows_the_model():
    engine = FakeEngine(make_model(fake={"answer_tokens": 200}))
    began_s = time.monotonic()
    (chunk,) = await collect(engine, make_request(max_tokens=768))
    took_s = time.monotonic() - began_s
    expected_s = chunk.prompt_tokens / 1000 + chunk.completion_tokens * 0.011
    assert expected_s * 0.95 <= took_s <= expected_s + 1.0


async def test_never_more_than_max_num_seqs_run():
    engine = FakeEngine(make_model(max_num_seqs=3, fake={"speedup": 20}))
    calls = [asyncio.create_task(collect(engine, make_request(f"c{i}"))) for i in range(12)]
    most = 0
    while not all(c.done() for c in calls):
        load = engine.load()
        most = max(most, load.running)
        assert load.running + load.waiting <= 12
        await asyncio.sleep(0.002)
    assert most == 3
    assert counts(engine) == (0, 0, 0.0)


async def test_the_earlier_deadline_leaves_the_queue_first():
    engine = FakeEngine(make_model(max_num_seqs=1, fake={"speedup": 20}))
    ended = []

    async def call(name, remaining_s):
        await collect(engine, make_request(name, remaining_s=remaining_s))
        ended.append(name)

    first = asyncio.create_task(call("first", 100))
    await until(lambda: engine.load().running == 1)
    await asyncio.gather(first, call("60", 60), call("5", 5), call("30", 30))
    assert ended == ["first", "5", "30", "60"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_cancelled_call_frees_its_place_at_once(stream):
    engine = FakeEngine(make_model(max_num_seqs=2))
    calls = [
        asyncio.create_task(collect(engine, make_request(f"c{i}", max_tokens=2048, stream=stream)))
        for i in range(5)
    ]
    await until(lambda: engine.load().waiting == 3)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert counts(engine) == (0, 0, 0.0)
    assert engine._timer is None


async def test_a_closed_stream_frees_its_place_at_once():
    engine = FakeEngine(make_model())
    stream = engine.generate(make_request(max_tokens=2048, stream=True))
    assert (await anext(stream)).text
    assert counts(engine)[0] == 1
    await stream.aclose()
    assert counts(engine) == (0, 0, 0.0)


async def test_idle_costs_nothing_and_work_no_wakeup_per_token():
    engine = FakeEngine(make_model(fake={"answer_tokens": 400, "speedup": 5}))
    (chunk,) = await collect(engine, make_request(max_tokens=768))
    assert chunk.completion_tokens > 200
    assert engine.num_wakeups <= 5
    before = engine.num_wakeups
    await asyncio.sleep(0.2)
    assert (engine.num_wakeups, engine._timer) == (before, None)


async def test_a_prompt_over_the_context_is_refused_and_those_behind_proceed():
    engine = FakeEngine(make_model(fake={"speedup": 50}))
    with pytest.raises(EngineRefused) as refused:
        await collect(engine, make_request(text="word " * 5000))
    assert refused.value.kind == "context"
    with pytest.raises(EngineRefused):
        await collect(engine, make_request(max_tokens=4096))
    assert await collect(engine, make_request(max_tokens=2048))
    assert counts(engine) == (0, 0, 0.0)


async def test_what_can_never_fit_the_memory_is_refused_not_preempted_for_ever():
    engine = FakeEngine(make_model(fake={"kv_tokens": 200}))
    with pytest.raises(EngineRefused):
        await collect(engine, make_request(max_tokens=256))


async def test_an_injected_error_raises_and_leaves_nothing():
    engine = FakeEngine(make_model(fake={"faults": {"error_rate": 1.0}}))
    with pytest.raises(RuntimeError, match="injected"):
        await collect(engine, make_request())
    assert counts(engine) == (0, 0, 0.0)


async def test_an_injected_hang_holds_its_place_until_it_is_cancelled():
    engine = FakeEngine(make_model(fake={"speedup": 1000, "faults": {"hang_rate": 1.0}}))
    call = asyncio.create_task(collect(engine, make_request()))
    await asyncio.sleep(0.1)
    assert not call.done()
    assert engine.load().running == 1
    assert engine.num_wakeups == 0
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert counts(engine) == (0, 0, 0.0)


async def test_a_slow_call_takes_its_factor_longer_and_others_do_not():
    faults = {"slow_rate": 1.0, "slow_factor": 5.0}
    slow = FakeEngine(make_model(fake={"speedup": 20, "faults": faults}))
    plain = FakeEngine(make_model(fake={"speedup": 20}))
    took = []
    for engine in (plain, slow):
        began_s = time.monotonic()
        await collect(engine, make_request(max_tokens=768))
        took.append(time.monotonic() - began_s)
    assert took[1] >= 3 * took[0]


async def test_faults_are_drawn_from_the_seed():
    async def outcomes(seed):
        faults = {"error_rate": 0.5, "seed": seed}
        engine = FakeEngine(make_model(fake={"speedup": 1000, "faults": faults}))
        results = [
            await asyncio.gather(collect(engine, make_request(f"c{i}")), return_exceptions=True)
            for i in range(20)
        ]
        return [isinstance(r[0], RuntimeError) for r in results]

    first = await outcomes(1)
    assert first == await outcomes(1)
    assert first != await outcomes(2)
    assert 0 < sum(first) < 20


# The text.


@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("What is 17 + 25?", "42"),
        ("17+25*2", "67"),
        ("compute 10 / 4", "2.5"),
        ("-3 + 5 - 4", "-2"),
        ("0.1 + 0.2", "0.3"),
        ("born 2024-01-02", None),
        ("3x + 2 = 8", None),
        ("6 / 0", None),
        ("agents 1-6", None),
    ],
)
def test_plain_arithmetic_is_right(question, value):
    assert evaluate(question) == value


def test_a_choice_is_one_of_the_options_and_stays_the_same():
    question = "Which one?\n\nA. red\nB. green\nC. blue"
    answers = {
        answer_text("m", [Message("user", question + extra)], 120, 768)[-9:]
        for extra in ("", "\n\nThink step by step.", "\n\n<answer>\nAnswer: Z\n</answer>")
    }
    assert len(answers) == 1
    assert answers.pop() in {"Answer: A", "Answer: B", "Answer: C"}


def test_code_is_a_fenced_stub_of_the_asked_name():
    text = answer_text("m", [Message("user", "def add(a, b):\n    ...")], 120, 768)
    assert text.count("```") == 2
    assert "def add(" in text


def test_other_questions_get_a_sentence_that_says_it_is_fake():
    text = answer_text("m", [Message("user", "Why is the sky blue?")], 120, 768)
    assert text.startswith("[fake engine]")
    assert "Answer:" not in text


def test_a_larger_cap_gives_a_longer_answer():
    question = [Message("user", "Why?")]
    lengths = [len(answer_text("m", question, 120, cap)) for cap in (256, 768, 2048)]
    assert lengths == sorted(set(lengths))
    assert 0.7 * 120 * 4 <= lengths[1] <= 1.3 * 120 * 4


@pytest.mark.parametrize("stream", [False, True])
async def test_at_its_time_limit_an_answer_ends_where_it_is(stream):
    engine = FakeEngine(make_model(fake={"answer_tokens": 200}))
    whole = 200 * 0.011
    chunks = await collect(engine, make_request(limit_s=whole / 4, stream=stream))
    assert chunks[-1].finish_reason == "length"
    assert 0 < chunks[-1].completion_tokens < 150
    assert "".join(c.text for c in chunks)
    assert counts(engine) == (0, 0, 0.0)


async def test_a_limit_that_is_far_away_changes_nothing():
    engine = FakeEngine(make_model(fake={"answer_tokens": 5}))
    chunks = await collect(engine, make_request(limit_s=60.0))
    assert chunks[-1].finish_reason == "stop"


async def test_a_call_that_hangs_is_not_ended_by_its_limit():
    engine = FakeEngine(make_model(fake={"faults": {"hang_rate": 1.0}}))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await collect(engine, make_request(limit_s=0.05))
    assert counts(engine) == (0, 0, 0.0)


# What a request asks of the answer.

TOOLS = '[{"type": "function", "function": {"name": "look_up"}}]'


async def said(**sampling):
    more = {"messages": sampling.pop("messages", None), "prompt": sampling.pop("prompt", None)}
    request = make_request(sampling=Sampling(**sampling), max_tokens=500)
    changes = {key: value for key, value in more.items() if value is not None}
    request = dataclasses.replace(request, **changes)
    return (await collect(FakeEngine(make_model(fake={"speedup": 100})), request))[-1]


async def test_a_seed_changes_the_text_and_the_same_seed_does_not():
    texts = [(await said(seed=seed)).text for seed in (1, 1, 2, 3, 4)]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


async def test_a_wanted_tool_is_called():
    chunk = await said(tools=TOOLS, tool_choice='"required"')
    assert (chunk.text, chunk.finish_reason) == ("", "tool_calls")
    assert [(c.name, c.arguments) for c in chunk.tool_calls] == [("look_up", "{}")]
    named = await said(tools=TOOLS, tool_choice='{"function": {"name": "look_up"}}')
    assert (named.tool_calls[0].name, named.finish_reason) == ("look_up", "stop")
    assert (await said(tools=TOOLS, tool_choice='"auto"')).tool_calls == ()
    with pytest.raises(EngineRefused):
        await said(tools=TOOLS, tool_choice='{"function": {"name": "other"}}')


async def test_json_is_json_and_follows_the_schema():
    chunk = await said(response_format='{"type": "json_object"}')
    assert json.loads(chunk.text)["engine"] == "fake"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["x"]}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert json.loads((await said(response_format=json.dumps(wanted))).text) == {"n": 0, "s": "x"}
    schema["properties"]["n"] = {"type": "odd"}
    with pytest.raises(EngineRefused):
        await said(response_format=json.dumps(wanted))


async def test_logprobs_are_of_every_token():
    chunk = await said(logprobs=2)
    assert "".join(one.token for one in chunk.logprobs) == chunk.text
    assert len(chunk.logprobs) == chunk.completion_tokens
    assert all(len(one.top) == 2 for one in chunk.logprobs)
    assert (await said()).logprobs is None
    assert (await said(logprobs=0)).logprobs[0].top == ()


async def test_a_raw_prompt_is_read():
    chunk = await said(messages=(), prompt="What is 17 + 25?")
    assert chunk.text.endswith("Answer: 42")
    assert chunk.prompt_tokens > 4


@pytest.mark.parametrize("limit_s", [None, 0.05])
async def test_a_call_without_a_token_for_too_long_ends_as_stalled_and_frees_its_place(limit_s):
    engine = FakeEngine(make_model(fake={"faults": {"hang_rate": 1.0}}))
    request = dataclasses.replace(make_request(limit_s=limit_s), stall_s=0.1)
    with pytest.raises(EngineStalled):
        await asyncio.wait_for(collect(engine, request), 5.0)
    assert counts(engine) == (0, 0, 0.0)


async def test_a_call_that_makes_progress_is_never_stalled():
    engine = FakeEngine(make_model(speed={"prefill_tokens_per_s": 10_000, "token_s": 0.02}))
    request = dataclasses.replace(make_request(max_tokens=30), stall_s=0.1)
    chunks = await collect(engine, request)
    assert chunks[-1].completion_tokens == 30
