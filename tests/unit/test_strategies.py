from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.config import ModelConfig, SpeedConfig, StrategyConfig
from runtime.strategies import affordable_tokens, instruction, token_cap
from runtime.types import STRATEGIES, Strategy, TaskKind

CONFIG = StrategyConfig(flash_tokens=100, concise_tokens=300, deepthink_tokens=900)


def model(max_output_tokens=1000):
    return ModelConfig(
        name="m",
        backend="fake",
        context_tokens=4096,
        max_output_tokens=max_output_tokens,
        speed=SpeedConfig(prefill_tokens_per_s=1000, token_s=0.01),
    )


def cap(strategy=Strategy.DEEPTHINK, max_output=1000, requested=None, affordable=None):
    return token_cap(
        strategy,
        config=CONFIG,
        model=model(max_output),
        requested=requested,
        affordable_tokens=affordable,
    )


@pytest.mark.parametrize(
    ("task", "ending"),
    [
        (TaskKind.MATH, "Answer: <number>"),
        (TaskKind.KNOWLEDGE, "Answer: <letter or short answer>"),
        (TaskKind.CODE, "```python"),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_instruction_gives_depth_then_format(strategy, task, ending):
    text = instruction(strategy, task)
    assert text.startswith(instruction(strategy, TaskKind.GENERAL) + " ")
    assert ending in text.removeprefix(instruction(strategy, TaskKind.GENERAL))


def test_general_has_no_format_and_depths_differ():
    texts = [instruction(strategy, TaskKind.GENERAL) for strategy in STRATEGIES]
    assert len(set(texts)) == 3
    assert not any("Answer:" in text or "```" in text for text in texts)
    assert "verify" in texts[2]


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"strategy": Strategy.FLASH}, 100),
        ({"strategy": Strategy.CONCISE}, 300),
        ({}, 900),
        ({"max_output": 500}, 500),
        ({"requested": 50}, 50),
        ({"requested": 5000}, 900),
        ({"affordable": 7}, 7),
        ({"affordable": 0}, 1),
        ({"affordable": 7, "requested": 3}, 3),
    ],
)
def test_cap_is_the_least_of_all_limits(kwargs, expected):
    assert cap(**kwargs) == expected


@pytest.mark.parametrize(
    ("left_s", "expected"),
    [(3.0, 20), (3.05, 20), (2.99, 19), (1.0, 0), (0.5, 0), (-5.0, 0), (math.nan, 0)],
)
def test_affordable_pays_for_the_prompt_first(left_s, expected):
    found = affordable_tokens(left_s, prompt_tokens=1000, prefill_tokens_per_s=1000.0, tpot_s=0.1)
    assert found == expected


def test_without_end_is_bounded():
    found = affordable_tokens(math.inf, prompt_tokens=0, prefill_tokens_per_s=1.0, tpot_s=5e-324)
    assert found == 2**31 - 1


@pytest.mark.parametrize(("prefill", "tpot"), [(0.0, 0.1), (100.0, 0.0), (math.nan, 0.1)])
def test_a_speed_of_zero_is_an_error(prefill, tpot):
    with pytest.raises(ValueError, match="above zero"):
        affordable_tokens(1.0, prompt_tokens=1, prefill_tokens_per_s=prefill, tpot_s=tpot)


@given(
    left=st.floats(-10, 1000),
    prompt=st.integers(0, 10_000),
    prefill=st.floats(1, 1e5),
    tpot=st.floats(1e-4, 1),
)
def test_affordable_tokens_can_be_paid(left, prompt, prefill, tpot):
    tokens = affordable_tokens(
        left, prompt_tokens=prompt, prefill_tokens_per_s=prefill, tpot_s=tpot
    )
    assert tokens >= 0
    if tokens:
        assert prompt / prefill + tokens * tpot <= left + 1e-6
