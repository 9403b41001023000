"""What a run rests on: every parameter with its value, range, status and source."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from typing import Any

from runtime.sim.apis import api_speeds
from runtime.sim.items import Calibration
from runtime.sim.parameters import Parameter, QualityParameters, Skill, Status
from runtime.sim.speeds import HOST_S, HOST_S_PER_SEQ, RESERVE_GB


@dataclass(frozen=True, slots=True)
class Line:
    """One parameter."""

    name: str
    value: float
    low: float | None
    high: float | None
    status: Status
    source: str

    @property
    def shown(self) -> str:
        """The value, with its range."""
        if self.low is None or self.high is None:
            return f"{self.value:.6g}"
        return f"{self.value:.6g} ({self.low:.6g} to {self.high:.6g})"


def describe(
    calibration: Calibration, datasets: Collection[str] = (), models: Collection[str] = ()
) -> tuple[Line, ...]:
    """The parameters behind a run over ``datasets`` with ``models``; nothing given means all."""
    parameters = calibration.parameters
    wanted = [name for name in parameters.datasets if not datasets or name in datasets]
    lines = [_line(f"rules.{name}", rule) for name, rule in parameters.rules.items()]
    for dataset in wanted:
        lines += _group(dataset, parameters.datasets[dataset])
        lines += _difficulties(calibration, dataset)
        lines += _skills(parameters, dataset, models)
    return (*lines, *_ENGINE)


def describe_apis(models: Collection[str] = ()) -> tuple[Line, ...]:
    """What is assumed of ``models`` behind APIs; nothing given means all that there are."""
    lines = []
    for name, speed in api_speeds().items():
        if models and name not in models:
            continue
        for field in fields(speed):
            value = getattr(speed, field.name)
            if isinstance(value, int | float):
                label = f"api.{name}.{field.name}"
                lines.append(Line(label, value, None, None, speed.status, speed.source))
    return tuple(lines)


def as_text(lines: Collection[Line]) -> str:
    """The lines as a table, below a count of them by status."""
    counts = ", ".join(f"{sum(x.status is s for x in lines)} {s}" for s in Status)
    rows = [("parameter", "value (range)", "status", "source")]
    rows += [(line.name, line.shown, line.status.value, line.source) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    cells = ["  ".join(c.ljust(w) for c, w in zip(r[:3], widths, strict=True)) for r in rows]
    table = "\n".join(f"{c}  {row[3]}" for c, row in zip(cells, rows, strict=True))
    return f"{len(lines)} parameters: {counts}\n{table}"


def _line(name: str, parameter: Parameter) -> Line:
    p = parameter
    return Line(name, p.value, p.low, p.high, p.status, p.source)


def _group(name: str, group: Any) -> Iterator[Line]:
    for field in fields(group):
        yield _line(f"{name}.{field.name}", getattr(group, field.name))


def _difficulties(calibration: Calibration, dataset: str) -> Iterator[Line]:
    """How many items have a difficulty of which status, from which source."""
    items = [i for i in calibration.items.values() if i.dataset == dataset]
    for status, source in sorted({(i.status, i.source) for i in items}):
        count = sum((i.status, i.source) == (status, source) for i in items)
        yield Line(f"{dataset}.num_difficulties", count, None, None, status, source)


def _skills(parameters: QualityParameters, dataset: str, models: Collection[str]) -> Iterator[Line]:
    for model in parameters.models:
        skill = model.skills.get(dataset)
        if skill is not None and (not models or model.name in models):
            yield from _skill(f"{dataset}.{model.name}", skill)


def _skill(name: str, skill: Skill) -> Iterator[Line]:
    yield _line(f"{name}.ability", skill.ability)
    for strategy, depth in skill.strategies.items():
        yield from _group(f"{name}.{strategy}", depth)


_ENGINE = (
    Line("engine.host_s", HOST_S, None, None, Status.ASSUMED, "vLLM above its kernels"),
    Line("engine.host_s_per_seq", HOST_S_PER_SEQ, None, None, Status.ASSUMED, "as seen on H100"),
    Line("engine.reserve_gb", RESERVE_GB, None, None, Status.ASSUMED, "activations, buffers"),
)
