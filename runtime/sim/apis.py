"""What is assumed of models behind providers' APIs, such as OpenRouter's: speed, limit, price.

Nothing in this table is measured. Prices are those that the paper's authors list for these models;
the limits add up to 24 requests a minute, as many as the latencies of the paper's table 4 suggest:
500 queries at 50 and at 100 a minute wait 370 and 492 s on average where some 23 a minute pass.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from runtime.errors import ConfigError
from runtime.sim.parameters import Status
from runtime.sim.pool import SimApi


@dataclass(frozen=True, slots=True)
class ApiSpeed:
    """One row of ``calibration/apis.csv``; prices in US dollars per million tokens."""

    model: str
    ttft_s: float
    ttft_cv: float
    tokens_per_s: float
    rate_cv: float
    rpm_limit: int
    input_usd: float
    output_usd: float
    status: Status
    source: str

    def engine(self, rpm_limit: int | None, seed: int = 0) -> SimApi:
        """The model, with a provider that keeps to ``rpm_limit``."""
        ttft = (self.ttft_s, self.tokens_per_s, self.ttft_cv, self.rate_cv)
        return SimApi(*ttft, rpm_limit=rpm_limit, seed=seed)


def api_speed(model: str) -> ApiSpeed:
    """The row of ``model``; raises ``ConfigError`` where there is none."""
    row = api_speeds().get(model)
    if row is None:
        raise ConfigError(f"nothing is assumed of model {model!r} behind an API")
    return row


@lru_cache(maxsize=1)
def api_speeds() -> dict[str, ApiSpeed]:
    """All rows, by model."""
    path = files("runtime.sim") / "calibration" / "apis.csv"
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {row["model"]: _parsed(row) for row in rows}


def _parsed(row: dict[str, str]) -> ApiSpeed:
    return ApiSpeed(
        model=row["model"],
        ttft_s=float(row["ttft_s"]),
        ttft_cv=float(row["ttft_cv"]),
        tokens_per_s=float(row["tokens_per_s"]),
        rate_cv=float(row["rate_cv"]),
        rpm_limit=int(row["rpm_limit"]),
        input_usd=float(row["input_usd_per_m"]),
        output_usd=float(row["output_usd_per_m"]),
        status=Status(row["status"]),
        source=row["source"],
    )
