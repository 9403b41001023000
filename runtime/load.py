"""The load as one driver of queries sees it: the last snapshot, corrected by what it sent since.

Without the correction everybody who reads the same snapshot picks the same idle model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

from runtime.breaker import Breaker, BreakerState
from runtime.config import ApiConfig, AppConfig, ModelConfig
from runtime.events import CallDone, WorkflowEvent
from runtime.money import HourLedger, call_cost_pusd, tariff, to_usd
from runtime.ratelimit import RateReport
from runtime.telemetry import ModelLoad, PoolTelemetry
from runtime.types import Call, Speed

VIEW_AGE_S = 0.05


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as a policy sees it now.

    ``in_system`` counts calls that wait for a lease, wait in the engine or run. ``slots`` falls
    back to the config's while nothing has been heard. ``fresh`` is false when the engine's own
    figures are unknown; ``in_system`` then counts only this process's own calls and the queue.
    ``available`` is false when every replica is gone or its breaker lets nothing pass;
    ``retry_after_s`` then says when the breaker may, ``None`` where it does.
    ``running`` and ``waiting`` (in the engine) and ``backlog`` (for a lease) are as they were
    reported, ``None`` where they are not known. ``rate`` is the window of an API model, with what
    this process has sent since.
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
    running: int | None = None
    waiting: int | None = None
    backlog: int | None = None
    rate: RateReport | None = None

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def occupancy(self) -> float:
        """Calls in the system per slot; above 1 there is a queue. For an API model the congestion
        of its window stands for that, where it is higher (paper section 5.4)."""
        occupancy = self.in_system / self.slots
        return occupancy if self.rate is None else max(occupancy, self.rate.congestion)

    @property
    def congestion(self) -> float | None:
        """Requests over the limit of an API model, held ones included; ``None`` for others."""
        return None if self.rate is None else self.rate.congestion

    @property
    def mean_service_s(self) -> float:
        """Measured end-to-end latency of a call, else half the longest answer at its speed."""
        if self.e2e_s is not None:
            return self.e2e_s
        return self.speed.tpot_s * self.config.max_output_tokens / 2


@dataclass(frozen=True, slots=True)
class PoolView:
    """The pool as a policy sees it now, in the config's order of models.

    ``hour_left_usd`` is what the pool may still spend of ``money.per_hour_usd``, ``None`` without.
    """

    version: int
    models: tuple[ModelView, ...]
    hour_left_usd: float | None = None

    def __getitem__(self, name: str) -> ModelView:
        for model in self.models:
            if model.name == name:
                return model
        raise KeyError(name)

    @property
    def occupancy(self) -> float:
        """Calls in the system per slot, over the models that are available. API models count by
        their own occupancy."""
        there = [m for m in self.models if m.available]
        slots = sum(m.slots for m in there)
        busy = sum(m.in_system if m.rate is None else m.occupancy * m.slots for m in there)
        return busy / slots if slots else 1.0


class LocalLoad:
    """Snapshots in, views out, for one process; its own calls are added and removed by id.

    ``holder`` is its name in snapshots.
    """

    def __init__(self, config: AppConfig, holder: str = "") -> None:
        self.holder = holder
        self._config = config
        self._tariffs = {m.name: tariff(m) for m in config.models}
        self._ledger = HourLedger()
        self._snapshot: PoolTelemetry | None = None
        self._received_s = 0.0
        # Per model, in the order of sending, so that the newest are read first.
        self._sent: dict[str, dict[str, float]] = {m.name: {} for m in config.models}
        self._ended: dict[str, list[tuple[float, float]]] = {m.name: [] for m in config.models}
        self._gone = dict.fromkeys(self._sent, 0)
        self._views: dict[str, tuple[float, ModelView]] = {}  # until something changes
        self._speeds: dict[str, tuple[ModelLoad | None, int, float, Speed]] = {}
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
            if not ended:
                self._gone[model] = 0
                continue
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

    def paid(self, call: Call, event: WorkflowEvent, now: float) -> None:
        """A call is over; what it cost counts for the hour, where that has a bound."""
        if self._config.money.per_hour_usd is None or not isinstance(event, CallDone):
            return
        if (prices := self._tariffs[call.model]) is not None:
            self._ledger.add(to_usd(call_cost_pusd(prices, call, event.result)), now)

    def spent_hour_usd(self, now: float) -> float:
        """What this process's calls cost within the last hour."""
        return self._ledger.spent_usd(now)

    def view(self, now: float) -> PoolView:
        """The pool now."""
        version = self._snapshot.version if self._snapshot else 0
        models = tuple(self._model(m, now) for m in self._config.models)
        return PoolView(version, models, self._hour_left_usd(now))

    def _hour_left_usd(self, now: float) -> float | None:
        most_usd = self._config.money.per_hour_usd
        if most_usd is None:
            return None
        told = self._snapshot.spent_hour_usd if self._snapshot else {}
        others = sum(usd for holder, usd in told.items() if holder != self.holder)
        return most_usd - others - self._ledger.spent_usd(now)

    def view_of(self, model: str, now: float) -> ModelView:
        """One model now."""
        return self._model(self._config.model(model), now)

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
        passes = breaker.passes(now)
        age_s = None
        if load is not None and load.age_s is not None:
            age_s = load.age_s + now - self._received_s
        rate = None if config.api is None else self._rate(config.name, config.api, load, now)
        return ModelView(
            config=config,
            in_system=in_system,
            slots=slots,
            kv_usage=load.kv_usage if load else None,
            e2e_s=load.e2e_s if load else None,
            age_s=age_s,
            speed=self._speed(config, load, in_system, slots, rate.hold_s if rate else 0.0),
            fresh=load is not None and load.running is not None,
            available=passes and (load is None or load.replicas > 0),
            retry_after_s=None if passes else breaker.retry_after_s(now),
            running=load.running if load else None,
            waiting=load.waiting if load else None,
            backlog=load.backlog if load else None,
            rate=rate,
        )

    def _speed(
        self, config: ModelConfig, load: ModelLoad | None, in_system: int, slots: int, hold_s: float
    ) -> Speed:
        """``predict_speed``, worked out anew where something differs from the last time."""
        last = self._speeds.get(config.name)
        if last is not None and last[0] is load and last[1] == in_system and last[2] == hold_s:
            return last[3]
        speed = predict_speed(config, load, in_system, slots, hold_s)
        self._speeds[config.name] = load, in_system, hold_s, speed
        return speed

    def _rate(self, model: str, api: ApiConfig, load: ModelLoad | None, now: float) -> RateReport:
        """The window as reported, with own calls that it cannot have counted."""
        if load is None or load.rate is None:
            return RateReport(len(self._sent[model]), api.rpm_limit)
        as_of = self._as_of(load)
        unseen = self._unseen(model, as_of) + sum(at > as_of for at, _ in self._ended[model])
        return load.rate.later(unseen, now - self._received_s)

    def _unseen(self, model: str, as_of: float) -> int:
        """Own calls that were sent after ``as_of``."""
        own = self._sent[model].values()
        return sum(1 for _ in takewhile(lambda at: at > as_of, reversed(own)))

    def _in_system(self, model: str, load: ModelLoad | None) -> int:
        """What the sources counted, plus own calls they cannot have seen, less own that ended."""
        own = self._sent[model]
        if load is None or (load.running is None and load.backlog is None):
            return len(own)
        # Leases count only where the engines are silent: holders keep some of them idle.
        silent = load.running is None
        engine = load.leased or 0 if silent else (load.running or 0) + (load.waiting or 0)
        counted = engine + (load.backlog or 0)
        if not own:
            return max(counted - self._gone[model], 0)
        unseen = self._unseen(model, self._as_of(load))
        return max(counted - self._gone[model], len(own) - unseen, 0) + unseen

    def _as_of(self, load: ModelLoad | None) -> float:
        """When the figures of ``load`` were taken, on this process's clock."""
        age_s = load.age_s if load else None
        return self._received_s - (age_s or 0.0)


def predict_speed(
    config: ModelConfig, load: ModelLoad | None, in_system: int, slots: int, hold_s: float = 0.0
) -> Speed:
    """Token times at the batch that a new call would join, and the wait for a slot.

    The time per token is the measured one where there is one, else the config's iteration time.
    Of the calls beyond the slots each waits its share of one mean service time, and no call less
    than ``hold_s``, for which an API model's window would hold it. The start of an API model's
    answers is measured, too.
    """
    batch = max(1, min(in_system + 1, slots) // max(1, config.replicas))
    prior_tpot_s = config.speed.token_s + config.speed.token_s_per_seq * batch
    tpot_s = load.tpot_s if load and load.tpot_s else prior_tpot_s
    mean_s = load.e2e_s if load and load.e2e_s else tpot_s * config.max_output_tokens / 2
    excess = in_system + 1 - slots
    wait_s = max(max(0, excess) * mean_s / slots, hold_s)
    start_s = config.speed.start_s
    if config.api is not None and load is not None and load.ttft_s is not None:
        start_s = load.ttft_s
    return Speed(config.speed.prefill_tokens_per_s, tpot_s, wait_s, start_s)
