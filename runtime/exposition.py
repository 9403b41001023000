"""Reads the Prometheus page of an inference server: its load, and what its calls took.

vLLM and SGLang, old names and new. A name is itself only in full:
``vllm:num_requests_waiting_by_reason`` is not ``vllm:num_requests_waiting``. What a page does not
say is ``None``, never 0.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

WINDOW_S = 30.0

GAUGES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
}
HISTOGRAMS = {
    "e2e_s": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "ttft_s": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "tpot_s": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
        "sglang:time_per_output_token_seconds",
    ),
}
_ENDINGS = ("_sum", "_count")
_WANTED = {name for names in GAUGES.values() for name in names} | {
    name + ending for names in HISTOGRAMS.values() for name in names for ending in _ENDINGS
}
_NAME = re.compile(r"[^\s{]+")

_Sample = tuple[dict[str, str], float]


@dataclass(frozen=True, slots=True)
class Total:
    """A histogram since the start of the server: the sum of what was observed, and how often."""

    sum: float
    count: float


@dataclass(frozen=True, slots=True)
class EnginePage:
    """One page. ``kv_usage`` is 0..1; the totals are of seconds."""

    running: int | None
    waiting: int | None
    kv_usage: float | None
    e2e_s: Total | None
    ttft_s: Total | None
    tpot_s: Total | None

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the figures that the page does not have."""
        return tuple(name for name in (*GAUGES, *HISTOGRAMS) if getattr(self, name) is None)


def read_page(text: str, model: str) -> EnginePage:
    """The figures of the model that the server calls ``model``.

    Where no sample of a metric has that name as its ``model_name`` (an alias, an adapter), all
    of them count. Several engines are summed; of their KV caches the fullest counts.

    Raises:
        ValueError: a line with one of the names is not in Prometheus' text format.
    """
    samples = _samples(text, model)
    running, waiting = (_one(samples, GAUGES[name]) for name in ("running", "waiting"))
    kv_usage = _one(samples, GAUGES["kv_usage"], most=True)
    return EnginePage(
        running=None if running is None else round(running),
        waiting=None if waiting is None else round(waiting),
        kv_usage=kv_usage if kv_usage is not None and kv_usage <= 1.0 else None,
        **{name: _total(samples, names) for name, names in HISTOGRAMS.items()},
    )


def _samples(text: str, model: str) -> dict[str, list[float]]:
    # Most of a page is buckets of histograms; the parser is too slow to read them for nothing.
    lines = [line for line in text.split("\n") if _named(line) in _WANTED]
    found: dict[str, list[_Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    except Exception as error:  # the parser raises what comes to it
        raise ValueError(f"not Prometheus' text format: {error}") from None
    return {name: _ours(known, model) for name, known in found.items()}


def _named(line: str) -> str | None:
    match = _NAME.match(line)
    return match.group() if match else None


def _ours(samples: list[_Sample], model: str) -> list[float]:
    """The values that count: of our model, and the total where there are parts by priority."""
    named = [s for s in samples if s[0].get("model_name") == model] or samples
    whole = [s for s in named if not s[0].get("priority")] or named
    return [value for _, value in whole]


def _one(
    samples: dict[str, list[float]], names: tuple[str, ...], *, most: bool = False
) -> float | None:
    """The figure under the first of ``names`` that is there; ``None`` if it is no number."""
    values = next((samples[name] for name in names if name in samples), [])
    if not values or not all(math.isfinite(v) and v >= 0 for v in values):
        return None
    return max(values) if most else sum(values)


def _total(samples: dict[str, list[float]], names: tuple[str, ...]) -> Total | None:
    for name in names:
        sums, counts = (_one(samples, (name + ending,)) for ending in _ENDINGS)
        if sums is not None and counts is not None:
            return Total(sums, counts)
    return None


class PageHistory:
    """The pages of the last ``WINDOW_S``; means come from the difference of the ends."""

    def __init__(self) -> None:
        self._pages: deque[tuple[float, EnginePage]] = deque()

    def add(self, page: EnginePage, now: float) -> None:
        """Take a page; after a restart of the server, whose totals begin anew, the only one."""
        if self._pages and _restarted(self._pages[-1][1], page):
            self._pages.clear()
        self._pages.append((now, page))

    def means(self, now: float) -> tuple[float | None, float | None, float | None]:
        """Mean end-to-end, first-token and per-token seconds; ``None`` where nothing ended."""
        while self._pages and now - self._pages[0][0] > WINDOW_S:
            self._pages.popleft()
        if not self._pages:
            return None, None, None
        old, new = self._pages[0][1], self._pages[-1][1]
        return (
            _mean(old.e2e_s, new.e2e_s),
            _mean(old.ttft_s, new.ttft_s),
            _mean(old.tpot_s, new.tpot_s),
        )


def _restarted(old: EnginePage, new: EnginePage) -> bool:
    pairs = ((old.e2e_s, new.e2e_s), (old.ttft_s, new.ttft_s), (old.tpot_s, new.tpot_s))
    return any(a and b and (b.count < a.count or b.sum < a.sum) for a, b in pairs)


def _mean(old: Total | None, new: Total | None) -> float | None:
    if old is None or new is None or new.count <= old.count:
        return None
    return (new.sum - old.sum) / (new.count - old.count)
