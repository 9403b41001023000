from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from runtime.datasets import Item, load_folder
from runtime.grading import grade, grade_many, math
from runtime.numerals import math_form
from runtime.types import TaskKind

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not in {DATA}")
CHOICES = tuple(f"the choice number {n}" for n in range(10))


def item(answer, dataset="math", task=TaskKind.MATH, choices=()):
    return Item("x/1", dataset, task, "What?", answer, choices)


def number(answer):
    return item(answer, "gsm_hard")


def choice(answer, choices=CHOICES):
    return item(answer, "mmlu_pro", TaskKind.KNOWLEDGE, choices)


@needs_data
@pytest.mark.parametrize("form", ["Answer: {}", "Thus it is \\boxed{{{}}}.", "**Answer: {}**"])
@pytest.mark.parametrize("dataset", ["math", "gsm_hard", "mmlu_pro"])
def test_every_reference_answer_passes(dataset, form):
    items = load_folder(DATA, dataset, "test")
    graded = grade_many([(i, "First, 17.\n" + form.format(i.answer)) for i in items])
    assert [i.id for i, g in zip(items, graded, strict=True) if not g.correct] == []


@needs_data
@pytest.mark.parametrize("dataset", ["math", "gsm_hard", "mmlu_pro"])
def test_no_answer_passes_for_the_next_item(dataset):
    items = load_folder(DATA, dataset, "test")[:120]
    pairs = [
        (one, f"Answer: {other.answer}")
        for one, other in pairwise(items)
        if math_form(one.answer) != math_form(other.answer)
    ]
    graded = grade_many(pairs)
    assert [p for p, g in zip(pairs, graded, strict=True) if g.correct] == []


# (reference, answer, whether that is right)
MATH = [
    ("8", "8", True),
    ("8", "-8", False),
    ("-8", "8", False),
    ("-8", "\\boxed{-8}", True),
    ("12.5", "12.5", True),
    ("12.5", "5", False),
    ("12.5", "12", False),
    ("1234", "1,234", True),
    ("1234", "$1{,}234$", True),
    ("1234", "234", False),
    ("1234", "1", False),
    ("\\frac{3}{4}", "3/4", True),
    ("\\frac{3}{4}", "0.75", True),
    ("\\frac{3}{4}", "4/3", False),
    ("\\frac{3}{4}", "3", False),
    ("\\frac{1}{3}", "0.33", False),
    ("50\\%", "50", True),
    ("50\\%", "0.5", False),
    ("12", "12 \\text{ cm}", True),
    ("12", "12 cm^2", True),
    ("12", "12 or 13", False),
    ("12", "at least 12", False),
    ("10", "x = 10", True),
    ("5", "٥", True),
    ("5", "５", True),
    ("2\\sqrt{3}", "\\sqrt{12}", True),
    ("2\\sqrt{3}", "3.46", False),
    ("\\frac{\\sqrt{2}}{2}", "\\frac{1}{\\sqrt{2}}", True),
    ("\\pi", "3.14", False),
    ("(x+1)^2", "x^2 + 2x + 1", True),
    ("p - q", "-q + p", True),
    ("p - q", "q - p", False),
    ("6 - 5i", "-5i + 6", True),
    ("6 - 5i", "6 + 5i", False),
    ("[2,5)", "[2, 5)", True),
    ("[2,5)", "(2,5)", False),
    ("\\left( 3, \\frac{\\pi}{2} \\right)", "(3, \\pi/2)", True),
    ("(3,4)", "(4,3)", False),
    ("1,-2", "-2, 1", True),
    ("1,-2", "1 and -2", True),
    ("1,-2", "1", False),
    ("1,-2", "1, -2, 3", False),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 1\\\\2 \\end{pmatrix}", True),
    ("\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "\\begin{pmatrix} 2\\\\1 \\end{pmatrix}", False),
    ("\\text{Evelyn}", "Evelyn", True),
    ("\\text{Evelyn}", "lenvey", False),
    ("\\text{(C)}", "C", True),
    ("1024", "2^{10}", True),
    ("\\infty", "-\\infty", False),
    ("0", "\\frac{1}{0}", False),
]


@pytest.mark.parametrize(("reference", "answer", "right"), MATH)
@pytest.mark.parametrize("form", ["Answer: {}", "First 8, then 5.\nSo \\boxed{{{}}}."])
def test_mathematics(reference, answer, right, form):
    assert grade(item(reference), form.format(answer)).correct is right


@pytest.mark.parametrize(
    ("text", "right", "extracted"),
    [
        ("\\boxed{7} at first, but in fact \\boxed{8}", True, "8"),
        ("\\boxed{8} at first, but in fact \\boxed{7}", False, "7"),
        ("Answer: 7\nWait.\nAnswer: 8", True, "8"),
        ("\\boxed{8", False, None),
        ("\\boxed{}", False, None),
        ("Answer: <number>", False, None),
        ("", False, None),
        ("   \n", False, None),
        ("I do not know.", False, None),
        ("8 is where we start.\nBut I have no idea.", False, None),
        ("#### 8", True, "8"),
        ("There are 8 of them.", True, "8"),
        ("Answer: " + "8" * 10_000, False, None),
        ("\\boxed{" * 3000, False, None),
    ],
)
def test_where_the_answer_is_found(text, right, extracted):
    found = grade(item("8"), text)
    assert (found.correct, found.extracted) == (right, extracted)
    assert found.reason


def test_reasons_tell_a_wrong_answer_from_none():
    reasons = {grade(item("8"), text).reason for text in ("Answer: 8", "Answer: 7", "")}
    assert reasons == {"right", "not the reference answer", "no answer in the text"}


@pytest.mark.parametrize(
    ("reference", "answer", "right"),
    [
        ("132079517.5", "132079517.5", True),
        ("132079517.5", "132,079,517.50", True),
        ("132079517.5", "$132079517.5004", True),
        ("132079517.5", "132079517", False),
        ("132079517.5", "132079518", False),
        ("132079517.5", "-132079517.5", False),
        ("132079517.5", "1.320795175e8", True),
        ("3313620.6879999996", "3313620.688", True),
        ("51989993.333333336", "51989993 1/3", True),
        ("51989993.333333336", "51989993.33", False),
        ("0.5", "1/2", True),
        ("0.5", "0.5009", False),
        ("5.9749e-06", "0.0000059749", True),
        ("5.9749e-06", "5.9749 \\times 10^{-6}", True),
        ("5.9749e-06", "0", False),
        ("5.9749e-06", "0.00001", False),
        ("8", "8 hours", True),
        ("8", "3 + 5", True),
        ("8", "8 or 9", False),
        ("-8", "8", False),
        ("1024", "2^{10}", True),
    ],
)
def test_numbers_with_a_tolerance(reference, answer, right):
    assert grade(number(reference), f"Answer: {answer}").correct is right


@pytest.mark.parametrize(
    ("reference", "text", "right"),
    [
        ("A", "\\boxed{A}", True),
        ("A", "Answer: (A)", True),
        ("J", "Answer: J", True),
        ("J", "Answer: (j).", True),
        ("J", "Answer: K", False),
        ("C", "Answer: A", False),
        ("C", "The answer is **C**.", True),
        ("C", "Answer: the choice number 2", True),
        ("C", "Answer: C. the choice number 2", True),
        ("C", "Answer: A or C", False),
        ("C", "Answer: <letter>", False),
        ("I", "I do not know.", False),
        ("A", "A good question.", False),
        ("C", "C is wrong, so is D.\nAnswer: E", False),
        ("C", "", False),
    ],
)
def test_choices(reference, text, right):
    assert grade(choice(reference), text).correct is right


def test_a_letter_beyond_the_choices_is_none():
    assert grade(choice("A", CHOICES[:4]), "Answer: E").extracted is None


def test_free_text_has_no_grade():
    with pytest.raises(ValueError, match="no right answer"):
        grade(item("8", "ours", TaskKind.GENERAL), "8")


def test_what_takes_too_long_is_wrong_and_stops_nobody(monkeypatch):
    monkeypatch.setattr(math, "TIMEOUT_S", 1.0)
    assert not grade(item("9"), "\\boxed{9^{9^{9^{9}}}}").correct
    monkeypatch.undo()
    assert grade(item("9"), "\\boxed{3^2}").correct


def test_it_works_from_threads():
    answers = ["\\sqrt{12}", "\\sqrt{13}"] * 4
    with ThreadPoolExecutor(3) as pool:
        graded = list(pool.map(lambda a: grade(item("2\\sqrt{3}"), f"\\boxed{{{a}}}"), answers))
    assert [g.correct for g in graded] == [True, False] * 4


def test_without_the_library_it_says_so(monkeypatch):
    monkeypatch.setattr(math, "_WORKER", "runtime.grading.no_such_module")
    monkeypatch.setattr(math, "_POOL", math._Pool())
    with pytest.raises(RuntimeError, match="is it installed"):
        grade(item("2"), "\\boxed{\\sqrt{4}}")
