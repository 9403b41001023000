"""Handing a query to a workflow actor that may die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from actors.runner import Delta, Started
from actors.submission import Submission, failed
from runtime.errors import NoModelAnswered
from runtime.types import Answer, Query

QUERY = Query("q-1", "?", 30.0)
DONE = failed(QUERY, 1.0, NoModelAnswered("as a sign"))


class Workflow:
    """Stands for a workflow actor and its reference: each submission does what comes next."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.cancelled: list[str] = []
        self.comes_back = True
        self.when_asked: Callable[[], None] = lambda: None

    def get(self) -> Workflow:
        return self

    def forget(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name not in ("run", "stream", "ready", "cancel"):
            raise AttributeError(name)
        return Method(getattr(self, f"_{name}"))

    async def _run(self, query: Query, spent_s: float) -> Answer:
        for item in self.scripts.pop(0):
            if isinstance(item, Exception):
                raise item
        return DONE

    async def _stream(self, query: Query, spent_s: float) -> AsyncIterator[Any]:
        for item in self.scripts.pop(0):
            if isinstance(item, Exception):
                raise item
            yield _ready(item)

    async def _ready(self) -> None:
        self.when_asked()
        if not self.comes_back:
            raise ActorDiedError

    def _cancel(self, query_id: str) -> None:
        self.cancelled.append(query_id)


class Method:
    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function

    def options(self, **_: Any) -> Method:
        return self


async def _ready(item: Any) -> Any:
    return item


def submission(workflow: Workflow, query: Query = QUERY) -> Submission:
    import time

    return Submission(workflow, query, time.monotonic(), lambda *_: None)  # type: ignore[arg-type]


async def told(one: Submission) -> list[Any]:
    return [item async for item in one.items()]


async def test_what_was_silent_is_submitted_once_more() -> None:
    assert await told(submission(Workflow([ActorDiedError()], [Started("IO"), DONE]))) == [
        Started("IO"),
        DONE,
    ]
    assert await submission(Workflow([ActorDiedError()], [])).answer() == DONE


async def test_what_has_begun_to_tell_is_not() -> None:
    workflow = Workflow([Started("IO"), Delta("a"), ActorDiedError()], [DONE])
    *before, last = await told(submission(workflow))
    assert before == [Started("IO"), Delta("a")]
    assert (last.status, last.error_code) == ("error", "no_model_answered")
    assert len(workflow.scripts) == 1


async def test_a_second_death_is_the_end() -> None:
    workflow = Workflow([ActorDiedError()], [ActorDiedError()], [DONE])
    (last,) = await told(submission(workflow))
    assert last.error_code == "no_model_answered"
    again = Workflow([ActorDiedError()], [ActorDiedError()], [])
    assert (await submission(again).answer()).error_code == "no_model_answered"


async def test_waiting_for_the_actor_ends_with_the_budget() -> None:
    workflow = Workflow([ActorDiedError()], [DONE])
    workflow.comes_back = False
    (last,) = await told(submission(workflow, Query("q-1", "?", 0.5)))
    assert last.error_code == "no_model_answered"
    assert last.latency_s >= 0.5


@pytest.mark.parametrize("comes_back", [False, True])
async def test_what_is_withdrawn_meanwhile_is_not_submitted_again(comes_back: bool) -> None:
    workflow = Workflow([ActorDiedError()], [DONE])
    workflow.comes_back = comes_back
    one = submission(workflow)
    workflow.when_asked = one.withdraw
    (last,) = await told(one)
    assert (last.status, last.error_code) == ("error", "cancelled")
    assert len(workflow.scripts) == 1


async def test_a_withdrawal_that_came_too_early_is_repeated() -> None:
    workflow = Workflow([Started("IO"), DONE])
    one = submission(workflow)
    one.withdraw()
    await told(one)
    assert workflow.cancelled == ["q-1", "q-1"]
