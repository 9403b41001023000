from __future__ import annotations

import json
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

from runtime import hub_datasets
from runtime.datasets import SIZES, TASKS, Item, item_of, load_file, load_folder
from runtime.errors import DatasetError
from runtime.hub_datasets import draw, items_of, load_hub, sources_of
from runtime.types import TaskKind

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the data sets are not in {DATA}")

MATH = {"id": "math/1", "dataset": "math", "task": "math", "question": "1 + 1?", "answer": "2"}
CODE = {
    "id": "mbpp/1",
    "dataset": "mbpp",
    "task": "code",
    "question": "Add.",
    "answer": "def add(a, b):\n    return a + b",
    "tests": "assert add(1, 2) == 3",
    "entry_point": "add",
}
CHOICE = {
    "id": "mmlu_pro/1",
    "dataset": "mmlu_pro",
    "task": "knowledge",
    "question": "Which?",
    "answer": "B",
    "choices": ["one", "two", "three"],
}


def write(path, *rows):
    path.write_text("".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows))
    return path


def test_items_are_read_and_blank_lines_do_not_count(tmp_path):
    path = write(tmp_path / "own.jsonl", MATH, "\n", CODE, CHOICE)
    first, code, choice = load_file(path)
    assert first == Item("math/1", "math", TaskKind.MATH, "1 + 1?", "2")
    assert (code.entry_point, code.tests) == ("add", "assert add(1, 2) == 3")
    assert choice.choices == ("one", "two", "three")


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path):
    question = "one\u2028two\x85three"
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({**MATH, "question": question}, ensure_ascii=False))
    assert load_file(path)[0].question == question


def test_items_of_ones_own_need_no_known_data_set(tmp_path):
    path = write(tmp_path / "own.jsonl", {**MATH, "dataset": "ours"})
    assert load_file(path)[0].dataset == "ours"


@pytest.mark.parametrize(
    ("row", "field", "why"),
    [
        ({**MATH, "id": None}, "id", "nothing where a text"),
        ({**MATH, "question": "  "}, "question", "empty"),
        ({**MATH, "question": 5}, "question", "a int where a text"),
        ({**MATH, "answer": ""}, "answer", "empty"),
        ({**MATH, "task": "maths"}, "task", "is none of"),
        ({**MATH, "task": "code"}, "task", "but math is math"),
        ({**MATH, "levl": "1"}, "levl", "no such field"),
        ({**MATH, "subject": 3}, "subject", "a int"),
        ({**MATH, "dataset": "gsm_hard", "answer": "many"}, "answer", "no number"),
        ({**CODE, "tests": None}, "tests", "needs it"),
        ({**CODE, "entry_point": None}, "entry_point", "needs it"),
        ({**CODE, "entry_point": "a b"}, "entry_point", "is no name"),
        ({**CHOICE, "choices": None}, "choices", "needs them"),
        ({**CHOICE, "choices": "abc"}, "choices", "not a list"),
        ({**CHOICE, "choices": ["a", ""]}, "choices", "not a list of texts"),
        ({**CHOICE, "choices": list("abcdefghijk")}, "choices", "11, not 2 to 10"),
        ({**CHOICE, "answer": "D"}, "answer", "none of ABC"),
        ({**CHOICE, "answer": "AB"}, "answer", "none of ABC"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path, row, field, why):
    path = write(tmp_path / "own.jsonl", {**MATH, "id": "first"}, row)
    with pytest.raises(DatasetError) as error:
        load_file(path)
    assert f"{path}, line 2, field {field}:" in error.value.message
    assert why in error.value.message


@pytest.mark.parametrize("line", ["{", "[1]", '"text"', "NaNo"])
def test_a_line_that_is_no_object(tmp_path, line):
    path = write(tmp_path / "own.jsonl", MATH, line)
    with pytest.raises(DatasetError, match=r"own\.jsonl, line 2: "):
        load_file(path)


def test_an_id_that_comes_twice(tmp_path):
    path = write(tmp_path / "own.jsonl", MATH, CODE, MATH)
    with pytest.raises(DatasetError, match=r"line 3, field id: 'math/1' is also on line 1"):
        load_file(path)


def test_no_file_and_no_utf8(tmp_path):
    with pytest.raises(DatasetError, match="nowhere"):
        load_file(tmp_path / "nowhere.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DatasetError, match=r"latin\.jsonl"):
        load_file(tmp_path / "latin.jsonl")


def folder_with(tmp_path, splits, *rows):
    write(tmp_path / "math.train.jsonl", *rows)
    (tmp_path / "splits.json").write_text(json.dumps(splits))
    return tmp_path


def test_a_folder_of_another_size_is_refused(tmp_path):
    folder = folder_with(tmp_path, {"math": {"train": ["math/1"]}}, MATH)
    with pytest.raises(DatasetError, match="math train has 1 items, not 519"):
        load_folder(folder, "math", "train")


def test_a_folder_whose_splits_name_other_items(tmp_path):
    folder = folder_with(tmp_path, {"math": {"train": ["math/2"]}}, MATH)
    with pytest.raises(DatasetError, match=r"1 items of train are not there: math/2"):
        load_folder(folder, "math", "train")


@pytest.mark.parametrize("splits", [{}, {"math": []}, {"math": {"train": [1]}}])
def test_a_folder_without_the_split(tmp_path, splits):
    folder = folder_with(tmp_path, splits, MATH)
    with pytest.raises(DatasetError, match=r"splits\.json, field math\.train: not a list"):
        load_folder(folder, "math", "train")


def test_no_such_data_set(tmp_path):
    with pytest.raises(DatasetError, match="no data set 'gsm8k'"):
        load_folder(tmp_path, "gsm8k", "test")
    with pytest.raises(DatasetError, match="no data set 'gsm8k'"):
        load_hub("gsm8k", "test")


@needs_data
@pytest.mark.parametrize("dataset", list(TASKS))
def test_the_five_have_the_sizes_of_table_6(dataset):
    splits = {split: load_folder(DATA, dataset, split) for split in SIZES[dataset]}
    assert {split: len(items) for split, items in splits.items()} == SIZES[dataset]
    assert {i.task for items in splits.values() for i in items} == {TASKS[dataset]}
    test_ids = {i.id for i in splits["test"]}
    assert not test_ids & {i.id for i in (*splits["train"], *splits["val"])}


# --- from the hub: rows as its data sets have them --------------------------------------------

HUB_ROWS = {
    ("math", "test"): {
        "problem": "What is $1+1$?",
        "solution": r"It is $\boxed{2}$.",
        "answer": "2",
        "subject": "Algebra",
        "level": 2,
        "unique_id": "test/algebra/7.json",
    },
    ("math", "train"): {
        "problem": "What is half of one?",
        "level": "Level 3",
        "type": "Prealgebra",
        "solution": r"First \boxed{1}. Then \boxed{\frac{1}{2}}.",
    },
    ("mbpp", "test"): {
        "task_id": 11,
        "text": "Write a function to add.",
        "code": "def helper(a):\r\n    return a\r\ndef add(a, b):\r\n    return a + b",
        "test_list": ["assert max(add(1, 2), 0) == 3", "assert add(0, 0) == 0"],
        "test_setup_code": "x = 1\r\n",
        "challenge_test_list": [],
    },
    ("gsm_hard", "test"): {"input": "How many?", "code": "def solution(): ...", "target": 8033.0},
    ("humaneval", "test"): {
        "task_id": "HumanEval/0",
        "prompt": 'def add(a, b):\n    """Add."""\n',
        "canonical_solution": "    return a + b\n",
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
        "entry_point": "add",
    },
    ("mmlu_pro", "test"): {
        "question_id": 70,
        "question": "Which?",
        "options": ["one", "two", "three"],
        "answer": "C",
        "answer_index": 2,
        "cot_content": "",
        "category": "business",
        "src": "ori_mmlu-business_ethics",
    },
    ("mmlu_pro", "val"): {
        "question_id": 0,
        "question": "Which?",
        "options": ["one", "two", "N/A", "N/A"],
        "answer": "A",
        "answer_index": 0,
        "cot_content": "A: Let's think.",
        "category": "law",
        "src": "x",
    },
}


def converted(dataset, split, **changes):
    source = sources_of(dataset, split)[0]
    return items_of(source, [{**HUB_ROWS[dataset, split], **changes}])[0]


def test_rows_of_the_hub_become_items():
    test = converted("math", "test")
    assert (test.id, test.answer, test.level) == ("math/test/algebra/7", "2", "Level 2")
    train = converted("math", "train")
    assert (train.answer, train.level, train.subject) == (r"\frac{1}{2}", "Level 3", "Prealgebra")
    humaneval = converted("humaneval", "test")
    assert humaneval.id == "humaneval/0"
    assert humaneval.tests.rstrip().endswith("\ncheck(add)")
    choice = converted("mmlu_pro", "test")
    assert (choice.id, choice.choices[2], choice.answer) == ("mmlu_pro/test/70", "three", "C")
    assert converted("mmlu_pro", "val").choices == ("one", "two")


def test_mbpp_of_the_hub_shows_its_tests_and_names_its_function():
    item = converted("mbpp", "test")
    assert item.id == "mbpp/11"
    assert item.question.startswith("Write a function to add.\nYour code should pass these tests:")
    assert item.question.endswith("\nassert add(0, 0) == 0")
    assert item.tests.startswith("x = 1\nassert max(")
    assert "\r" not in item.tests + item.answer
    assert item.entry_point == "add"


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        (8033.0, "8033"),
        (-8, "-8"),
        (5.9749e-06, "5.9749e-06"),
        (12.5, "12.5"),
        (1e16, "1" + "0" * 16),
    ],
)
def test_gsm_hard_targets_are_written_as_numbers(target, answer):
    assert converted("gsm_hard", "test", target=target).answer == answer


def test_math_solutions_without_an_answer_are_left_out():
    source = sources_of("math", "train")[0]
    row = HUB_ROWS["math", "train"]
    rows = [{**row, "solution": "No box."}, {**row, "level": "Level ?"}, row]
    assert [item.answer for item in items_of(source, rows)] == [r"\frac{1}{2}"]


@pytest.mark.parametrize(("dataset", "split"), list(HUB_ROWS))
def test_a_hub_row_without_a_field_is_named(dataset, split):
    source, row = sources_of(dataset, split)[0], dict(HUB_ROWS[dataset, split])
    name = next(n for n in row if n in ("problem", "text", "input", "prompt", "question"))
    del row[name]
    with pytest.raises(DatasetError, match=rf"{source.path}.* row 0, field {name}: missing"):
        items_of(source, [row])


def test_a_hub_row_that_makes_no_sense_is_named():
    with pytest.raises(DatasetError, match="row 0, field answer: 'K' is none of ABC"):
        converted("mmlu_pro", "test", answer="K")
    with pytest.raises(DatasetError, match=r"row 0.*calls no function"):
        converted("mbpp", "test", code="def other(): pass")


def numbered(dataset, numbers, **changes):
    fields = {**{"mbpp": CODE, "humaneval": CODE, "gsm_hard": MATH}.get(dataset, MATH), **changes}
    return [
        item_of({**fields, "id": f"{dataset}/{n}", "dataset": dataset}, "here") for n in numbers
    ]


@needs_data
@pytest.mark.parametrize(
    ("dataset", "numbers"),
    [("gsm_hard", range(1319)), ("humaneval", range(164)), ("mbpp", range(1, 975))],
)
def test_the_splits_drawn_from_the_hub_are_those_of_the_folder(dataset, numbers):
    known = json.loads((DATA / "splits.json").read_text())[dataset]
    items = numbered(dataset, numbers)
    for split in ("train", "val", "test"):
        assert [item.id for item in draw(dataset, split, [items])] == known[split]


def test_a_stratified_draw_has_every_stratum_by_its_share():
    rows = [
        {**CHOICE, "id": f"mmlu_pro/{n}", "subject": "rare" if n % 10 == 0 else "common"}
        for n in range(4000)
    ]
    items = [item_of(row, "here") for row in rows]
    test, train = (draw("mmlu_pro", split, [items]) for split in ("test", "train"))
    assert (len(test), len(train)) == (500, 500)
    assert not {i.id for i in test} & {i.id for i in train}
    assert Counter(i.subject for i in (*test, *train))["rare"] == pytest.approx(100, abs=1)
    assert draw("mmlu_pro", "test", [items]) == test


def library(monkeypatch, load):
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetError, match=r"pip install inframind\[hub\]"):
        load_hub("math", "test")


def test_without_the_hub_the_error_names_the_data_set(monkeypatch):
    def load(path, config, split):
        raise ConnectionError("no route")

    library(monkeypatch, load)
    with pytest.raises(DatasetError, match=r"HuggingFaceH4/MATH-500 cannot be had.*no route"):
        load_hub("math", "test")


def test_what_the_library_is_asked_for(monkeypatch):
    asked = []

    def load(path, config, split):
        asked.append((path, config, split))
        row = HUB_ROWS["math", "test"]
        return [{**row, "unique_id": f"test/algebra/{n}.json"} for n in range(500)]

    library(monkeypatch, load)
    assert len(load_hub("math", "test")) == 500
    assert asked == [("HuggingFaceH4/MATH-500", None, "test")]


def test_a_hub_that_has_another_number_of_items(monkeypatch):
    library(monkeypatch, lambda *_, **__: [HUB_ROWS["math", "test"]])
    with pytest.raises(DatasetError, match="math test has 1 items, not 500"):
        load_hub("math", "test")


def test_every_split_of_every_data_set_has_a_source():
    for dataset, sizes in SIZES.items():
        for split in sizes:
            assert sources_of(dataset, split)
    assert len(sources_of("math", "train")) == len(hub_datasets._MATH_SUBJECTS) == 7
