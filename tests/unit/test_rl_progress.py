"""When training stops, when its rate falls, what it leaves behind, how it goes on when killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl.config import StopConfig
from rl.progress import Progress, progress_from_json

STOP = StopConfig(max_epochs=4, patience=3, lr_patience=1)


def test_patience_runs_out_and_a_best_score_gives_it_back():
    progress = Progress(100)
    assert progress.after_validation(50.0, STOP)
    assert not progress.after_validation(50.0, STOP)
    assert not progress.after_validation(49.0, STOP)
    assert not progress.over(STOP)
    assert progress.after_validation(51.0, STOP)
    for _ in range(3):
        assert not progress.over(STOP)
        progress.after_validation(0.0, STOP)
    assert progress.over(STOP)


def test_the_rate_falls_on_a_plateau_only():
    progress = Progress(100)
    for score in (1.0, 2.0, 3.0):
        progress.after_validation(score, STOP)
    assert progress.lr_scale == 1.0
    scales = []
    for _ in range(4):
        progress.after_validation(0.0, STOP)
        scales.append(progress.lr_scale)
    assert scales == [1.0, 0.5, 0.5, 0.25]


def test_an_epoch_is_so_many_queries_and_the_last_ends_it():
    progress = Progress(100)
    assert progress.validation_due(1)
    progress.after_validation(1.0, STOP)
    progress.after_batch(99)
    assert not progress.validation_due(1)
    progress.after_batch(1)
    assert progress.validation_due(1)
    assert progress.entropy(0.1, 0.02, STOP) == pytest.approx(0.08)
    assert progress.entropy(0.1, None, STOP) == 0.1
    progress.after_batch(300)
    assert progress.over(STOP)
    assert progress_from_json(progress.as_json()) == progress


CONFIG = """
name: killed
pool: serve_configs/b200.yaml
workload: {lanes: 4, sweep_queries: 40, rates_rpm: [60.0]}
ppo: {batch_queries: 8}
validation: {rates_rpm: [30.0], budgets_s: [100.0], queries: 5}
"""


def _start(config: Path, out: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "rl.train", str(config), "--out", str(out), *more]
    env = {**os.environ, "RAY_TMPDIR": str(out.parent), "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def test_a_killed_run_goes_on_from_its_last_iteration(tmp_path_factory):
    pytest.importorskip("ray.rllib", reason="needs the extra `rl`")
    pytest.importorskip("torch", reason="needs torch")
    from rl.run_log import read_rows

    folder = tmp_path_factory.mktemp("r")
    config, out = folder / "c.yaml", folder / "run"
    config.write_text(CONFIG)
    first = _start(config, out)
    saved = out / "checkpoints"
    end_s = time.monotonic() + 90
    while not (saved / "000003").exists():
        assert first.poll() is None, first.stdout.read()
        assert time.monotonic() < end_s
        time.sleep(0.02)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    reached = max(int(path.name) for path in saved.glob("[0-9]*"))
    second = _start(config, out, "--resume", "--max-iterations", "2")
    said, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said
    iterations = [int(row["iteration"]) for row in read_rows(out)]
    assert iterations[-2:] == [reached + 1, reached + 2]
    assert read_rows(out)[-1]["progress/batches"] == reached + 2
    assert (out / "best.safetensors").exists()
    again = _start(config, out)
    told, _ = again.communicate(timeout=60)
    assert again.returncode != 0
    assert "holds a run already" in told
