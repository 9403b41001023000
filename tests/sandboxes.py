"""What is left of sandboxes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runtime.jail.children import NUM_IDS
from runtime.jail.launcher import first_id


def alive(launchers: Sequence[int]) -> list[str]:
    """The processes on this machine that have one of these sandboxes' user ids."""
    uid_map = Path("/proc/self/uid_map").read_text().splitlines()
    first = [first_id(uid_map, pid) for pid in launchers]
    ids = {uid for start in first for uid in range(start, start + NUM_IDS)}
    found = []
    for entry in Path("/proc").glob("[0-9]*/status"):
        try:
            status = entry.read_text()
        except OSError:
            continue
        uid = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1]
        if int(uid) in ids:
            found.append(status.split("\n")[0])
    return found
