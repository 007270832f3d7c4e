"""Servers for tests, in a thread of this process."""

import contextlib
import threading
import time

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route


@contextlib.contextmanager
def serving(app, lifespan="off"):
    """Yields the address of an ASGI application."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan=lifespan))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def chat_app(answer):
    """A server of chat completions. answer(body, headers): a text, or a response."""
    async def chat(request):
        found = answer(await request.json(), request.headers)
        if not isinstance(found, str):
            return found
        return JSONResponse({
            "id": "x", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": found}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
