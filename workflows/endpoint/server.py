"""The HTTP server of the recorded endpoint: on loopback, with one bearer token for each attempt.

It runs on the event loop of workflows/attempts/isolated.Host, between the steps of the engine.
"""

import asyncio
import atexit
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ouroboros.pipeline.store.errors import OuroError
from ouroboros.pipeline.store.foreign_text import flaw
from ouroboros.workflows.endpoint.anthropic import Messages
from ouroboros.workflows.endpoint.chat import Chat, Completions
from ouroboros.workflows.endpoint.dialect import MODEL, Refusal
from ouroboros.workflows.endpoint.guard import LOOPBACK, protect
from ouroboros.workflows.endpoint.responses import Responses
from ouroboros.workflows.endpoint.speaker import ENDED, Speaker
from ouroboros.workflows.protocol.trajectory import Endpoint

LARGEST = 16 << 20  # bytes of a body
ROLE = "X-Ouroboros-Role"  # header that names the player who asks, where its key does not
IDLE_SECONDS = 24 * 3600  # a connection may be idle while the engine computes for others

DIALECTS = (Chat(), Completions(), Messages(), Responses())


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield  # signals are the explorer's


class Server:
    """Attempts that may ask the model, by number; their tokens are made of a key that only this process has."""

    body_seconds: float | None = None  # limit of a body's arrival; none where the engine holds the event loop up

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._key, self._numbers, self._speakers = secrets.token_bytes(32), count(), {}
        routes = [Route(one.path, self._handler(one), methods=["POST"]) for one in DIALECTS]
        app = Starlette(routes=[*routes, Route("/v1/models", self._models)])
        protect(app, LOOPBACK)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = _Uvicorn(uvicorn.Config(app, lifespan="off", log_config=None, log_level="critical", access_log=False,
                                         timeout_keep_alive=IDLE_SECONDS))
        self._loop, self._task = loop, loop.create_task(server.serve([listener]))
        loop.run_until_complete(_started(server))
        atexit.register(self._stop)

    def admit(self, speaker: Speaker) -> Endpoint:
        """Lets an attempt ask the model; returns how."""
        number = speaker.number = next(self._numbers)
        self._speakers[number] = speaker
        return Endpoint(f"{self.address}/v1", f"{number}-{self._signature(number)}", MODEL)

    def end(self, speaker: Speaker) -> None:
        """Refuses further requests of an attempt, and those in progress."""
        if self._speakers.pop(speaker.number, None):
            speaker.close()

    def _stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._task)

    def _signature(self, number: int) -> str:
        return hmac.new(self._key, str(number).encode(), hashlib.sha256).hexdigest()

    def _speaker(self, request: Request) -> Speaker:
        """The attempt whose token a request has."""
        number, _, signature = token_of(request).partition("/")[0].partition("-")
        is_number = number.isascii() and number.isdigit() and len(number) < 20
        if not (is_number and hmac.compare_digest(signature.encode(), self._signature(int(number)).encode())):
            raise Refusal(401, "needed the token of an attempt as api_key", "invalid_api_key")
        if int(number) not in self._speakers:
            raise ENDED
        return self._speakers[int(number)]

    async def _models(self, request: Request) -> Response:
        try:
            self._speaker(request)
        except Refusal as refusal:
            return JSONResponse(DIALECTS[0].error(refusal), refusal.status)
        return JSONResponse({"object": "list", "data": [
            {"id": MODEL, "object": "model", "created": 0, "owned_by": "ouroboros"}]})

    def _handler(self, dialect):
        async def handle(request: Request) -> Response:
            try:
                speaker = self._speaker(request)
                ask = replace(dialect.read(await body(request, self.body_seconds)), role=role_of(request))
                answer = await unless_gone(request, speaker.answer(ask))
            except ClientDisconnect:
                return Response(status_code=499)
            except Refusal as refusal:
                return JSONResponse(dialect.error(refusal), refusal.status)
            except OuroError as error:  # the chat template refuses the messages, or the parser does not fit
                return JSONResponse(dialect.error(Refusal(400, str(error), "invalid_request")), 400)
            if ask.stream:
                return StreamingResponse(_each(dialect.events(ask, answer)), media_type="text/event-stream")
            return JSONResponse(dialect.answer(ask, answer))

        return handle


async def _each(events: Iterator[str]) -> AsyncIterator[str]:
    for event in events:
        yield event


async def _started(server: uvicorn.Server) -> None:
    while not server.started:
        await asyncio.sleep(0)


async def body(request: Request, seconds: float | None) -> Any:
    """The JSON of a body. Raises Refusal when it is too large, too slow or malformed, or not declared as JSON: browsers
    let any page send other types."""
    declared = request.headers.get("content-type", "")
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, f"Content-Type is {declared[:80]!r}; needed application/json", "unsupported_media_type")
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                content += part
                if len(content) > LARGEST:
                    raise Refusal(413, f"the body is larger than {LARGEST >> 20} MiB", "too_large")
    except TimeoutError as error:
        raise Refusal(408, f"the body did not arrive within {seconds:g} s", "timeout") from error
    try:
        found = json.loads(content.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {str(error)[:200]}", "invalid_json") from error
    if wrong := flaw(found):
        raise Refusal(400, f"the body cannot be used: {wrong}", "invalid_json")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(one for one in names if names.count(one) > 1)[:80]!r} is there twice")
    return found


async def unless_gone(request: Request, work: Coroutine) -> Any:
    """The result of `work`, which is cancelled when the client disconnects; then raises ClientDisconnect."""
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


def token_of(request: Request) -> str:
    """The token of a request, as Anthropic's client sends it or as OpenAI's; empty without one."""
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


def role_of(request: Request) -> str | None:
    """The role that asks: of its key (Endpoint.of_role), or the header ROLE; or None. Raises Refusal for two."""
    named = {one for one in (token_of(request).partition("/")[2], request.headers.get(ROLE)) if one}
    if len(named) > 1:
        raise Refusal(400, f"the key and the header {ROLE} name two roles, {' and '.join(sorted(named))}; needed one",
                      "two_roles")
    return named.pop() if named else None
