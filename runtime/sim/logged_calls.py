"""The columns of a call log as arrays, and what ``runtime.sim.calibrate`` reads from them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from runtime.sim.fit_speed import ServedCalls


@dataclass(frozen=True, slots=True)
class LoggedCalls:
    """Columns of calls; texts as objects, times in seconds, what is not known ``nan`` or ``""``."""

    model: Any
    replica: Any
    task: Any
    dataset: Any
    strategy: Any
    status: Any
    began_s: Any
    ended_s: Any
    first_s: Any
    prompt_tokens: Any
    output_tokens: Any
    max_tokens: Any
    cut: Any
    first_call: Any
    right: Any  # 1, 0, or nan where it is not known

    @classmethod
    def read(cls, calls: pa.Table) -> LoggedCalls:
        prompts, estimates = _numbers(calls, "prompt_tokens"), _numbers(calls, "estimated_tokens")
        return cls(
            model=_texts(calls, "model"),
            replica=_texts(calls, "replica"),
            task=_texts(calls, "task"),
            dataset=_texts(calls, "dataset"),
            strategy=_texts(calls, "strategy"),
            status=_texts(calls, "status"),
            began_s=_times(calls, "granted_at"),
            ended_s=_times(calls, "ended_at"),
            first_s=_numbers(calls, "ttft_s"),
            prompt_tokens=np.where(np.isnan(prompts), estimates, prompts),
            output_tokens=_numbers(calls, "completion_tokens"),
            max_tokens=_numbers(calls, "max_tokens"),
            cut=_texts(calls, "finish_reason") == "length",
            first_call=_numbers(calls, "num_shown") == 0,
            right=_right(_numbers(calls, "score"), _numbers(calls, "agrees")),
        )

    def only(self, mask: npt.NDArray[np.bool_]) -> LoggedCalls:
        return LoggedCalls(*(getattr(self, name)[mask] for name in LoggedCalls.__slots__))

    def served(self) -> list[ServedCalls]:
        """The calls that reached an engine, by replica."""
        began = self.only(~np.isnan(self.began_s) & (self.ended_s > self.began_s))
        whole = (began.status == "ok") & (began.output_tokens >= 1)
        per_token = (began.ended_s - began.began_s)[whole] / began.output_tokens[whole]
        usual_s = float(np.median(per_token)) if len(per_token) else 1.0
        # What a call wrote that was withdrawn is not known; its time tells about how much.
        guessed = np.maximum(1.0, (began.ended_s - began.began_s) / max(usual_s, 1e-9))
        outputs = np.where(np.isnan(began.output_tokens), guessed, began.output_tokens)
        replica = _assigned(began.replica, began.began_s, began.ended_s)
        return [
            ServedCalls(
                began.began_s[mine],
                began.ended_s[mine],
                began.first_s[mine],
                began.prompt_tokens[mine],
                outputs[mine],
                whole[mine],
            )
            for mine in (replica == name for name in sorted(set(replica)) if name)
        ]


def _right(score: Any, agrees: Any) -> Any:
    """Whether the call's own answer was right, from its query's outcome."""
    good = score >= 0.5
    right = np.where(good, agrees, np.where(agrees == 1, 0.0, np.nan))
    return np.where(np.isnan(score) | np.isnan(agrees), np.nan, right)


def _assigned(replica: Any, began_s: Any, ended_s: Any) -> Any:
    """Calls that were withdrawn tell no replica: it is the one that was there alone, if one was."""
    known = {
        name: (began_s[replica == name].min(), ended_s[replica == name].max())
        for name in set(replica)
        if name
    }
    assigned = replica.copy()
    for i in np.flatnonzero(replica == ""):
        there = [
            n for n, (first, last) in known.items() if first <= ended_s[i] and began_s[i] <= last
        ]
        if len(there) == 1:
            assigned[i] = there[0]
    return assigned


def _texts(table: pa.Table, name: str) -> Any:
    values = table[name].cast(pa.string()).to_pylist()
    return np.array([v or "" for v in values], dtype=object)


def _numbers(table: pa.Table, name: str) -> Any:
    values = table[name].cast(pa.float64()).to_pylist()
    return np.array([math.nan if v is None else v for v in values], dtype=np.float64)


def _times(table: pa.Table, name: str) -> Any:
    values = table[name].cast(pa.int64()).to_pylist()
    return np.array([math.nan if v is None else v / 1e6 for v in values], dtype=np.float64)
