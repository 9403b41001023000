"""A small client of our own HTTP API, for the command line."""

from __future__ import annotations

from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8000"
GRACE_S = 30.0


class ApiError(Exception):
    """The server refused or could not be reached; the message is for people."""


class Client:
    """Calls one server; each method raises ``ApiError`` with a message for people."""

    def __init__(self, url: str = DEFAULT_URL) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """``POST /v1/queries``: the answer with its trace, also where that is an error."""
        timeout = float(body.get("budget_s") or 3600.0) + GRACE_S
        answer = self._call("POST", "/v1/queries", timeout, json=body)
        if "query_id" not in answer:
            raise ApiError(answer.get("error", {}).get("message", str(answer)))
        return answer

    def pool(self) -> dict[str, Any]:
        """``GET /v1/pool``."""
        return self._call("GET", "/v1/pool", 5.0)

    def healthy(self) -> bool:
        """Whether the server says that a model is up."""
        try:
            return httpx.get(f"{self._url}/healthz", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _call(self, method: str, path: str, timeout: float, **kwargs: Any) -> dict[str, Any]:
        try:
            response = httpx.request(method, self._url + path, timeout=timeout, **kwargs)
            data: dict[str, Any] = response.json()
        except httpx.TimeoutException:
            raise ApiError(f"{self._url} did not answer within {timeout:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ApiError(
                f"cannot reach {self._url} ({error}); start a pool with `inframind serve`"
            ) from None
        except ValueError:
            raise ApiError(f"{self._url}{path} did not answer with JSON") from None
        return data
