"""Offers queries to a live pool at given times and grades what comes back.

Open loop: a query leaves at its time whatever became of those before it. Every one that was offered
has a row, also where nothing came back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import numpy as np
from scipy.stats import binomtest

from runtime.datasets import Item
from runtime.grading import grade_many

PATIENCE_S = 60.0
"""How long beyond its budget an answer is waited for; a hard deadline's comes right after it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One query: ``at_s`` seconds after the start."""

    at_s: float
    item: Item
    budget_s: float


@dataclass(frozen=True, slots=True)
class Row:
    """What became of an offer. ``status`` is the answer's, or ``lost`` where none came.

    ``steps`` are (model, strategy, status, queue seconds, service seconds, output tokens).
    """

    offer: Offer
    status: str
    latency_s: float
    text: str = ""
    correct: bool = False
    steps: tuple[tuple[str, str, str, float, float, int], ...] = ()

    @property
    def on_time(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True, slots=True)
class Figures:
    """Over all that was offered, in percent and seconds; intervals are Wilson's, 95 %. Latencies
    are those of the answers that came, ``nan`` where none did."""

    n_offered: int
    accuracy: float
    accuracy_lo: float
    accuracy_hi: float
    slo: float
    correct_on_time: float
    latency_mean_s: float
    latency_p90_s: float


async def offer_all(
    url: str,
    offers: Sequence[Offer],
    body: dict[str, Any],
    tell: Callable[[int], None] = lambda _: None,
) -> list[Row]:
    """Send every offer at its time; ``body`` is added to each, ``tell`` hears of every end."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        began = asyncio.get_running_loop().time()

        async def one(offer: Offer) -> Row:
            await asyncio.sleep(began + offer.at_s - asyncio.get_running_loop().time())
            row = await _ask(http, url, offer, body)
            tell(1)
            return row

        return list(await asyncio.gather(*(one(offer) for offer in offers)))


async def _ask(http: aiohttp.ClientSession, url: str, offer: Offer, body: dict[str, Any]) -> Row:
    sent_s = asyncio.get_running_loop().time()
    item = offer.item
    asked = {
        "question": item.question,
        "choices": list(item.choices),
        "task": item.task,
        "budget_s": offer.budget_s,
        **body,
    }
    answer: dict[str, Any] = {}
    try:
        async with asyncio.timeout(offer.budget_s + PATIENCE_S):
            async with http.post(f"{url}/v1/queries", json=asked) as response:
                answer = await response.json()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        pass
    latency_s = asyncio.get_running_loop().time() - sent_s
    steps = tuple(map(_step, answer.get("steps") or ()))
    return Row(
        offer, answer.get("status", "lost"), latency_s, answer.get("text") or "", False, steps
    )


def _step(step: dict[str, Any]) -> tuple[str, str, str, float, float, int]:
    return (
        step["model"] or "",
        step["strategy"] or "",
        step["status"],
        math.nan if step["queue_s"] is None else step["queue_s"],
        math.nan if step["service_s"] is None else step["service_s"],
        step["completion_tokens"] or 0,
    )


def graded(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with whether its text is right; blocks, and runs programs in the sandbox."""
    answered = [row for row in rows if row.text]
    grades = grade_many([(row.offer.item, row.text) for row in answered])
    correct = {id(row): grade.correct for row, grade in zip(answered, grades, strict=True)}
    return [replace(row, correct=correct.get(id(row), False)) for row in rows]


def figures(rows: Sequence[Row]) -> Figures:
    """What the rows amount to; raises ``ValueError`` where there are none."""
    if not rows:
        raise ValueError("nothing was offered")
    offered = len(rows)
    right = sum(row.correct for row in rows)
    interval = binomtest(right, offered).proportion_ci(method="wilson")
    came = [row.latency_s for row in rows if row.status in ("ok", "late", "degraded")]
    return Figures(
        n_offered=offered,
        accuracy=100 * right / offered,
        accuracy_lo=100 * interval.low,
        accuracy_hi=100 * interval.high,
        slo=100 * sum(row.on_time for row in rows) / offered,
        correct_on_time=100 * sum(row.on_time and row.correct for row in rows) / offered,
        latency_mean_s=float(np.mean(came)) if came else math.nan,
        latency_p90_s=float(np.quantile(came, 0.9)) if came else math.nan,
    )
