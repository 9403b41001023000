"""What a training run is made of: strict, with the paper's Table 5 as defaults.

Where a field goes beyond the paper, it says so. Read with ``read_config``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rl.spaces import PAPER_TOPOLOGIES
from rl.vectors import SHIPPED
from runtime.errors import ConfigError
from runtime.sim.items import TASKS
from runtime.sim.workload import TIERS_S

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]

RATES_RPM = (10.0, 30.0, 50.0, 100.0, 200.0)


class Strict(BaseModel):
    """Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class LayoutConfig(Strict):
    """What is seen and chosen, see ``rl.spaces.Layout``. ``adaptive`` adds the seventh topology and
    ``Stop``; one entry in ``topologies`` is a static topology instead of the planner's choice."""

    adaptive: bool = False
    age_and_mask: bool = True
    progress: bool = True
    topologies: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(
        str(name) for name in PAPER_TOPOLOGIES
    )


class NetworkConfig(Strict):
    """``film`` or ``question`` off is an ablation."""

    film: bool = True
    question: bool = True


class PpoConfig(Strict):
    """The executor (eq. 5) and what both share. ``entropy_final``, where it is given, is reached at
    the last epoch, in a straight line; the paper's coefficient stays."""

    lr: Positive = 3e-4
    batch_queries: Count = 64
    clip: Positive = 0.2
    mini_epochs: Count = 3
    minibatch: Count = 64
    entropy: NonNegative = 0.10
    entropy_final: NonNegative | None = None
    value_weight: NonNegative = 0.5
    gae_lambda: Share = 0.95
    grad_clip: Positive | None = None


class PlannerConfig(Strict):
    """The planner (eq. 6). ``baseline: value`` subtracts a learned value instead of the batch's
    mean; ``entropy`` is 0 in the paper, ``entropy_final`` as in ``PpoConfig``. ``lr_factor``
    multiplies the rate for the planner, which is updated once a batch while the executor is a dozen
    times."""

    vae_weight: NonNegative = 0.001
    task_weight: NonNegative = 1.0
    entropy: NonNegative = 0.0
    entropy_final: NonNegative | None = None
    baseline: Literal["batch", "value"] = "batch"
    clip: Positive = 0.2
    updates: Count = 1
    lr_factor: Positive = 1.0


class RewardConfig(Strict):
    """``solved: any`` counts late answers, too, as in the paper; ``on_time`` only those in time.

    ``credit: per_step`` is the paper's literal form: ``solved`` on every step, gamma 0.
    ``work_idle + work_loaded * occupancy`` is the price of a budget's worth of engine time, in
    units of ``solved``: what a query takes from the others, which its own latency does not show.
    Time over budget is clipped at ``cost_clip``.
    """

    credit: Literal["per_query", "per_step"] = "per_query"
    solved: Literal["any", "on_time"] = "any"
    work_idle: NonNegative = 0.0
    work_loaded: NonNegative = 0.0
    cost_clip: Positive = 3.0


class LagrangeConfig(Strict):
    """Equations 7 to 9. ``initial`` and ``rate`` hold for time and, where queries have a budget of
    money, for money."""

    initial: NonNegative = 0.2
    rate: NonNegative = 0.001
    maximum: Positive = 1.0

    @model_validator(mode="after")
    def _check(self) -> LagrangeConfig:
        if self.initial > self.maximum:
            raise ValueError("initial is above maximum")
        return self


class PointConfig(Strict):
    """An operating point of the pool: engines ``slowdown`` times slower, other ``max_num_seqs``, a
    prefix cache that has ``prefix_hit`` of the prompts. ``weight`` is its share of the sweeps."""

    slowdown: Positive = 1.0
    max_num_seqs: dict[str, Count] = Field(default={})
    prefix_hit: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rates_rpm: tuple[Positive, ...] | None = None
    weight: Positive = 1.0


class WorkloadConfig(Strict):
    """Sweeps of ``sweep_queries`` Poisson arrivals in each of ``lanes`` simulations, drained before
    the next. A sweep has one rate and one budget tier, but ``mixed_budgets`` of the sweeps draw a
    tier for every query, and ``single_dataset`` of them have questions of one data set.
    ``draw_parameters`` draws every assumed parameter of the world from its range anew."""

    datasets: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(TASKS)
    tiers_s: Annotated[tuple[Positive, ...], Field(min_length=1)] = TIERS_S
    rates_rpm: Annotated[tuple[Positive, ...], Field(min_length=1)] = RATES_RPM
    points: Annotated[tuple[PointConfig, ...], Field(min_length=1)] = (PointConfig(),)
    lanes: Count = 64
    sweep_queries: Annotated[int, Field(ge=1)] = 240
    mixed_budgets: Share = 0.5
    single_dataset: Share = 0.5
    draw_parameters: bool = True
    budget_usd: Positive | None = None

    @model_validator(mode="after")
    def _check(self) -> WorkloadConfig:
        if unknown := [name for name in self.datasets if name not in TASKS]:
            raise ValueError(f"unknown data set {unknown[0]!r}; there are {sorted(TASKS)}")
        return self


class ValidationConfig(Strict):
    """What checkpoints are selected on: correct and on time, mean over cells of validation
    questions, in worlds of its own. ``sample`` draws decisions as serving does."""

    every_epochs: Count = 1
    rates_rpm: tuple[Positive, ...] = (10.0, 50.0, 100.0)
    budgets_s: tuple[Positive, ...] = (30.0, 300.0)
    queries: Count = 60
    seed: int = 1
    sample: bool = True


class StopConfig(Strict):
    """When training ends, and when the learning rate falls (ReduceLROnPlateau); both count
    validations."""

    max_epochs: Count = 40
    patience: Count = 12
    lr_patience: Annotated[int, Field(ge=0)] = 3
    lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5


class TrainConfig(Strict):
    """One training run; ``pool`` is a Serve config file."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
    pool: Path
    seed: int = 0
    embeddings: Annotated[tuple[Path, ...], Field(min_length=1)] = (SHIPPED,)
    calibration: Path | None = None
    env_runners: Annotated[int, Field(ge=0)] = 0
    layout: LayoutConfig = LayoutConfig()
    network: NetworkConfig = NetworkConfig()
    ppo: PpoConfig = PpoConfig()
    planner: PlannerConfig = PlannerConfig()
    reward: RewardConfig = RewardConfig()
    lagrange: LagrangeConfig = LagrangeConfig()
    workload: WorkloadConfig = WorkloadConfig()
    validation: ValidationConfig = ValidationConfig()
    stop: StopConfig = StopConfig()

    @model_validator(mode="after")
    def _check(self) -> TrainConfig:
        if self.reward.credit == "per_step" and self.layout.adaptive:
            raise ValueError("reward.credit: per_step cannot credit Stop: not with layout.adaptive")
        return self

    def plain(self) -> dict[str, Any]:
        """JSON's types only."""
        plain: dict[str, Any] = self.model_dump(mode="json")
        return plain


def parse_config(content: Any, origin: str) -> TrainConfig:
    """Check a config. Raises ``ConfigError`` that names ``origin`` and every key at fault."""
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise ConfigError(f"{origin}: " + "; ".join(lines)) from None


def read_config(path: Path) -> TrainConfig:
    """The config in a YAML file; its paths are relative to the working folder.

    Raises:
        ConfigError: the file cannot be read, or a key is wrong.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse_config(content, str(path))
