"""The process that programs run in, seen from outside: start it, give it jobs, end it."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import Any

from runtime.child_process import Child
from runtime.errors import SandboxUnavailable

# No site packages and no user's folder: what runs inside has the standard library only.
_FLAGS = ("-S", "-s", "-P", "-B")
# Sets are ordered by hashes: with a fixed seed a program does the same each time.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
_START_S = 60.0
_GRACE_S = 10.0


class Stopper:
    """Ends runs from another thread; what has been stopped starts no more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: set[Child] = set()
        self._stopped = False

    def stop(self) -> None:
        """End every sandbox that runs with it. What their runs return then means nothing."""
        with self._lock:
            self._stopped = True
            for child in self._children:
                child.kill()

    def start(self) -> Child:
        """A launcher's process; raises ``SandboxUnavailable`` after ``stop``."""
        if self._stopped:
            raise SandboxUnavailable("the run was stopped")
        child = Child("runtime.jail.launcher", _FLAGS, _ENVIRONMENT)
        with self._lock:  # not while it starts: ``stop`` must not wait for that
            self._children.add(child)
            if self._stopped:
                child.kill()
        return child

    def ended(self, child: Child) -> None:
        with self._lock:
            self._children.discard(child)


class Launcher:
    """One sandbox, started when there is a first job, and again if it ended."""

    def __init__(self, stopper: Stopper | None = None) -> None:
        self._stopper = stopper or Stopper()
        self._child: Child | None = None

    def __enter__(self) -> Launcher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def run(self, wall_s: float, *frames: Any) -> dict[str, Any] | None:
        """The result of the job that ``frames`` describe; ``None`` if the sandbox ended over it.

        Raises:
            SandboxUnavailable: the job was not run.
        """
        child = self._child or self._start()
        match child.ask(*frames, timeout_s=wall_s + _GRACE_S):
            case {"ended": "broken", **details}:
                self._end()
                raise SandboxUnavailable(f"the sandbox broke: {details}")
            case {"ended": _} as result:
                return dict(result)
            case _:
                self._end()
                return None

    def _start(self) -> Child:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"the sandbox needs Linux namespaces, this is {sys.platform}")
        child = self._child = self._stopper.start()
        said = child.ask(timeout_s=_START_S)
        if said != {"ready": True}:
            self._end()
            why = said["refused"] if isinstance(said, dict) else "the sandbox did not start"
            raise SandboxUnavailable(f"programs cannot be run safely here: {why}")
        return child

    def _end(self) -> None:
        """Returns when the process, and all in it, is gone."""
        child, self._child = self._child, None
        if child is not None:
            self._stopper.ended(child)
            child.close()
