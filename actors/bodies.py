"""The shapes of request bodies: what is served, field by field. Unknown fields are errors."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MOST_CHOICES = 8
MOST_EMBEDDING_INPUTS = 256

TokenCap = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, Field(min_length=1)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
NumChoices = Annotated[int, Field(ge=1, le=MOST_CHOICES)]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Task = Literal["math", "code", "knowledge", "general"]


class Body(BaseModel):
    """A strict body.

    ``not_served`` are fields of OpenAI's API that are refused, each with the values that ask for
    nothing and are taken, besides ``null``: some clients send them by default.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    not_served: ClassVar[dict[str, tuple[Any, ...]]] = {}


class TextPart(Body):
    """One part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class FunctionCall(Body):
    name: str
    arguments: str


class ToolCallPart(Body):
    """A tool call in the history."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None  # some clients send back what a stream gave them


class ChatMessage(Body):
    """A message; ``refusal``, ``audio`` and the like come back from clients as null."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallPart] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    audio: None = None
    function_call: None = None

    @property
    def text(self) -> str:
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "".join(part.text for part in self.content)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class JsonSchema(Body):
    name: FunctionName
    description: str | None = None
    schema_: Annotated[dict[str, JsonValue] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Function(Body):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionChoice(Body):
    name: FunctionName


class ToolChoice(Body):
    type: Literal["function"]
    function: FunctionChoice


class Sampled(Body):
    """What chat and text completions share."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Seed | None = None
    max_tokens: TokenCap | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=16)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024)] | None = None
    n: NumChoices | None = None
    user: str | None = None
    budget_s: Any = None
    budget_usd: Any = None
    deadline: Literal["hard", "soft"] | None = None

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[str, float], ...]:
        return tuple((self.logit_bias or {}).items())


class ChatRequest(Sampled):
    """``POST /v1/chat/completions``: OpenAI's fields that are served, and our own.

    ``user``, ``metadata``, ``safety_identifier`` and ``prompt_cache_key`` are accepted and have no
    effect on the answer. What is known to OpenAI and not served here is refused, never ignored.
    """

    not_served: ClassVar[dict[str, tuple[Any, ...]]] = {
        "audio": (),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "moderation": (),
        "prediction": (),
        "prompt_cache_options": (),
        "prompt_cache_retention": (),
        "reasoning_effort": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "verbosity": (),
        "web_search_options": (),
    }

    messages: list[ChatMessage]
    max_completion_tokens: TokenCap | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    task: Task | None = None
    policy: str | None = None


class TextRequest(Sampled):
    """``POST /v1/completions``: a prompt that a pool model continues as it is."""

    not_served: ClassVar[dict[str, tuple[Any, ...]]] = {"suffix": ("",)}

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool = False
    best_of: int | None = None

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class EmbeddingRequest(Body):
    """``POST /v1/embeddings``."""

    not_served: ClassVar[dict[str, tuple[Any, ...]]] = {"dimensions": ()}

    model: str
    input: str | Annotated[list[str], Field(min_length=1, max_length=MOST_EMBEDDING_INPUTS)]
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class QueryRequest(Body):
    """``POST /v1/queries``: a question, or messages; the answer carries the whole trace."""

    not_served: ClassVar[dict[str, tuple[Any, ...]]] = {
        **ChatRequest.not_served,
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "logprobs": (False,),
        "max_completion_tokens": (),
        "n": (1,),
        "parallel_tool_calls": (),
        "presence_penalty": (0,),
        "response_format": ({"type": "text"},),
        "stop": ([],),
        "stream": (False,),
        "tool_choice": ("none",),
        "tools": ([],),
        "top_logprobs": (),
        "top_p": (1,),
    }

    question: str | None = None
    messages: list[ChatMessage] | None = None
    choices: list[str] = []
    budget_s: Any = None
    budget_usd: Any = None
    deadline: Literal["hard", "soft"] | None = None
    task: Task | None = None
    policy: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    seed: Seed | None = None
    max_tokens: TokenCap | None = None


class FeedbackRequest(Body):
    """``POST /v1/queries/{id}/feedback``: what somebody says of an answer, one of two ways.

    ``source`` is who says it; ``dataset`` and ``item_id`` name what was asked, where it was an item
    of a data set.
    """

    correct: bool | None = None
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    comment: Annotated[str, Field(max_length=4000)] | None = None
    source: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,31}$")] = "user"
    dataset: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    item_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
