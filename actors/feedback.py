"""The HTTP side of outcomes: ``POST /v1/queries/{id}/feedback``."""

from __future__ import annotations

import asyncio
import time

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from ray.exceptions import RayError

from actors.bodies import FeedbackRequest
from actors.long_queries import owner_of
from actors.names import ActorNames, ActorRef
from runtime.call_log import OutcomeRow, public_id
from runtime.config import AppConfig
from runtime.errors import QueryNotFound, RequestError, Unavailable

TIMEOUT_S = 30.0


class Feedback:
    """Answers requests; errors of a request are raised as ``InfraMindError``."""

    def __init__(self, config: AppConfig) -> None:
        self._enabled = config.call_log.enabled
        self._content = config.call_log.log_content
        self._log = ActorRef(ActorNames(config.digest).log)

    async def give(self, request: Request, query_id: str, body: FeedbackRequest) -> Response:
        """Keep what the client says of an answer; of several the last counts.

        Whoever knows the id may say it; of a long query only its owner. The answer comes when the
        outcome is on disk.
        """
        if not self._enabled:
            raise RequestError("there is no call log: call_log.enabled is false")
        if (body.correct is None) == (body.score is None):
            raise RequestError("give either correct or score", "correct")
        query_id = public_id(query_id)
        outcome = OutcomeRow(
            query_id=query_id,
            at=time.time(),
            source=body.source,
            correct=body.correct,
            score=body.score,
            dataset=body.dataset,
            item_id=body.item_id,
            comment=body.comment,
        )
        kept = await self._keep(outcome, owner_of(request.headers))
        if kept is None:
            raise QueryNotFound(f"no query {query_id[:64]!r} is in the log")
        if not kept:
            raise Unavailable("the outcome could not be written to the log")
        answer = {
            "id": query_id,
            "object": "feedback",
            "correct": body.correct,
            "score": body.score,
            "comment_kept": self._content and body.comment is not None,
        }
        return JSONResponse(answer)

    async def _keep(self, outcome: OutcomeRow, owner: str) -> bool | None:
        try:
            asked = self._log.get().feedback.remote(outcome, owner)
            async with asyncio.timeout(TIMEOUT_S):
                kept: bool | None = await asked
        except (RayError, ValueError, TimeoutError):
            self._log.forget()
            raise Unavailable("the call log is not available at the moment") from None
        return kept
