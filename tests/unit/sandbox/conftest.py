"""What every test of the sandbox relies on: there is one, and it leaves nothing behind."""

from __future__ import annotations

import pytest

from runtime.errors import SandboxUnavailable
from runtime.sandbox import check_available, process
from tests.sandboxes import alive


@pytest.fixture(scope="module", autouse=True)
def _available():
    try:
        check_available()
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox here: {error}")


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch):
    """The process ids of the sandboxes that a test starts; nothing of theirs may be left."""
    pids = []

    class Recorded(process.Child):
        def __init__(self, *args):
            super().__init__(*args)
            pids.append(self.pid)

    monkeypatch.setattr(process, "Child", Recorded)
    yield pids
    assert alive(pids) == []
