"""Measured and predicted steps side by side: figures, Markdown, a picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.local_pool import ServeFile
from runtime.sim.calibrate import Fitted

ALL = "all"
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that got their answer; a latency is from asking for a lease to the answer."""

    model: Sequence[str]
    latency_s: Floats
    output_tokens: Floats
    prompt_tokens: Floats

    def of(self, name: str) -> Steps:
        mask = np.array([name in (ALL, m) for m in self.model], dtype=bool)
        names = [m for m, kept in zip(self.model, mask, strict=True) if kept]
        return Steps(
            names, self.latency_s[mask], self.output_tokens[mask], self.prompt_tokens[mask]
        )


@dataclass(frozen=True, slots=True)
class Line:
    """One comparison; ``low`` and ``high`` bound what was measured."""

    model: str
    quantity: str
    measured: float
    low: float
    high: float
    predicted: float

    @property
    def error(self) -> float:
        """Percent of what was measured."""
        return 100 * (self.predicted / self.measured - 1)


# --- compared ------------------------------------------------------------------------------------


def compare(measured: Steps, predicted: Steps, seed: int) -> list[Line]:
    """Mean and p90 of the steps' latencies, over all and by model, with what they come from."""
    lines = []
    for name in (ALL, *sorted(set(measured.model))):
        live, simulated = measured.of(name), predicted.of(name)
        if not len(simulated.latency_s):
            continue
        lines += [
            _line(name, "latency mean, s", np.mean, live.latency_s, simulated.latency_s, seed),
            _line(name, "latency p90, s", _p90, live.latency_s, simulated.latency_s, seed),
            _line(name, "output tokens, mean", np.mean, live.output_tokens,
                  simulated.output_tokens, seed),
            _line(name, "prompt tokens, mean", np.mean, live.prompt_tokens,
                  simulated.prompt_tokens, seed),
        ]  # fmt: skip
        share = 100 * len(live.latency_s) / len(measured.latency_s)
        of_all = 100 * len(simulated.latency_s) / len(predicted.latency_s)
        if name != ALL:
            lines.append(Line(name, "share of the steps, %", share, share, share, of_all))
    return lines


def _p90(values: Floats) -> float:
    return float(np.quantile(values, 0.9))


def _line(
    model: str, quantity: str, figure: Any, live: Floats, simulated: Floats, seed: int
) -> Line:
    rng = np.random.default_rng(seed)
    draws = [figure(rng.choice(live, len(live))) for _ in range(1000)]
    low, high = (float(x) for x in np.quantile(draws, [0.025, 0.975]))
    return Line(model, quantity, float(figure(live)), low, high, float(figure(simulated)))


# --- told ----------------------------------------------------------------------------------------


def write_csv(path: Path, lines: Sequence[Line]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = ("model", "quantity", "measured", "measured_lo", "measured_hi")
        writer.writerow([*names, "predicted", "error_percent"])
        for one in lines:
            figures = (one.measured, one.low, one.high, one.predicted, one.error)
            writer.writerow([one.model, one.quantity, *(f"{x:.4f}" for x in figures)])


def as_markdown(lines: Sequence[Line], about: Sequence[str]) -> str:
    rows = [
        f"| {x.model} | {x.quantity} | {x.measured:.2f} ({x.low:.2f} to {x.high:.2f}) "
        f"| {x.predicted:.2f} | {x.error:+.1f} |"
        for x in lines
    ]
    head = [
        "| model | quantity | measured (95 %) | predicted | error, % |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(["# Fidelity of the simulator", "", *about, "", *head, *rows, ""])


def draw(path: Path, pairs: Sequence[tuple[str, Steps, Steps]]) -> None:
    """Distribution of the steps' latencies, measured and predicted, one panel each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(pairs), figsize=(5 * len(pairs), 4), squeeze=False)
    for axis, (title, live, simulated) in zip(axes[0], pairs, strict=True):
        for label, steps in (("measured", live), ("predicted", simulated)):
            values = np.sort(steps.latency_s)
            axis.step(values, np.arange(1, len(values) + 1) / len(values), label=label)
        axis.set(title=title, xlabel="latency of a step, s", ylabel="share of the steps", xlim=0)
        axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def about_of(
    file: ServeFile, fitted: Fitted, counts: dict[str, Any], own: Sequence[Line]
) -> list[str]:
    pool = fitted.pool
    kind = "SIMULATED engines (fake)" if file.simulated else "real engines"
    lines = [
        f"Pool of {', '.join(m.name for m in file.config.models)}: {kind}. Measured on the live "
        f"pool, open loop, and predicted by the simulator after a fit to {counts['fit']} calls at "
        f"{counts['fit_rate']:g} queries/min; the prediction is for {counts['test_rate']:g}/min, "
        f"{counts['test']} calls. Policy {counts['policy']}.",
        "",
    ]
    lines += [
        f"- {name}: iteration {1000 * e.a_s.value:.1f} ms + {1000 * e.c_s.value:.2f} per sequence "
        f"+ {1000 * e.d_s_per_1k.value:.2f} per 1k KV tokens, prefill "
        f"{e.prefill_tokens_per_s.value:.0f} tokens/s ({e.prefill_tokens_per_s.status}); residual "
        f"median {e.error_median:.1%}, p90 {e.error_p90:.1%}, {e.num_calls} calls."
        for name, e in pool.engines.items()
    ]
    lines += [f"- {note}" for note in fitted.notes]
    told = ", ".join(f"{x.quantity} {x.error:+.1f} %" for x in own if x.model == ALL)
    return [*lines, "", f"At the fitted rate itself the errors are: {told}."]
