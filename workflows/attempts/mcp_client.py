"""The connection to an MCP server, in the process that an attempt has for it (workflows/attempts/tool_process.py).

The only module that imports `mcp`, whose client needs an event loop: a thread of that process runs it.
"""

import subprocess
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

import anyio
import httpx2
from anyio.from_thread import start_blocking_portal
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, METHOD_NOT_FOUND, CallToolResult, jsonrpc_message_adapter

from ouroboros.pipeline.job.context import ending
from ouroboros.pipeline.settings.arguments.mcp import McpServer
from ouroboros.pipeline.store.foreign_text import flaw
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.wire import Lost
from ouroboros.workflows.protocol.tools import as_text, title

LARGEST = 1 << 24  # bytes of a message
MOST_TOOLS = 10_000
LAST_WORDS = 300  # bytes of standard error that explain an end
END_SECONDS = 1.0  # between the end of a program's output and its own, with its last words
CLOSED = (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


class Connection:
    """An open session with a server. definitions: name, description and parameters of its tools, as it lists them."""

    def __init__(self, name: str, server: McpServer, variables: dict[str, str], deadline: float):
        """variables: what the server sees of the environment. deadline: time.monotonic(), of the start. Raises Lost."""
        self._title, self._closed = title(name), anyio.Event()
        self._program = Program([server.command, *server.args], variables) if server.command else None
        transport = self._program.connected() if self._program else _http(server, variables)
        self._stack, ready = ExitStack(), Future()  # the stack is never left: this process is killed
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._task = self._portal.start_task_soon(self._live, transport, ready)
        try:
            self._client, self.definitions = ready.result(max(deadline - time.monotonic(), 0.0))
        except Exception as error:
            raise Lost(self._reason(error)) from error

    async def _live(self, transport, ready: Future) -> None:
        try:
            async with Client(transport, cache=None) as client:
                ready.set_result((client, await _definitions(client)))
                await self._closed.wait()
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not ready.done():
                ready.set_exception(error)

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The text of a tool's result, and whether the tool failed. Raises Lost when the session is over."""
        try:
            found = self._portal.call(partial(self._client.call_tool, name, arguments))
        except Exception as error:
            closed = isinstance(error, MCPError) and error.code in (CONNECTION_CLOSED, INVALID_REQUEST)
            if closed or (self._program.end if self._program else not isinstance(error, MCPError)):
                raise Lost(self._reason(error)) from error
            return f"error: {error.message if isinstance(error, MCPError) else brief(error)}", True
        return (f"error: {_text(found)}", True) if found.is_error else (_text(found), False)

    def close(self) -> None:
        """Ends the session at the server of a URL."""
        self._portal.call(self._closed.set)
        self._task.result()

    def _reason(self, error: Exception) -> str:
        """Why a session is over."""
        said = self._program.said if self._program else ""
        if self._program and self._program.end:
            return f"{self._title} {self._program.end}{said}"
        if self._program and isinstance(error, OSError) and error.filename:
            return f"{self._title} cannot be started: {error.strerror}: {error.filename!r}"
        if isinstance(error, TimeoutError):
            return f"{self._title} did not answer within tool_seconds{said}"
        return f"{self._title} does not answer as an MCP server: {brief(error)}{said}"


class Program:
    """A server that is a program: each message is a line of its input or output. end: how it ended, once it has.

    Unlike that of mcp.client.stdio it stays in the process group of its attempt, which is killed as a whole, and cannot
    fill the memory.
    """

    def __init__(self, command: list[str], variables: dict[str, str]):
        self._command, self._variables = command, variables
        self._stray, self._last_words, self._silent, self.end = b"", b"", anyio.Event(), ""

    @property
    def said(self) -> str:
        """What it wrote that explains a failure, if anything."""
        last = self._last_words.decode(errors="replace").strip().rpartition("\n")[2]
        stray = f"; it writes {self._stray.decode(errors='replace')!r} to its standard output" * bool(self._stray)
        return (f": {last}" if last else "") + stray

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple]:
        """Starts it; yields the streams of its messages, as an MCP transport."""
        process = await anyio.open_process(self._command, env=self._variables, stderr=subprocess.PIPE)
        received, incoming = anyio.create_memory_object_stream(0)
        outgoing, sent = anyio.create_memory_object_stream(0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, process, received)
            tasks.start_soon(self._send, process, sent)
            tasks.start_soon(self._listen, process)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()

    async def _receive(self, process, received) -> None:
        lines = BufferedByteReceiveStream(process.stdout)
        async with received:
            try:
                while True:
                    line = await lines.receive_until(b"\n", LARGEST)
                    try:
                        message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                    except ValueError:
                        self._stray = self._stray or line[:80]
                    else:
                        await received.send(message)
            except anyio.DelimiterNotFound:
                self.end = f"sent a message of more than {LARGEST >> 20} MiB"
            except CLOSED:
                code = None
                with anyio.move_on_after(END_SECONDS):
                    code = await process.wait()
                    await self._silent.wait()
                self.end = "closed its standard output" if code is None else ending(code)

    async def _send(self, process, sent) -> None:
        with suppress(*CLOSED):  # `_receive` sees the end
            async for message in sent:
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")

    async def _listen(self, process) -> None:
        with suppress(*CLOSED):
            while True:
                self._last_words = (self._last_words + await process.stderr.receive())[-LAST_WORDS:]
        self._silent.set()


@asynccontextmanager
async def _http(server: McpServer, variables: dict[str, str]) -> AsyncIterator[tuple]:
    """The transport to a URL. The caller limits the time."""
    token = {"Authorization": f"Bearer {variables[server.token_env]}"} if server.token_env else {}
    headers = server.headers | token
    if wrong := [name for name, value in headers.items() if value != value.strip() or not value.isprintable()]:
        raise ValueError(f"the header {wrong[0]} has a line break, or blanks around it")  # its value may be a secret
    async with (httpx2.AsyncClient(headers=headers, timeout=None) as client,
                streamable_http_client(server.url, http_client=client, max_sse_event_size=LARGEST) as streams):
        yield streams


async def _definitions(client: Client) -> list[dict[str, Any]]:
    """The tools on all pages of a server's list; empty if it has none."""
    found, cursor, more = [], None, True
    while more:
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:
            if error.code == METHOD_NOT_FOUND:
                return []
            raise
        found += [{"name": one.name, "description": one.description or "", "parameters": one.input_schema}
                  for one in page.tools]
        if len(found) > MOST_TOOLS:
            raise ValueError(f"it lists more than {MOST_TOOLS} tools")
        more = cursor = page.next_cursor
    if wrong := flaw(found):
        raise ValueError(f"its list of tools is unusable: {wrong}")
    return found


def _text(found: CallToolResult) -> str:
    """The content of a result as text; structured content, which servers repeat as text, where there is none."""
    if not found.content and found.structured_content is not None:
        return as_text(found.structured_content)
    return "\n".join(map(_shown, found.content))


def _shown(block) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        return str(block.uri)
    text = getattr(block.resource, "text", None) if block.type == "resource" else None
    return f"[The tool returned content of the type {block.type}, which is not supported.]" if text is None else text
