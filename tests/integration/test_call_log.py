"""The call log on live actors: every call and query has its row, outcomes find their query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runtime.log_tables import read_table, with_outcomes
from runtime.sim.parameters import load_pool
from tests.conftest import app_args, model_args
from tests.live import Deploy, eventually

FAST = {"prefill_tokens_per_s": 50_000, "token_s": 0.002}
MODELS = [
    model_args(name, speed=FAST, placement={"num_cpus": 0.1}, fake={"answer_tokens": 30})
    for name in ("small", "large")
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="im-log-", dir="/tmp") as temp:
        yield Path(temp) / "calls"


@pytest.fixture(scope="module")
def url(deploy_once: Deploy, folder: Path) -> str:
    log = {"folder": str(folder), "flush_s": 0.3}
    return deploy_once(app_args(*MODELS, call_log=log))


def ask(url: str, **body: Any) -> dict[str, Any]:
    asked = {"question": "What is 6 + 7?", "task": "math", **body}
    answer: dict[str, Any] = httpx.post(f"{url}/v1/queries", json=asked, timeout=60).json()
    return answer


def rows_of(folder: Path, table: str, query_id: str) -> list[dict[str, Any]]:
    if not folder.is_dir():
        return []
    rows = read_table(folder, table).to_pylist()
    return [row for row in rows if row["query_id"] == query_id]


def logged(folder: Path, query_id: str) -> dict[str, Any]:
    eventually(lambda: bool(rows_of(folder, "queries", query_id)))
    (row,) = rows_of(folder, "queries", query_id)
    return row


def give(url: str, query_id: str, body: dict[str, Any], key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    path = f"{url}/v1/queries/{query_id}/feedback"
    return httpx.post(path, json=body, headers=headers, timeout=60)


def test_a_query_and_its_calls_are_logged_as_the_trace_tells_them(url: str, folder: Path) -> None:
    answer = ask(url, policy="fixed")
    row = logged(folder, answer["query_id"])
    assert (row["status"], row["topology"], row["policy"]) == ("ok", answer["topology"], "fixed")
    assert row["latency_s"] == pytest.approx(answer["latency_s"])
    assert row["simulated"]
    assert row["question"] is None
    eventually(lambda: len(rows_of(folder, "calls", answer["query_id"])) == row["num_calls"])
    calls = {c["step_id"]: c for c in rows_of(folder, "calls", answer["query_id"])}
    for step in answer["steps"]:
        call = calls[step["step_id"]]
        for key in ("model", "strategy", "role", "kind", "status", "queue_s", "service_s",
                    "prompt_tokens", "completion_tokens"):  # fmt: skip
            assert call[key] == step[key], key
        assert [one["model"] for one in call["load"]] == ["small", "large"]
        assert call["replica"]
        assert call["prompt"] is call["text"] is None
        assert call["arrival_at"] <= call["asked_at"] <= call["granted_at"] < call["ended_at"]


def test_models_by_name_and_long_queries_are_logged_too(url: str, folder: Path) -> None:
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    plain = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    row = logged(folder, plain["id"])
    assert (row["direct_model"], row["policy"], row["owner"]) == ("small", "direct", None)
    long = httpx.post(
        f"{url}/v1/queries",
        json={"question": "What is 2 + 2?", "task": "math"},
        headers={"prefer": "respond-async"},
    ).json()
    assert logged(folder, long["id"])["owner"] == ""


def test_the_last_of_several_outcomes_counts(url: str, folder: Path) -> None:
    query_id = ask(url)["query_id"]
    assert give(url, query_id, {"score": 0.25}).status_code == 200  # at once, not yet on disk
    said = {"correct": True, "comment": "well said"}
    for _ in range(2):
        reply = give(url, query_id, said)
        assert reply.status_code == 200
        assert reply.json()["comment_kept"] is False
    logged(folder, query_id)
    outcomes = read_table(folder, "outcomes")
    joined = with_outcomes(read_table(folder, "queries"), outcomes).to_pylist()
    assert {r["query_id"]: r["correct"] for r in joined}[query_id] is True
    assert "well said" not in str(outcomes.to_pylist())


@pytest.mark.parametrize(
    "body",
    [{}, {"correct": True, "score": 1.0}, {"score": 2}, {"score": "1"}, {"right": True}, []],
)
def test_feedback_that_says_nothing_clear_is_refused(url: str, body: Any) -> None:
    assert give(url, "q-x", body).status_code == 400


def test_feedback_to_a_query_that_is_not_in_the_log(url: str) -> None:
    reply = give(url, "q-00000000000000000000", {"correct": True})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "query_not_found")


def test_of_a_long_query_only_its_owner_says_how_it_was(url: str, folder: Path) -> None:
    long = httpx.post(
        f"{url}/v1/queries",
        json={"question": "What is 2 + 2?", "task": "math"},
        headers={"prefer": "respond-async", "authorization": "Bearer mine"},
    ).json()
    assert len(logged(folder, long["id"])["owner"]) == 64
    assert give(url, long["id"], {"correct": True}).status_code == 404
    assert give(url, long["id"], {"correct": True}, "theirs").status_code == 404
    assert give(url, long["id"], {"correct": True}, "mine").status_code == 200


def test_a_folder_that_cannot_be_written_harms_no_query(deploy: Deploy, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    log = {"folder": str(tmp_path / "file" / "calls"), "flush_s": 0.2}
    url = deploy(app_args(*MODELS, call_log=log))
    query_id = ask(url)["query_id"]
    assert query_id

    def told() -> bool:
        ask(url)  # the state comes back with the next rows
        return bool(httpx.get(f"{url}/v1/pool").json()["call_log"]["faults"])

    eventually(told, within_s=20)
    state = httpx.get(f"{url}/v1/pool").json()["call_log"]
    assert state["rows_written"] == 0
    assert "file" in state["last_fault"]
    assert give(url, query_id, {"correct": True}).status_code == 503


def test_without_a_log_nothing_is_written_and_feedback_says_so(deploy: Deploy) -> None:
    url = deploy(app_args(*MODELS, call_log={"enabled": False}))
    query_id = ask(url)["query_id"]
    reply = give(url, query_id, {"correct": True})
    assert reply.status_code == 400
    assert "call_log.enabled" in reply.json()["error"]["message"]
    assert httpx.get(f"{url}/v1/pool").json()["call_log"] is None


# --- the commands ----------------------------------------------------------------------------


def inframind(*args: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "200"}
    command = [str(Path(sys.executable).parent / "inframind"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, env=env)


def questions(path: Path, count: int) -> Path:
    rows = [
        {"id": f"i{k}", "dataset": "sums", "task": "math", "question": f"What is {k} + 7?",
         "answer": str(k + 7)}
        for k in range(count)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_eval_grades_a_file_and_the_log_can_be_fitted_and_cut(
    url: str, folder: Path, tmp_path: Path
) -> None:
    file, out = questions(tmp_path / "sums.jsonl", 30), tmp_path / "rows.jsonl"
    done = inframind("eval", str(file), "--url", url, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(done.stdout)
    assert (figures["name"], figures["n_asked"], figures["n_unknown"]) == ("sums", 30, 0)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(row["told"] for row in rows)
    assert figures["accuracy"] == pytest.approx(100 * sum(r["correct"] for r in rows) / 30)

    asked = rows[0]["query_id"]
    logged(folder, asked)
    (outcome,) = rows_of(folder, "outcomes", asked)
    assert (outcome["source"], outcome["dataset"], outcome["item_id"]) == ("grader", "sums", "i0")

    fit = tmp_path / "fit.json"
    done = inframind("calibrate", "--log", str(folder), "--out", str(fit), "--simulated")
    assert done.returncode == 0, done.stderr
    pool = load_pool(fit)
    assert {m.name for m in pool.models} <= {"small", "large"}
    assert pool.engines
    assert all(e.num_calls >= 20 for e in pool.engines.values())
    assert any("sums" in m.skills for m in pool.models)
    real = inframind("calibrate", "--log", str(folder), "--out", str(fit))
    assert (real.returncode, "no such calls" in real.stderr) == (1, True)

    assert asked in inframind("logs", "list", "--folder", str(folder), "--queries", "999").stdout
    assert inframind("logs", "delete", asked, "--folder", str(folder)).returncode == 0
    assert rows_of(folder, "queries", asked) == rows_of(folder, "outcomes", asked) == []
    assert give(url, asked, {"correct": True}).status_code == 404
    done = inframind("logs", "prune", "--folder", str(folder), "--max-bytes", "1")
    assert done.returncode == 0, done.stderr
    assert not any(folder.rglob("*.parquet"))


def test_a_judge_that_says_neither_leaves_outcomes_unknown(url: str, tmp_path: Path) -> None:
    file = questions(tmp_path / "sums.jsonl", 3)
    done = inframind("eval", str(file), "--url", url, "--judge", "small", "--json")
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads(done.stdout)
    assert (figures["n_asked"], figures["n_unknown"]) == (3, 3)
    nobody = inframind("eval", str(file), "--url", url, "--judge", "nobody")
    assert (nobody.returncode, "no model 'nobody'" in nobody.stderr) == (1, True)
