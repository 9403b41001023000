"""Pages of inference servers: exact names, old and new ones, and nothing made up."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.exposition import (
    GAUGES,
    HISTOGRAMS,
    WINDOW_S,
    EnginePage,
    PageHistory,
    Total,
    read_page,
)

PAGES = Path(__file__).parent / "pages"
SMOL = "HuggingFaceTB/SmolLM2"
NOTHING = EnginePage(None, None, None, None, None, None)


def test_a_page_of_vllm_is_read():
    """Scraped from vLLM 0.32 with four requests running and two waiting."""
    got = read_page((PAGES / "vllm_0_32.txt").read_text(), SMOL)
    assert got == EnginePage(
        running=4,
        waiting=2,
        kv_usage=pytest.approx(0.0221, abs=1e-4),
        e2e_s=Total(1.8718266487121582, 3),
        ttft_s=Total(5.308094263076782, 9),
        tpot_s=Total(10.851035198005775, 71),
    )
    assert got.missing == ()


def test_a_page_of_sglang_is_read():
    got = read_page((PAGES / "sglang.txt").read_text(), "meta-llama/Llama-3.1-8B-Instruct")
    assert (got.running, got.waiting, got.kv_usage) == (162, 2826, 0.28)
    assert got.ttft_s == Total(2.3518979474117756e6, 11008)
    assert got.missing == ("e2e_s",)


@pytest.mark.parametrize("name", ["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"])
def test_the_old_and_the_new_name_of_the_cache_are_known(name):
    assert read_page(f'{name}{{model_name="m"}} 0.5\n', "m").kv_usage == 0.5


def test_a_longer_name_is_another_metric():
    text = (
        'vllm:num_requests_waiting_by_reason{model_name="m",reason="capacity"} 7.0\n'
        'vllm:num_requests_running_extra{model_name="m"} 7.0\n'
        "vllm:e2e_request_latency_seconds_sum_created 7.0\n"
    )
    assert read_page(text, "m") == NOTHING


def test_a_name_in_a_comment_or_a_label_is_no_sample():
    text = (
        "# HELP vllm:num_requests_running vllm:num_requests_running 7\n"
        'other{name="vllm:num_requests_waiting"} 7\n'
    )
    assert read_page(text, "m") == NOTHING


def test_zero_is_not_missing():
    got = read_page("vllm:num_requests_running 0.0\nvllm:kv_cache_usage_perc 0.0\n", "m")
    assert (got.running, got.waiting, got.kv_usage) == (0, None, 0.0)
    assert "waiting" in got.missing
    assert "running" not in got.missing


def test_engines_are_summed_and_the_fullest_cache_counts():
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {i + 1}\n'
        f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="m"}} 0.{i + 3}\n'
        for i in range(2)
    )
    got = read_page(text, "m")
    assert (got.running, got.kv_usage) == (3, 0.4)


def test_only_our_model_counts_where_the_page_names_it():
    text = (
        'vllm:num_requests_running{model_name="a"} 1\nvllm:num_requests_running{model_name="b"} 5\n'
    )
    assert read_page(text, "a").running == 1
    assert read_page(text, "an alias of both").running == 6


def test_parts_by_priority_are_not_added_to_their_total():
    text = (
        'sglang:num_queue_reqs{model_name="m",priority=""} 5\n'
        'sglang:num_queue_reqs{model_name="m",priority="1"} 3\n'
        'sglang:num_queue_reqs{model_name="m",priority="2"} 2\n'
    )
    assert read_page(text, "m").waiting == 5


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1.5"])
def test_what_is_no_share_is_not_known(value):
    assert read_page(f"vllm:kv_cache_usage_perc {value}\n", "m").kv_usage is None


@pytest.mark.parametrize(
    "line", ["vllm:num_requests_running", "vllm:num_requests_running{ 1", "sglang:token_usage x"]
)
def test_a_broken_line_of_ours_is_an_error(line):
    with pytest.raises(ValueError, match="Prometheus"):
        read_page(line + "\n", "m")


WORDS = st.sampled_from([n for names in GAUGES.values() for n in names] + ['{model_name="m"}', " "])


@given(st.lists(st.one_of(st.text(max_size=20), WORDS, st.floats().map(str))).map("".join))
def test_any_text_is_read_or_refused(text):
    try:
        got = read_page(text, "m")
    except ValueError:
        return
    assert got.running is None or got.running >= 0
    assert got.kv_usage is None or 0 <= got.kv_usage <= 1


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6))
def test_gauges_sum_over_any_engines(loads):
    text = "".join(
        f'vllm:num_requests_running{{engine="{i}"}} {a}\n'
        f'vllm:num_requests_waiting{{engine="{i}"}} {b}\n'
        for i, (a, b) in enumerate(loads)
    )
    got = read_page(text, "m")
    assert (got.running, got.waiting) == (sum(a for a, _ in loads), sum(b for _, b in loads))


def page(*, e2e=None, ttft=None, tpot=None):
    totals = [None if pair is None else Total(*pair) for pair in (e2e, ttft, tpot)]
    return EnginePage(0, 0, 0.0, *totals)


def history(*pages):
    told = PageHistory()
    for now, one in enumerate(pages):
        told.add(one, float(now))
    return told.means(float(len(pages) - 1))


def test_means_are_of_what_ended_between_the_pages():
    first, last = page(e2e=(10.0, 5), tpot=(1.0, 100)), page(e2e=(22.0, 9), tpot=(4.0, 200))
    assert history(first, last) == (3.0, None, 0.03)


def test_one_page_and_two_equal_ones_tell_nothing():
    one = page(e2e=(10.0, 5), ttft=(1.0, 5), tpot=(2.0, 50))
    assert history(one) == (None, None, None)
    assert history(one, one) == (None, None, None)


def test_a_restarted_server_begins_anew():
    before, after = page(e2e=(100.0, 50)), page(e2e=(1.0, 2))
    assert history(before, after) == (None, None, None)
    assert history(before, after, page(e2e=(4.0, 3)))[0] == 3.0


def test_pages_leave_the_window():
    told = PageHistory()
    told.add(page(e2e=(0.0, 0)), 0.0)
    told.add(page(e2e=(8.0, 4)), 10.0)
    assert told.means(10.0)[0] == 2.0
    assert told.means(WINDOW_S + 1)[0] is None
    assert told.means(10 * WINDOW_S) == (None, None, None)


def test_no_mean_is_ever_nan():
    empty = page(**dict.fromkeys(("e2e", "ttft", "tpot"), (0.0, 0)))
    assert not any(v is not None and math.isnan(v) for v in history(empty, empty, empty))
    assert len(HISTOGRAMS) == 3
