"""Replicas of the simulated pool: engines, the GPUs they share, and who takes the next call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from runtime.config import ApiConfig, AppConfig, ModelConfig
from runtime.dispatch import DispatchState
from runtime.ratelimit import RateWindow
from runtime.sim.api import ApiEngine
from runtime.sim.engine import FastEngine
from runtime.sim.exact import ExactEngine
from runtime.sim.pool import KV_BLOCK_TOKENS, SimApi, SimModel
from runtime.sim.sequences import SimEngine, SimSequence
from runtime.telemetry import ReplicaReport
from runtime.window import LatencyWindow, latency_window

ENGINES: dict[str, type[FastEngine] | type[ExactEngine]] = {
    "fast": FastEngine,
    "exact": ExactEngine,
}


@dataclass(slots=True, eq=False)
class SharedGpu:
    """The replicas on one GPU: each that is busy gets an equal share of its time (ASSUMED)."""

    replicas: list[SimReplica] = field(default_factory=list)
    num_busy: int = 0

    def settle(self, changed: SimReplica, now: float) -> bool:
        """``changed`` may have become busy or idle; ``True`` if that changed others' speed."""
        busy = changed.engine.busy
        if busy == changed.counted_busy:
            return False
        changed.counted_busy = busy
        self.num_busy += 1 if busy else -1
        self.share_out(now)
        return len(self.replicas) > 1

    def share_out(self, now: float) -> None:
        """Tell every engine how fast it is."""
        for replica in self.replicas:
            replica.engine.set_factor(max(1, self.num_busy), replica.slow, now)


@dataclass(slots=True, eq=False)
class SimReplica:
    """One replica. ``armed_s`` is when its next engine event is due in the simulation's heap."""

    name: str
    model: str
    max_num_seqs: int
    settings: SimModel | SimApi
    api: ApiConfig | None
    mode: str
    gpu: SharedGpu
    engine: SimEngine = field(init=False)
    up: bool = True
    slow: float = 1.0
    counted_busy: bool = False
    armed_s: float = math.inf
    num_freezes: int = 0
    gpu_before_s: float = 0.0  # of engines that died
    preemptions_before: int = 0
    finished: int = 0
    window: LatencyWindow = field(init=False)
    active: dict[str, SimSequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._new_engine()
        self.window = latency_window(self.api)
        self.gpu.replicas.append(self)

    def gpu_s(self, now: float) -> float:
        """GPU seconds of this engine and of those before it."""
        return self.gpu_before_s + self.engine.gpu_s(now)

    @property
    def num_preemptions(self) -> int:
        return self.preemptions_before + self.engine.num_preemptions

    def expect_work(self, now: float) -> None:
        """It is about to be given a call: an idle engine begins it at the speed that will hold."""
        self.engine.advance(now)
        if not self.counted_busy:
            self.engine.set_factor(self.gpu.num_busy + 1, self.slow, now)

    def die(self, now: float) -> None:
        """Everything in it is lost, and so is what it remembers."""
        self.gpu_before_s = self.gpu_s(now)
        self.preemptions_before = self.num_preemptions
        self._new_engine()
        self.up, self.slow, self.finished = False, 1.0, 0
        self.window, self.armed_s = latency_window(self.api), math.inf
        self.active.clear()

    def _new_engine(self) -> None:
        if isinstance(self.settings, SimApi):
            self.engine = ApiEngine(self.settings, self.max_num_seqs)
        else:
            self.engine = ENGINES[self.mode](self.settings, self.max_num_seqs)

    def report(self, now: float) -> ReplicaReport:
        """What it would tell the monitor at ``now``."""
        self.engine.advance(now)
        means = self.window.means(now)
        engine, kv_tokens = self.engine, self.settings.kv_tokens
        kv_usage = None
        if kv_tokens is not None:
            kv_usage = min(1.0, engine.kv_blocks(now) * KV_BLOCK_TOKENS / kv_tokens)
        return ReplicaReport(
            self.model,
            self.name,
            self.max_num_seqs,
            engine.num_running,
            engine.num_waiting,
            kv_usage,
            means.e2e_s,
            means.ttft_s,
            means.tpot_s,
            self.finished,
        )


@dataclass(slots=True, eq=False)
class SimServer:
    """One model: its replicas and its scheduler. ``slots`` is what the scheduler believes in."""

    config: ModelConfig
    settings: SimModel | SimApi
    dispatch: DispatchState
    replicas: tuple[SimReplica, ...]
    slots: int
    wake_s: float = math.inf  # when the simulation looks whether the window lets out a call

    @property
    def name(self) -> str:
        return self.config.name

    def idle(self, now: float) -> bool:
        """Whether its reports stay as they are until it is given something to do."""
        quiet = (not r.engine.busy and r.window.empty for r in self.replicas)
        return self.dispatch.steady(now) and all(quiet)

    def choose(self) -> SimReplica | None:
        """The replica that is up and has least to do; the first of equals."""
        if len(self.replicas) == 1:
            return self.replicas[0] if self.replicas[0].up else None
        there = [r for r in self.replicas if r.up]
        return min(there, key=lambda r: len(r.active), default=None)


def build_servers(
    config: AppConfig, models: Mapping[str, SimModel | SimApi], engine: str
) -> dict[str, SimServer]:
    """The servers of a pool at time 0, all replicas up and idle.

    Raises:
        ValueError: ``engine`` is unknown, or a model of the config has no engine.
    """
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; there are {', '.join(ENGINES)}")
    if missing := [m.name for m in config.models if m.name not in models]:
        raise ValueError(f"there is no engine for {', '.join(missing)}")
    gpus: dict[str, SharedGpu] = {}
    servers = {}
    for model in config.models:
        settings, slots = models[model.name], model.max_num_seqs * model.replicas
        replicas = []
        for i in range(model.replicas):
            own = f"{model.name}:{i}"
            gpu = gpus.setdefault(settings.gpus[i] if i < len(settings.gpus) else own, SharedGpu())
            seqs, api = model.max_num_seqs, model.api
            replicas.append(SimReplica(own, model.name, seqs, settings, api, engine, gpu))
        dispatch = DispatchState(
            model.name,
            epoch=0,
            slots=slots,
            order=config.order,
            max_backlog=config.limits.max_backlog_per_model,
            now=0.0,
            recovering=False,
            window=RateWindow(model.api.rpm_limit) if model.api else None,
        )
        servers[model.name] = SimServer(model, settings, dispatch, tuple(replicas), slots)
    return servers
