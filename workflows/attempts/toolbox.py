"""The tools of one attempt, in its process: what the parameter `toolbox` of a workflow is.

Every call goes through the flight recorder (workflows/attempts/recording.py): its intent before the tool runs, its
result before the workflow sees it. After a kill a recorded result takes the place of the call.
"""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from ouroboros.pipeline.store.foreign_text import escaped
from ouroboros.workflows.attempts.tool_process import CLOSE, Processes, Result, Session
from ouroboros.workflows.attempts.wire import Lost
from ouroboros.workflows.protocol.tools import ENVIRONMENT, RESET, REWARD, Toolset, load_environment, load_tools, title

INTENT, RESULT = "intent", "result"  # kinds of messages to the explorer
CLOSE_SECONDS = 2.0

Task = tuple[list[dict], str] | None  # messages and truth


class ToolFailed(Exception):
    """A call that an attempt cannot go on without: of a world that is lost, an environment's reset or its reward."""


class World:
    """What one process does for all calls of an attempt, one at a time: the environment, or an MCP server.

    It is started at the first call without a recorded result. Its state is then made again by repeating the calls that
    have one, if all of them are idempotent.
    """

    def __init__(self, name: str, processes: Processes, seconds: Callable[[str], float],
                 listed: Sequence[dict] = (), stateful: bool = True):
        """seconds: limit of a call by the tool's name. listed: what an MCP server must list."""
        self._name, self._processes, self._seconds = name, processes, seconds
        self._listed, self._stateful = listed, stateful
        self._session: Session | None = None
        self.failed: str | None = None  # why the attempt cannot go on with it
        self.made: list[tuple[str, str, str, bool, Result]] = []  # name, arguments, key, whether idempotent, result
        self.lock = threading.Lock()

    def call(self, name: str, arguments: str, key: str) -> Result:
        """Raises ToolFailed when the state is lost, or cannot be made again; then also in all later calls."""
        if self.failed:
            raise ToolFailed(self.failed)
        try:
            return self._call(name, arguments, key)
        except ToolFailed as error:
            self.failed = str(error)
            raise

    def _call(self, name: str, arguments: str, key: str) -> Result:
        if self._session is None:
            self._begin()
        try:
            return self._session.call(name, arguments, key, self._seconds(name))
        except Lost as lost:
            if self._stateful:
                raise ToolFailed(f"{lost}; the state of {title(self._name)} is lost") from lost
            self._session = None
            return f"error: {lost}", True

    def _begin(self) -> None:
        made = self.made if self._stateful else []
        if not all(idempotent for *_, idempotent, _ in made):
            raise ToolFailed(f"outcome unknown: the state of {title(self._name)} was lost when the explorer was "
                             "killed, and it is not declared idempotent")
        try:
            session, now = self._processes.begin(self._name)
        except Lost as lost:
            raise ToolFailed(str(lost)) from lost
        offered = {one["name"]: one for one in json.loads(now)} if self._listed else {}
        if names := [one["name"] for one in self._listed if offered.get(one["name"]) != one]:
            session.close()
            raise ToolFailed(f"{title(self._name)} does not offer the tool '{names[0]}' as it did when the stage "
                             "began; needed the same tools for all attempts of a stage")
        self._session = session
        for *call, _, result in made:
            if (again := self.call(*call)) != result:
                raise ToolFailed(f"replayed after a kill, {call[0]} of {title(self._name)} returned {again[0][:80]!r} "
                                 f"instead of {result[0][:80]!r}; needed the same results of the same calls")

    def close(self) -> None:
        """Ends the session at a server that outlives the attempt."""
        if self._session:
            with contextlib.suppress(Lost, OSError):
                self._session.call(CLOSE, "", CLOSE, CLOSE_SECONDS)


class Toolbox:
    """The tools by name: `toolbox.call(name, arguments)`, with arguments as an object or as JSON."""

    def __init__(self, named: Toolset, task: Task, control: socket.socket):
        """control: takes orders to fork processes of the tools."""
        self._settings, self._task, self._tools = named.settings, task, load_tools(named)
        self._processes = processes = Processes(control, named.settings, os.environ)
        self._ask: Callable[..., Any] = NotImplemented
        environment, servers = self._settings.environment_class, self._settings.servers
        self._environment = load_environment(environment) if environment else None
        self._worlds = {name: World(name, processes, self._seconds, named.listed[name], one.keeps_state)
                        for name, one in servers.items()}
        self._served = [self._worlds[name] for name, one in servers.items() if one.url]
        self._worlds[ENVIRONMENT] = World(ENVIRONMENT, processes, self._seconds)

    def connect(self, ask: Callable[..., Any]) -> None:
        """ask: asks the explorer and waits for its answer."""
        self._ask = ask

    @property
    def definitions(self) -> list[dict]:
        """The tools as a request to the model names them."""
        return [tool.definition for tool in self._tools.values()]

    @property
    def has_environment(self) -> bool:
        return self._environment is not None

    def call(self, name: str, arguments: Any = "{}") -> str:
        """What a tool returns, as text; what is wrong with a call, or with the tool, is a text that begins `error:`."""
        if name not in self._tools:
            return f"error: there is no tool '{escaped(str(name))}'; there are {', '.join(self._tools)}"
        tool = self._tools[name]
        try:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            tool.read(text)
            text = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
            text.encode()  # half of a surrogate pair, which JSON can escape, is no text
        except (ValueError, TypeError, RecursionError) as error:
            return f"error: {escaped(str(error))}"
        if tool.world is not None:
            return self._of_world(tool.world, name, text, tool.declaration.idempotent)[0]
        return self._recorded(name, text, tool.declaration.idempotent, self._alone)[1][0]

    @property
    def failed(self) -> str | None:
        """Why the attempt has failed whatever its agent makes of it: a state was lost."""
        return next((one.failed for one in self._worlds.values() if one.failed), None)

    def close(self) -> None:
        """Ends the sessions at servers; everything else ends with the processes of the attempt."""
        for one in self._served:
            one.close()

    def reset(self) -> str:
        """Resets the environment; returns what the model sees first. Raises ToolFailed."""
        messages, answer = self._task or ([], "")
        return self._needed(RESET, json.dumps({"messages": messages, "answer": answer}, sort_keys=True))

    def reward(self) -> float | dict[str, float] | None:
        """The environment's reward of the attempt. Raises ToolFailed."""
        return json.loads(self._needed(REWARD, "{}"))

    def function(self, name: str) -> Callable[..., str]:
        """A tool as a function with its own signature and docstring, for other libraries."""
        tool = self._tools[name]

        @wraps(tool.function)
        def call(*given, **named) -> str:
            return self.call(name, dict(tool.signature.bind(*given, **named).arguments))

        call.__signature__ = tool.signature
        return call

    def _needed(self, name: str, arguments: str) -> str:
        text, failed = self._of_world(ENVIRONMENT, name, arguments, self._environment.idempotent)
        if failed:
            raise ToolFailed(f"{name} of the environment: {text.removeprefix('error: ')}")
        return text

    def _recorded(self, name: str, arguments: str, idempotent: bool, run: Callable[..., Result]) -> tuple[str, Result]:
        """The key of a call, and its recorded result, or that of `run`, which is then recorded."""
        key, known = self._ask(INTENT, name, arguments, idempotent)
        if known:
            return key, tuple(known[:2])
        begin = time.monotonic()
        result = run(name, arguments, key)
        self._ask(RESULT, key, (*result, time.monotonic() - begin))
        return key, result

    def _alone(self, name: str, arguments: str, key: str) -> Result:
        """Calls a function in its own process."""
        session = self._processes.start()
        try:
            result = session.call(name, arguments, key, self._seconds(name))
        except Lost as lost:
            return f"error: {lost}", True
        session.close()
        return result

    def _of_world(self, world: str, name: str, arguments: str, idempotent: bool) -> Result:
        """Calls a tool of a world; its state is then that after all calls so far."""
        one = self._worlds[world]
        with one.lock:
            key, result = self._recorded(name, arguments, idempotent, one.call)
            one.made.append((name, arguments, key, idempotent, result))
            return result

    def _seconds(self, name: str) -> float:
        declared = (self._tools[name].declaration if name in self._tools else
                    getattr(getattr(self._environment, name, None), "declaration", None))
        return (declared and declared.seconds) or self._settings.tool_seconds


class AsyncToolbox(Toolbox):
    """The tools in an `async def`: `await toolbox.call(name, arguments)`."""

    async def call(self, name: str, arguments: Any = "{}") -> str:
        return await asyncio.to_thread(super().call, name, arguments)

    async def reset(self) -> str:
        return await asyncio.to_thread(super().reset)

    async def reward(self) -> float | dict[str, float] | None:
        return await asyncio.to_thread(super().reward)
