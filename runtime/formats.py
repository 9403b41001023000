"""What a caller's ``response_format`` and sampling mean for one step of a plan."""

from __future__ import annotations

import json
from dataclasses import replace

from runtime.types import Sampling, Step, StepKind

_LARGEST_SEED = 2**63 - 1
_ASK_FOR_JSON = "Reply with one JSON object and nothing else"


def step_sampling(asked: Sampling, step: Step, may_be_answer: bool) -> Sampling:
    """What of ``asked`` holds for ``step``.

    Stop words and the format of the answer are for steps whose text can be the answer; what other
    steps write is for the agents alone. Independent answers of one model (``n``) get seeds that
    follow each other.
    """
    if step.kind is StepKind.DIRECT and asked.seed is not None:
        return replace(asked, seed=min(asked.seed + step.agent, _LARGEST_SEED))
    if may_be_answer or (not asked.stop and asked.response_format is None):
        return asked
    return replace(asked, stop=(), response_format=None)


def format_instruction(response_format: str) -> str:
    """What a model is told of the format; the engine enforces it as well, where it can."""
    schema = json.loads(response_format).get("json_schema", {}).get("schema")
    if schema is None:
        return f"{_ASK_FOR_JSON}."
    return f"{_ASK_FOR_JSON}, valid under this JSON schema: {json.dumps(schema)}"


def canonical_json(text: str) -> str | None:
    """The form in which JSON answers are compared: sorted keys, no spaces. ``None``: not JSON."""
    try:
        value = json.loads(text)
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
