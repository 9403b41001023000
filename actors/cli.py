"""The command line: ``inframind serve | ask | status | demo | models | eval | logs | calibrate |
train``, the last five from files of their own."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from actors.cli_calibrate import calibrate
from actors.cli_eval import evaluate_file
from actors.cli_logs import logs_app
from actors.cli_train import train
from actors.client import DEFAULT_URL, ApiError, Client
from actors.demo import run_demo
from actors.display import answer_block, found_lines, pool_table
from actors.endpoint_discovery import discover, endpoint_args
from actors.local_pool import ServeFile, read_serve_file, running_pool
from actors.models import models_app
from runtime.config import parse_config
from runtime.errors import InfraMindError

app = typer.Typer(
    help="Infrastructure-aware runtime for multi-agent LLM work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models_app, name="models")
app.add_typer(logs_app, name="logs")
console = Console(file=sys.stdout)  # this stream, also while Ray's chatter is redirected

ConfigPath = Annotated[Path, typer.Option("--config", "-c", help="A Serve config file.")]
Port = Annotated[
    int | None, typer.Option(help="HTTP port instead of the file's.", min=1, max=65535)
]
Url = Annotated[str, typer.Option(help="Where the pool listens.", envvar="INFRAMIND_URL")]
LOCAL = Path("serve_configs/local.yaml")


@app.command()
def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help=f"A Serve config file; default: {LOCAL}."),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(
            help="Instead of a file: a server that runs already and speaks OpenAI's API, such as "
            "http://127.0.0.1:8001/v1. May be given several times."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="With --endpoint: only this model of what the endpoints list, by their name for "
            "it. May be given several times; default: all."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key of the endpoints.")
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Calls that each model of an endpoint gets at once.", min=1)
    ] = 16,
    port: Port = None,
) -> None:
    """Start a pool on this machine and serve until Ctrl-C or SIGTERM."""
    if not endpoint:
        if model:
            _fail("--model goes with --endpoint; a config file names its models itself")
        file = _read(config or LOCAL)
    elif config is not None:
        _fail("give --config or --endpoint, not both; a file may hold endpoints (backend: openai)")
    else:
        file = _front(endpoint, model or [], api_key_env, max_num_seqs)
    with _pool(file, port) as url:
        kind = " (SIMULATED: the fake engine)" if file.simulated else ""
        with contextlib.suppress(KeyboardInterrupt):
            console.print(f"[green]ready[/green]{kind}: {url}/v1", highlight=False)
            console.print(f'try: inframind ask "What is 17 + 25?" --url {url}', highlight=False)
            threading.Event().wait()
        console.print("stopping")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    budget: Annotated[float | None, typer.Option(help="Seconds; default: the pool's.")] = None,
    task: Annotated[
        str | None, typer.Option(help="math, code, knowledge or general; default: by meaning.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Another policy than the pool's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole trace as JSON.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Ask one question and show how it was answered."""
    if budget is not None and not math.isfinite(budget):
        _fail("--budget must be a finite number of seconds")
    body: dict[str, Any] = {"question": question}
    optional = {"budget_s": budget, "task": task, "policy": policy}
    body.update({k: v for k, v in optional.items() if v is not None})
    try:
        answer = Client(url).ask(body)
    except ApiError as error:
        _fail(str(error))
    if as_json:
        console.print_json(json.dumps(answer))
    else:
        text = answer["text"] or (answer["error"] or {}).get("message", "")
        console.print(text, markup=False, highlight=False)
        console.print()
        console.print(answer_block(answer, answer["query_id"], with_text=False))
    raise typer.Exit(0 if answer["status"] != "error" else 1)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print the snapshot as JSON.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Show the live pool: queues, replicas, latency, age of each figure."""
    try:
        pool = Client(url).pool()
    except ApiError as error:
        _fail(str(error))
    if as_json:
        console.print_json(json.dumps(pool))
    else:
        console.print(pool_table(pool))


@app.command()
def demo(config: ConfigPath = LOCAL, port: Port = None) -> None:
    """Start a pool, ask it eight questions, show what happened, stop it."""
    file = _read(config)
    with _pool(file, port) as url:
        answered = run_demo(url, file, console)
    raise typer.Exit(0 if answered else 1)


app.command("eval")(evaluate_file)
app.command("calibrate")(calibrate)
app.command("train")(train)


@contextlib.contextmanager
def _pool(file: ServeFile, port: int | None) -> Iterator[str]:
    """A running pool; Ctrl-C and SIGTERM stop it in good order once it runs.

    Ctrl-C while it starts stops it too, but Ray may print a trace of its own.
    """
    with contextlib.ExitStack() as stack:
        with console.status("starting") as status:
            tell = status.update if console.is_terminal else _line_by_line()
            try:
                url = stack.enter_context(running_pool(file, port, tell))
            except KeyboardInterrupt:
                _fail("stopped while starting")
            except Exception as error:  # Ray raises many kinds when it cannot start
                _fail(str(error) or type(error).__name__)
        # Only now: Ray puts its own handler there when it starts.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield url


def _line_by_line() -> Callable[[str], None]:
    """Tells what is new on a line of its own, for files and pipes."""
    last = ""

    def tell(what: str) -> None:
        nonlocal last
        if what != last:
            last = what
            console.print(what, highlight=False, markup=False)

    return tell


def _read(path: Path) -> ServeFile:
    try:
        return read_serve_file(path)
    except InfraMindError as error:
        _fail(error.message)


def _front(
    urls: list[str], wanted: list[str], api_key_env: str | None, max_num_seqs: int
) -> ServeFile:
    """A pool of the models at ``urls``; shows what was found, and what is assumed of it."""
    try:
        found = discover(urls, api_key_env, wanted)
        args = endpoint_args(found, api_key_env, max_num_seqs)
        file = ServeFile(args, parse_config(args, "--endpoint"))
    except InfraMindError as error:
        _fail(error.message)
    for line in found_lines(found, file.config):
        console.print(line, highlight=False, markup=False)
    return file


def _fail(message: str) -> NoReturn:
    Console(stderr=True).print("[red]error:[/red]", escape(message), highlight=False)
    raise typer.Exit(1)


def main() -> None:
    """Entry point of the ``inframind`` command."""
    app()


if __name__ == "__main__":
    main()
