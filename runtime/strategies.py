"""Flash, Concise and DeepThink (paper section 4.2): an instruction and a cap on output tokens.

The instruction asks for a depth of reasoning, the cap enforces it. With a hard deadline the cap
is also what the budget left can pay for.
"""

from __future__ import annotations

import math

from runtime.config import ModelConfig, StrategyConfig
from runtime.types import Strategy, TaskKind

_DEPTH = {
    Strategy.FLASH: "Answer directly, without showing any reasoning.",
    Strategy.CONCISE: "Reason in two or three short steps, then answer.",
    Strategy.DEEPTHINK: (
        "Reason thoroughly, step by step. Then verify the result in a second way, correct what "
        "the check shows to be wrong, and answer."
    ),
}

_FORMAT = {
    TaskKind.MATH: (
        'The last line must be "Answer: <number>": the exact value, in digits, or the expression '
        "where the answer is not a number, and nothing else."
    ),
    TaskKind.KNOWLEDGE: (
        'The last line must be "Answer: <letter or short answer>": the letter where options are '
        "given, else a few words, and nothing else."
    ),
    TaskKind.CODE: (
        "Put the complete code in exactly one fenced block that opens with ```python and closes "
        "with ```."
    ),
    TaskKind.GENERAL: "",
}

_MOST_TOKENS = 2**31 - 1


def instruction(strategy: Strategy, task: TaskKind) -> str:
    """What to tell the model: the depth, and last the answer's format (none for ``general``)."""
    return f"{_DEPTH[strategy]} {_FORMAT[task]}".rstrip()


def token_cap(
    strategy: Strategy,
    *,
    config: StrategyConfig,
    model: ModelConfig,
    requested: int | None,
    affordable_tokens: int | None,
) -> int:
    """Output tokens that a call may use, at least 1.

    The least of the strategy's cap, the model's, the caller's ``requested`` and
    ``affordable_tokens``. The last is given exactly when the deadline is hard.
    """
    limits = (
        config.max_tokens(strategy),
        model.max_output_tokens,
        requested,
        affordable_tokens,
    )
    return max(1, min(limit for limit in limits if limit is not None))


def affordable_tokens(
    left_s: float, *, prompt_tokens: int, prefill_tokens_per_s: float, tpot_s: float
) -> int:
    """Output tokens that fit into ``left_s`` seconds after the prompt has been read.

    ``tpot_s`` is seconds per output token. Never negative; 0 means that the call cannot make it
    (also when ``left_s`` is not a number).

    Raises:
        ValueError: a speed is not above zero.
    """
    if not (prefill_tokens_per_s > 0 and tpot_s > 0):
        raise ValueError("prefill_tokens_per_s and tpot_s must be above zero")
    spare_s = left_s - prompt_tokens / prefill_tokens_per_s
    if not spare_s > 0:
        return 0
    return math.floor(min(spare_s / tpot_s, _MOST_TOKENS))
