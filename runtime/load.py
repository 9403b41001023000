"""The load as one workflow actor sees it: the last snapshot, corrected by what it has sent since.

Without the correction everybody who reads the same snapshot picks the same idle model.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from runtime.config import AppConfig, ModelConfig
from runtime.telemetry import ModelLoad, PoolTelemetry
from runtime.types import Speed


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as a policy sees it now.

    ``in_system`` counts calls that wait for a lease, wait in the engine or run. ``slots`` falls
    back to the config's while nothing has been heard. ``fresh`` is false when the engine's own
    figures are unknown; ``in_system`` then counts only this process's own calls and the queue.
    ``available`` is false when every replica is gone.
    """

    config: ModelConfig
    in_system: int
    slots: int
    kv_usage: float | None
    e2e_s: float | None
    age_s: float | None
    speed: Speed
    fresh: bool
    available: bool

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def occupancy(self) -> float:
        """Calls in the system per slot; above 1 there is a queue."""
        return self.in_system / self.slots

    @property
    def mean_service_s(self) -> float:
        """Measured end-to-end latency of a call, else half the longest answer at its speed."""
        if self.e2e_s is not None:
            return self.e2e_s
        return self.speed.tpot_s * self.config.max_output_tokens / 2


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool as a policy sees it now, in the config's order of models."""

    version: int
    models: tuple[ModelView, ...]

    def __getitem__(self, name: str) -> ModelView:
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    @property
    def occupancy(self) -> float:
        """Calls in the system per slot, over the models that are available."""
        slots = sum(m.slots for m in self.models if m.available)
        return sum(m.in_system for m in self.models if m.available) / slots if slots else 1.0


class LocalLoad:
    """Snapshots in, views out, for one process; its own calls are added and removed by id."""

    def __init__(self, config: AppConfig) -> None:
        self._config = config
        self._snapshot: PoolTelemetry | None = None
        self._received_s = 0.0
        # Per model, in the order of sending, so that the newest are read first.
        self._sent: dict[str, dict[str, float]] = {m.name: {} for m in config.models}
        self._ended: dict[str, list[tuple[float, float]]] = {m.name: [] for m in config.models}

    @property
    def num_in_flight(self) -> int:
        return sum(len(calls) for calls in self._sent.values())

    def update(self, snapshot: PoolTelemetry, now: float) -> None:
        """Take a newer snapshot, received at ``now``."""
        self._snapshot = snapshot
        self._received_s = now
        for model, ended in self._ended.items():
            as_of = self._as_of(snapshot.models.get(model))
            self._ended[model] = [pair for pair in ended if pair[1] > as_of]

    def sent(self, call_id: str, model: str, now: float) -> None:
        """A call was sent towards ``model``'s queue."""
        self._sent[model][call_id] = now

    def ended(self, call_id: str, model: str, now: float) -> None:
        """A call is over, however it ended; unknown ids are ignored."""
        sent_at = self._sent[model].pop(call_id, None)
        if sent_at is not None:
            self._ended[model].append((sent_at, now))

    def view(self, now: float) -> PoolView:
        """The pool now."""
        version = self._snapshot.version if self._snapshot else 0
        return PoolView(version, tuple(self._model(m, now) for m in self._config.models))

    def _model(self, config: ModelConfig, now: float) -> ModelView:
        load = self._snapshot.models.get(config.name) if self._snapshot else None
        heard = load is not None and load.slots > 0
        slots = load.slots if load and heard else config.max_num_seqs * config.replicas
        in_system = self._in_system(config.name, load)
        age_s = None
        if load is not None and load.age_s is not None:
            age_s = load.age_s + now - self._received_s
        return ModelView(
            config=config,
            in_system=in_system,
            slots=slots,
            kv_usage=load.kv_usage if load else None,
            e2e_s=load.e2e_s if load else None,
            age_s=age_s,
            speed=predict_speed(config, load, in_system, slots),
            fresh=load is not None and load.running is not None,
            available=load is None or load.replicas > 0,
        )

    def _in_system(self, model: str, load: ModelLoad | None) -> int:
        """What the sources counted, plus own calls they cannot have seen, less own that ended."""
        own = self._sent[model]
        if load is None or (load.running is None and load.backlog is None):
            return len(own)
        # A call that runs holds a lease: take the larger count of the two, never their sum.
        engine = (load.running or 0) + (load.waiting or 0)
        counted = max(engine, load.leased or 0) + (load.backlog or 0)
        as_of = self._as_of(load)
        unseen = sum(1 for _ in takewhile(lambda at: at > as_of, reversed(own.values())))
        gone = sum(sent <= as_of < ended for sent, ended in self._ended[model])
        return max(counted - gone, len(own) - unseen, 0) + unseen

    def _as_of(self, load: ModelLoad | None) -> float:
        """When the figures of ``load`` were taken, on this process's clock."""
        age_s = load.age_s if load else None
        return self._received_s - (age_s or 0.0)


def predict_speed(config: ModelConfig, load: ModelLoad | None, in_system: int, slots: int) -> Speed:
    """Token times at the batch that a new call would join, and the wait for a slot.

    The time per token is the measured one where there is one, else the config's iteration time.
    Of the calls beyond the slots each waits its share of one mean service time.
    """
    batch = max(1, min(in_system + 1, slots) // max(1, config.replicas))
    prior_tpot_s = config.speed.token_s + config.speed.token_s_per_seq * batch
    tpot_s = load.tpot_s if load and load.tpot_s else prior_tpot_s
    mean_s = load.e2e_s if load and load.e2e_s else tpot_s * config.max_output_tokens / 2
    excess = in_system + 1 - slots
    wait_s = max(0, excess) * mean_s / slots
    return Speed(config.speed.prefill_tokens_per_s, tpot_s, wait_s)
