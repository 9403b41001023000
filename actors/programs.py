"""Runs the programs in answers beside the event loop: in sandboxes, a few at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from runtime.config import AppConfig
from runtime.errors import SandboxUnavailable
from runtime.programs import Program
from runtime.run_program import run_program
from runtime.sandbox import Stopper
from runtime.types import ProgramRun

WALL_SHARE = 0.8
"""Of the time that is left, what the program itself gets: its sandbox must start and end, too."""

LOG_GAP_S = 60.0

NO_TIME = "not run: no time"
NO_SANDBOX = "not run: no sandbox"

logger = logging.getLogger(__name__)


class ProgramRunner:
    """What one driver of queries runs; no more than ``limits.max_programs`` at once."""

    def __init__(self, config: AppConfig) -> None:
        # Its threads are made when they are first needed.
        self._threads = ThreadPoolExecutor(config.limits.max_programs, "sandbox")
        self._logged_s: float | None = None
        self.num_running = 0
        self.num_failed = 0

    async def run(self, program: Program) -> ProgramRun | None:
        """What came of it; ``None`` where there is nothing to run.

        Waits for its turn, in order of asking. Whoever cancels this ends the sandbox. Never raises:
        a sandbox that cannot be had is counted, logged, and said in the result.
        """
        stopper, end_s = Stopper(), time.monotonic() + program.limit_s
        self.num_running += 1
        try:
            async with asyncio.timeout(program.limit_s):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, _run, program, end_s, stopper)
        except TimeoutError:
            return ProgramRun(NO_TIME)
        except Exception as error:
            return self._failed(error)
        finally:
            stopper.stop()
            self.num_running -= 1

    def _failed(self, error: Exception) -> ProgramRun:
        self.num_failed += 1
        now = time.monotonic()
        if self._logged_s is None or now - self._logged_s >= LOG_GAP_S:
            self._logged_s = now
            unexpected = None if isinstance(error, SandboxUnavailable) else error
            logger.error(
                "a program was not run (%d so far): %s", self.num_failed, error, exc_info=unexpected
            )
        return ProgramRun(NO_SANDBOX)


def _run(program: Program, end_s: float, stopper: Stopper) -> ProgramRun | None:
    """In a thread, whose turn may have come late."""
    left_s = end_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return run_program(program, WALL_SHARE * left_s, stopper)
