"""Plays the faults of a simulation: replicas that die and come back, slow down or freeze."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.config import AppConfig
from runtime.sim.agenda import Agenda
from runtime.sim.pool import Death, Fault, Slowdown
from runtime.sim.replicas import SimReplica
from runtime.sim.sampling import SimTelemetry
from runtime.sim.serving import Serving


class FaultPlayer:
    """Puts ``faults`` on the agenda.

    ``hear`` reads the telemetry. Live, a source that falls silent counts as gone only
    ``gone_after_s`` after its last report; schedulers hear of that, and of one that is back, with
    the next snapshot, whether or not anybody decides then.
    """

    def __init__(
        self,
        agenda: Agenda,
        config: AppConfig,
        serving: Serving,
        telemetry: SimTelemetry,
        hear: Callable[[], None],
        faults: Sequence[Fault],
    ) -> None:
        self._agenda = agenda
        self._gone_after_s = config.telemetry.gone_after_s
        self._serving = serving
        self._telemetry = telemetry
        self._hear = hear
        for fault in faults:
            agenda.at(fault.at_s, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        replica = self._serving.servers[fault.model].replicas[fault.replica]
        if not replica.up:
            return
        if isinstance(fault, Slowdown):
            self._serving.set_speed(replica, fault.factor)
        else:
            self._die(replica, fault)

    def _die(self, replica: SimReplica, fault: Death) -> None:
        self._hear()  # so that its last report is no older than it would be live
        self._serving.lose(replica)
        self._look_later(self._gone_after_s)
        if fault.back_after_s is not None:
            load_s = self._serving.servers[fault.model].settings.load_s
            back_s = self._agenda.now + fault.back_after_s + load_s
            self._agenda.at(back_s, self._bring_back, replica)

    def _bring_back(self, replica: SimReplica) -> None:
        self._serving.bring_back(replica)
        self._look_later(0.0)

    def _look_later(self, after_s: float) -> None:
        when_s = self._telemetry.next_s(self._agenda.now + after_s) + self._telemetry.period_s
        self._agenda.at(when_s, self._look, None)

    def _look(self, _: None) -> None:
        self._hear()
