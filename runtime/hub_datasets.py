"""The five benchmarks from the Hugging Face hub, in the schema of ``runtime.datasets``.

Which items are train, validation and test follows the data sets' own splits where they have some
(MATH-500, MBPP's task ids, MMLU-Pro's validation), else a shuffle with seed 42; the paper does not
publish its lists. What the library returns is turned into items by functions of one row.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.answers import boxed
from runtime.datasets import SIZES, Item, Split, check_size, item_of
from runtime.errors import DatasetError

Row = Mapping[str, Any]

_SEED = 42
_MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True, slots=True)
class HubSplit:
    """A split of a data set on the hub; ``convert`` makes the fields of an item of its row and
    the row's number, or ``None`` of a row that is left out."""

    path: str
    config: str | None
    split: str
    convert: Callable[[Row, int], dict[str, Any] | None]


def load_hub(dataset: str, split: Split) -> tuple[Item, ...]:
    """One split of one of the five data sets.

    Raises:
        DatasetError: the library ``datasets`` is not installed, the hub cannot be reached, or a row
            is not what it used to be.
    """
    if dataset not in SIZES:
        raise DatasetError(f"no data set {dataset!r}; there are {', '.join(SIZES)}")
    sources = sources_of(dataset, split)
    items = draw(dataset, split, [items_of(source, _rows(source)) for source in sources])
    check_size(items, dataset, split, sources[0].path)
    return items


def sources_of(dataset: str, split: Split) -> tuple[HubSplit, ...]:
    """The splits on the hub that hold the items of ``split``."""
    match dataset, split:
        case "math", "test":
            return (HubSplit("HuggingFaceH4/MATH-500", None, "test", _math_500),)
        case "math", _:
            path = "EleutherAI/hendrycks_math"
            return tuple(HubSplit(path, s, "train", _math_train(s)) for s in _MATH_SUBJECTS)
        case "mbpp", _:
            path, splits = (
                "google-research-datasets/mbpp",
                ("prompt", "test", "validation", "train"),
            )
            return tuple(HubSplit(path, "full", s, _mbpp) for s in splits)
        case "gsm_hard", _:
            return (HubSplit("reasoning-machines/gsm-hard", None, "train", _gsm_hard),)
        case "humaneval", _:
            return (HubSplit("openai/openai_humaneval", None, "test", _humaneval),)
        case "mmlu_pro", "val":
            return (HubSplit("TIGER-Lab/MMLU-Pro", None, "validation", _mmlu_pro_val),)
    return (HubSplit("TIGER-Lab/MMLU-Pro", None, "test", _mmlu_pro),)


def items_of(source: HubSplit, rows: Iterable[Row]) -> list[Item]:
    """The items of a split's rows. Raises ``DatasetError`` naming the row and the field."""
    items = []
    for number, row in enumerate(rows):
        place = f"{source.path} {source.config or ''} {source.split}, row {number}"
        try:
            fields = source.convert(row, number)
        except KeyError as error:
            raise DatasetError(f"{place}, field {error.args[0]}: missing") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise DatasetError(f"{place}: {error}") from None
        if fields is not None:
            items.append(item_of(fields, place))
    return items


def draw(dataset: str, split: Split, groups: Sequence[Sequence[Item]]) -> tuple[Item, ...]:
    """The items of ``split`` out of all that the hub has, one group per source."""
    items = [item for group in groups for item in group]
    size, sizes = SIZES[dataset][split], SIZES[dataset]
    match dataset:
        case "mbpp":
            by_id = {item.id: item for item in items}
            return tuple(by_id[f"mbpp/{n}"] for n in _MBPP_IDS[split])
        case "gsm_hard":
            start = {"test": 0, "train": sizes["test"], "val": sizes["test"] + sizes["train"]}[
                split
            ]
            return tuple(_shuffled(items)[start : start + size])
        case "humaneval":
            return _humaneval_split(items, split)
        case "math" if split != "test":
            return _one_of_two(
                items, ("train", "val"), dataset, split, lambda i: (i.subject, i.level)
            )
        case "mmlu_pro" if split != "val":
            return _one_of_two(items, ("test", "train"), dataset, split, lambda i: i.subject)
    return tuple(items)


# 602, 704 and 872 repeat the text of test items; 2 to 4 are the prompts of the original paper.
_MBPP_IDS: Mapping[Split, Sequence[int]] = {
    "test": range(11, 511),
    "val": (*range(511, 601), 10, 9, 8, 7),
    "train": tuple(n for n in (*range(601, 975), 6, 5, 1) if n not in (602, 704, 872)),
}


def _humaneval_split(items: Sequence[Item], split: Split) -> tuple[Item, ...]:
    drawn = _shuffled(items)
    # 61 and 56 are one task but for the kind of brackets: both are test items.
    one, other = (
        next(i for i, item in enumerate(drawn) if item.id == f"humaneval/{n}") for n in (61, 3)
    )
    drawn[one], drawn[other] = drawn[other], drawn[one]
    num_train, num_val = SIZES["humaneval"]["train"], SIZES["humaneval"]["val"]
    train, test = drawn[:num_train], drawn[num_train:]
    return tuple({"train": train, "val": train[-num_val:], "test": test}[split])


def _shuffled(items: Sequence[Item]) -> list[Item]:
    shuffled = list(items)
    random.Random(_SEED).shuffle(shuffled)
    return shuffled


def _one_of_two(
    items: Sequence[Item],
    order: tuple[Split, Split],
    dataset: str,
    split: Split,
    stratum: Callable[[Item], Any],
) -> tuple[Item, ...]:
    """Two splits from the same items, the first drawn first, the second from what is left."""
    first = _stratified(items, SIZES[dataset][order[0]], stratum)
    if split == order[0]:
        return first
    taken = {item.id for item in first}
    rest = [item for item in items if item.id not in taken]
    return _stratified(rest, SIZES[dataset][split], stratum)


def _stratified(
    items: Sequence[Item], size: int, stratum: Callable[[Item], Any]
) -> tuple[Item, ...]:
    """``size`` items in which every stratum has its share, by largest remainders."""
    groups: dict[Any, list[Item]] = {}
    for item in _shuffled(items):
        groups.setdefault(stratum(item), []).append(item)
    shares = {name: size * len(group) / len(items) for name, group in groups.items()}
    counts = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name])
    for name in by_remainder[: size - sum(counts.values())]:
        counts[name] += 1
    return tuple(_shuffled([i for name, group in groups.items() for i in group[: counts[name]]]))


def _rows(source: HubSplit) -> Iterable[Row]:
    try:
        import datasets  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        raise DatasetError(
            "the Hugging Face hub needs the library 'datasets': pip install inframind[hub]"
        ) from None
    try:
        rows: Iterable[Row] = datasets.load_dataset(source.path, source.config, split=source.split)
    except Exception as error:  # the library's own errors and those of three libraries below it
        raise DatasetError(f"{source.path} cannot be had from the hub: {error}") from error
    return rows


def _fields(dataset: str, item_id: str, task: str, **others: Any) -> dict[str, Any]:
    return {"id": f"{dataset}/{item_id}", "dataset": dataset, "task": task, **others}


def _math_500(row: Row, _: int) -> dict[str, Any]:
    return _fields(
        "math",
        row["unique_id"].removesuffix(".json"),
        "math",
        question=row["problem"],
        answer=row["answer"],
        subject=row["subject"],
        level=f"Level {row['level']}",
    )


def _math_train(subject: str) -> Callable[[Row, int], dict[str, Any] | None]:
    def convert(row: Row, number: int) -> dict[str, Any] | None:
        answer = boxed(row["solution"])
        if not answer or row["level"] == "Level ?":
            return None
        return _fields(
            "math",
            f"hub/{subject}/{number}",
            "math",
            question=row["problem"],
            answer=answer,
            subject=row["type"],
            level=row["level"],
        )

    return convert


def _mbpp(row: Row, _: int) -> dict[str, Any]:
    tests = "\n".join(row["test_list"])
    setup = row["test_setup_code"].replace("\r\n", "\n").strip()
    return _fields(
        "mbpp",
        str(row["task_id"]),
        "code",
        question=f"{row['text']}\nYour code should pass these tests:\n\n{tests}",
        answer=row["code"].replace("\r\n", "\n"),
        tests=f"{setup}\n{tests}" if setup else tests,
        entry_point=_called(tests, row["code"]),
    )


def _called(tests: str, code: str) -> str:
    """The function of ``code`` that ``tests`` call first."""
    defined = {n.name for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)}
    for node in ast.walk(ast.parse(tests)):
        if isinstance(node, ast.Name) and node.id in defined:
            return node.id
    raise ValueError("field test_list: it calls no function of the field code")


def _gsm_hard(row: Row, number: int) -> dict[str, Any]:
    target = float(row["target"])
    answer = str(int(target)) if target.is_integer() else repr(target)
    return _fields("gsm_hard", str(number), "math", question=row["input"], answer=answer)


def _humaneval(row: Row, _: int) -> dict[str, Any]:
    return _fields(
        "humaneval",
        row["task_id"].removeprefix("HumanEval/"),
        "code",
        question=row["prompt"],
        answer=row["canonical_solution"],
        tests=f"{row['test']}\n\ncheck({row['entry_point']})\n",
        entry_point=row["entry_point"],
    )


def _mmlu_pro(row: Row, _: int) -> dict[str, Any]:
    return _mmlu_pro_fields(row, f"test/{row['question_id']}")


def _mmlu_pro_val(row: Row, number: int) -> dict[str, Any]:
    return _mmlu_pro_fields(row, f"val/{number}")


def _mmlu_pro_fields(row: Row, item_id: str) -> dict[str, Any]:
    choices = list(row["options"])
    while choices and choices[-1] == "N/A":  # padding, as the authors' evaluation drops it
        choices.pop()
    return _fields(
        "mmlu_pro",
        item_id,
        "knowledge",
        question=row["question"],
        answer=row["answer"],
        choices=choices,
        subject=row["category"],
    )
