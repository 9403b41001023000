"""What policies see in a simulation: of when it is, and how it compares with reading always."""

import pytest

from runtime.policy import make_policy
from runtime.sim.settings import SimSettings
from runtime.sim.simulation import Simulation
from runtime.sim.workload import poisson_workload
from tests.sim_case import FixedOutcomes, HashedOutcomes, SimItem, TaskKind, at, engine, model, pool


class Watcher:
    """Asks a policy, and keeps what it saw."""

    needs_embedding = False

    def __init__(self, policy):
        self.name = "watcher"
        self.policy = policy
        self.seen = []

    def look(self, view):
        for m in view.pool.models:
            self.seen.append((m.name, m.in_system, m.kv_usage, m.e2e_s, m.speed, m.age_s, m.fresh))

    def plan(self, view):
        self.look(view)
        return self.policy.plan(view)

    def route(self, view):
        self.look(view)
        return self.policy.route(view)


def watched(config, arrivals, outcomes, models=None, kind=Simulation, **settings):
    watcher = Watcher(make_policy(config))
    kind(config, outcomes, arrivals, watcher, models=models, settings=SimSettings(**settings)).run()
    return watcher.seen


class Eager(Simulation):
    """Reads the telemetry at every period, whether or not anybody decides."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._agenda.at(self._telemetry.next_s(0.0), self._read, None)

    def _read(self, _):
        self._hear()
        self._agenda.at(self._telemetry.next_s(self.now), self._read, None)


@pytest.mark.parametrize(("period_s", "age_s"), [(0.2, 0.05), (0.1, 0.35), (1.0, 0.0)])
def test_reading_late_shows_what_reading_always_would(period_s, age_s):
    models = [model(n, max_num_seqs=2, fake={"kv_tokens": 4096}) for n in "ab"]
    config = pool(*models, policy={"name": "least_loaded", "options": {}})
    items = [SimItem(f"i{n}", "set", TaskKind.MATH, 50 + n) for n in range(30)]
    arrivals = poisson_workload(items, rate_per_min=60, num_queries=60, seed=2)
    how = {"telemetry_period_s": period_s, "telemetry_age_s": age_s}
    lazy = watched(config, arrivals, HashedOutcomes(), **how)
    eager = watched(config, arrivals, HashedOutcomes(), kind=Eager, **how)
    assert lazy == eager
    assert any(kv for _, _, kv, *_ in lazy)


def ages(seen):
    return [age for *_, age, _ in seen if age is not None]


def test_figures_are_as_old_as_they_are_said_to_be():
    seen = watched(pool(), at((10.0, 60.0)), FixedOutcomes(), telemetry_age_s=0.35)
    # Read at 10.0: the sample of 9.6, heard at 9.95.
    assert ages(seen) == pytest.approx([0.4] * 2)


def test_before_the_first_report_nothing_is_known():
    seen = watched(pool(), at((0.1, 60.0)), FixedOutcomes(), telemetry_age_s=0.15)
    assert {(fresh, age) for *_, age, fresh in seen} == {(False, None)}


def test_calls_that_the_snapshot_cannot_show_are_added_by_who_sent_them():
    config = pool(model("a"), model("b"), policy={"name": "least_loaded", "options": {}})
    arrivals = at(*((10.0 + n / 1000, 60.0) for n in range(4)))
    watcher = Watcher(make_policy(config))
    results = Simulation(config, FixedOutcomes(), arrivals, watcher).run()
    # All four come between two samples, and still do not stampede to one model.
    assert sorted(results.calls.named("model")) == ["a", "a", "b", "b"]


def test_measured_times_reach_the_policy():
    arrivals = at((0.0, 60.0), (10.0, 60.0))
    seen = watched(pool(), arrivals, FixedOutcomes(), {"only": engine(a_s=0.03)})
    _, in_system, _, e2e_s, speed, _, _ = seen[-1]
    assert in_system == 0
    assert e2e_s == pytest.approx(3.0, abs=0.01)
    assert speed.tpot_s == pytest.approx(0.03)  # the config says 0.01


def test_slots_that_are_full_show_as_wait():
    config = pool(model("only", max_num_seqs=1))
    arrivals = at((0.0, 60.0), (1.0, 60.0), (9.0, 60.0))
    watcher = Watcher(make_policy(config))
    speeds = {"only": engine(a_s=0.1)}
    Simulation(config, FixedOutcomes(), arrivals, watcher, models=speeds).run()
    name, in_system, *_ = watcher.seen[-1]
    assert (name, in_system) == ("only", 2)  # one runs, one waits for its lease
    assert watcher.seen[-1][4].wait_s > 0


@pytest.mark.parametrize(("period_s", "age_s"), [(0.0, 0.0), (0.2, -0.1)])
def test_periods_and_ages_that_cannot_be_are_refused(period_s, age_s):
    config = pool(telemetry={"report_period_s": 0.2})
    with pytest.raises(ValueError, match="period_s"):
        watched(config, [], FixedOutcomes(), telemetry_period_s=period_s, telemetry_age_s=age_s)
