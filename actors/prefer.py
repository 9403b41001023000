"""The ``Prefer`` header (RFC 7240): what of it is served. The rest is ignored, as the RFC says."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MAX_WAIT_S = 60.0
MAX_CHARS = 1000
"""What a header has beyond these is ignored; nobody prefers so much."""

_PREFERENCE = re.compile(r'(?:[^,"]|"(?:\\.|[^"\\]|\\$)*(?:"|$))+')
_SECONDS = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Preferences:
    """``wait_s``: how long the client would wait for the outcome, at most ``MAX_WAIT_S``."""

    respond_async: bool = False
    wait_s: float | None = None

    def applied(self, waited: bool) -> str:
        """The value of ``Preference-Applied``; ``waited`` says that the outcome came in time."""
        wait = [] if self.wait_s is None else [f"wait={self.wait_s:.0f}"]
        return ", ".join(wait if waited else ["respond-async", *wait])


def preferences(headers: Iterable[str]) -> Preferences:
    """What all ``Prefer`` headers of a request say; the first of two that differ counts."""
    given: dict[str, str] = {}
    for header in headers:
        for part in _PREFERENCE.findall(header[:MAX_CHARS]):
            name, _, value = part.split(";")[0].partition("=")
            given.setdefault(name.strip().lower(), value.strip().strip('"'))
    wait = given.get("wait", "")
    return Preferences(
        given.get("respond-async") == "",
        min(float(wait), MAX_WAIT_S) if _SECONDS.fullmatch(wait) else None,
    )
