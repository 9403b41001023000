"""The money mask: which models a step can be paid for on, and what it means that there is none."""

from __future__ import annotations

from collections.abc import Iterable

from runtime.config import AppConfig, ModelConfig
from runtime.load import ModelView, PoolView
from runtime.money import Tariff, tariff
from runtime.types import Broke, Strategy, Wait
from runtime.workflow import WorkflowState

RETRY_AFTER_S = 60.0
"""When the pool has spent its hour's money: some of it is an hour old by then."""


def payable(
    config: AppConfig,
    state: WorkflowState,
    pool: PoolView,
    models: tuple[ModelView, ...],
    prompt_tokens: int,
) -> tuple[ModelView, ...]:
    """Those of ``models`` that the money left pays a short answer of, beside the prompt.

    Money that is left is that of the query with each of its calls on their way as dear as it can
    be. Where the pool's hour is spent, only what costs nothing can be had.
    """
    left, hour_spent = state.purse.left_pusd, _hour_spent(pool)
    if left is None and not hour_spent:
        return models
    return tuple(
        m for m in models if _pays(config, state, m.config, left, hour_spent, prompt_tokens)
    )


def no_money(
    config: AppConfig,
    state: WorkflowState,
    pool: PoolView,
    models: Iterable[ModelView],
    prompt_tokens: int,
) -> Broke | Wait:
    """There is no payable one among ``models``: wait, where calls on their way may turn out to
    leave enough; else the step cannot be taken."""
    hour_spent, most_left = _hour_spent(pool), state.purse.most_left_pusd
    if hour_spent:
        most_usd = config.money.per_hour_usd
        message = f"the pool has spent the {most_usd:g} US dollars that it may within an hour"
        return Broke(message, RETRY_AFTER_S)
    if any(_pays(config, state, m.config, most_left, False, prompt_tokens) for m in models):
        return Wait()
    budget_usd = state.query.budget_usd
    return Broke(f"what is left of {budget_usd:g} US dollars pays for no model that could answer")


def least_usd(*amounts: float | None) -> float | None:
    """The smallest of the amounts that are bounds."""
    return min((amount for amount in amounts if amount is not None), default=None)


def _hour_spent(pool: PoolView) -> bool:
    return pool.hour_left_usd is not None and pool.hour_left_usd <= 0


def _pays(
    config: AppConfig,
    state: WorkflowState,
    model: ModelConfig,
    left_pusd: int | None,
    hour_spent: bool,
    prompt_tokens: int,
) -> bool:
    prices = tariff(model)
    if prices is None or prices.free:
        return True
    if hour_spent:
        return False
    return left_pusd is None or _short(config, state, model, prices, prompt_tokens) <= left_pusd


def _short(
    config: AppConfig, state: WorkflowState, model: ModelConfig, prices: Tariff, prompt_tokens: int
) -> int:
    """The cost of the shortest answer that is asked for: Flash, or what the caller wants."""
    flash = config.strategies.max_tokens(Strategy.FLASH)
    wanted = state.query.sampling.max_tokens or flash
    return prices.cost_pusd(prompt_tokens, min(flash, model.max_output_tokens, wanted))
