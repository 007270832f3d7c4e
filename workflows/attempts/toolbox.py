"""The tools of one attempt, in its process: what the parameter `toolbox` of a workflow is.

Every call goes through the flight recorder (workflows/attempts/recording.py): its intent before the tool runs, its
result before the workflow sees it. After a kill a recorded result takes the place of the call.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from pipeline.settings.arguments.answers import ToolArguments
from workflows.attempts.tool_process import Lost, Processes, Result, Session
from workflows.tools import RESET, REWARD, load_environment, load_tools

INTENT, RESULT = "intent", "result"  # kinds of messages to the explorer

Task = tuple[list[dict], str] | None  # messages and truth


class ToolFailed(Exception):
    """A call that an attempt cannot go on without: of an environment that is lost, its reset or its reward."""


class Toolbox:
    """The tools by name: `toolbox.call(name, arguments)`, with arguments as an object or as JSON."""

    def __init__(self, settings: ToolArguments, task: Task, channel):
        """channel: of the attempt. Forks, so this process must have no threads yet."""
        self._settings, self._task, self._tools = settings, task, load_tools(settings)
        self._processes = Processes(channel, settings, self._tools)
        self._ask: Callable[..., Any] = NotImplemented
        named = settings.environment_class
        self._environment = load_environment(named) if named else None
        self._world: Session | None = None
        self._made: list[tuple[str, str, str, Result]] = []  # calls of the environment, with keys and results
        self._one = threading.Lock()  # an environment has one call at a time

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
            return f"error: there is no tool '{name}'; there are {', '.join(self._tools)}"
        tool = self._tools[name]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        try:
            tool.read(text)
            text = json.dumps(json.loads(text), sort_keys=True, ensure_ascii=False)
        except ValueError as error:
            return f"error: {error}"
        if tool.is_method:
            return self._of_environment(name, text)[0]
        return self._recorded(name, text, tool.declaration.idempotent, self._alone)[1][0]

    def reset(self) -> str:
        """Resets the environment; returns what the model sees first. Raises ToolFailed."""
        messages, answer = self._task or ([], "")
        return self._needed(RESET, json.dumps({"messages": messages, "answer": answer}, sort_keys=True))

    def reward(self) -> float | dict[str, float] | None:
        """The environment's reward of the attempt. Raises ToolFailed."""
        return json.loads(self._needed(REWARD, "{}"))

    def function(self, name: str) -> Callable[..., str]:
        """A tool as a function with the signature and docstring of its own, for other libraries."""
        tool = self._tools[name]

        @wraps(tool.function)
        def call(*given, **named) -> str:
            return self.call(name, dict(tool.signature.bind(*given, **named).arguments))

        call.__signature__ = tool.signature
        return call

    def _needed(self, name: str, arguments: str) -> str:
        text, failed = self._of_environment(name, arguments)
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
        """Calls a function in a process of its own."""
        session = self._processes.start()
        try:
            result = session.call(name, arguments, key, self._seconds(name))
        except Lost as lost:
            return f"error: {lost}", True
        session.close()
        return result

    def _of_environment(self, name: str, arguments: str) -> Result:
        """Calls a method of the environment; its state is then that after all calls so far."""
        with self._one:
            key, result = self._recorded(name, arguments, self._environment.idempotent, self._in_world)
            self._made.append((name, arguments, key, result))
            return result

    def _in_world(self, name: str, arguments: str, key: str) -> Result:
        if self._world is None:
            self._world = self._processes.start()
            if self._made and not self._environment.idempotent:
                raise ToolFailed("outcome unknown: the state of the environment was lost when the explorer was killed, "
                                 "and its class is not declared idempotent")
            for *call, result in self._made:
                if (again := self._of_world(*call)) != result:
                    raise ToolFailed(f"replayed after a kill, {call[0]} of the environment returned {again[0][:80]!r} "
                                     f"instead of {result[0][:80]!r}; needed the same results of the same calls")
        return self._of_world(name, arguments, key)

    def _of_world(self, name: str, arguments: str, key: str) -> Result:
        try:
            return self._world.call(name, arguments, key, self._seconds(name))
        except Lost as lost:
            raise ToolFailed(f"{lost}; the state of the environment is lost") from lost

    def _seconds(self, name: str) -> float:
        own = self._tools[name].declaration.seconds if name in self._tools else None
        return own or self._settings.tool_seconds


class AsyncToolbox(Toolbox):
    """The tools in an `async def`: `await toolbox.call(name, arguments)`."""

    async def call(self, name: str, arguments: Any = "{}") -> str:
        return await asyncio.to_thread(super().call, name, arguments)

    async def reset(self) -> str:
        return await asyncio.to_thread(super().reset)

    async def reward(self) -> float | dict[str, float] | None:
        return await asyncio.to_thread(super().reward)
