"""Long queries over real HTTP, with the fake engine: their life, owners, events and faults."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from actors.names import NAMESPACE, ActorNames
from runtime.config import parse_config
from tests.live import Deploy, counters, engines_idle, eventually

ALICE = {"authorization": "Bearer alice"}
BOB = {"authorization": "Bearer bob"}
ASYNC = {"prefer": "respond-async"}


def pool(**changes: Any) -> dict[str, Any]:
    """One model with four slots, up to twenty tokens a second in each."""
    model = {
        "name": "only",
        "backend": "fake",
        "context_tokens": 4096,
        "max_output_tokens": 512,
        "max_num_seqs": 4,
        "speed": {"prefill_tokens_per_s": 50_000, "token_s": 0.05},
        "placement": {"num_cpus": 0.1},
        "fake": {"answer_tokens": 400},
    }
    fixed = {"name": "fixed", "options": {"topology": "IO", "agents": 1}}
    return {"version": 1, "models": [model], "policy": fixed, "default_budget_s": 90.0, **changes}


POOL = pool()


@pytest.fixture(scope="module")
def url(deploy_once: Deploy) -> str:
    return deploy_once(POOL)


def body(tokens: int, **changes: Any) -> dict[str, Any]:
    """A question whose answer takes a twentieth of a second a token."""
    return {"question": "Tell me of the sea.", "task": "general", "max_tokens": tokens, **changes}


def post(url: str, tokens: int, headers: dict[str, str] | None = None, **changes: Any) -> Any:
    return httpx.post(
        f"{url}/v1/queries",
        json=body(tokens, **changes),
        headers={**ASYNC, **(headers or {})},
        timeout=90,
    )


def start(url: str, tokens: int, headers: dict[str, str] | None = None, **changes: Any) -> str:
    response = post(url, tokens, headers, **changes)
    assert response.status_code == 202, response.text
    return str(response.json()["id"])


def show(url: str, query_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    response = httpx.get(f"{url}/v1/queries/{query_id}", headers=headers, timeout=60)
    assert response.status_code == 200, response.text
    return dict(response.json())


def ended(url: str, query_id: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The record, once the query has ended."""
    wait = {"prefer": "wait=60", **(headers or {})}
    found = show(url, query_id, wait)
    assert found["status"] != "running"
    return found


def code_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@dataclass
class SseEvent:
    number: int
    kind: str
    data: dict[str, Any]


def parse(lines: Iterator[str]) -> Iterator[SseEvent]:
    """Server-sent events; comments and the reconnection time are left out."""
    fields: dict[str, str] = {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "data" in fields:
            number = int(fields.get("id", 0))
            yield SseEvent(number, fields.get("event", ""), json.loads(fields["data"]))
            fields = {}


def events(
    url: str, query_id: str, after: int | None = None, most: int | None = None
) -> list[SseEvent]:
    """Events up to the last one, or the first ``most`` of them."""
    headers = {} if after is None else {"last-event-id": str(after)}
    path = f"{url}/v1/queries/{query_id}/events"
    found = []
    with httpx.stream("GET", path, headers=headers, timeout=90) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        for event in parse(response.iter_lines()):
            found.append(event)
            if len(found) == most:
                break
    return found


def check_numbers(found: list[SseEvent]) -> None:
    numbers = [event.number for event in found]
    assert numbers == sorted(set(numbers))


def records(args: dict[str, Any]) -> dict[str, int]:
    """What the records actor says that it keeps."""
    import ray

    names = ActorNames(parse_config(args).digest)
    actor = ray.get_actor(names.records, namespace=NAMESPACE)
    return dict(ray.get(actor.counters.remote()))


def kill_9(name: str) -> None:
    """Kill the process of a named actor."""
    import ray
    from ray._private.state import actors

    actor = ray.get_actor(name, namespace=NAMESPACE)
    os.kill(actors(actor._actor_id.hex())["Pid"], signal.SIGKILL)


def all_is_quiet(args: dict[str, Any], url: str) -> bool:
    idle = records(args)["running"] == 0 and set(counters(args, url).values()) == {0}
    return idle and engines_idle(url)


# --- the life of a long query ----------------------------------------------------------------


def test_a_long_query_from_acceptance_to_removal(url: str) -> None:
    response = post(url, 40)
    assert response.status_code == 202
    assert response.headers["preference-applied"] == "respond-async"
    given = response.json()
    assert given["status"] == "running"
    assert given["answer"] is None
    path = httpx.URL(url).path
    assert response.headers["location"] == given["url"] == f"{path}/v1/queries/{given['id']}"
    assert given["events_url"] == f"{given['url']}/events"
    assert response.headers["x-inframind-query-id"] == given["id"]
    assert response.headers["x-inframind-budget-ms"] == "90000"

    location = httpx.URL(url).join(response.headers["location"])
    running = httpx.get(location).json()
    assert (running["status"], running["answer"]) == ("running", None)

    found = ended(url, given["id"])
    assert found["status"] == "ok"
    assert 0 < found["keep_s"] <= 3600
    assert found["answer"]["query_id"] == given["id"]
    assert found["answer"]["text"]
    assert found["answer"]["kept_budget"] is True
    assert found["answer"]["steps"][0]["model"] == "only"

    gone = httpx.delete(location)
    assert (gone.status_code, gone.json()["action"]) == (200, "removed")
    assert code_of(httpx.get(location)) == (404, "query_not_found")
    assert code_of(httpx.delete(location)) == (404, "query_not_found")


def test_the_answer_has_the_same_fields_as_that_of_the_synchronous_form(url: str) -> None:
    direct = httpx.post(f"{url}/v1/queries", json=body(4), timeout=60).json()
    kept = ended(url, start(url, 4))["answer"]
    assert kept.keys() == direct.keys()
    same = ("status", "finish_reason", "task", "topology", "roles", "policy", "error", "simulated")
    assert [kept[k] for k in same] == [direct[k] for k in same]


def test_wait_answers_in_place_when_there_is_an_answer_in_time(url: str) -> None:
    quick = post(url, 4, {"prefer": "respond-async, wait=30"})
    assert (quick.status_code, quick.json()["status"]) == (200, "ok")
    assert quick.headers["preference-applied"] == "wait=30"
    assert quick.headers["x-inframind-status"] == "ok"
    assert show(url, quick.json()["query_id"])["answer"] == quick.json()

    slow = post(url, 100, {"prefer": "respond-async, wait=1"})
    assert (slow.status_code, slow.json()["status"]) == (202, "running")
    assert slow.headers["preference-applied"] == "respond-async, wait=1"
    assert slow.elapsed.total_seconds() > 1.0
    httpx.delete(f"{url}/v1/queries/{slow.json()['id']}")


def test_other_preferences_are_ignored(url: str) -> None:
    response = httpx.post(
        f"{url}/v1/queries", json=body(4), headers={"prefer": "wait=1, return=minimal"}, timeout=60
    )
    assert (response.status_code, response.json()["status"]) == (200, "ok")
    assert "preference-applied" not in response.headers


def test_what_is_wrong_with_a_request_is_said_at_once(url: str) -> None:
    assert code_of(post(url, 4, budget_s=-1)) == (400, "invalid_budget")
    assert code_of(post(url, 4, nonsense=1)) == (400, "invalid_request")
    assert code_of(post(url, 4, policy="best")) == (400, "invalid_request")


@pytest.mark.parametrize("bad", ["q-unknown", "q-00000000000000000000", "%00", "x" * 3000, "é"])
def test_unknown_ids_are_not_found(url: str, bad: str) -> None:
    path = f"{url}/v1/queries/{bad}"
    assert code_of(httpx.get(path)) == (404, "query_not_found")
    assert code_of(httpx.delete(path)) == (404, "query_not_found")
    assert code_of(httpx.get(f"{path}/events")) == (404, "query_not_found")


def test_a_query_that_fails_is_kept_with_its_error(url: str) -> None:
    query_id = start(url, 4, question="word " * 10_000)
    found = ended(url, query_id)
    assert (found["status"], found["answer"]["error"]["code"]) == (
        "error",
        "context_length_exceeded",
    )
    last = events(url, query_id)[-1]
    assert (last.kind, last.data["error"]["code"]) == ("error", "context_length_exceeded")
    assert last.data["error"]["query_id"] == query_id


# --- owners ----------------------------------------------------------------------------------


def test_only_the_owner_sees_a_query(url: str) -> None:
    query_id = start(url, 60, ALICE)
    path = f"{url}/v1/queries/{query_id}"
    unknown = httpx.get(f"{url}/v1/queries/q-unknown").json()["error"]
    for stranger in (BOB, {}, {"authorization": "Bearer Alice"}):
        for response in (
            httpx.get(path, headers=stranger),
            httpx.delete(path, headers=stranger),
            httpx.get(f"{path}/events", headers=stranger),
        ):
            assert response.status_code == 404
            error = response.json()["error"]
            assert error == {
                **unknown,
                "message": unknown["message"].replace("q-unknown", query_id),
            }
    assert show(url, query_id, ALICE)["status"] == "running"
    gone = httpx.delete(path, headers=ALICE).json()
    assert (gone["status"], gone["action"]) == ("cancelled", "cancelled")
    assert show(url, query_id, ALICE)["status"] == "cancelled"


def test_without_a_credential_the_id_is_the_key(url: str) -> None:
    query_id = start(url, 4)
    assert ended(url, query_id)["status"] == "ok"
    response = httpx.get(f"{url}/v1/queries/{query_id}", headers=ALICE)
    assert code_of(response) == (404, "query_not_found")


# --- cancelling ------------------------------------------------------------------------------


def test_cancelling_ends_every_call_and_counters_return_to_zero(url: str) -> None:
    ids = [start(url, 400) for _ in range(6)]  # four run in the engine, two wait
    eventually(lambda: counters(POOL, url)["calls"] >= 6)
    for query_id in ids:
        gone = httpx.delete(f"{url}/v1/queries/{query_id}", timeout=30).json()
        assert (gone["id"], gone["status"], gone["action"]) == (
            query_id, "cancelled", "cancelled")  # fmt: skip
    eventually(lambda: all_is_quiet(POOL, url))
    found = show(url, ids[0])
    assert (found["status"], found["answer"]["error"]["code"]) == ("cancelled", "cancelled")
    assert events(url, ids[0])[-1].kind == "error"
    again = httpx.delete(f"{url}/v1/queries/{ids[0]}").json()
    assert (again["status"], again["action"]) == ("cancelled", "removed")


def test_a_client_that_goes_away_does_not_end_a_long_query(url: str) -> None:
    query_id = start(url, 40)
    assert len(events(url, query_id, most=3)) == 3  # and the stream is closed
    assert ended(url, query_id)["status"] == "ok"


# --- events ----------------------------------------------------------------------------------


def test_events_tell_the_whole_story_and_are_replayed_to_who_comes_late(url: str) -> None:
    query_id = start(url, 30)
    live = events(url, query_id)
    check_numbers(live)
    assert [event.kind for event in live[:2]] == ["plan", "step"]
    assert live[0].data == {"topology": "IO"}
    assert live[1].data["model"] == "only"
    assert {event.kind for event in live[2:-1]} == {"delta"}
    last = live[-1]
    assert last.kind == "answer"
    assert last.data == show(url, query_id)["answer"]
    assert "".join(e.data["text"] for e in live if e.kind == "delta") == last.data["text"]
    assert events(url, query_id) == live


def test_events_resume_after_the_last_one_seen(url: str) -> None:
    query_id = start(url, 40)
    first = events(url, query_id, most=6)
    rest = events(url, query_id, after=first[-1].number)
    whole = events(url, query_id)
    assert first + rest == whole
    headers = {"last-event-id": str(whole[-1].number)}
    response = httpx.get(f"{url}/v1/queries/{query_id}/events", headers=headers)
    assert response.status_code == 204
    for bad in ("x", "-1", "1.5"):
        response = httpx.get(f"{url}/v1/queries/{query_id}/events", headers={"last-event-id": bad})
        assert code_of(response) == (400, "invalid_request")


def test_several_streams_at_once_and_one_of_a_query_that_is_cancelled(url: str) -> None:
    query_id = start(url, 300)

    async def run() -> list[list[SseEvent]]:
        reading = [asyncio.create_task(asyncio.to_thread(events, url, query_id)) for _ in range(3)]
        await asyncio.sleep(2.0)
        await asyncio.to_thread(httpx.delete, f"{url}/v1/queries/{query_id}", timeout=30)
        return list(await asyncio.gather(*reading))

    first, *others = asyncio.run(run())
    assert others == [first, first]
    assert (first[-1].kind, first[-1].data["error"]["code"]) == ("error", "cancelled")


def test_a_quiet_stream_shows_signs_of_life(url: str) -> None:
    busy = [start(url, 400) for _ in range(12)]
    query_id = start(url, 4, budget_s=300)  # later than all of them
    path = f"{url}/v1/queries/{query_id}/events"
    with httpx.stream("GET", path, timeout=60) as response:
        line = next(line for line in response.iter_lines() if line.startswith(":"))
    assert line == ": still working"
    for busy_id in (*busy, query_id):
        httpx.delete(f"{url}/v1/queries/{busy_id}", timeout=30)


# --- bounds ----------------------------------------------------------------------------------


def test_the_oldest_that_ended_goes_first_and_what_runs_stays(deploy: Deploy) -> None:
    args = pool(long_queries={"max_kept": 3, "keep_s": 6.0})
    url = deploy(args)
    first, second = start(url, 2), start(url, 400)
    ended(url, first)
    third = start(url, 2)
    ended(url, third)
    fourth = start(url, 400)  # for this one the first has to go
    assert code_of(httpx.get(f"{url}/v1/queries/{first}")) == (404, "query_not_found")
    assert show(url, third)["status"] == "ok"
    fifth = start(url, 400)
    assert code_of(httpx.get(f"{url}/v1/queries/{third}")) == (404, "query_not_found")
    full = post(url, 2)
    assert code_of(full) == (429, "overloaded")
    assert int(full.headers["retry-after"]) >= 1
    for query_id in (second, fourth, fifth):
        assert show(url, query_id)["status"] == "running"
        assert httpx.delete(f"{url}/v1/queries/{query_id}").json()["action"] == "cancelled"
    sixth = start(url, 2)
    ended(url, sixth)
    eventually(lambda: records(args)["kept"] == 0, within_s=15)  # six seconds later
    assert code_of(httpx.get(f"{url}/v1/queries/{sixth}")) == (404, "query_not_found")
    eventually(lambda: all_is_quiet(args, url))


@pytest.mark.parametrize("workflow_actors", [0, 1])
def test_the_bound_on_queries_in_flight_holds_for_long_ones_too(
    deploy: Deploy, workflow_actors: int
) -> None:
    limits = {"max_queries_in_flight": 1}
    args = pool(limits=limits, workflow_actors=workflow_actors)
    url = deploy(args)
    query_id = start(url, 400)
    full = post(url, 2)
    assert code_of(full) == (429, "overloaded")
    assert int(full.headers["retry-after"]) >= 1
    assert records(args)["kept"] == 1
    httpx.delete(f"{url}/v1/queries/{query_id}")
    eventually(lambda: all_is_quiet(args, url))


# --- the death of actors ---------------------------------------------------------------------


def test_a_killed_records_actor_loses_no_query(deploy: Deploy) -> None:
    args = pool(default_budget_s=80.0)
    name = ActorNames(parse_config(args).digest).records
    url = deploy(args)
    done, cancelled = start(url, 3, ALICE), start(url, 400, ALICE)
    before = ended(url, done, ALICE)
    httpx.delete(f"{url}/v1/queries/{cancelled}", headers=ALICE)
    running = start(url, 60)
    seen = events(url, running, most=5)
    kill_9(name)

    assert show(url, done, ALICE)["answer"] == before["answer"]
    assert code_of(httpx.get(f"{url}/v1/queries/{done}", headers=BOB)) == (404, "query_not_found")
    assert show(url, cancelled, ALICE)["status"] == "cancelled"
    rest = events(url, running, after=seen[-1].number)
    check_numbers(seen + rest)
    assert [event.kind for event in rest[:3]] == ["restart", "plan", "step"]
    found = ended(url, running)
    assert found["status"] == "ok"
    assert found["answer"]["query_id"] == running
    assert 3.0 < found["answer"]["latency_s"] < 80.0
    assert (rest[-1].kind, rest[-1].data) == ("answer", found["answer"])
    eventually(lambda: all_is_quiet(args, url))


def test_a_stream_goes_on_when_the_records_actor_is_killed_and_the_second_time_it_ends(
    deploy: Deploy,
) -> None:
    args = pool(default_budget_s=81.0)
    name = ActorNames(parse_config(args).digest).records
    url = deploy(args)
    query_id = start(url, 300)

    async def run() -> list[SseEvent]:
        reading = asyncio.create_task(asyncio.to_thread(events, url, query_id))
        for _ in range(2):
            await asyncio.sleep(3.0)
            await asyncio.to_thread(kill_9, name)
            await asyncio.to_thread(show, url, query_id)
        return await reading

    found = asyncio.run(run())
    check_numbers(found)
    kinds = [event.kind for event in found]
    assert kinds.count("restart") == 1
    assert (kinds[-1], found[-1].data["error"]["code"]) == ("error", "no_model_answered")
    assert ended(url, query_id)["status"] == "error"
    eventually(lambda: all_is_quiet(args, url))


def test_a_budget_that_ended_while_the_records_actor_was_away_ends_the_query(
    deploy: Deploy,
) -> None:
    args = pool(default_budget_s=82.0)
    name = ActorNames(parse_config(args).digest).records
    url = deploy(args)
    query_id = start(url, 400, budget_s=2.5)
    kill_9(name)
    time.sleep(2.5)
    found = ended(url, query_id)
    # Cut in time (ok) where the actor was back soon enough to run it once more.
    assert found["status"] in ("error", "degraded", "ok")
    assert found["age_s"] > 2.5
    eventually(lambda: all_is_quiet(args, url), within_s=30)


def test_a_killed_workflow_actor_costs_what_has_begun_to_answer_and_nothing_else(
    deploy: Deploy,
) -> None:
    """Of a query whose text has begun nothing can be told twice; one that was silent runs again."""
    args = pool(default_budget_s=83.0, workflow_actors=1)
    name = ActorNames(parse_config(args).digest).workflow(0)
    url = deploy(args)
    begun = start(url, 400)
    assert events(url, begun, most=4)[-1].kind == "delta"
    kill_9(name)
    after = start(url, 4)
    assert ended(url, after)["status"] == "ok"
    found = ended(url, begun)
    assert (found["status"], found["answer"]["error"]["code"]) == ("error", "no_model_answered")
    assert events(url, begun)[-1].kind == "error"
    eventually(lambda: all_is_quiet(args, url), within_s=30)
