"""The processes that untrusted code runs in: how they are started and what they give up first."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from typing import Any

from runtime.jail import root, syscalls
from runtime.jail.seccomp import filter_program

EXAMINER_ID, GUEST_ID = 1, 2
NUM_IDS = 3
"""User ids that a sandbox needs: its keeper's, which is 0 inside, and these two."""

_READY = b"ready"
_NICE = 10
_SPARE_CPU_S = 1


class Rooms:
    """Starts the examiner and the guest of one job, each in its own room."""

    def __init__(self, limits: dict[str, Any]) -> None:
        self._limits = limits
        self._bpf = filter_program(syscalls.machine())

    def start_examiner(self, body: Callable[[], None], keep: Sequence[int]) -> int:
        """Run ``body`` as the examiner's user; the process' number."""

        def run() -> int:
            _quiet(None)
            _keep_open(*keep)
            self._give_up_privileges(EXAMINER_ID, num_processes=1)
            body()
            return 0

        return fork(run)

    def start_guest(
        self, body: Callable[[], int], keep: Sequence[int], output: int | None = None
    ) -> int:
        """Run ``body`` in namespaces of its own; the number of their first process.

        That process ends as soon as ``body`` does, and everything started by ``body`` with it.

        Raises:
            OSError: the room could not be made; ``body`` did not run.
        """
        ready_in, ready_out = os.pipe()
        # From here on the children of this process are born into a new pid namespace.
        syscalls.unshare(syscalls.CLONE_NEWPID)

        def guest() -> int:
            _quiet(output)
            _keep_open(*keep, ready_out)
            os.nice(_NICE)
            self._give_up_privileges(GUEST_ID, self._limits["processes"])
            os.environ.clear()
            os.write(ready_out, _READY)
            os.close(ready_out)
            return body()

        def init() -> int:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            root.enter_private(GUEST_ID, self._limits["file_bytes"])
            first = fork(guest)
            _keep_open()
            return _reap_until(first)

        process = fork(init)
        os.close(ready_out)
        if os.read(ready_in, len(_READY)) != _READY:
            raise OSError("the program's room could not be made")
        os.close(ready_in)
        return process

    def _give_up_privileges(self, uid: int, num_processes: int) -> None:
        limits, cpu_s = self._limits, self._limits["cpu_s"]
        syscalls.give_up_privileges(
            uid,
            {
                resource.RLIMIT_AS: (limits["memory_bytes"], limits["memory_bytes"]),
                resource.RLIMIT_CPU: (cpu_s, cpu_s + _SPARE_CPU_S),
                resource.RLIMIT_FSIZE: (limits["file_bytes"], limits["file_bytes"]),
                resource.RLIMIT_NOFILE: (limits["open_files"], limits["open_files"]),
                resource.RLIMIT_NPROC: (num_processes, num_processes),
                resource.RLIMIT_CORE: (0, 0),
                resource.RLIMIT_MEMLOCK: (0, 0),
                resource.RLIMIT_MSGQUEUE: (0, 0),
            },
            self._bpf,
        )


def fork(body: Callable[[], int]) -> int:
    """Run ``body`` in a new process, which ends with what it returns; the process' number."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        status = body()
    finally:
        os._exit(status)


def _reap_until(process: int) -> int:
    """Wait for ``process``; its exit status, or 128 and the signal that ended it."""
    while True:
        ended, status = os.wait()
        if ended == process:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _keep_open(*descriptors: int) -> None:
    """Close all but standard input and output and these."""
    low = 3
    for descriptor in sorted(descriptors):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _quiet(output: int | None) -> None:
    """Standard input is empty; output goes to ``output``, or nowhere."""
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null if output is None or descriptor == 0 else output, descriptor)
