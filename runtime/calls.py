"""A routed step becomes a ``Call``: its prompt fitted to the model, its cap to the budget."""

from __future__ import annotations

from dataclasses import replace

from runtime.config import AppConfig, ModelConfig
from runtime.errors import MoneyExhausted
from runtime.formats import step_sampling
from runtime.money import PLENTY_TOKENS, tariff
from runtime.prompts import PromptParts, fit
from runtime.strategies import affordable_tokens, token_cap
from runtime.types import Call, Query, Route, Speed, Step, StepKind


def build_call(
    config: AppConfig,
    query: Query,
    step: Step,
    parts: PromptParts,
    route: Route,
    speed: Speed,
    *,
    attempt: int,
    steps_after: int,
    left_s: float | None,
    final: bool,
    may_be_answer: bool,
    left_pusd: int | None = None,
) -> Call:
    """The call of ``step`` on the model of ``route``.

    Args:
        steps_after: length of the critical path that must follow.
        left_s: seconds left of a hard budget, ``None`` where nothing is capped by it.
        final: whether the step's text is the answer.
        may_be_answer: whether it can become the answer; the caller's cap on tokens, stop words
            and format of the answer then hold for it.
        left_pusd: money that the call may cost at most, ``None`` for any amount.

    Raises:
        ContextExceeded: the prompt does not fit the model.
        MoneyExhausted: the money pays for no token.
    """
    model = config.model(route.model)
    sampling = step_sampling(query.sampling, step, may_be_answer)
    if sampling.temperature is None and route.temperature is not None:
        sampling = replace(sampling, temperature=route.temperature)
    requested = sampling.max_tokens if may_be_answer else None
    cap = _cap(config, model, step, route, requested)
    fitted = fit(parts, context_tokens=model.context_tokens, max_tokens=cap)
    cap, prompt_tokens = fitted.max_tokens, fitted.prompt_tokens
    if left_pusd is not None:
        cap = min(cap, _paid_tokens(model, left_pusd, prompt_tokens))
    if left_s is not None:
        service_s = speed.service_s(prompt_tokens, cap)
        cap = min(cap, max(1, tokens_in(left_s, steps_after, service_s, prompt_tokens, speed)))
    service_s = speed.service_s(prompt_tokens, cap)
    return Call(
        call_id=f"{query.query_id}.{step.step_id}.{attempt}",
        query_id=query.query_id,
        step_id=step.step_id,
        model=route.model,
        strategy=route.strategy,
        messages=() if query.raw_prompt else fitted.messages,
        max_tokens=cap,
        prompt_tokens=prompt_tokens,
        service_s=service_s,
        path_s=steps_after * service_s,
        sampling=sampling,
        final=final,
        choice=step.agent if step.kind is StepKind.DIRECT else 0,
        prompt=query.question if query.raw_prompt else None,
    )


def _paid_tokens(model: ModelConfig, left_pusd: int, prompt_tokens: int) -> int:
    prices = tariff(model)
    tokens = PLENTY_TOKENS if prices is None else prices.tokens_for(left_pusd, prompt_tokens)
    if tokens < 1:
        raise MoneyExhausted(f"the money left pays for no answer of {model.name}")
    return tokens


def query_of(call_id: str) -> str:
    """The id of the query that a call belongs to."""
    return call_id.rsplit(".", 2)[0]


def share_s(left_s: float, steps_after: int, service_s: float) -> float:
    """Seconds of a budget that a step may take.

    What the steps after it leave (``service_s`` each), at least its even share.
    """
    left_s = max(0.0, left_s)
    return max(left_s - steps_after * service_s, left_s / (1 + steps_after))


def tokens_in(
    left_s: float, steps_after: int, service_s: float, prompt_tokens: int, speed: Speed
) -> int:
    """Output tokens that the budget allows a step; 0 when it cannot give one in time."""
    return affordable_tokens(
        share_s(left_s, steps_after, service_s) - speed.start_s,
        prompt_tokens=prompt_tokens,
        prefill_tokens_per_s=speed.prefill_tokens_per_s,
        tpot_s=speed.tpot_s,
    )


def _cap(
    config: AppConfig, model: ModelConfig, step: Step, route: Route, requested: int | None
) -> int:
    """The most tokens that the step may give before prompt and budget are looked at."""
    if step.kind is StepKind.DIRECT or route.max_tokens is not None:
        most = min(route.max_tokens or model.max_output_tokens, model.max_output_tokens)
        return min(requested or most, most)
    return token_cap(
        route.strategy,
        config=config.strategies,
        model=model,
        requested=requested,
        affordable_tokens=None,
    )
