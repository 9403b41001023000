"""A Python process that answers frames, and that can always be ended.

Its ``ask`` blocks without holding the interpreter's lock and uses no signals, so it works from any
thread and from Ray actors. What is asked is bounded by killing the process.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from runtime.frames import ProtocolError, read_frame, write_frame

_ROOT = str(Path(__file__).resolve().parents[1])
_GRACE_S = 10.0


class Child:
    """Runs ``main()`` of ``module``, with a pipe as standard input and one as standard output.

    The end of its standard input must end it. ``environment`` ``None`` is this process' own.
    """

    def __init__(
        self,
        module: str,
        flags: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        # Behind the standard library, so that nothing beside this package can hide a part of it.
        start = f"import sys; sys.path.append({_ROOT!r}); from {module} import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
            bufsize=0,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, *frames: Any, timeout_s: float) -> Any:
        """Send ``frames``, and give the frame that comes back.

        ``None`` if there was none in time or the process ended; it is gone then, and cannot be
        asked again.
        """
        try:
            with self._killed_after(timeout_s):
                for frame in frames:
                    write_frame(_number(self._process.stdin), frame)
                return read_frame(_number(self._process.stdout))
        except (OSError, EOFError, ProtocolError):
            self.close()
            return None

    def kill(self) -> None:
        """End it at once, from any thread; whoever waits for its answer gets none."""
        self._process.kill()

    def close(self) -> None:
        """Returns when the process is gone."""
        with self._process as process, self._killed_after(_GRACE_S):
            if process.stdin is not None:
                process.stdin.close()
            process.wait()

    @contextlib.contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _number(stream: IO[bytes] | None) -> int:
    """The pipe's descriptor. Raises ``OSError`` if it is closed."""
    if stream is None or stream.closed:
        raise OSError("closed")
    return stream.fileno()
