"""How fast training is: ``python -m benchmarks.trainspeed``.

Runs ``--iterations`` batches of a training config as ``inframind train`` does (each one is saved),
after some that do not count, and scales to a whole training: its epochs, with a validation each.
``decisions_per_s`` is while sampling. The last line printed is one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from rl.config import read_config
from rl.train import train

CONFIG = Path(__file__).parent.parent / "rl" / "configs" / "b200.yaml"
WARM = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--iterations", type=int, default=60)
    args = parser.parse_args()
    config = read_config(args.config)
    results: list[dict[str, Any]] = []
    ended_s: list[float] = []

    def note(result: dict[str, Any]) -> None:
        results.append(result)
        ended_s.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", max_iterations=WARM + args.iterations, on_result=note)
    took_s = [b - a for a, b in pairwise(ended_s)]
    plain = [s for s, r in zip(took_s, results[1:], strict=True) if "validation" not in r][WARM:]
    validated = [s for s, r in zip(took_s, results[1:], strict=True) if "validation" in r]
    batch_s = statistics.mean(plain)
    epoch_queries = results[-1]["progress"]["epoch_queries"]
    batches = config.stop.max_epochs * epoch_queries / config.ppo.batch_queries
    validation_s = max(0.0, statistics.mean(validated) - batch_s) if validated else 0.0
    whole_s = batches * batch_s + config.stop.max_epochs * validation_s
    rates = [r["batch"]["decisions_per_s"] for r in results[WARM:]]
    print(f"{platform.processor() or platform.machine()}; simulated")
    print(
        json.dumps(
            {
                "decisions_per_s": round(statistics.mean(rates), 1),
                "minutes_per_training": round(whole_s / 60, 2),
                "batches": round(batches),
                "batch_s": round(batch_s, 4),
                "validation_s": round(validation_s, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
