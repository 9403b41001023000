"""How request bodies become a ``Query``: checks that need the config, and the budget."""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from actors.bodies import Body, ChatMessage, ChatRequest, QueryRequest, TextRequest, ToolChoice
from actors.messages import split
from runtime.config import AppConfig
from runtime.errors import (
    BadBudget,
    ContextExceeded,
    RequestError,
    UnknownModel,
    UnsupportedParameter,
)
from runtime.types import DeadlineKind, Query, Sampling, TaskKind

BUDGET_HEADER = "x-inframind-budget-ms"
MONEY_HEADER = "x-inframind-budget-usd"
OWN_MODEL = "inframind"

MAX_CHARS_PER_TOKEN = 16
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
_ONLY_DIRECT = ("tools", "tool_choice", "parallel_tool_calls", "logprobs", "logit_bias", "n")
_COMPLETION_TOKENS = 16  # OpenAI's default for text completions

_BodyT = TypeVar("_BodyT", bound=Body)


def parse_body(raw: bytes, kind: type[_BodyT]) -> _BodyT:
    """The request body as ``kind``.

    Raises:
        RequestError: not JSON, or a field that is wrong; names the field.
        UnsupportedParameter: a field of OpenAI's API that is not served here.
    """
    try:
        data = json.loads(raw.decode("utf-8-sig"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError("the body must be a JSON object")
    if b"\\ud" in raw.lower():
        _check_unicode(data)
    for name in sorted(kind.not_served.keys() & data.keys()):
        value = data.pop(name)
        if value is not None and value not in kind.not_served[name]:
            raise UnsupportedParameter(f"{name} is not served here", name)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        # Where a field may have several forms, the deepest error is of the form that was meant.
        found = [(_path_in_body(item, data), item) for item in error.errors()]
        path, item = max(found, key=lambda one: one[0].count("."))
        unknown = item["type"] == "extra_forbidden"
        raise RequestError(f"{path}: {'unknown field' if unknown else item['msg']}", path) from None


def _path_in_body(error: ErrorDetails, data: Any) -> str:
    """``messages.0.content``: where in ``data``, without the names that pydantic gives to the
    forms which a field may have."""
    path = []
    for part in error["loc"]:
        if part in data if isinstance(data, dict) else _is_index(part, data):
            path.append(str(part))
            data = data[part]
    missing = [str(error["loc"][-1])] if error["type"] == "missing" else []
    return ".".join(path + missing)


def _is_index(part: int | str, data: Any) -> bool:
    return isinstance(part, int) and isinstance(data, list) and part < len(data)


def _check_unicode(data: Any) -> None:
    """Refuse halves of surrogate pairs, which JSON can spell and no text can hold."""
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError("a text is not valid Unicode (a lone surrogate)") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def budget_s(headers: Mapping[str, str], body: Any, config: AppConfig) -> float:
    """Seconds: the smaller of header (milliseconds) and body (seconds), else the default.

    A budget above the config's ``max_budget_s`` is brought down to it.

    Raises:
        BadBudget: not a plain positive finite number; names the field.
    """
    given = []
    if (text := headers.get(BUDGET_HEADER)) is not None:
        if not _DECIMAL.fullmatch(text.strip()) or float(text) <= 0:
            raise BadBudget(
                f"header {BUDGET_HEADER} must be a positive number of milliseconds, "
                f"without a unit, not {text[:40]!r}",
                BUDGET_HEADER,
            )
        given.append(float(text) / 1000.0)
    if body is not None:
        number = isinstance(body, int | float) and not isinstance(body, bool)
        if isinstance(body, int):
            body = max(-1, min(body, sys.float_info.max))  # an integer may exceed every float
        if not number or not math.isfinite(body) or body <= 0:
            raise BadBudget(
                f"budget_s must be a positive finite number of seconds, not {str(body)[:40]!r}",
                "budget_s",
            )
        given.append(float(body))
    return min([*given, config.max_budget_s]) if given else config.default_budget_s


def budget_usd(headers: Mapping[str, str], body: Any, config: AppConfig) -> float | None:
    """US dollars: the smaller of header and body, else the config's; ``None`` for any amount.

    More than the config's ``money.max_per_query_usd`` is brought down to it. Zero asks for models
    that cost nothing.

    Raises:
        BadBudget: not a plain finite number, or negative; names the field.
    """
    given = []
    if (text := headers.get(MONEY_HEADER)) is not None:
        if not _DECIMAL.fullmatch(text.strip()):
            raise BadBudget(
                f"header {MONEY_HEADER} must be a number of US dollars, without a unit, "
                f"not {text[:40]!r}",
                MONEY_HEADER,
            )
        given.append(float(text))
    if body is not None:
        number = isinstance(body, int | float) and not isinstance(body, bool)
        if not number or not 0 <= body <= sys.float_info.max:
            raise BadBudget(
                f"budget_usd must be a finite number of US dollars, not {str(body)[:40]!r}",
                "budget_usd",
            )
        given.append(float(body))
    return config.money.query_usd(min(given, default=None))


def chat_query(body: ChatRequest, headers: Mapping[str, str], config: AppConfig) -> Query:
    """The query of a chat completion; ``model`` is ours or a pool model's own name."""
    direct = None if body.model == OWN_MODEL else pool_model(body.model, config)
    if direct is None:
        _check_own(body)
    elif body.policy is not None:
        raise RequestError(f"a policy decides for {OWN_MODEL} only", "policy")
    _check_chat(body, config)
    context, last = split(body.messages, direct is not None)
    caps = [c for c in (body.max_tokens, body.max_completion_tokens) if c is not None]
    return Query(
        query_id=new_query_id(),
        question=last.content,
        budget_s=budget_s(headers, body.budget_s, config),
        budget_usd=budget_usd(headers, body.budget_usd, config),
        task=TaskKind(body.task) if body.task else None,
        context=context,
        deadline_kind=_deadline(body.deadline, config),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            max_tokens=min(caps, default=None),
            stop=body.stop_texts,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            logit_bias=body.biases,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            response_format=_format(body),
            tools=_json(body.tools) if body.tools else None,
            tool_choice=_json(body.tool_choice) if body.tools and body.tool_choice else None,
            parallel_tool_calls=body.parallel_tool_calls if body.tools else None,
        ),
        direct_model=direct,
        policy=body.policy,
        last=None if direct is None else last,
        n=body.n or 1,
    )


def text_query(body: TextRequest, headers: Mapping[str, str], config: AppConfig) -> Query:
    """The query of a text completion: always a pool model's own."""
    if body.model == OWN_MODEL:
        names = ", ".join(model.name for model in config.models)
        message = f"text completions are of a pool model called by name ({names})"
        raise UnsupportedParameter(f"{message}, not of {OWN_MODEL}", "model")
    direct = pool_model(body.model, config)
    if not body.text:
        raise RequestError("prompt is empty", "prompt")
    if body.best_of not in (None, body.n or 1):
        raise UnsupportedParameter("best_of is served only where it is the same as n", "best_of")
    if body.echo and body.logprobs is not None:
        raise UnsupportedParameter("echo is not served together with logprobs", "echo")
    _check_stream(body, config)
    return Query(
        query_id=new_query_id(),
        question=body.text,
        budget_s=budget_s(headers, body.budget_s, config),
        budget_usd=budget_usd(headers, body.budget_usd, config),
        deadline_kind=_deadline(body.deadline, config),
        sampling=Sampling(
            temperature=body.temperature,
            top_p=body.top_p,
            seed=body.seed,
            max_tokens=body.max_tokens or _COMPLETION_TOKENS,
            stop=body.stop_texts,
            frequency_penalty=body.frequency_penalty,
            presence_penalty=body.presence_penalty,
            logit_bias=body.biases,
            logprobs=body.logprobs,
        ),
        direct_model=direct,
        raw_prompt=True,
        n=body.n or 1,
    )


def native_query(body: QueryRequest, headers: Mapping[str, str], config: AppConfig) -> Query:
    """The query of ``POST /v1/queries``."""
    if (body.question is None) == (body.messages is None):
        raise RequestError("give either question or messages", "question")
    if len(body.choices) > 26 or len(body.choices) == 1:
        raise RequestError("choices must be 2 to 26 texts", "choices")
    messages = body.messages
    if messages is None:
        messages = [ChatMessage(role="user", content=body.question or "")]
    context, last = split(messages, direct=False)
    return Query(
        query_id=new_query_id(),
        question=last.content,
        budget_s=budget_s(headers, body.budget_s, config),
        budget_usd=budget_usd(headers, body.budget_usd, config),
        task=TaskKind(body.task) if body.task else TaskKind.KNOWLEDGE if body.choices else None,
        context=context,
        choices=tuple(body.choices),
        deadline_kind=_deadline(body.deadline, config),
        sampling=Sampling(temperature=body.temperature, seed=body.seed, max_tokens=body.max_tokens),
        policy=body.policy,
    )


def new_query_id() -> str:
    return f"q-{uuid.uuid4().hex[:20]}"


def pool_model(name: str, config: AppConfig) -> str:
    """``name``, if it is a model of the pool; raises ``UnknownModel``."""
    names = [model.name for model in config.models]
    if name not in names:
        known = ", ".join([OWN_MODEL, *names])
        raise UnknownModel(f"no model {name!r}; there are {known}", "model")
    return name


def check_size(query: Query, config: AppConfig) -> None:
    """Refuse what is longer than every context, by a bound so low that no tokenizer beats it.

    Counting tokens of a very long text takes long; this keeps it off the event loops.
    """
    texts = [
        query.question,
        query.sampling.tools or "",
        query.sampling.response_format or "",
        *query.choices,
        *(m.content for m in query.context if m.role == "system"),
    ]
    least = max(len(text) for text in texts) // MAX_CHARS_PER_TOKEN
    largest = max(model.context_tokens for model in config.models)
    if least > largest:
        raise ContextExceeded(
            f"the prompt has more than {least} tokens, the largest context is {largest}", "messages"
        )


def _deadline(given: str | None, config: AppConfig) -> DeadlineKind:
    if given is not None:
        return DeadlineKind(given)
    return DeadlineKind.HARD if config.at_deadline == "finish" else DeadlineKind.SOFT


def _check_own(body: ChatRequest) -> None:
    """Refuse what makes sense for one call of one model only."""
    neutral: dict[str, Any] = {"n": 1, "tool_choice": "none"}
    for name in _ONLY_DIRECT:
        value = getattr(body, name)
        if value and value != neutral.get(name):
            message = f"{name} is served for a pool model called by name, not for {OWN_MODEL}"
            raise UnsupportedParameter(message, name)


def _check_chat(body: ChatRequest, config: AppConfig) -> None:
    """Fields that must fit each other."""
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", "top_logprobs")
    wanted = body.response_format
    if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
        message = "json_schema belongs to response_format of type json_schema"
        raise RequestError(message, "response_format")
    if not body.tools and body.tool_choice not in (None, "none"):
        raise RequestError("tool_choice needs tools", "tool_choice")
    if isinstance(body.tool_choice, ToolChoice):
        name = body.tool_choice.function.name
        if name not in [tool.function.name for tool in body.tools or ()]:
            raise RequestError(f"tool_choice names {name!r}, which is not in tools", "tool_choice")
    _check_stream(body, config)


def _check_stream(body: ChatRequest | TextRequest, config: AppConfig) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", "stream_options")
    if (body.n or 1) > config.limits.max_calls_per_query:
        most = config.limits.max_calls_per_query
        raise RequestError(f"n is above {most}, the limit of calls per query", "n")


def _format(body: ChatRequest) -> str | None:
    wanted = body.response_format
    return None if wanted is None or wanted.type == "text" else _json(wanted)


def _json(value: Any) -> str:
    """A part of a body as JSON, as it was sent."""
    if isinstance(value, list):
        value = [item.model_dump(by_alias=True, exclude_unset=True) for item in value]
    elif isinstance(value, Body):
        value = value.model_dump(by_alias=True, exclude_unset=True)
    return json.dumps(value, ensure_ascii=False)
