"""Prints every parameter that the simulated figures rest on, with range, status and source.

``python -m benchmarks.assumptions [--dataset math] [--calibration DIR]``. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from benchmarks.worlds import World
from runtime.sim.describe import as_text, describe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", nargs="*", default=[], help="all by default")
    parser.add_argument("--calibration", type=Path, help="a folder with a full items.csv")
    args = parser.parse_args()
    lines = describe(World(args.calibration).calibration(), args.dataset)
    print(as_text(lines))
    print(json.dumps({"benchmark": "assumptions", **Counter(line.status.value for line in lines)}))


if __name__ == "__main__":
    main()
