from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.answers import canonical, extract_code, plurality
from runtime.numerals import math_form
from runtime.types import TaskKind

CHOICES = ("Paris", "Rome", "a bird", "(a) 3, (b) 4")


def math(text):
    return canonical(text, TaskKind.MATH)


def knowledge(text, choices=CHOICES):
    return canonical(text, TaskKind.KNOWLEDGE, choices)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("-8", "-8"),
        ("−8", "-8"),
        ("-0", "0"),
        ("+5", "5"),
        ("12.5", "12.5"),
        ("12.50", "12.5"),
        (".5", "0.5"),
        ("7.", "7"),
        ("1,234", "1234"),
        ("$1{,}234$", "1234"),
        (r"1,\!000", "1000"),
        ("-1,234,567.25", "-1234567.25"),
        ("3/4", "0.75"),
        (r"\frac{3}{4}", "0.75"),
        (r"\dfrac34", "0.75"),
        (r"-\frac{14}{6}", "-7/3"),
        (r"1\frac{1}{2}", "1.5"),
        ("1 1/2", "1.5"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("$12.50", "12.5"),
        ("-$5", "-5"),
        ("12 cm", "12"),
        ("12cm", "12"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"90^\circ", "90"),
        ("60 miles per hour", "60"),
        ("There are 8 apples left", "8"),
        ("3 million", "3000000"),
        ("5.97e-6", "0.00000597"),
        (r"5.97 \times 10^{-6}", "0.00000597"),
        ("x = 5", "5"),
        ("2 + 3 = 5", "5"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \frac{\pi}{2})"),
        ("p - q", "p-q"),
        (r"\text{Monday}", "monday"),
    ],
)
@pytest.mark.parametrize(
    "stated",
    ["Answer: {}", "**Answer:** {}.", r"So \boxed{{{}}}.", "**Final answer: {}**", "Answer:\n\n{}"],
)
def test_math_answers(answer, form, stated):
    assert math("First 17, then 99.\n" + stated.format(answer)) == form


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("5 or 6", "5or 6"),
        ("2x", "2x"),
        ("3 i", "3i"),
        (r"2\pi", r"2\pi"),
        ("2 pi", "2pi"),
        ("5 sqrt 2", "5sqrt 2"),
        ("(1,234)", "(1, 234)"),
        ("1, 234", "1, 234"),
        ("1/0", "1/0"),
        ("x^2", "x^2"),
        ("5th", "5th"),
        ("at least 5", "at least 5"),
        ("not 5", "not 5"),
        ("1010_2", "1010_2"),
        ("1.2.3", "1.2.3"),
        ("2^{10}", "2^{10}"),
        ("1e400", "1e400"),
    ],
)
def test_what_is_no_plain_number_is_not_read_as_one(answer, form):
    assert math_form(answer) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Answer: 5\nNo, wait.\nAnswer: 6", "6"),
        ("Answer: 5\nHence \\boxed{7}", "7"),
        ("\\boxed{7}\nAnswer: 5", "5"),
        ("Final Answer: the final answer is $\\boxed{5}$. I hope it is correct.", "5"),
        ("The answer is 5. I used rule 3.", "5"),
        ("#### 42", "42"),
        ("Sum 3\nSo there are 12 + 5 = 17 apples", "17"),
        ("it is 10-8", "8"),
        ("x=-8", "-8"),
        ("about 1,234 in all", "1234"),
    ],
)
def test_where_a_math_answer_is_found(text, form):
    assert math(text) == form


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  \n",
        "We have 3 and 4.\nI do not know.",
        "Answer: <number>",
        "Answer:",
        "It is 7.\nSo we get \\boxed{12",
        "The answer is 4 at first sight.\nBut then it is not.",
        "Answer: " + "9" * 400,
        "9" * 5000,
    ],
)
def test_no_math_answer(text):
    assert math(text) is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: (C)", "C"),
        ("Answer: c", "C"),
        ("**Answer: C**", "C"),
        ("Answer: C. a bird", "C"),
        ("Answer: C, since it flies", "C"),
        ("Answer: Option B", "B"),
        (r"\boxed{A}", "A"),
        (r"$\boxed{\text{(C)}}$", "C"),
        ("The answer is C.", "C"),
        ("The correct answer is **B**.\n\nIt lies in Italy.", "B"),
        ("Long thought.\nTherefore, the answer is (B) Rome.", "B"),
        ("Answer: Rome", "B"),
        ("Answer: A bird.", "C"),
        ("Answer: (a) 3, (b) 4", "D"),
        ("Answer: B\nAnswer: C", "C"),
        ("Answer: C\nThe answer is based on facts.", "C"),
        ("C", "C"),
        ("C) a bird", "C"),
        ("Some thought.\n\n(C)", "C"),
    ],
)
def test_choices(text, letter):
    assert knowledge(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Answer: E",
        "Answer: B or C",
        "Answer: B, C",
        "Answer: Berlin",
        "Answer: I don't know",
        "Answer: <letter or short answer>",
        "Answer: C\nOn reflection:\nAnswer: E",
        "A good idea",
        "The answer is a gas",
        r"\boxed{C",
        "A. Paris\nB. Rome\nC. a bird",
        "I think the answer is B, or so.\nx\ny",
        "First (B).\nx",
        "x\nThe answer is B.\ny",
    ],
)
def test_no_choice_is_guessed(text):
    assert knowledge(text) is None


def test_a_text_that_two_choices_share_names_none():
    assert knowledge("Answer: Rome", ("Rome", "rome", "Paris")) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("Answer: The Eiffel Tower.", "eiffel tower"),
        ("Answer: 1,945.5 m", "1945.5 m"),
        ("Answer: -5", "-5"),
        ("Answer: C++", "c++"),
        ("Answer: (C)", "C"),
        ("The answer is C.", "C"),
        ("Answer: vitamin C", "vitamin c"),
        ("Answer: " + "word " * 13, None),
        ("Answer: the", None),
        ("Paris", None),
        ("The answer is based on facts.", None),
    ],
)
def test_short_answers_without_choices(text, form):
    assert knowledge(text, ()) == form


@pytest.mark.parametrize("task", [TaskKind.CODE, TaskKind.GENERAL])
def test_code_and_free_text_have_none(task):
    assert canonical("Answer: 5", task) is None


@given(st.text(alphabet=r"0123456789abxyzAB.,/\{}()-+=^_$% pifrcsqtde" + "\n", max_size=60))
def test_math_form_of_a_form_is_itself(text):
    form = math_form(text)
    if form is not None:
        assert math_form(form) == form


@given(st.fractions(), st.sampled_from(["Answer: {}", "\\boxed{{{}}}", "so\nit is {}"]))
def test_a_fraction_keeps_its_value(value, stated):
    assert Fraction(math(stated.format(value))) == value


@given(st.text(max_size=80))
def test_short_answers_are_stable(text):
    form = knowledge(f"Answer: {text}", ())
    if form is not None:
        assert knowledge(f"Answer: {form}", ()) == form


@given(st.text(max_size=200), st.sampled_from(TaskKind))
def test_any_text_is_read_without_error(text, task):
    canonical(text, task)
    canonical(text, task, CHOICES)
    extract_code(text)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "piece",
    [
        "\\boxed{",
        "Answer: 5\n",
        "Answer:\n",
        "\n",
        " ",
        "1,",
        "so the answer is ",
        "a ",
        "**",
        "{",
        "9",
        "1e9",
    ],
)
def test_hostile_text_is_read_in_linear_time(piece):
    canonical(piece * 3000, TaskKind.MATH)
    canonical(f"The answer is {piece * 3000}", TaskKind.MATH)
    canonical(f"Answer: ^{piece * 3000}", TaskKind.MATH)
    canonical(f"Answer: {piece * 3000}", TaskKind.MATH)
    canonical(piece * 3000, TaskKind.KNOWLEDGE, CHOICES)
    canonical("Answer: " + piece * 3000, TaskKind.KNOWLEDGE)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nn = 3\n```", "n = 3"),
        ("text\n```py\n    return n\n\n    x\n```\nmore", "    return n\n\n    x"),
        ("```\na\n```\nor\n```python\nb\n```\n", "b"),
        ("```python\na\n```\nand\n```python\nb", "a"),
        ("so:\n```python\nb = 1\nc", "b = 1\nc"),
        ("```python\nb = 1```", "b = 1"),
        ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
        ("1. do\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
        ("nprint('n')", "nprint('n')"),
        ("", ""),
    ],
)
def test_code_is_taken_exactly(text, code):
    assert extract_code(text) == code


@given(st.text(alphabet="python\n `'=3(){}r", max_size=60).filter(lambda s: "```" not in s))
def test_fenced_code_survives(code):
    assert extract_code(f"Here:\n```python\n{code}\n```\nDone.") == code


@pytest.mark.parametrize(
    ("answers", "index"),
    [
        ([], None),
        ([(None, 0.9)], None),
        ([("a", 0.1), (None, 0.9)], 0),
        ([("a", 0.9), ("b", 0.1), ("b", 0.2)], 2),
        ([("a", 0.4), ("b", 0.5)], 1),
        ([("a", 0.5), ("b", 0.5)], 0),
        ([("a", 0.3), ("b", 0.4), ("b", 0.4), ("a", 0.5)], 3),
        ([("a", 0.5), ("a", 0.5)], 0),
        ([(None, 1.0), (None, 1.0), ("b", 0.1)], 2),
    ],
)
def test_plurality(answers, index):
    assert plurality(answers) == index
