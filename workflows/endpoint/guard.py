"""What keeps strangers out of a server on this machine: web pages, other names of the host, connections that only wait.

A browser sends requests of any page to any address, and says so in Origin and Sec-Fetch-Site; programs send neither.
A page whose own name resolves to this host (DNS rebinding) has that name in Host.
"""

from collections.abc import Awaitable, Callable, Sequence

from starlette.applications import Starlette
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from uvicorn.protocols.http.auto import AutoHTTPProtocol

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAME = ("none", "same-origin")  # values of Sec-Fetch-Site that are not of another site's page
HEADER_SECONDS = 20.0  # from the first byte of a request, or from a connection, to the end of its headers
HEADER_BYTES = 1 << 16  # also of what is left of a refused body
BODY_SECONDS = 60.0  # for a body
CONNECTIONS = 900  # at the same time; a process has 1024 files by default


class NoPages:
    """ASGI middleware that answers requests of web pages of other origins with 403."""

    def __init__(self, app: Callable[..., Awaitable]):
        self._app = app

    async def __call__(self, scope, receive, send) -> None:
        app = self._app
        if scope["type"] == "http" and (page := _page(Request(scope))):
            app = JSONResponse({"error": {"message": f"requests of web pages are not answered ({page})", "param": None,
                                          "type": "invalid_request_error", "code": "foreign_origin"}}, 403)
        await app(scope, receive, send)


def _page(request: Request) -> str | None:
    """The header by which a request is of another origin's page, or None."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", SAME[0])
    own = [f"{scheme}://{request.headers.get('host')}" for scheme in ("http", "https")]
    if origin is not None and origin not in own:
        return f"Origin: {origin[:200]}"
    return None if site in SAME else f"Sec-Fetch-Site: {site[:200]}"


def protect(app: Starlette, hosts: Sequence[str] | None) -> None:
    """Adds what every server needs. hosts: the names of it that are answered; None: all, where a token is needed."""
    app.add_middleware(NoPages)
    if hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts, "[::1]"], www_redirect=False)


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
