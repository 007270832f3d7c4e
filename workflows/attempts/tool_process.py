"""Processes of tools, and an attempt's side of them.

One process of a stage is started with the environment that tools may see (workflows/attempts/tool_host.py). It forks
one for each attempt, `run`, which forks those of its tools: a function has one for each call; an environment, and an
MCP server, has one for the whole attempt. At the end of the call, or at its limit, it is killed with all that the tool
started. TMPDIR is a directory of the attempt, which is deleted at its end.
"""

import asyncio
import contextlib
import inspect
import json
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from ouroboros.pipeline.job.context import ending
from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.store.foreign_text import escaped, is_encodable
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.forking import serve
from ouroboros.workflows.attempts.wire import Lost, Unpacker, packed
from ouroboros.workflows.protocol.tools import (
    KEY,
    RESET,
    REWARD,
    Environment,
    Situation,
    Tool,
    Toolset,
    as_text,
    load_environment,
    title,
)

PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH",
         "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS")  # every tool sees these
LONGEST = 1 << 16  # characters of a result
BEGIN, CLOSE = "begin", "close"  # keys of calls that are of no tool: of a world
OWN_SHARE = 0.9  # of the time for a start, after which the process itself says what is wrong

Result = tuple[str, bool]  # text, and whether the tool failed


class Processes:
    """Starts the processes of an attempt's tools and calls them, from any thread."""

    def __init__(self, control: socket.socket, settings: ToolArguments, variables: Mapping[str, str]):
        """control: of the process that forks those of this attempt. variables: from which MCP servers have theirs."""
        self._control, self._settings, self._variables = control, settings, variables
        self._numbers, self._lock = count(), threading.Lock()

    def begin(self, world: str) -> tuple["Session", str]:
        """Starts the process of a world; returns it, and the tools that an MCP server lists. Raises Lost."""
        names = self._settings.servers[world].variables if world else []
        if missing := [name for name in names if name not in self._variables]:
            raise Lost(f"{title(world)} needs the environment variable {missing[0]}, which is not set")
        own, seconds = {name: self._variables[name] for name in names}, self._settings.tool_seconds
        session, order = self.start(), (world, own, time.monotonic() + OWN_SHARE * seconds)
        text, failed = session.call(f"the start of {title(world)}", order, BEGIN, seconds)
        if failed:
            session.close()
            raise Lost(f"{title(world)}: {text.removeprefix('error: ')}")
        return session, text

    def start(self) -> "Session":
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            number = next(self._numbers)
            self._order(partial(socket.send_fds, self._control, [f"start {number}".encode()], [theirs.fileno()]))
        return Session(self, number, ours)

    def end(self, number: int) -> str:
        """Kills a process with all that it started; returns how it had ended."""
        with self._lock:
            self._order(partial(self._control.send, f"code {number}".encode()))
            code = self._order(partial(self._control.recv, 64)).decode()
        return "could not be started" if code == "None" else ending(int(code))

    def _order(self, call: Callable[[], Any]) -> Any:
        with contextlib.suppress(OSError):
            if found := call():
                return found
        raise ChildProcessError("the process that starts the tools of this attempt has ended")


class Session:
    """A process of tools."""

    def __init__(self, processes: Processes, number: int, channel: socket.socket):
        self._processes, self._number, self._channel = processes, number, channel
        self._ended: str | None = None  # how the process had ended

    def call(self, name: str, arguments: Any, key: str, seconds: float) -> Result:
        """Raises Lost when the tool takes longer, or its process ends."""
        try:
            found = self._call(packed((name, arguments, key)), time.monotonic() + seconds)
        except TimeoutError as error:
            self.close()
            raise Lost(f"{name} timed out after {seconds:g} s (tool_seconds)") from error
        except OSError as error:
            raise Lost(f"the process of {name} {self.close()}, without a result") from error
        if isinstance(found, Lost):
            self.close()
            raise found
        return found

    def _call(self, message: bytes, deadline: float) -> Result | Lost:
        unpacker, found = Unpacker(), []
        self._channel.settimeout(max(deadline - time.monotonic(), 0.001))
        self._channel.sendall(message)
        while not found:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self._channel.settimeout(left)
            if not (data := self._channel.recv(1 << 16)):
                raise ConnectionResetError
            found += unpacker.feed(data)
        return found[0]

    def close(self) -> str:
        if self._ended is None:
            self._channel.close()
            self._ended = self._processes.end(self._number)
        return self._ended


def environment(settings: ToolArguments, variables: Mapping[str, str]) -> dict[str, str]:
    """What the tools of a task set see of the environment, from the start of the process that they are forked from."""
    return _of(variables, settings.environment)


def _of(variables: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """names: of the variables besides those that every tool sees."""
    return {name: variables[name] for name in (*PLAIN, *names) if name in variables}


def run(toolset: Toolset, tools: dict[str, Tool], control: socket.socket) -> None:
    """Forks the processes of one attempt's tools, on its orders, until it ends."""
    with tempfile.TemporaryDirectory(prefix="ouro-tools-", ignore_cleanup_errors=True) as own:
        _confine(toolset.settings, own)
        serve(control, partial(_work, toolset.settings, tools))


def _confine(settings: ToolArguments, own: str) -> None:
    """Gives this process the memory that tools may have, a directory, and no output."""
    os.environ["TMPDIR"] = own
    tempfile.tempdir = None  # where it was, if this process has asked before
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    if settings.tool_gib is not None:
        # not RLIMIT_AS: heaps, garbage collectors and each thread's arena reserve addresses that they never use
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[5]) * resource.getpagesize()
        limit = used + int(settings.tool_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _work(settings: ToolArguments, tools: dict[str, Tool], channel: socket.socket) -> None:
    """Answers the calls that come through a socket."""
    unpacker, own, worlds = Unpacker(), os.getpid(), []
    while data := channel.recv(1 << 16):
        for name, arguments, key in unpacker.feed(data):
            try:
                if key == BEGIN:
                    world, listed = _begun(settings, *arguments)
                    worlds.append(world)
                    result = listed, False
                else:
                    text, failed = _called(tools.get(name), worlds, name, arguments, key)
                    if not is_encodable(text):
                        raise ValueError("the result has half of a surrogate pair; needed Unicode")
                    result = _cut(text), failed
            except Lost as lost:
                result = lost
            except BaseException as error:  # of the tool, which may also exit
                result = _cut(f"error: {escaped(brief(error))}"), True
            if os.getpid() != own:
                os._exit(0)  # a copy that the tool made of this process
            channel.sendall(packed(result))


def _begun(settings: ToolArguments, world: str, own: dict[str, str], deadline: float) -> tuple[Any, str]:
    """The environment, or the connection to an MCP server with what it lists as JSON.

    own: the server's variables. deadline: time.monotonic(), at which the server should have listed its tools.
    """
    if not world:
        environment = load_environment(settings.environment_class)()
        environment.settings = settings
        return environment, ""
    from ouroboros.workflows.attempts.mcp_client import Connection  # imported before the fork, if a server is named

    server = settings.servers[world]
    connection = Connection(world, server, _of(os.environ, ()) | own, deadline)
    return connection, json.dumps(connection.definitions)


def _called(tool: Tool | None, worlds: list[Any], name: str, arguments: str, key: str) -> Result:
    """What a tool returned. worlds: the environment or the connection to a server, if the tool has one."""
    if key == CLOSE:
        return as_text(worlds[0].close()), False
    if worlds and not isinstance(worlds[0], Environment):
        return worlds[0].call(tool.own_name, json.loads(arguments))
    if worlds and name == RESET:
        return as_text(worlds[0].reset(Situation(**json.loads(arguments)))), False
    if worlds and name == REWARD:
        return json.dumps(worlds[0].reward()), False
    given = tool.read(arguments) | ({KEY: key} if KEY in inspect.signature(tool.function).parameters else {})
    found = tool.function(*worlds, **given)
    return as_text(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found), False


async def _awaited(found: Awaitable) -> Any:
    return await found


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… (cut: {len(text)} characters)"
