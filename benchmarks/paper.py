"""The paper's own figures, to stand beside ours as context, never as a pass mark.

InfraMind: Infrastructure-Aware Multi-Agent Orchestration, Tables 2, 3 and 4. The paper's items,
prompts, checkpoints and arrival times are not public.
"""

from __future__ import annotations

from dataclasses import dataclass

DATASETS = ("math", "mbpp", "gsm_hard", "humaneval", "mmlu_pro")
RATES_RPM = (10.0, 50.0, 100.0)
QUERIES = {"math": 500, "mbpp": 500, "gsm_hard": 500, "humaneval": 131, "mmlu_pro": 500}
"""Test items (Table 6); each was asked once."""

NAMES = {"inframind": "InfraMind", "masrouter": "MasRouter", "gptswarm": "GPTSwarm", "moa": "MoA"}

_TABLE2 = """
10 inframind 82.0 44 100.0  83.6 40 99.7  62.0 37 100.0  100.0 5 100.0  61.0 44 99.8
10 masrouter 67.4 50 100.0  82.4 253 60.2  54.6 38 100.0  93.1 70 99.2  58.5 83 98.8
10 gptswarm 69.6 84 100.0  76.4 73 100.0  54.0 52 100.0  100.0 42 100.0  57.8 36 100.0
10 moa 74.4 122 100.0  77.2 68 100.0  49.3 38 100.0  99.2 49 100.0  41.6 124 84.2
50 inframind 75.6 255 87.3  80.3 95 99.0  60.0 76 98.8  100.0 8 100.0  60.0 319 59.8
50 masrouter 72.8 321 53.0  81.7 926 24.6  55.0 521 27.4  93.1 195 77.1  58.9 821 14.7
50 gptswarm 71.0 1209 7.4  76.6 1307 5.6  57.0 707 14.8  100.0 134 100.0  55.4 563 18.4
50 moa 73.8 1145 3.2  75.2 969 4.8  49.1 474 16.8  100.0 155 100.0  46.2 1240 2.0
100 inframind 75.2 290 61.8  80.4 167 91.0  57.2 81 98.4  100.0 33 99.9  59.8 372 56.0
100 masrouter 70.6 399 48.2  80.8 985 25.5  56.4 652 20.6  89.3 205 71.0  57.0 908 13.4
100 gptswarm 68.4 1325 2.2  78.6 1369 2.6  54.0 806 9.0  100.0 153 100.0  57.4 753 11.0
100 moa 74.8 1160 0.4  75.8 993 1.6  50.0 525 11.2  100.0 177 95.4  47.8 1171 0.8
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """A cell of the paper: percent, mean seconds, percent within the budget."""

    accuracy: float
    latency_s: float
    slo: float


def _cells(text: str, groups: int) -> dict[tuple[str, float], list[Figures]]:
    found = {}
    for line in text.strip().splitlines():
        rate, policy, *rest = line.split()
        numbers = [float(word) for word in rest]
        assert len(numbers) == 3 * groups
        found[policy, float(rate)] = [
            Figures(*numbers[i : i + 3]) for i in range(0, len(numbers), 3)
        ]
    return found


def _table2() -> dict[tuple[str, float, str], Figures]:
    """By data set, rate and policy."""
    return {
        (dataset, rate, policy): figures
        for (policy, rate), row in _cells(_TABLE2, len(DATASETS)).items()
        for dataset, figures in zip(DATASETS, row, strict=True)
    }


TABLE2 = _table2()

_TABLE4 = {
    "hybrid": """
10 inframind 62.4 14 100.0
10 masrouter 62.8 28 99.8
10 gptswarm 59.4 42 100.0
50 inframind 61.6 43 94.4
50 masrouter 61.4 352 17.4
50 gptswarm 59.8 209 19.6
100 inframind 61.4 107 54.4
100 masrouter 60.4 441 11.6
100 gptswarm 58.8 412 9.4
""",
    "api": """
10 inframind 63.0 3 100.0
10 masrouter 62.8 114 96.2
10 gptswarm 63.6 70 99.8
50 inframind 63.7 370 68.1
50 masrouter 63.6 714 40.6
50 gptswarm 64.6 686 23.6
100 inframind 64.6 492 50.4
100 masrouter 61.2 813 30.6
100 gptswarm 64.0 902 11.6
""",
}
TABLE4 = {
    (pool, rate, policy): row[0]
    for pool, text in _TABLE4.items()
    for (policy, rate), row in _cells(text, 1).items()
}
"""GSM-Hard on a hybrid pool (budget 100 s) and on one of APIs alone (500 s), by pool, rate and
policy."""

MASROUTER_MATH = {
    50.0: {
        "3b": (4.1, 7.3),
        "8b": (6.4, 11.9),
        "14b": (8.0, 2.3),
        "24b": (9.9, 2.6),
        "32b": (13.5, 3.5),
    },
    100.0: {
        "3b": (4.7, 15.8),
        "8b": (10.1, 38.7),
        "14b": (8.3, 4.2),
        "24b": (10.4, 4.7),
        "32b": (15.3, 7.6),
    },
    200.0: {
        "3b": (6.2, 31.5),
        "8b": (54.6, 237.0),
        "14b": (8.6, 6.1),
        "24b": (10.7, 7.1),
        "32b": (16.1, 10.3),
    },
}
"""Mean step latency (s) and queue (running + waiting) of MasRouter on MATH, by req/min and model;
read off a figure of the authors' repository, output cap there probably 512 tokens."""

FIGURE1 = {"deepest_queue": 130.0, "slow_e2e_s": 30.0, "idle_e2e_s": 10.0, "unused_percent": 67.0}
"""Figure 1: queues "exceeding 130", latencies "> 30 s" where an idle model would take "under 10 s",
"67 % of large-model GPU capacity" unused at low load."""

TABLE3 = {
    "routing": "2.3 to 3.6 times the step latency; mean queue 25.1 to 40.6",
    "scheduling": "2.0 times the mean latency (68 to 134 s); 1.8 times the p90 (207 to 366 s)",
    "depth": "MMLU-Pro accuracy 59.5 to 50.0 %",
}
