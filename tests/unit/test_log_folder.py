"""The log's folder: parts come whole, merge, age and go; ids that were deleted never come back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors import log_folder
from actors.log_actor import find_owner
from actors.log_folder import DAY_MS, MERGE_PARTS, LogFolder, state_folder
from runtime.call_log import OutcomeRow, QueryRow
from runtime.config import CallLogConfig
from runtime.errors import ConfigError
from runtime.log_tables import all_parts, part_name, parts, read_part, read_table, table_of

NOW = 20_000 * DAY_MS / 1000 + 3600.0
LIMITS = CallLogConfig()


def query(query_id: str, owner: str | None = None, **changes: Any) -> QueryRow:
    args: dict[str, Any] = {
        "query_id": query_id, "owner": owner, "status": "ok", "error": None, "task": "math",
        "topology": "IO", "roles": ("MathSolver",), "policy": "greedy", "direct_model": None,
        "hard": True, "arrival_at": NOW, "ended_at": NOW + 1, "latency_s": 1.0, "budget_s": 9.0,
        "num_calls": 1, "prompt_tokens": 5, "completion_tokens": 6, "simulated": False,
        "config": "abc",
    }  # fmt: skip
    return QueryRow(**{**args, **changes})


def ids(folder: LogFolder, table: str = "queries") -> list[str]:
    return sorted(read_table(folder.path, table, ["query_id"])["query_id"].to_pylist())


def filled(path: Path, count: int, start: int = 0) -> LogFolder:
    """A folder with ``count`` parts of one row each."""
    folder = LogFolder(path)
    for i in range(start, start + count):
        folder.append("queries", [query(f"q-{i}")], NOW + i)
    return folder


def test_what_two_processes_wrote_is_read_together(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    second = filled(tmp_path, 2, start=3)
    assert ids(second) == [f"q-{i}" for i in range(5)]
    assert len({p.writer for p in parts(tmp_path, "queries")}) == 2
    assert len(read_table(tmp_path, "calls")) == 0


def test_parts_merge_and_no_row_is_lost_or_twice(tmp_path: Path) -> None:
    count = MERGE_PARTS * MERGE_PARTS + 3
    folder = LogFolder(tmp_path)
    for i in range(count):
        folder.append("queries", [query(f"q-{i}")], NOW + i)
        if i % 7 == 0:
            folder.tidy(LIMITS, NOW + i)
    folder.tidy(LIMITS, NOW + count)
    folder.tidy(LIMITS, NOW + count)
    assert len(parts(tmp_path, "queries")) == 4
    assert ids(folder) == sorted(f"q-{i}" for i in range(count))


def test_only_parts_of_one_day_merge(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path)
    for i in range(MERGE_PARTS):
        day_s = 86_400.0 * (i >= MERGE_PARTS // 2)
        folder.append("queries", [query(f"q-{i}")], NOW + day_s + i)
    folder.tidy(LIMITS, NOW + 90_000)
    assert len(parts(tmp_path, "queries")) == MERGE_PARTS


def test_a_part_that_was_merged_but_is_still_there_is_not_read_twice(tmp_path: Path) -> None:
    folder = filled(tmp_path, MERGE_PARTS)
    first = parts(tmp_path, "queries")[0]
    kept = first.path.read_bytes()
    folder.tidy(LIMITS, NOW)
    first.path.write_bytes(kept)  # as if the process had died before it took it away
    assert ids(folder) == sorted(f"q-{i}" for i in range(MERGE_PARTS))
    folder.delete(["q-0"])
    assert "q-0" not in ids(folder)
    folder.delete([f"q-{i}" for i in range(MERGE_PARTS)])
    assert all_parts(tmp_path, "queries") == []


def test_old_parts_go_and_young_ones_stay(tmp_path: Path) -> None:
    folder = filled(tmp_path, 3)
    folder.append("queries", [query("q-young")], NOW + 86_400 * 3)
    gone = folder.prune(CallLogConfig(keep_days=2), NOW + 86_400 * 4)
    assert gone.num_files == 3
    assert ids(folder) == ["q-young"]


def test_the_oldest_of_all_tables_go_while_there_are_too_many_bytes(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path)
    noise = [os.urandom(300_000).hex() for _ in range(4)]
    folder.append("outcomes", [OutcomeRow("q-0", NOW, "user", True, None)], NOW - 1)
    for i, text in enumerate(noise):
        folder.append("queries", [query(f"q-{i}", text=text)], NOW + i)
    before = folder.num_bytes
    gone = folder.prune(CallLogConfig(max_bytes=1_000_000), NOW + 9)
    assert 0 < folder.num_bytes <= 1_000_000
    assert gone.num_bytes == before - folder.num_bytes
    assert "q-3" in ids(folder)
    assert "q-0" not in ids(folder)
    assert ids(folder, "outcomes") == []


def test_a_deleted_query_is_gone_from_every_table_and_stays_away(tmp_path: Path) -> None:
    folder, other = filled(tmp_path, 3), LogFolder(tmp_path)
    folder.append("queries", [query("q-x", text="hidden"), query("q-y")], NOW)
    folder.append("outcomes", [OutcomeRow("q-x", NOW, "user", True, None)], NOW)
    assert other.delete(["q-x", "q-never"]) == 2
    assert ids(folder) == ["q-0", "q-1", "q-2", "q-y"]
    assert ids(folder, "outcomes") == []
    assert not any(b"hidden" in p.path.read_bytes() for p in all_parts(tmp_path, "queries"))
    # Rows of it that were still in memory elsewhere.
    assert folder.append("queries", [query("q-x"), query("q-z")], NOW + 1) == 1
    assert "q-x" not in ids(folder)
    names = [p.name for p in tmp_path.rglob("*")]
    assert not any("q-x" in name for name in names)


def test_marks_and_half_written_files_go_in_time(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    folder.delete(["q-5"])
    half = tmp_path / "queries" / ".1-a-1-1.parquet.tmp"
    half.write_bytes(b"x")
    for path in (half, *(tmp_path / "deleted").iterdir()):
        os.utime(path, (NOW, NOW))
    folder.prune(LIMITS, NOW + 60)
    assert half.exists()
    folder.prune(CallLogConfig(keep_days=99), NOW + 3 * 86_400)
    assert not half.exists()
    assert list((tmp_path / "deleted").iterdir()) == []


def test_nothing_of_a_part_is_left_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(tmp_path, 1)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        folder.append("queries", [query("q-1")], NOW)
    monkeypatch.undo()
    assert ids(folder) == ["q-0"]
    folder.append("queries", [query("q-1")], NOW)
    assert ids(folder) == ["q-0", "q-1"]


def test_the_last_of_the_disk_is_left_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=log_folder.MIN_FREE_BYTES - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="too little free space"):
        LogFolder(tmp_path).append("queries", [query("q-1")], NOW)


def test_files_of_others_and_of_later_versions_are_refused(tmp_path: Path) -> None:
    folder = filled(tmp_path, 1)
    later = table_of("queries", [query("q-9")])
    later = later.replace_schema_metadata({b"inframind.schema": b"99"})
    path = tmp_path / "queries" / part_name(1, "b", 1, 1)
    pq.write_table(later, path)
    with pytest.raises(ConfigError, match="version 99"):
        ids(folder)
    pq.write_table(later.replace_schema_metadata(None), path)
    with pytest.raises(ConfigError, match="not a file of the call log"):
        ids(folder)
    path.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=path.name):
        ids(folder)
    with pytest.raises(ConfigError, match="no such folder"):
        read_table(tmp_path / "nowhere", "queries")


def test_a_column_that_an_earlier_version_lacks_is_null(tmp_path: Path) -> None:
    table = table_of("queries", [query("q-1")]).drop_columns(["direct_model"])
    path = tmp_path / "queries" / part_name(1, "b", 1, 1)
    path.parent.mkdir()
    pq.write_table(table, path)
    assert read_part(path, "queries")["direct_model"].to_pylist() == [None]


def test_the_owner_of_a_query_is_found_or_told_unknown(tmp_path: Path) -> None:
    folder = LogFolder(tmp_path)
    assert find_owner(folder, "q-1") is None
    rows: Sequence[QueryRow] = [query("q-1"), query("q-2", owner=""), query("q-3", owner="h")]
    folder.append("queries", rows, NOW)
    found = [find_owner(folder, i) for i in ("q-1", "q-2", "q-3", "q-4")]
    assert found == [(None,), ("",), ("h",), None]


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("INFRAMIND_STATE", "/srv/state")
    assert state_folder(CallLogConfig(folder="~/calls")) == Path("/home/somebody/calls")
    assert state_folder(LIMITS) == Path("/srv/state/calls")
    monkeypatch.delenv("INFRAMIND_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_folder(LIMITS) == Path("/home/somebody/.local/state/inframind/calls")
