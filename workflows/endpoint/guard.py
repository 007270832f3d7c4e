"""What keeps strangers out of a server on this machine: web pages, other names of the host, connections that only wait.

A browser sends requests of any page to any address, and says so in Origin and Sec-Fetch-Site; programs send neither.
A page whose own name resolves to this host (DNS rebinding) has that name in Host.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAME = ("none", "same-origin")  # values of Sec-Fetch-Site that are not of another site's page
HEADER_SECONDS = 20.0  # from the first byte of a request, or from a connection, to the end of its headers
HEADER_BYTES = 1 << 16  # also of what is left of a refused body
BODY_SECONDS = 60.0  # for a body
CONNECTIONS = 900  # at the same time; a process has 1024 files by default


ONCE = ("host", "origin", "sec-fetch-site", "content-type")  # headers that decide; two could be read in two ways
CLOSING = {"connection": "close"}


def refused(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error in OpenAI's form, for requests that no dialect has read."""
    body = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": body}, status, headers)


class Gate:
    """ASGI middleware that answers strangers with 4xx, and every request with one sentence, whatever happens to it."""

    def __init__(self, app: Callable[..., Awaitable], hosts: Sequence[str] | None):
        self._app, self._hosts = app, hosts

    async def __call__(self, scope, receive, send) -> None:
        begun = False

        async def sending(message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        app = _stranger(Request(scope), self._hosts) or self._app
        try:
            return await app(scope, receive, sending)
        except asyncio.CancelledError:
            answer = refused(503, "the server was asked to end", "ending", CLOSING)
        except Exception:  # any error of the application is one request's: the server goes on, and its log has it
            logging.getLogger(__name__).exception("%s %s failed", scope["method"], scope["path"][:200])
            answer = refused(500, "the request failed in the server, whose log has the reason", "failed", CLOSING)
        return None if begun else await answer(scope, receive, send)


def _stranger(request: Request, hosts: Sequence[str] | None) -> JSONResponse | None:
    """What a request gets that is of no program of this machine; None for others."""
    if twice := [name for name in ONCE if len(request.headers.getlist(name)) > 1]:
        return refused(400, f"there are two headers {twice[0]}", "invalid_request")
    named = request.headers.get("host", "")
    host, _, port = named[1:].partition("]") if named.startswith("[") else named.partition(":")
    if hosts is not None and not (host.lower() in hosts and (not port or port.removeprefix(":").isdigit())):
        return refused(400, f"Host is {named[:200]!r}; needed {' or '.join(hosts)}", "foreign_host")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", SAME[0])
    own = [f"{scheme}://{named}" for scheme in ("http", "https")]
    page = (f"Origin: {origin[:200]}" if origin is not None and origin not in own else
            f"Sec-Fetch-Site: {site[:200]}" if site not in SAME else None)
    return refused(403, f"requests of web pages are not answered ({page})", "foreign_origin") if page else None


async def _unknown(request: Request, error: HTTPException) -> JSONResponse:
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    return refused(error.status_code, message, "not_found" if error.status_code == 404 else "not_allowed",
                   dict(error.headers or {}))


def protect(app: Starlette, hosts: Sequence[str] | None) -> None:
    """Adds what every server needs. hosts: the names of it that are answered; None: all, where a token is needed."""
    app.add_exception_handler(HTTPException, _unknown)
    app.add_middleware(Gate, hosts=hosts)


class Impatient(AutoHTTPProtocol):
    """A connection that is closed when headers take longer than HEADER_SECONDS or are longer than HEADER_BYTES, or when
    there are CONNECTIONS."""

    _deadline, _heading = None, 0

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEADER_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # headers are complete
            self._no_deadline()
            return
        self._heading += len(data)
        if self._heading > HEADER_BYTES:
            self.transport.abort()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._no_deadline()
        super().connection_lost(error)

    def _no_deadline(self) -> None:
        self._heading = 0
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None
