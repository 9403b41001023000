"""Money: prices per token, and what a query may spend, has set aside and has spent.

Amounts are whole pico-dollars (``*_pusd``, 1e-12 US dollars), so that sums are exact: a price of
0.29 dollars per million tokens is 290,000 of them per token. Only what leaves the core is a float
of dollars. Prices finer than a pico-dollar per token are rounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from runtime.model_config import ModelConfig
from runtime.token_estimate import count_tokens
from runtime.types import Call, CallResult

PUSD_PER_USD = 10**12
_PER_MILLION = 10**6

HOUR_S = 3600.0
_BUCKET_S = 10.0

PLENTY_TOKENS = 2**31 - 1
"""Tokens that cost nothing are never short."""


def to_pusd(usd: float) -> int:
    """Dollars as whole pico-dollars."""
    return round(usd * PUSD_PER_USD)


def to_usd(pusd: int) -> float:
    """Pico-dollars as dollars; the one place where a sum is rounded."""
    return pusd / PUSD_PER_USD


def total_usd(costs_pusd: Iterable[int | None]) -> float | None:
    """The sum of the costs that are known; ``None`` where none is."""
    known = [cost for cost in costs_pusd if cost is not None]
    return to_usd(sum(known)) if known else None


@dataclass(frozen=True, slots=True)
class Tariff:
    """Pico-dollars per token of the prompt and of the answer."""

    input_pusd: int
    output_pusd: int

    @property
    def free(self) -> bool:
        return not (self.input_pusd or self.output_pusd)

    def cost_pusd(self, prompt_tokens: int, completion_tokens: int) -> int:
        """What a call of so many tokens costs."""
        return self.input_pusd * prompt_tokens + self.output_pusd * completion_tokens

    def tokens_for(self, left_pusd: int, prompt_tokens: int) -> int:
        """Tokens of an answer that ``left_pusd`` pays for beside the prompt; negative where it does
        not even pay for that."""
        if self.free:
            return PLENTY_TOKENS
        spare = left_pusd - self.input_pusd * prompt_tokens
        if spare < 0:
            return -1
        return spare // self.output_pusd if self.output_pusd else PLENTY_TOKENS


def tariff(model: ModelConfig) -> Tariff | None:
    """The prices of ``model``; ``None`` where it has none, which is unknown and takes no money."""
    price = model.price
    if price is None:
        return None
    scale = PUSD_PER_USD / _PER_MILLION
    return Tariff(round(price.input * scale), round(price.output * scale))


def call_cost_pusd(prices: Tariff, call: Call, result: CallResult) -> int:
    """What a call that gave ``result`` cost; where the engine did not count the tokens, their
    estimate from above stands in."""
    prompt, completion = result.prompt_tokens, result.completion_tokens
    return prices.cost_pusd(
        call.prompt_tokens if prompt is None else prompt,
        count_tokens(result.text) if completion is None else completion,
    )


class Purse:
    """The money of one query.

    A call on its way holds the most that it can cost. When it ends, what it did cost is spent. One
    that broke off may have been billed, which nobody knows: all that it held stays taken, but is in
    no sum that is shown.

    Args:
        budget_usd: what may be spent; ``None``: no bound, and everything is still counted.
    """

    def __init__(self, budget_usd: float | None) -> None:
        self._budget_pusd = None if budget_usd is None else to_pusd(budget_usd)
        self._held: dict[str, int] = {}
        self._gone_pusd = 0

    @property
    def left_pusd(self) -> int | None:
        """What may still be spent, with every call on its way as dear as it can be; ``None``
        without a bound."""
        if self._budget_pusd is None:
            return None
        return self._budget_pusd - self._gone_pusd - sum(self._held.values())

    @property
    def most_left_pusd(self) -> int | None:
        """The same if the calls on their way turn out to cost nothing."""
        return None if self._budget_pusd is None else self._budget_pusd - self._gone_pusd

    @property
    def left_usd(self) -> float | None:
        """``left_pusd`` in dollars."""
        left = self.left_pusd
        return None if left is None else to_usd(left)

    def hold(self, call_id: str, most_pusd: int) -> None:
        """A call begins that costs at most ``most_pusd``."""
        self._held[call_id] = most_pusd

    def spend(self, call_id: str, cost_pusd: int) -> None:
        """A call ended and cost so much."""
        self._held.pop(call_id, None)
        self._gone_pusd += cost_pusd

    def lose(self, call_id: str) -> None:
        """A call broke off, and nobody knows what it cost."""
        self._gone_pusd += self._held.pop(call_id, 0)


class HourLedger:
    """What was spent within the last hour, to ``_BUCKET_S``; ``now`` never goes back."""

    def __init__(self) -> None:
        self._buckets: deque[tuple[float, float]] = deque()  # begin, dollars

    def add(self, usd: float, now: float) -> None:
        """Dollars were spent."""
        begin_s = now // _BUCKET_S * _BUCKET_S
        if self._buckets and self._buckets[-1][0] == begin_s:
            usd += self._buckets.pop()[1]
        self._buckets.append((begin_s, usd))

    def spent_usd(self, now: float) -> float:
        """Dollars of the last hour."""
        while self._buckets and self._buckets[0][0] + _BUCKET_S + HOUR_S <= now:
            self._buckets.popleft()
        return sum(usd for _, usd in self._buckets)
