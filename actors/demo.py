"""Eight questions for a small pool, several at once, with budgets from 15 to 180 seconds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from actors.client import ApiError, Client
from actors.display import answer_block
from actors.local_pool import ServeFile

AT_ONCE = 4

QUESTIONS: tuple[dict[str, Any], ...] = (
    {"question": "What is 17 + 25?", "budget_s": 30},
    {"question": "What is the capital of France?", "budget_s": 15},
    {"question": "Write a Python function that returns the square of a number.", "budget_s": 180},
    {
        "question": "Which planet is known as the Red Planet?",
        "choices": ["Venus", "Mars", "Jupiter", "Saturn"],
        "budget_s": 60,
    },
    {"question": "A pen costs 3 dollars. How many dollars do 4 pens cost?", "budget_s": 90},
    {"question": "Write a Python function that reverses a string.", "budget_s": 120},
    {"question": "What is the chemical formula of water?", "budget_s": 45},
    {"question": "What is 9 times 6?", "budget_s": 20},
)


def run_demo(url: str, file: ServeFile, console: Console) -> bool:
    """Ask, show the table, and say whether every question was answered."""
    client = Client(url)
    answers: list[dict[str, Any]] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, console=console) as progress,
        ThreadPoolExecutor(AT_ONCE) as threads,
    ):
        task = progress.add_task(f"asking, {AT_ONCE} at once", total=len(QUESTIONS))
        futures = {threads.submit(_ask, client, body): body for body in QUESTIONS}
        for future in as_completed(futures):
            answer = future.result()
            answers.append(answer)
            progress.advance(task)
    console.print()
    for answer in answers:
        console.print(answer_block(answer, answer["asked"]))
    answered = [a for a in answers if a["status"] != "error"]
    kept = sum(a["kept_budget"] for a in answers)
    console.print(
        f"{len(answered)} of {len(QUESTIONS)} answered, {kept} whole and within their budget.",
        highlight=False,
    )
    console.print(_caveat(file), style="yellow")
    return len(answered) == len(QUESTIONS)


def _ask(client: Client, body: dict[str, Any]) -> dict[str, Any]:
    asked = f"{body['question']} [{body['budget_s']} s]"
    try:
        return {**client.ask(body), "asked": asked}
    except ApiError as error:
        failed = {"status": "error", "kept_budget": False, "latency_s": 0.0, "steps": []}
        known = {"budget_s": body["budget_s"], "topology": None, "text": "", "asked": asked}
        return {**failed, **known, "error": {"message": str(error)}}


def _caveat(file: ServeFile) -> str:
    if file.simulated:
        return (
            "SIMULATED: these answers come from the fake engine. Only the planning, routing, "
            "queueing and HTTP are real; no text, time or quality here is a model's."
        )
    return (
        "These models are tiny and run on a CPU: this shows planning, routing and scheduling on "
        "real engines, not the quality of answers. Quality priors are assumed, not measured."
    )
