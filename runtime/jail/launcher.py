"""The first process of a sandbox: enter the namespaces, or say why that cannot be.

Run by ``runtime.sandbox.process`` with pipes as standard input and output. It writes one frame,
``{"ready": true}`` or ``{"refused": why}``; then each job that comes in is answered by one frame.
The end of standard input ends it.
"""

from __future__ import annotations

# What most programs import is loaded here once, and found loaded by every guest.
import collections
import contextlib
import functools
import heapq
import itertools
import math
import os
import re
import select
import signal
import sys
import typing

from runtime.frames import write_frame
from runtime.jail import root, syscalls
from runtime.jail.children import NUM_IDS, fork
from runtime.jail.supervisor import serve_job

_LOADED = (collections, functools, heapq, itertools, math, re, typing)
_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
_MAX_ID = 2**31 - 1
_FEWEST_IDS = 1000
_NEEDS = "it needs root, or newuidmap and a range of ids in /etc/subuid and /etc/subgid"


def main() -> None:
    """Never returns by an exception: what fails is reported to the caller."""
    sys.path.pop()  # this package's place: all of it that is needed is loaded
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # should the machine run out of memory, this goes first
    try:
        syscalls.machine()
        _enter_namespaces()
        sources = root.Sources()
        keeper = fork(lambda: _keep(sources))
    except OSError as error:
        write_frame(1, {"refused": str(error)})
        os._exit(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.waitpid(keeper, 0)
    os._exit(0)


def _keep(sources: root.Sources) -> int:
    """The keeper, pid 1 of the outer namespace."""
    try:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        syscalls.die_with_parent()
        root.enter(sources)
    except OSError as error:
        write_frame(1, {"refused": str(error)})
        return 1
    write_frame(1, {"ready": True})
    while _job_comes():
        supervisor = fork(_supervise)
        _, status = os.waitpid(supervisor, 0)
        _end_everything_else()
        if status:
            return 1
    return 0


def _job_comes() -> bool:
    # Nothing is read here: this process is copied into every guest to come.
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll())


def _supervise() -> int:
    try:
        serve_job(0, 1)
    except OSError as error:
        write_frame(1, {"ended": "broken", "detail": str(error)})
        return 1
    return 0


def _end_everything_else() -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _enter_namespaces() -> None:
    """Leave all namespaces for new ones, in which three unprivileged ids of the host are 0 to 2."""
    told, tell = os.pipe()
    process, as_root = os.getpid(), os.geteuid() == 0
    id_map = _lines("/proc/self/uid_map")

    def map_ids() -> int:
        os.close(tell)
        first = os.read(told, 16)
        if not first:
            return 1
        done = _map_as_root(process, int(first)) if as_root else _map_with_helpers(process)
        return 0 if done else 1

    helper = fork(map_ids)  # stays outside, where the right to map ids is
    try:
        syscalls.unshare(_NAMESPACES)
    except OSError as error:
        raise OSError(f"new namespaces are not allowed ({error})") from None
    os.write(tell, str(first_id(id_map, process) if as_root else 0).encode())
    _, status = os.waitpid(helper, 0)
    if status:
        raise OSError(f"the sandbox cannot have user ids of its own; {_NEEDS}")
    os.close(tell)
    os.close(told)


def _map_as_root(process: int, first: int) -> bool:
    for kind in ("uid", "gid"):
        with open(f"/proc/{process}/{kind}_map", "w") as file:
            file.write(f"0 {first} {NUM_IDS}")
    return True


def first_id(id_map: list[str], process: int) -> int:
    """The first of the ids that the sandbox with this launcher has, on the host.

    They are at the top of what there is, out of the way of people's and services', and differ
    between processes as far as there are enough. ``id_map`` are lines of /proc/self/uid_map.

    Raises:
        OSError: there are too few ids here.
    """
    start, count = max(
        ((int(a), int(n)) for a, _, n in map(str.split, id_map)), key=lambda extent: extent[1]
    )
    top = min(start + count, _MAX_ID)
    places = (top - start) // (2 * NUM_IDS)
    if count < _FEWEST_IDS:
        raise OSError(f"only {count} user ids here")
    return top - NUM_IDS * (1 + process % places)


def _map_with_helpers(process: int) -> bool:
    """As an ordinary user: by the setuid programs of shadow-utils."""
    import pwd

    names = {str(os.getuid()), pwd.getpwuid(os.getuid()).pw_name}
    for program, file in (("newuidmap", "/etc/subuid"), ("newgidmap", "/etc/subgid")):
        path = next(
            (p for p in (f"/usr/bin/{program}", f"/bin/{program}") if os.path.exists(p)), None
        )
        ranges = [line.split(":") for line in _lines(file)]
        mine = [int(start) for name, start, count in ranges if name in names and int(count) > 2]
        if path is None or not mine:
            return False
        command = [program, str(process), "0", str(mine[0]), str(NUM_IDS)]
        if os.spawnv(os.P_WAIT, path, command):
            return False
    return True


def _lines(path: str) -> list[str]:
    try:
        with open(path) as file:
            return file.read().splitlines()
    except OSError:
        return []
