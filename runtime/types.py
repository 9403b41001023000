"""The shared vocabulary: queries, plans, steps, calls, results, answers.

Everything is a frozen, slotted dataclass that can cross a process. Times named ``*_at_s`` are
monotonic seconds of the process that holds the object; durations are ``*_s``. Across processes
only durations travel (the remaining budget), and the receiver anchors them on its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class TaskKind(StrEnum):
    """What is asked; decides roles, topologies and how answers are compared."""

    MATH = "math"
    CODE = "code"
    KNOWLEDGE = "knowledge"
    GENERAL = "general"


class Topology(StrEnum):
    """How the agents of a query are wired (paper section 4.1), and ``Adaptive``."""

    IO = "IO"
    COT = "CoT"
    CHAIN = "Chain"
    FULL_CONNECTED = "FullConnected"
    DEBATE = "Debate"
    REFLECTION = "Reflection"
    ADAPTIVE = "Adaptive"


class Strategy(StrEnum):
    """Reasoning depth (paper section 4.2). The order is the paper's action order."""

    FLASH = "Flash"
    CONCISE = "Concise"
    DEEPTHINK = "DeepThink"


STRATEGIES: tuple[Strategy, ...] = tuple(Strategy)


class DeadlineKind(StrEnum):
    """``hard``: the query ends at its deadline. ``soft``: it runs on and is counted as late."""

    HARD = "hard"
    SOFT = "soft"


class StepKind(StrEnum):
    """What a step does with what it is given."""

    ANSWER = "answer"  # first call of an agent
    FOLLOW_UP = "follow_up"  # second call of a role that checks its own work
    REVISE = "revise"  # Reflection: the agent revises its own answer
    DEBATE = "debate"  # Debate: the agent answers again, having seen the others
    DECIDE = "decide"  # the decision step over all answers of the last round
    SYNTHESIZE = "synthesize"  # Mixture-of-Agents: one answer made of those that are shown
    DIRECT = "direct"  # a pool model called by name: the messages pass through unchanged


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called; ``arguments`` is its own text, meant to be JSON."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message; ``role`` is ``system``, ``user``, ``assistant`` or ``tool``.

    ``tool_calls`` are an assistant's, and ``tool_call_id`` says which of them a ``tool`` message
    answers.
    """

    role: str
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer, its log-probability, and the likeliest tokens at its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the caller asked of a call; ``None`` leaves it to the model's default.

    ``logit_bias`` is pairs of a token id and its bias. ``logprobs`` is how many of the likeliest
    tokens to list beside each token, so 0 still asks for the token's own. ``response_format``,
    ``tools`` and ``tool_choice`` are OpenAI's objects as JSON texts.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: tuple[tuple[str, float], ...] = ()
    logprobs: int | None = None
    response_format: str | None = None
    tools: str | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One request, stamped at arrival.

    ``question`` is the last user message; ``context`` what came before it (system message and
    history). ``budget_s`` counts from arrival, so it includes embedding, planning and waiting.
    ``direct_model`` names the pool model when the caller asked for one by name. Only then is there
    ``last``, the last message as it was sent (its text is ``question``); ``raw_prompt``, which says
    that ``question`` is to be continued as it is, without a chat template; and ``n``, the number of
    independent answers. Of a long query ``owner`` says whose it is (a hash of the
    credential, empty where there was none). ``budget_usd`` is the most that it may spend, ``None``
    for any amount.
    """

    query_id: str
    question: str
    budget_s: float
    task: TaskKind | None = None
    context: tuple[Message, ...] = ()
    choices: tuple[str, ...] = ()
    deadline_kind: DeadlineKind = DeadlineKind.HARD
    sampling: Sampling = field(default_factory=Sampling)
    direct_model: str | None = None
    policy: str | None = None
    last: Message | None = None
    raw_prompt: bool = False
    n: int = 1
    owner: str | None = None
    budget_usd: float | None = None


@dataclass(frozen=True, slots=True)
class AgentGraph:
    """Who reads whom, for a topology that leaves this to the plan.

    ``edges`` are (from, to) pairs of agents without a cycle; the answers of the agents in ``final``
    are voted on or decided over. ``split`` makes one call per incoming answer instead of one call
    that is shown all of them.
    """

    edges: tuple[tuple[int, int], ...]
    final: tuple[int, ...]
    split: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The planner's decision: one role per agent, so ``len(roles)`` agents.

    ``topology`` is a name of the topology registry: a ``Topology``, or one that was added.
    ``models`` is one model per agent where the planner chose them already, for its own executor to
    read; else empty. ``graph`` is for topologies that leave the edges to the plan.
    """

    topology: str
    roles: tuple[str, ...]
    task: TaskKind
    models: tuple[str, ...] = ()
    graph: AgentGraph | None = None

    @property
    def num_agents(self) -> int:
        return len(self.roles)


@dataclass(frozen=True, slots=True)
class Step:
    """One model call of a plan, and one executor decision.

    ``depends_on`` are the steps that must end first and whose answers are shown; ``own`` is the
    same agent's earlier step, shown to it as its own, and is also in ``depends_on``. ``after``
    must end first too, but is not shown. Where answers are voted on, only those of steps with
    ``votes`` count. ``agent`` is -1 for a step over all agents; an agent that makes several calls
    at once has the numbers ``agent + k * num_agents``.
    """

    step_id: int
    kind: StepKind
    role: str
    agent: int
    round: int
    depends_on: tuple[int, ...] = ()
    own: int | None = None
    after: tuple[int, ...] = ()
    votes: bool = True


@dataclass(frozen=True, slots=True)
class Route:
    """The executor's decision for one step: the joint action (paper section 3, Action).

    ``temperature`` holds where the caller asked for none; ``max_tokens`` takes the place of the
    strategy's cap. Both are ``None`` where the policy leaves them alone.
    """

    model: str
    strategy: Strategy
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The executor's other action in ``Adaptive``: answer with what is there."""


@dataclass(frozen=True, slots=True)
class Broke:
    """No model can take the step for the money that is left; ``retry_after_s`` is set where it is
    the pool's hour that is spent."""

    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """No model can take the step now; ask again when the telemetry changes.

    ``retry_after_s`` is set where models are there but only failed lately.
    """

    retry_after_s: float | None = None


Decision = Route | Stop | Wait


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a model is predicted to be now: measured where it is fresh, else the config's.
    ``start_s`` passes before the first token beside the reading of the prompt."""

    prefill_tokens_per_s: float
    tpot_s: float
    wait_s: float = 0.0
    start_s: float = 0.0

    def service_s(self, prompt_tokens: int, output_tokens: float) -> float:
        """Seconds in the engine, without the wait for a slot."""
        read_s = prompt_tokens / self.prefill_tokens_per_s
        return self.start_s + read_s + output_tokens * self.tpot_s


@dataclass(frozen=True, slots=True)
class Call:
    """A step on its way to a model: everything an engine needs, and its place in the queue.

    ``service_s`` predicts the engine's time for this call and ``path_s`` that of the steps that
    must still follow; both may be ``None`` when nothing is known of the model's speed.
    ``final`` marks the step whose text is the answer, so that it may be streamed; ``choice`` is
    then the number of the answer. ``prompt`` takes the place of ``messages`` for a raw prompt.
    """

    call_id: str
    query_id: str
    step_id: int
    model: str
    strategy: Strategy
    messages: tuple[Message, ...]
    max_tokens: int
    prompt_tokens: int
    service_s: float | None
    path_s: float
    sampling: Sampling
    final: bool
    choice: int = 0
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """What came of the program in an answer, where the pool runs generated code.

    ``status`` is how the run ended (passed, failed, time limit, memory limit), or why there was
    none. ``tests`` has a 1 for each of the question's tests that passed and a 0 for each other
    one; ``None`` where none was run. ``shown`` is what the same agent's next call is told.
    """

    status: str
    tests: str | None = None
    shown: str | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """What came back from a model. Token counts are the engine's own, or ``None``."""

    text: str
    finish_reason: str
    prompt_tokens: int | None
    completion_tokens: int | None
    queue_s: float
    service_s: float
    ttft_s: float | None = None
    replica: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    run: ProgramRun | None = None


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One line of the trace: what a step did, where, and how long it took. ``cost_usd`` is what
    its answered calls cost, ``None`` where the model has no price. ``program`` and ``tests`` are
    the ``status`` and ``tests`` of its ``ProgramRun``."""

    step_id: int
    kind: StepKind
    role: str
    round: int
    model: str | None
    strategy: Strategy | None
    status: str  # ok, failed, cancelled, dropped or stopped
    attempts: int
    prompt_tokens: int | None
    completion_tokens: int | None
    queue_s: float | None
    service_s: float | None
    started_after_s: float
    ended_after_s: float
    budget_left_s: float
    answer: str | None = None  # canonical answer, where there is one
    error: str | None = None
    cost_usd: float | None = None
    program: str | None = None
    tests: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and US dollars over all steps of a query; ``cost_usd`` is ``None`` where no model
    with a price took part."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers that the caller asked for (``n``); ``index`` counts from 0."""

    index: int
    text: str
    finish_reason: str
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The one outcome of a query.

    ``status``: ``ok`` (whole and on time), ``late`` (whole, after a soft deadline), ``degraded``
    (the best that was there at a hard deadline or after failures) or ``error`` (nothing).
    Only ``ok`` counts for the SLO. ``budget_left_s`` is negative when the answer is late.
    ``simulated`` marks an answer in which a fake engine took part. ``finish_reason`` is ``None``
    where there is no answer. ``choices`` are all answers, the first with ``text``; of those that
    were asked for, some may be missing where the status is ``degraded``.
    """

    query_id: str
    status: str
    text: str
    canonical: str | None
    finish_reason: str | None
    task: TaskKind
    topology: str | None
    roles: tuple[str, ...]
    steps: tuple[StepTrace, ...]
    usage: Usage
    latency_s: float
    budget_s: float
    policy: str
    error_code: str | None = None
    error_message: str | None = None
    retry_after_s: float | None = None
    simulated: bool = False
    choices: tuple[Choice, ...] = ()
    budget_usd: float | None = None

    @property
    def budget_left_s(self) -> float:
        return self.budget_s - self.latency_s

    @property
    def kept_budget(self) -> bool:
        return self.status == "ok"

    @property
    def models(self) -> tuple[str, ...]:
        """Models that answered, in the order of first use."""
        return tuple(dict.fromkeys(s.model for s in self.steps if s.model and s.status == "ok"))
