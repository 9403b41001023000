"""A query and its calls while a simulation runs them; what a call wrote, cut where it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from runtime.events import CallDone, CallDropped, CallFailed, LeaseId
from runtime.load import LocalLoad
from runtime.sim.filler import filler, padded
from runtime.sim.outcomes import Outcome, Seen, SimItem
from runtime.sim.replicas import SimReplica
from runtime.sim.results import Results
from runtime.sim.sequences import SimSequence
from runtime.sim.workload import Arrival
from runtime.types import Call, CallResult, ProgramRun, Step
from runtime.workflow import WorkflowState

CallEnd = CallDone | CallFailed | CallDropped
Behaviour = Callable[[SimItem, str], str | None]


@dataclass(slots=True, eq=False)
class Attempt:
    """One call on its way: in the queue, at an engine, or over (``over``)."""

    run: QueryRun
    call: Call
    asked_s: float
    in_system: int
    lease: LeaseId | None = None
    granted_s: float = math.nan
    max_tokens: int = 0
    running: int = -1
    stall_s: float = math.inf
    outcome: Outcome | None = None
    replica: SimReplica | None = None
    sequence: SimSequence | None = None
    over: bool = False

    @property
    def step(self) -> Step:
        return self.run.state.steps[self.call.step_id].step

    def result(self, now: float, tokens: int, behaviour: Behaviour | None = None) -> CallResult:
        """What came back, ``tokens`` long; unfinished, it says nothing.

        With ``behaviour`` programs are run, which takes no time here.
        """
        outcome, sequence, replica = self.outcome, self.sequence, self.replica
        assert outcome is not None
        assert sequence is not None
        assert replica is not None
        whole = tokens >= outcome.completion_tokens
        core = outcome.text if whole else ""
        self.run.cores[self.call.step_id] = core
        first_s = sequence.first_token_s
        return CallResult(
            text=self.run.text_of(self.call.step_id, core, tokens),
            finish_reason="stop" if whole else "length",
            prompt_tokens=self.call.prompt_tokens,
            completion_tokens=tokens,
            queue_s=self.granted_s - self.asked_s,
            service_s=now - self.granted_s,
            ttft_s=None if first_s is None else first_s - self.granted_s,
            replica=replica.name,
            run=self._run_of(core, behaviour),
        )

    def _run_of(self, core: str, behaviour: Behaviour | None) -> ProgramRun | None:
        tests = behaviour(self.run.arrival.item, core) if behaviour and core else None
        if tests is None:
            return None
        return ProgramRun("failed" if "0" in tests else "passed", tests)

    def record(self, results: Results, status: str, now: float) -> None:
        """Write its line in the results."""
        call, sequence = self.call, self.sequence
        generated = sequence.generated if sequence else 0
        first_s = sequence.first_token_s if sequence else None
        first_s = math.nan if first_s is None else first_s
        results.add_call(
            self.run.number,
            call,
            self.step,
            status,
            (self.asked_s, self.granted_s, first_s, now),
            (generated, self.max_tokens or call.max_tokens),
            self.outcome is not None and generated < self.outcome.completion_tokens,
            (self.in_system, self.running),
        )


@dataclass(slots=True, eq=False)
class QueryRun:
    """One query in flight. ``cores`` are the short texts of its answered steps."""

    number: int
    arrival: Arrival
    state: WorkflowState
    load: LocalLoad
    embedding: Sequence[float] | None
    attempts: dict[str, Attempt] = field(default_factory=dict)
    cores: dict[int, str] = field(default_factory=dict)
    shown: frozenset[int] | None = None

    def text_of(self, step_id: int, core: str, tokens: int) -> str:
        """The text of a step's answer, of full length where another step will read it."""
        if self.shown is None:
            steps = self.state.steps
            self.shown = frozenset(i for s in steps for i in s.step.depends_on)
        if step_id not in self.shown:
            return core
        return padded(core, tokens) if core else filler(tokens)

    def seen_by(self, step: Step) -> list[Seen]:
        """The earlier answers that the step is shown."""
        seen = []
        for step_id in step.depends_on:
            state = self.state.steps[step_id]
            if state.status == "ok" and state.route is not None:
                route, core = state.route, self.cores[step_id]
                seen.append(Seen(state.step, route.model, route.strategy, core))
        return seen
