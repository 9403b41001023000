"""The load as one driver of queries sees it: the last snapshot, corrected by what it sent since.

Without the correction everybody who reads the same snapshot picks the same idle model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

from runtime.breaker import Breaker, BreakerState
from runtime.config import AppConfig, ModelConfig
from runtime.events import WorkflowEvent
from runtime.telemetry import ModelLoad, PoolTelemetry
from runtime.types import Speed

VIEW_AGE_S = 0.05


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as a policy sees it now.

    ``in_system`` counts calls that wait for a lease, wait in the engine or run. ``slots`` falls
    back to the config's while nothing has been heard. ``fresh`` is false when the engine's own
    figures are unknown; ``in_system`` then counts only this process's own calls and the queue.
    ``available`` is false when every replica is gone or its breaker lets nothing pass;
    ``retry_after_s`` then says when the breaker may, ``None`` where it does.
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
    retry_after_s: float | None = None

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
        self._gone = dict.fromkeys(self._sent, 0)
        self._views: dict[str, tuple[float, ModelView]] = {}  # until something changes
        self._breakers = {m.name: Breaker(config.breaker) for m in config.models}

    @property
    def num_in_flight(self) -> int:
        return sum(len(calls) for calls in self._sent.values())

    def breakers(self, now: float) -> dict[str, str]:
        """State of every breaker that is not closed, by model."""
        states = {model: breaker.state(now) for model, breaker in self._breakers.items()}
        return {m: state.value for m, state in states.items() if state is not BreakerState.CLOSED}

    def update(self, snapshot: PoolTelemetry, now: float) -> None:
        """Take a newer snapshot, received at ``now``."""
        self._snapshot = snapshot
        self._received_s = now
        self._views.clear()
        for model, ended in self._ended.items():
            as_of = self._as_of(snapshot.models.get(model))
            self._ended[model] = [pair for pair in ended if pair[1] > as_of]
            self._gone[model] = sum(sent <= as_of for sent, _ in self._ended[model])

    def sent(self, call_id: str, model: str, now: float) -> None:
        """A call was sent towards ``model``'s queue."""
        self._views.pop(model, None)
        self._sent[model][call_id] = now
        self._breakers[model].began(call_id, now)

    def admits(self, call_id: str, model: str) -> bool:
        """Whether ``model``'s breaker lets the call go on now that its turn has come."""
        return self._breakers[model].admits(call_id)

    def ended(
        self, call_id: str, model: str, now: float, event: WorkflowEvent | None = None
    ) -> None:
        """A call is over, as ``event`` says, or withdrawn; unknown ids are ignored."""
        sent_at = self._sent[model].pop(call_id, None)
        if sent_at is not None:
            self._breakers[model].ended(call_id, sent_at, event, now)
            self._views.pop(model, None)
            self._ended[model].append((sent_at, now))
            load = self._snapshot.models.get(model) if self._snapshot else None
            as_of = self._as_of(load)
            self._gone[model] += sent_at <= as_of < now

    def view(self, now: float) -> PoolView:
        """The pool now."""
        version = self._snapshot.version if self._snapshot else 0
        return PoolView(version, tuple(self._model(m, now) for m in self._config.models))

    def _model(self, config: ModelConfig, now: float) -> ModelView:
        """The model now; ``age_s`` may be ``VIEW_AGE_S`` behind."""
        made_s, view = self._views.get(config.name, (-math.inf, None))
        if view is None or not 0 <= now - made_s <= VIEW_AGE_S:
            view = self._look(config, now)
            self._views[config.name] = (now, view)
        return view

    def _look(self, config: ModelConfig, now: float) -> ModelView:
        load = self._snapshot.models.get(config.name) if self._snapshot else None
        heard = load is not None and load.slots > 0
        slots = load.slots if load and heard else config.max_num_seqs * config.replicas
        in_system = self._in_system(config.name, load)
        breaker = self._breakers[config.name]
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
            available=breaker.passes(now) and (load is None or load.replicas > 0),
            retry_after_s=breaker.retry_after_s(now),
        )

    def _in_system(self, model: str, load: ModelLoad | None) -> int:
        """What the sources counted, plus own calls they cannot have seen, less own that ended."""
        own = self._sent[model]
        if load is None or (load.running is None and load.backlog is None):
            return len(own)
        # Leases count only where the engines are silent: holders keep some of them idle.
        silent = load.running is None
        engine = load.leased or 0 if silent else (load.running or 0) + (load.waiting or 0)
        counted = engine + (load.backlog or 0)
        as_of = self._as_of(load)
        unseen = sum(1 for _ in takewhile(lambda at: at > as_of, reversed(own.values())))
        return max(counted - self._gone[model], len(own) - unseen, 0) + unseen

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
