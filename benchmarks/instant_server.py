"""An OpenAI-compatible server that answers at once: ``python -m benchmarks.instant_server PORT``.

The backend of ``benchmarks.gateway``. It has no ``/metrics`` page.
"""

from __future__ import annotations

import json
import sys
import time

from aiohttp import web

MODEL = "instant"


async def chat(request: web.Request) -> web.Response:
    """The same short answer to everything, plain or streamed."""
    body = await request.json()
    base = {"id": "instant", "created": int(time.time()), "model": MODEL}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    if not body.get("stream"):
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "At once."},
            "finish_reason": "stop",
        }
        answer = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
        return web.json_response(answer)
    choices = [
        {"index": 0, "delta": {"role": "assistant", "content": "At once."}, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": "stop"},
    ]
    chunks = [{**base, "object": "chat.completion.chunk", "choices": [c]} for c in choices]
    chunks[-1]["usage"] = usage
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return web.Response(text=events, content_type="text/event-stream")


async def models(_: web.Request) -> web.Response:
    """The one model."""
    data = [{"id": MODEL, "object": "model", "max_model_len": 4096}]
    return web.json_response({"object": "list", "data": data})


def main() -> None:
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)


if __name__ == "__main__":
    main()
