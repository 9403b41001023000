"""What clients send: strict request bodies, the budget, and how they become a ``Query``."""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runtime.config import AppConfig
from runtime.errors import (
    BadBudget,
    ContextExceeded,
    RequestError,
    UnknownModel,
    UnsupportedParameter,
)
from runtime.types import DeadlineKind, Message, Query, Sampling, TaskKind

BUDGET_HEADER = "x-inframind-budget-ms"
OWN_MODEL = "inframind"

MAX_CHARS_PER_TOKEN = 16
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")


TokenCap = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Field(min_length=1)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(_Body):
    """One part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class ChatMessage(_Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(_Body):
    include_usage: bool = False


class ResponseFormat(_Body):
    type: str


class ChatRequest(_Body):
    """``POST /v1/chat/completions``: OpenAI's fields that are served, and our own.

    ``user``, ``metadata`` and ``store`` are accepted and have no effect on the answer. What is
    known to OpenAI and not served here is refused with 400, never ignored.
    """

    model: str
    messages: list[ChatMessage]
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    max_tokens: TokenCap | None = None
    max_completion_tokens: TokenCap | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    n: Literal[1] | None = None
    response_format: ResponseFormat | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    budget_s: Any = None
    deadline: Literal["hard", "soft"] | None = None
    task: Literal["math", "code", "knowledge", "general"] | None = None
    policy: str | None = None


class QueryRequest(_Body):
    """``POST /v1/queries``: a question, or messages; the answer carries the whole trace."""

    question: str | None = None
    messages: list[ChatMessage] | None = None
    choices: list[str] = []
    budget_s: Any = None
    deadline: Literal["hard", "soft"] | None = None
    task: Literal["math", "code", "knowledge", "general"] | None = None
    policy: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    max_tokens: TokenCap | None = None


_NOT_SERVED = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs",
        "modalities", "parallel_tool_calls", "prediction", "presence_penalty", "reasoning_effort",
        "service_tier", "tool_choice", "tools", "top_logprobs", "web_search_options",
    }
)  # fmt: skip

_NEUTRAL: dict[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logprobs": False,
    "logit_bias": {},
    "tools": [],
    "functions": [],
    "tool_choice": "none",
    "modalities": ["text"],
}
"""Values that ask for nothing; some clients send them by default."""

_BodyT = TypeVar("_BodyT", bound=_Body)


def parse_body(raw: bytes, kind: type[_BodyT]) -> _BodyT:
    """The request body as ``kind``.

    Raises:
        RequestError: not JSON, or a field that is wrong; names the field.
        UnsupportedParameter: a field of OpenAI's API that is not served here.
    """
    try:
        data = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError("the body must be a JSON object")
    if b"\\ud" in raw.lower():
        _check_unicode(data)
    for name in sorted(_NOT_SERVED & data.keys()):
        value = data.pop(name)
        if value is not None and (name not in _NEUTRAL or value != _NEUTRAL[name]):
            raise UnsupportedParameter(f"{name} is not served here", name)
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        item = error.errors()[0]
        path = ".".join(str(part) for part in item["loc"])
        unknown = item["type"] == "extra_forbidden"
        raise RequestError(f"{path}: {'unknown field' if unknown else item['msg']}", path) from None


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


def chat_query(body: ChatRequest, headers: Mapping[str, str], config: AppConfig) -> Query:
    """The query of a chat completion; ``model`` is ours or a pool model's own name."""
    direct = None
    if body.model != OWN_MODEL:
        names = [model.name for model in config.models]
        if body.model not in names:
            raise UnknownModel(
                f"no model {body.model!r}; there are {', '.join([OWN_MODEL, *names])}", "model"
            )
        direct = body.model
    if body.response_format is not None and body.response_format.type != "text":
        raise UnsupportedParameter("only response_format text is served", "response_format")
    context, question = _split(body.messages)
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    caps = [c for c in (body.max_tokens, body.max_completion_tokens) if c is not None]
    return Query(
        query_id=new_query_id(),
        question=question,
        budget_s=budget_s(headers, body.budget_s, config),
        task=TaskKind(body.task) if body.task else None,
        context=context,
        deadline_kind=_deadline(body.deadline, config),
        sampling=Sampling(body.temperature, body.top_p, body.seed, min(caps, default=None), stop),
        direct_model=direct,
        policy=body.policy,
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
    context, question = _split(messages)
    return Query(
        query_id=new_query_id(),
        question=question,
        budget_s=budget_s(headers, body.budget_s, config),
        task=TaskKind(body.task) if body.task else TaskKind.KNOWLEDGE if body.choices else None,
        context=context,
        choices=tuple(body.choices),
        deadline_kind=_deadline(body.deadline, config),
        sampling=Sampling(temperature=body.temperature, seed=body.seed, max_tokens=body.max_tokens),
        policy=body.policy,
    )


def new_query_id() -> str:
    return f"q-{uuid.uuid4().hex[:20]}"


def _deadline(given: str | None, config: AppConfig) -> DeadlineKind:
    if given is not None:
        return DeadlineKind(given)
    return DeadlineKind.HARD if config.at_deadline == "finish" else DeadlineKind.SOFT


def check_size(query: Query, config: AppConfig) -> None:
    """Refuse what is longer than every context, by a bound so low that no tokenizer beats it.

    Counting tokens of a very long text takes long; this keeps it off the event loops.
    """
    texts = [
        query.question,
        *query.choices,
        *(m.content for m in query.context if m.role == "system"),
    ]
    least = max(len(text) for text in texts) // MAX_CHARS_PER_TOKEN
    largest = max(model.context_tokens for model in config.models)
    if least > largest:
        raise ContextExceeded(
            f"the prompt has more than {least} tokens, the largest context is {largest}", "messages"
        )


def _split(messages: list[ChatMessage]) -> tuple[tuple[Message, ...], str]:
    """History and question; the last message is the question and must be the user's."""
    if not messages:
        raise RequestError("messages must not be empty", "messages")
    last = messages[-1]
    if last.role != "user":
        raise RequestError("the last message must be the user's", "messages")
    if not last.text.strip():
        raise RequestError("the last message is empty", "messages")
    roles = {"developer": "system"}
    context = tuple(Message(roles.get(m.role, m.role), m.text) for m in messages[:-1])
    return context, last.text
