"""Telemetry: what replicas and schedulers report, and the one snapshot that policies read.

Missing is not zero: a figure that was not read is ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """One replica's own figures, sent every report period.

    ``e2e_s``, ``ttft_s`` (first token) and ``tpot_s`` (per output token) are means over the
    calls that finished in the last ``window`` of the replica, ``None`` when none did.
    ``calls`` are the ids of the calls that it runs or holds waiting.
    """

    model: str
    replica: str
    max_num_seqs: int
    running: int
    waiting: int
    kv_usage: float | None
    e2e_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    finished: int
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueReport:
    """One scheduler's figures: calls waiting for a lease, leases out, age of the oldest."""

    model: str
    backlog: int
    leased: int
    slots: int
    oldest_s: float
    backlog_work_s: float
