"""Questions of a file, verdicts of judges, and what the answers amount to."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy.stats import binomtest

from actors import evaluation
from actors.eval_summary import summarise, wilson
from actors.evaluation import Evaluated, graded_by_code, load_questions, verdict_in
from runtime.datasets import Item
from runtime.errors import DatasetError, SandboxUnavailable
from runtime.types import TaskKind


def item(task: TaskKind = TaskKind.MATH, dataset: str = "gsm_hard", answer: str = "42") -> Item:
    tests = ("assert f() == 1", "f") if task is TaskKind.CODE else (None, None)
    return Item("i", dataset, task, "?", answer, tests=tests[0], entry_point=tests[1])


def answered(text: str, status: str = "ok", one: Item | None = None) -> Evaluated:
    return Evaluated(one or item(), "q-1", status, 2.0, text)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("CORRECT", True),
        ("Incorrect.", False),
        ("**INCORRECT**", False),
        ("It is not correct", False),
        ("At first it seems incorrect, but it is CORRECT", True),
        ("The correction is fine", None),
        ("", None),
        ("I cannot tell", None),
    ],
)
def test_the_last_verdict_of_a_judge_counts(text: str, verdict: bool | None) -> None:
    assert verdict_in(text) is verdict


def test_right_wrong_silent_and_unknown_are_told_apart() -> None:
    free = item(TaskKind.GENERAL, "own", "Paris")
    rows = graded_by_code([
        answered("Answer: 42"),
        answered("Answer: 41", "late"),
        answered("", "error"),
        answered("It is Paris.", one=free),
        answered("", "error", free),
    ])  # fmt: skip
    assert [r.correct for r in rows] == [True, False, False, None, False]
    assert "--judge" in rows[3].reason


def test_programs_without_a_sandbox_are_unknown_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pairs: list[tuple[Item, str]]) -> None:
        raise SandboxUnavailable("no namespaces here")

    monkeypatch.setattr(evaluation, "grade_many", refuse)
    (row,) = graded_by_code([answered("def f(): return 1", one=item(TaskKind.CODE, "mbpp"))])
    assert (row.correct, row.reason) == (None, "no namespaces here")


def graded(correct: bool | None, status: str, latency_s: float, dataset: str = "a") -> Evaluated:
    one = item(dataset=dataset)
    return Evaluated(one, "q-1", status, latency_s, "text", correct)


def test_every_question_asked_is_in_the_denominator() -> None:
    rows = [
        graded(True, "ok", 1.0),
        graded(True, "late", 3.0),
        graded(False, "lost", 99.0),
        graded(None, "ok", 2.0),
    ]
    (line,) = summarise(rows)
    assert (line.n_asked, line.n_unknown) == (4, 1)
    assert line.accuracy == pytest.approx(100 * 2 / 3)
    assert (line.slo, line.correct_on_time) == (50.0, 25.0)
    assert (line.latency_mean_s, line.latency_p50_s) == (2.0, 2.0)


def test_several_data_sets_have_a_line_each_and_one_for_all() -> None:
    rows = [graded(True, "ok", 1.0, "a"), graded(False, "lost", 1.0, "b")]
    lines = summarise(rows)
    assert [(s.name, s.accuracy) for s in lines] == [("a", 100.0), ("b", 0.0), ("all", 50.0)]
    assert math.isnan(lines[1].latency_mean_s)


@pytest.mark.parametrize(("right", "total"), [(0, 7), (7, 7), (3, 10), (431, 500)])
def test_wilson_is_what_scipy_says(right: int, total: int) -> None:
    theirs = binomtest(right, total).proportion_ci(method="wilson")
    assert wilson(right, total) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert wilson(0, 0) == (0.0, 1.0)


def test_a_question_and_its_answer_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"question": "Capital of France?", "answer": "Paris"}\n\n'
        '{"id": "x", "dataset": "d", "task": "math", "question": "1 + 1?", "answer": "2"}\n'
    )
    first, second = load_questions(path)
    assert (first.id, first.dataset, first.task) == ("1", "own", TaskKind.GENERAL)
    assert (second.id, second.dataset, second.task) == ("x", "d", TaskKind.MATH)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "?"}', "line 1, field answer"),
        ('{"question": "?", "answer": "!"}\n[]', "line 2: not an object"),
        ("{", "line 1: not JSON"),
        ('{"question": "?", "answer": "!", "anser": ""}', "field anser"),
        ("\n", "no questions"),
    ],
)
def test_bad_files_are_refused_by_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(text)
    with pytest.raises(DatasetError, match=message):
        load_questions(path)
