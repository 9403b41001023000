"""The serving side of a simulation: schedulers, replicas, telemetry, and what goes wrong there.

A call comes in with ``acquire`` and goes out through ``ended``, once, unless it is withdrawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from runtime.attempt import denied, too_late
from runtime.config import AppConfig
from runtime.events import (
    Acquire,
    CallDone,
    CallDropped,
    CallFailed,
    Cancel,
    CapacityChanged,
    DispatchEvent,
    FailureKind,
    Grant,
    Limited,
    Release,
    Tick,
)
from runtime.leasing import Verdict
from runtime.sim.agenda import Agenda
from runtime.sim.api import RateLimited
from runtime.sim.outcomes import OutcomeModel
from runtime.sim.pool import SimApi, SimModel
from runtime.sim.replicas import SimReplica, SimServer, build_servers
from runtime.sim.results import Results
from runtime.sim.runs import Attempt, CallEnd
from runtime.sim.sampling import SimTelemetry
from runtime.sim.sequences import SimSequence
from runtime.telemetry import PoolTelemetry
from runtime.window import finished_call

_HOLDER = "simulation"


class Serving:
    """The pool of a simulation.

    Args:
        agenda: the simulation's time.
        config: the pool, its order and limits.
        models: the engine of every model.
        engine: ``fast`` or ``exact``.
        telemetry: takes the samples.
        outcomes: what calls write.
        results: gets a row per call that is over.
        ended: told of each call that ends without being withdrawn.
        may_freeze: whether ``set_speed`` may be told ``inf``; only then is stalling looked for.
    """

    def __init__(
        self,
        agenda: Agenda,
        config: AppConfig,
        models: Mapping[str, SimModel | SimApi],
        engine: str,
        telemetry: SimTelemetry,
        outcomes: OutcomeModel,
        results: Results,
        ended: Callable[[Attempt, CallEnd], None],
        may_freeze: bool = False,
    ) -> None:
        self._agenda = agenda
        self._config = config
        self._telemetry = telemetry
        self._outcomes = outcomes
        self._behaviour = outcomes.behaviour if config.runs_code else None
        self._results = results
        self._ended = ended
        self.servers = build_servers(config, models, engine)
        telemetry.watch(list(self.servers.values()))
        self._attempts: dict[str, Attempt] = {}
        self._stranded: dict[str, list[Attempt]] = {name: [] for name in self.servers}
        self._num_calls = 0
        self._may_freeze = may_freeze

    @property
    def num_calls(self) -> int:
        """Calls that wait or run."""
        return len(self._attempts)

    # --- calls come and go ---------------------------------------------------------------------

    def acquire(self, attempt: Attempt) -> None:
        """A call asks for its turn."""
        call, state, now = attempt.call, attempt.run.state, self._agenda.now
        self._attempts[call.call_id] = attempt
        left_s = state.deadline_s - now
        ask = Acquire(call.call_id, _HOLDER, left_s, call.service_s or 0.0, call.path_s, state.hard)
        self._dispatch(self.servers[call.model], ask)

    def withdraw(self, attempt: Attempt) -> None:
        """A call is no longer wanted, wherever it is."""
        if attempt.over:
            return
        self._leave_engine(attempt)
        self._close(attempt, "cancelled")

    def expire(self, attempt: Attempt) -> None:
        """Its deadline has passed; where it still waits, the scheduler drops it now."""
        if attempt.lease is None and not attempt.over:
            self._dispatch(self.servers[attempt.call.model], Tick())

    def _dispatch(self, server: SimServer, event: DispatchEvent) -> None:
        now = self._agenda.now
        self._telemetry.touch(server, now)
        for command in server.dispatch.handle(event, now):
            self._agenda.soon(self._verdict, command)
        if server.config.api is not None:
            self._look_at_window(server)

    def _look_at_window(self, server: SimServer) -> None:
        """Where calls are held, look again when the window lets out the next."""
        opens_s = server.dispatch.opens_s(self._agenda.now)
        if opens_s is not None and opens_s < server.wake_s:
            server.wake_s = opens_s
            self._agenda.at(opens_s, self._window_moved, server)

    def _window_moved(self, server: SimServer) -> None:
        if server.wake_s <= self._agenda.now:
            server.wake_s = math.inf
        self._dispatch(server, Tick())

    def _verdict(self, verdict: Verdict) -> None:
        attempt = self._attempts.get(verdict.call_id)
        if attempt is None:
            return  # withdrawn; its lease has gone back
        call, state, now = attempt.call, attempt.run.state, self._agenda.now
        if (event := denied(call, verdict)) is not None:
            self._end(attempt, event)
            return
        assert isinstance(verdict, Grant)
        attempt.lease, attempt.granted_s = verdict.lease, now
        admitted = attempt.run.load.admits(call.call_id, call.model)
        attempt.max_tokens = state.max_tokens_at(call.call_id, now)
        if (failed := too_late(call, admitted, attempt.max_tokens)) is not None:
            self._end(attempt, failed)
            return
        delay_s = self.servers[call.model].settings.dispatch_s
        if delay_s > 0:
            self._agenda.at(now + delay_s, self._enter, attempt)
        else:
            self._enter(attempt)

    def _end(self, attempt: Attempt, event: CallEnd) -> None:
        """A call is over: its lease goes back first, then its query is told."""
        if isinstance(event, CallFailed):
            self._close(attempt, event.kind)
        else:
            self._close(attempt, "dropped" if isinstance(event, CallDropped) else "ok")
        self._ended(attempt, event)

    def _close(self, attempt: Attempt, status: str) -> None:
        call = attempt.call
        attempt.over = True
        del self._attempts[call.call_id]
        attempt.record(self._results, status, self._agenda.now)
        if attempt.lease is not None:
            self._dispatch(self.servers[call.model], Release(attempt.lease))
        elif status == "cancelled":
            self._dispatch(self.servers[call.model], Cancel(call.call_id))

    # --- engines -------------------------------------------------------------------------------

    def _enter(self, attempt: Attempt) -> None:
        """A granted call goes to a replica; where none is up, it waits for one a while."""
        if attempt.over:
            return
        server, now = self.servers[attempt.call.model], self._agenda.now
        replica = server.choose()
        if replica is None:
            self._stranded[server.name].append(attempt)
            self._agenda.at(now + self._config.limits.silent_s, self._give_up_stranded, attempt)
            return
        self._start(attempt, server, replica)

    def _start(self, attempt: Attempt, server: SimServer, replica: SimReplica) -> None:
        call, run, now = attempt.call, attempt.run, self._agenda.now
        self._telemetry.touch(server, now)
        outcome = self._outcomes.draw(
            run.arrival.item, call, attempt.step, run.seen_by(attempt.step)
        )
        self._num_calls += 1
        attempt.sequence = SimSequence(
            call.call_id,
            (run.state.deadline_s, self._num_calls),
            call.prompt_tokens,
            max(1, min(outcome.completion_tokens, attempt.max_tokens)),
        )
        attempt.outcome, attempt.replica = outcome, replica
        replica.expect_work(now)
        attempt.running = replica.engine.num_running
        try:
            replica.engine.add(attempt.sequence, now)
        except ValueError as error:
            self._end(attempt, CallFailed(call.call_id, FailureKind.CONTEXT, str(error)))
            return
        except RateLimited as limited:
            self._limited(attempt, server, limited.retry_after_s)
            return
        replica.active[call.call_id] = attempt.sequence
        self._settle(replica)
        self._watch(attempt)

    def _limited(self, attempt: Attempt, server: SimServer, retry_after_s: float) -> None:
        """The provider did not take the call."""
        attempt.outcome = attempt.sequence = attempt.replica = None
        self._dispatch(server, Limited(retry_after_s))
        call, kind = attempt.call, FailureKind.LIMITED
        message = f"{call.model}: the provider's limit on the rate is reached"
        failed = CallFailed(call.call_id, kind, message, retry_after_s=retry_after_s)
        self._end(attempt, failed)

    def _watch(self, attempt: Attempt) -> None:
        """Set the timers of a call that has begun."""
        state, call_id, granted_s = attempt.run.state, attempt.call.call_id, attempt.granted_s
        limit_s = state.time_limit_at(call_id, granted_s)
        if limit_s is not None:
            when_s = max(self._agenda.now, granted_s + limit_s)
            self._agenda.at(when_s, self._cut, attempt)
        if self._may_freeze:
            attempt.stall_s = state.stall_limit_at(call_id, granted_s)
            self._watch_frozen(attempt)

    def _settle(self, replica: SimReplica) -> None:
        """The replica has changed: so may those beside it have; see when each needs a look."""
        shared = replica.gpu.settle(replica, self._agenda.now)
        for other in replica.gpu.replicas if shared else (replica,):
            next_s = other.engine.next_event_s
            if next_s != other.armed_s:
                other.armed_s = next_s
                if next_s < math.inf:
                    self._agenda.at(next_s, self._look, other)

    def _look(self, replica: SimReplica) -> None:
        """An engine's own event: who is done leaves."""
        now = self._agenda.now
        if replica.armed_s != now:
            return  # this event was for what has changed since
        replica.armed_s = math.inf
        self._telemetry.touch(self.servers[replica.model], now)
        engine = replica.engine
        engine.advance(now)
        if engine.finished:
            finished, engine.finished = engine.finished, []
            for sequence in finished:
                # Whoever was withdrawn at the very moment of its end is over already.
                if (attempt := self._attempts.get(sequence.call_id)) is not None:
                    self._done(attempt, sequence.target_tokens)
        self._settle(replica)

    def _done(self, attempt: Attempt, tokens: int) -> None:
        now, replica, sequence = self._agenda.now, attempt.replica, attempt.sequence
        assert replica is not None
        assert sequence is not None
        del replica.active[attempt.call.call_id]
        replica.finished += 1
        result = attempt.result(now, tokens, self._behaviour)
        call = finished_call(attempt.granted_s, now, result.ttft_s, tokens)
        replica.window.add(call)
        self._end(attempt, CallDone(attempt.call.call_id, result))

    def _leave_engine(self, attempt: Attempt) -> int:
        """Take a call out of its engine, if it is in one; returns the tokens it has given."""
        replica, sequence, now = attempt.replica, attempt.sequence, self._agenda.now
        if replica is None or sequence is None:
            return 0
        self._telemetry.touch(self.servers[replica.model], now)
        sequence.generated = replica.engine.generated(sequence, now)
        replica.engine.remove(sequence, now)
        replica.active.pop(attempt.call.call_id, None)
        self._settle(replica)
        return sequence.generated

    def _cut(self, attempt: Attempt) -> None:
        """The time that a hard budget gives the call is over: it ends where it is, but not
        before its first token."""
        if attempt.over or attempt.replica is None or attempt.sequence is None:
            return
        replica, sequence, now = attempt.replica, attempt.sequence, self._agenda.now
        if replica.engine.generated(sequence, now) == 0:
            sequence.target_tokens = 1
            return
        tokens = self._leave_engine(attempt)
        replica.active[attempt.call.call_id] = sequence
        self._done(attempt, tokens)

    # --- faults --------------------------------------------------------------------------------

    def lose(self, replica: SimReplica) -> None:
        """The replica dies: its calls are lost at once, as a caller of a dead actor learns."""
        self._telemetry.touch(self.servers[replica.model], self._agenda.now)
        lost = [self._attempts[call_id] for call_id in replica.active]
        replica.die(self._agenda.now)
        self._settle(replica)
        for attempt in lost:
            attempt.replica = None
            self._fail(attempt, FailureKind.LOST, "the replica gave up the call")

    def bring_back(self, replica: SimReplica) -> None:
        """The replica serves again; calls that waited for one begin."""
        server = self.servers[replica.model]
        self._telemetry.touch(server, self._agenda.now)
        replica.up = True
        waiting, self._stranded[server.name] = self._stranded[server.name], []
        for attempt in waiting:
            self._enter(attempt)

    def set_speed(self, replica: SimReplica, factor: float) -> None:
        """The replica's iterations take ``factor`` times as long; ``inf`` freezes it."""
        self._telemetry.touch(self.servers[replica.model], self._agenda.now)
        if factor == math.inf:
            replica.num_freezes += 1
        replica.slow = factor
        replica.gpu.share_out(self._agenda.now)
        self._settle(replica)
        for call_id in replica.active:
            self._watch_frozen(self._attempts[call_id])

    def learn_capacity(self, snapshot: PoolTelemetry) -> None:
        """The schedulers follow the replicas that are heard of; with none they keep what was."""
        for name, server in self.servers.items():
            load = snapshot.models[name]
            if load.replicas > 0 and load.slots != server.slots:
                server.slots = load.slots
                self._dispatch(server, CapacityChanged(load.slots))

    def _watch_frozen(self, attempt: Attempt) -> None:
        replica = attempt.replica
        if replica is not None and replica.slow == math.inf:
            when_s = self._agenda.now + attempt.stall_s
            self._agenda.at(when_s, self._give_up_frozen, (attempt, replica.num_freezes))

    def _give_up_frozen(self, about: tuple[Attempt, int]) -> None:
        attempt, freeze = about
        replica = attempt.replica
        if attempt.over or replica is None:
            return
        if replica.slow == math.inf and replica.num_freezes == freeze:
            self._leave_engine(attempt)
            self._fail(attempt, FailureKind.HUNG, f"no token for {attempt.stall_s:.3g} s")

    def _give_up_stranded(self, attempt: Attempt) -> None:
        if not attempt.over and attempt.replica is None:
            self._fail(attempt, FailureKind.LOST, "no replica has reported the call for too long")

    def _fail(self, attempt: Attempt, kind: FailureKind, why: str) -> None:
        call = attempt.call
        self._end(attempt, CallFailed(call.call_id, kind, f"{call.model}: {why}"))

    def collect(self) -> None:
        """Bring the results' figures per model up to now."""
        now = self._agenda.now
        for server in self.servers.values():
            self._results.gpu_s[server.name] = sum(r.gpu_s(now) for r in server.replicas)
            preemptions = sum(r.num_preemptions for r in server.replicas)
            self._results.preemptions[server.name] = preemptions
