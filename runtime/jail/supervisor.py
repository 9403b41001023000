"""One job: start the program and its tests apart from each other, watch them, report, end them."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any

from runtime.frames import read_frame, write_frame
from runtime.jail.children import Rooms
from runtime.jail.examiner import examine
from runtime.jail.guest import answer_calls, run_as_main

_LOOK_EVERY_MS = 20
_LEAVE_MS = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def serve_job(stdin: int, stdout: int) -> None:
    """Read a job's frames (its limits, the program, the tests), and write its result.

    ``ended`` says how: ``done``, ``time``, ``memory``, or ``caller`` (it is gone).

    Raises:
        OSError: the kernel refused what the sandbox needs; the program did not run.
    """
    limits = read_frame(stdin)
    program = read_frame(stdin)
    job = _Job(stdin, limits)
    result = job.run_script(program) if "script" in program else job.run_tests(program)
    write_frame(stdout, result)


class _Job:
    def __init__(self, caller: int, limits: dict[str, Any]) -> None:
        self._caller = caller
        self._limits = limits
        self._rooms = Rooms(limits)
        self._deadline_s = time.monotonic() + limits["wall_s"]

    def run_tests(self, program: dict[str, Any]) -> dict[str, Any]:
        """The examiner's verdict; ``None`` where it gave none."""
        tests_in, tests_out = os.pipe()
        asked, ask = os.pipe()
        answered, answer = os.pipe()
        verdict_in, verdict_out = os.pipe()

        def examiner() -> None:
            job = read_frame(tests_in)
            write_frame(verdict_out, examine(job["tests"], job["entry_point"], ask, answered))

        def guest() -> int:
            answer_calls(program["variants"], asked, answer)
            return 0

        # Both are forked before the tests are read, so neither finds them in its memory.
        first = self._rooms.start_examiner(examiner, (tests_in, ask, answered, verdict_out))
        init = self._rooms.start_guest(guest, (asked, answer))
        _close(tests_in, asked, ask, answered, answer, verdict_out)
        write_frame(tests_out, read_frame(self._caller))
        ended, verdict = self._watch(first, verdict_in, self._limits["verdict_bytes"])
        result = {"ended": ended, "verdict": _verdict(verdict), "guest": _end(init)}
        _end(first)
        return result

    def run_script(self, program: dict[str, Any]) -> dict[str, Any]:
        """The script's output, as much of it as may be kept, and its exit status."""
        output_in, output_out = os.pipe()
        init = self._rooms.start_guest(lambda: run_as_main(program["script"]), (), output_out)
        _close(output_out)
        ended, output = self._watch(init, output_in, self._limits["output_bytes"])
        return {"ended": ended, "output": output.decode(errors="replace"), "guest": _end(init)}

    def _watch(self, process: int, pipe: int, keep_bytes: int) -> tuple[str, bytearray]:
        """Wait until ``process`` ends, and read ``pipe`` meanwhile; why it ended, what was read."""
        os.set_blocking(pipe, False)
        done = os.pidfd_open(process)
        poll = select.poll()
        poll.register(done, select.POLLIN)
        poll.register(pipe, select.POLLIN)
        poll.register(self._caller, 0)
        kept = bytearray()
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(_LOOK_EVERY_MS)}
            if pipe in ready and not _read_some(pipe, kept, keep_bytes):
                poll.unregister(pipe)
            if done in ready:
                while _read_some(pipe, kept, keep_bytes):
                    pass
                return "done", kept
            if self._caller in ready:
                return "caller", kept
            if time.monotonic() > self._deadline_s:
                return "time", kept
            if _resident_bytes() > self._limits["memory_bytes"]:
                return "memory", kept


def _read_some(pipe: int, kept: bytearray, keep_bytes: int) -> bool:
    """Whether there was something; beyond ``keep_bytes`` it is thrown away."""
    try:
        data = os.read(pipe, 2**16)
    except BlockingIOError:
        return False
    kept += data[: keep_bytes - len(kept)]
    return bool(data)


def _verdict(data: bytearray) -> Any:
    """What the examiner wrote, without the frame's length; ``None`` if it is not whole."""
    try:
        return json.loads(data[4:])
    except ValueError:
        return None


def _resident_bytes() -> int:
    """Private memory of all processes of this job. Only the sandbox's own are in this /proc."""
    own = {"1", str(os.getpid())}
    return sum(_private_bytes(p) for p in os.listdir("/proc") if p.isdigit() and p not in own)


def _private_bytes(process: str) -> int:
    try:
        with open(f"/proc/{process}/statm") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def _end(process: int) -> int | None:
    """End ``process``, and with a namespace's init all that lives there; its exit status.

    ``None`` where it did not leave by itself. When this returns, nothing of it is left.
    """
    poll = select.poll()
    poll.register(os.pidfd_open(process), select.POLLIN)
    poll.poll(_LEAVE_MS)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else None


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
