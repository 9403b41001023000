"""Runs programs that nobody has read, apart from everything else: ``runtime.jail`` says how."""

from runtime.sandbox.process import Stopper
from runtime.sandbox.runs import (
    Limits,
    ScriptRun,
    Status,
    TestJob,
    Verdict,
    check_available,
    run_script,
    run_tests,
    run_tests_many,
)

__all__ = [
    "Limits",
    "ScriptRun",
    "Status",
    "Stopper",
    "TestJob",
    "Verdict",
    "check_available",
    "run_script",
    "run_tests",
    "run_tests_many",
]
