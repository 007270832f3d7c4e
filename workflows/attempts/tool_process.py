"""Processes of tools: forked from an attempt's before it has threads, without its environment, output and sockets.

A function has a process for each call; an environment, and an MCP server, has one for the whole attempt. Each is the
leader of a process group, which is killed at the end of the call or at its limit, with all that the tool started.
TMPDIR is a directory of the attempt, which is deleted at its end.
"""

import asyncio
import inspect
import json
import os
import resource
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from pipeline.job.context import ending
from pipeline.settings.arguments.answers import ToolArguments
from pipeline.store.foreign_text import escaped, is_encodable
from pipeline.store.user_errors import brief
from workflows.attempts.forking import serve
from workflows.attempts.wire import Lost, Unpacker, packed
from workflows.tools import KEY, RESET, REWARD, Environment, Situation, Tool, Toolset, as_text, load_environment, title

PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH",
         "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS")  # variables that every tool sees
LONGEST = 1 << 16  # characters of a result
BEGIN, CLOSE = "begin", "close"  # keys of calls that are of no tool: of a world
OWN_SHARE = 0.9  # of the time for a start, after which the process itself says what is wrong

Result = tuple[str, bool]  # text, and whether the tool failed


class Processes:
    """Starts the processes of tools and calls them, from any thread."""

    def __init__(self, channel: socket.socket | None, toolset: Toolset, tools: dict[str, Tool]):
        """channel: of the attempt, which tools do not get."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers, self._lock, self._settings = count(), threading.Lock(), toolset.settings
        if os.fork() == 0:
            try:
                os.setsid()  # the end of the attempt kills its group: this process then kills those of the tools
                if channel:
                    channel.close()
                self._control.close()
                with tempfile.TemporaryDirectory(prefix="ouro-tools-", ignore_cleanup_errors=True) as own:
                    variables = os.environ | {"TMPDIR": own}
                    _confine(toolset.settings, variables)
                    serve(theirs, partial(_work, toolset.settings, tools, variables))
            finally:
                os._exit(0)
        theirs.close()

    def begin(self, world: str) -> tuple["Session", str]:
        """Starts the process of a world; returns it, and the tools that an MCP server lists. Raises Lost."""
        session, seconds = self.start(), self._settings.tool_seconds
        text, failed = session.call(f"the start of {title(world)}", world, BEGIN, seconds)
        if failed:
            session.close()
            raise Lost(f"{title(world)}: {text.removeprefix('error: ')}")
        return session, text

    def start(self) -> "Session":
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            number = next(self._numbers)
            socket.send_fds(self._control, [f"start {number}".encode()], [theirs.fileno()])
        return Session(self, number, ours)

    def end(self, number: int) -> str:
        """Kills a process with all that it started; returns how it had ended."""
        with self._lock:
            self._control.send(f"code {number}".encode())
            code = self._control.recv(64).decode()
        return "could not be started" if code == "None" else ending(int(code))


class Session:
    """A process of tools."""

    def __init__(self, processes: Processes, number: int, channel: socket.socket):
        self._processes, self._number, self._channel = processes, number, channel
        self._ended: str | None = None  # how the process had ended

    def call(self, name: str, arguments: str, key: str, seconds: float) -> Result:
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


def _of(variables: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """What a tool sees of the environment. names: of the variables beside those that every tool sees."""
    return {name: variables[name] for name in (*PLAIN, *names) if name in variables}


def _confine(settings: ToolArguments, variables: Mapping[str, str]) -> None:
    """Gives this process the variables and the memory that tools may have, and no output."""
    kept = _of(variables, settings.environment)
    os.environ.clear()
    os.environ.update(kept)
    tempfile.tempdir = None  # where it was, if this process has asked before
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    if settings.tool_gib is not None:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limit = used + int(settings.tool_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(settings: ToolArguments, tools: dict[str, Tool], variables: dict[str, str], channel: socket.socket) -> None:
    """Answers the calls that come through a socket. variables: the environment without limits."""
    unpacker, own, worlds = Unpacker(), os.getpid(), []
    while data := channel.recv(1 << 16):
        for name, arguments, key in unpacker.feed(data):
            try:
                if key == BEGIN:
                    world, listed = _begun(settings, arguments, variables)
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


def _begun(settings: ToolArguments, world: str, variables: dict[str, str]) -> tuple[Any, str]:
    """The environment, or the connection to an MCP server with what it lists as JSON."""
    if not world:
        environment = load_environment(settings.environment_class)()
        environment.settings = settings
        return environment, ""
    from workflows.attempts.mcp_client import Connection  # imported before the fork, if a server is named

    server = settings.servers[world]
    if missing := [name for name in server.variables if name not in variables]:
        raise Lost(f"{title(world)} needs the environment variable {missing[0]}, which is not set")
    connection = Connection(world, server, _of(variables, server.variables), OWN_SHARE * settings.tool_seconds)
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
