"""Processes of tools: forked from an attempt's before it has threads, without its environment, output and sockets.

A function has a process for each call; an environment has one for the whole attempt. Each is the leader of a process
group, which is killed at the end of the call or at its limit, with all that the tool started. TMPDIR is a directory of
the attempt, which is deleted at its end.
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
from collections.abc import Awaitable
from functools import partial
from itertools import count
from typing import Any

from pipeline.job.context import ending
from pipeline.settings.arguments.answers import ToolArguments
from pipeline.store.user_errors import brief
from workflows.attempts.forking import serve
from workflows.attempts.wire import Unpacker, packed
from workflows.tools import KEY, RESET, REWARD, Environment, Situation, Tool, as_text, load_environment

PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "PYTHONPATH", "VIRTUAL_ENV",
         "SSL_CERT_FILE", "SSL_CERT_DIR", "OMP_NUM_THREADS")  # variables that every tool sees
LONGEST = 1 << 16  # characters of a result

Result = tuple[str, bool]  # text, and whether the tool failed


class Lost(Exception):
    """A call ended without a result: its process is gone."""


class Processes:
    """Starts the processes of tools and calls them, from any thread."""

    def __init__(self, channel: socket.socket, settings: ToolArguments, tools: dict[str, Tool]):
        """channel: of the attempt, which tools do not get."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._numbers, self._lock = count(), threading.Lock()
        if os.fork() == 0:
            try:
                os.setsid()  # the end of the attempt kills its group: this process then kills those of the tools
                channel.close()
                self._control.close()
                with tempfile.TemporaryDirectory(prefix="ouro-tools-", ignore_cleanup_errors=True) as own:
                    _confine(settings, own)
                    serve(theirs, partial(_work, settings, tools))
            finally:
                os._exit(0)
        theirs.close()

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

    def call(self, name: str, arguments: str, key: str, seconds: float) -> Result:
        """Raises Lost when the tool takes longer, or its process ends."""
        try:
            return self._call(packed((name, arguments, key)), time.monotonic() + seconds)
        except TimeoutError as error:
            self.close()
            raise Lost(f"{name} timed out after {seconds:g} s (tool_seconds)") from error
        except OSError as error:
            raise Lost(f"the process of {name} {self.close()}, without a result") from error

    def _call(self, message: bytes, deadline: float) -> Result:
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
        self._channel.close()
        return self._processes.end(self._number)


def _confine(settings: ToolArguments, temporary: str) -> None:
    """Gives this process the variables and the memory that tools may have, and no output.

    temporary: the directory for their temporary files.
    """
    kept = {name: os.environ[name] for name in (*PLAIN, *settings.environment) if name in os.environ}
    os.environ.clear()
    os.environ.update(kept | {"TMPDIR": temporary})
    tempfile.tempdir = None  # where it was, if this process has asked before
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    if settings.tool_gib is not None:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        limit = used + int(settings.tool_gib * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _work(settings: ToolArguments, tools: dict[str, Tool], channel: socket.socket) -> None:
    """Answers the calls that come through a socket."""
    unpacker, own, worlds = Unpacker(), os.getpid(), []
    while data := channel.recv(1 << 16):
        for name, arguments, key in unpacker.feed(data):
            try:
                if not worlds and (name in (RESET, REWARD) or tools[name].is_method):
                    worlds.append(load_environment(settings.environment_class)())
                result = _cut(_called(tools.get(name), worlds, name, arguments, key)), False
            except BaseException as error:  # of the tool, which may also exit
                result = _cut(f"error: {brief(error)}"), True
            if os.getpid() != own:
                os._exit(0)  # a copy that the tool made of this process
            channel.sendall(packed(result))


def _called(tool: Tool | None, worlds: list[Environment], name: str, arguments: str, key: str) -> str:
    """What a tool returned. worlds: the environment, if there is one."""
    if name == RESET:
        return as_text(worlds[0].reset(Situation(**json.loads(arguments))))
    if name == REWARD:
        return json.dumps(worlds[0].reward())
    given = tool.read(arguments) | ({KEY: key} if KEY in inspect.signature(tool.function).parameters else {})
    found = tool.function(*(worlds if tool.is_method else ()), **given)
    return as_text(asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found)


async def _awaited(found: Awaitable) -> Any:
    return await found


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… (cut: {len(text)} characters)"
