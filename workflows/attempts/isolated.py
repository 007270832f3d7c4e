"""Attempts in their own processes, as the explorer sees them: any code, ended at its limit, however it blocks.

A workflow with a parameter `model` (a function or `async def`) may wait, compute and start programs: it disturbs only
its own attempt. Its process is forked from one that has imported the workflow (workflows/attempts/host.py).
"""

import asyncio
import inspect
import pickle
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from ouroboros.pipeline.job.context import our_environment
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.foreign_text import is_encodable
from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.child import BEGUN, CANCEL, FAILED, MODEL, TASK, Job
from ouroboros.workflows.attempts.forker import IMPORT_SECONDS, Forker
from ouroboros.workflows.attempts.recording import Replayed
from ouroboros.workflows.attempts.time_limit import TimedOut
from ouroboros.workflows.attempts.tool_process import environment
from ouroboros.workflows.attempts.toolbox import INTENT, RESULT
from ouroboros.workflows.attempts.user_reward import Rule
from ouroboros.workflows.attempts.wire import Unpacker, packed
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.tools import Toolset, modules_of
from ouroboros.workflows.protocol.trajectory import Endpoint

LOST = "lost"  # kind of the message that the process has ended
REQUEST_PASSES = 8  # of the event loop, from the bytes of a request to its call of the model


@dataclass(frozen=True)
class Isolated:
    """A workflow whose attempts have their own processes. limit: seconds of its code; task: a TaskAtHand.

    speaks: it asks the model by HTTP (a parameter `endpoint`). consults: it asks other models (`auxiliary_models`).
    tools: of its parameter `toolbox`, if it has one.
    """

    function: Callable
    limit: float | None = None
    task: Any = None
    speaks: bool = False
    consults: bool = False
    tools: Toolset | None = None


class Host(Forker):
    """The process that forks attempts, with those that fork their tools, and the event loop that reads messages."""

    def __init__(self):
        super().__init__("ouroboros.workflows.attempts.host")
        self._toolsets: list[tuple[Toolset, Forker]] = []
        self._lent: dict[int, tuple[Forker, int]] = {}  # attempt -> what forks its tools
        self._loop, self._messages = asyncio.new_event_loop(), []
        self._wake = self._loop.create_future()
        self._endpoint = None

    @property
    def endpoint(self):
        """The server that agents ask the model by, started when the first one needs it."""
        if self._endpoint is None:
            from ouroboros.workflows.endpoint.server import Server  # not where nobody asks by HTTP

            self._endpoint = Server(self._loop)
        return self._endpoint

    def start(self, attempt: "IsolatedAttempt", modules: Sequence[str], tools: Toolset | None) -> int:
        """Forks the process of an attempt, connects both; returns its number. modules: of its workflow."""
        with ExitStack() as stack:
            lent, also = None, []
            if tools:
                forker = self._tools(tools)
                lent, orders = forker.fork(kind=socket.SOCK_SEQPACKET)
                lent, also = (forker, lent), [stack.enter_context(orders)]
            number, ours = self.fork(*modules, *modules_of(tools), also=also)
        if lent:
            self._lent[number] = lent
        self._loop.run_until_complete(self._loop.create_connection(lambda: attempt, sock=ours))
        return number

    def _tools(self, toolset: Toolset) -> Forker:
        """What forks the processes of tools: one for all attempts with the same ones."""
        for known, forker in self._toolsets:
            if known == toolset:
                return forker
        forker = Forker("ouroboros.workflows.attempts.tool_host", environment(toolset.settings, our_environment()),
                        toolset)
        if wrong := forker.ready(IMPORT_SECONDS):
            raise StageError(f"the tools of workflow_args cannot be used with the variables that tools see: {wrong}. "
                             "Name those that they need in workflow_args.environment.")
        self._toolsets.append((toolset, forker))
        return forker

    def end(self, number: int) -> None:
        """Kills the process of an attempt, and those of its tools, with all that they started."""
        super().end(number)
        self._end_tools(number)

    def code(self, number: int) -> int | None:
        """Does so too; returns the exit code of the process, or None if it could not be started."""
        code = super().code(number)
        self._end_tools(number)
        return code

    def _end_tools(self, number: int) -> None:
        if number in self._lent:
            forker, lent = self._lent.pop(number)
            forker.end(lent)

    def listen(self, seconds: float) -> list[tuple["IsolatedAttempt", tuple]]:
        """Waits at most so long for messages of attempts; returns them in order."""
        if self._endpoint:
            self._loop.run_until_complete(_passes(REQUEST_PASSES))
        if not self._messages:
            self._wake = self._loop.create_future()
            timer = self._loop.call_later(seconds, self._awake)
            self._loop.run_until_complete(self._wake)
            timer.cancel()
        found, self._messages = self._messages, []
        return found

    def receive(self, attempt: "IsolatedAttempt", message: tuple) -> None:
        self._messages.append((attempt, message))
        self._awake()

    def _awake(self) -> None:
        if not self._wake.done():
            self._wake.set_result(None)


async def _passes(number: int) -> None:
    """Lets the event loop handle what is ready, so often."""
    for _ in range(number):
        await asyncio.sleep(0)


host = cache(Host)


class IsolatedAttempt(asyncio.Protocol):
    """One attempt. place: what its questions and its end are reported to (workflows/attempts/schedule.py).

    Its clock runs from the workflow's first line on, while it waits for no reply of the model. calling: calls of tools
    without a result.
    """

    def __init__(self, workflow: Isolated, prompt: list[int], place):
        self._workflow, self._prompt, self._place = workflow, prompt, place
        self._unpacker, self._waiting = Unpacker(), set()
        self._used, self._since, self._number = 0.0, None, None
        self._speaker, self.calling = None, 0

    def begin(self) -> None:
        task, function = self._workflow.task, self._workflow.function
        asks_task, tools = TASK in inspect.signature(function).parameters, self._workflow.tools
        known = None if task is None or not (asks_task or tools) else (  # `shown` reads its images
            task.shown if self._workflow.speaks else task.messages, task.answer)
        try:
            job = packed(Job(function, self._prompt, known if asks_task else None,
                             self._admitted() if self._workflow.speaks else None, tools, known if tools else None,
                             self._workflow.task.consulted() if self._workflow.consults else None))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return self._place.fail(f"another process cannot import the workflow: {brief(error)}")
        modules = [getattr(function, "func", function).__module__, *["openai"] * self._workflow.consults]
        self._number = host().start(self, modules, tools)
        return self._transport.write(job)

    def _admitted(self) -> Endpoint:
        """Lets the agent ask the model by HTTP."""
        self._speaker = self._workflow.task.speaker(partial(self._tell, MODEL), partial(self._tell, CANCEL))
        return host().endpoint.admit(self._speaker)

    def _tell(self, kind: str, *content) -> None:
        host().receive(self, (kind, time.monotonic(), *content))

    def answer(self, call: int, reply: Reply) -> None:
        if self._speaker:
            self._speaker.reply(call, reply)
        else:
            self._transport.write(packed((call, True, reply)))
        self._no_longer_waits(call)

    def close(self) -> None:
        """Ends the process, if it has one, and its requests."""
        if self._speaker:
            host().endpoint.end(self._speaker)
            self._speaker = None  # it refers to this attempt
        if self._number is not None:
            self._transport.abort()
            host().end(self._number)
            self._number = None

    @property
    def deadline(self) -> float | None:
        """The time.monotonic() at which its code has used up its limit; None while it does not run."""
        limit = self._workflow.limit
        return None if limit is None or self._since is None or self._waiting else self._since + limit - self._used

    def _title(self) -> str:
        function = self._workflow.function
        while inner := getattr(function, "__wrapped__", getattr(function, "func", None)):  # of a partial
            function = inner
        return f"{function.__module__}:{function.__qualname__}"

    def time_out(self) -> None:
        self._place.fail(brief(TimedOut(self._workflow.limit, self._title())))

    def take(self, kind: str, sent: float, *content) -> None:
        """Handles a message. sent: time.monotonic() in the process, the same clock."""
        if (deadline := self.deadline) is not None and sent > deadline:
            self.time_out()
        elif kind == LOST:
            how, self._number = host().how(self._number), None
            self._place.fail(f"the process of the workflow {self._title()} {how}, without a result")
        elif kind == BEGUN:
            self._since = sent if self._since is None else self._since  # a request by HTTP may overtake it
        elif kind == MODEL:
            self._stop_clock(sent)
            self._waiting.add(content[0])
            self._place.ask(*content)
        elif kind == CANCEL:
            self._place.cancel(*content)
            self._no_longer_waits(*content)
        elif kind == TASK:
            self._stop_clock(sent)  # the engine may have computed since then
            self._transport.write(packed(self._task(*content)))
        elif kind in (INTENT, RESULT):
            self._stop_clock(sent)
            self._record(kind, *content)
        elif kind == FAILED:
            self._place.fail(*content)
        else:
            (self._conclude if self._speaker else self._place.finish)(*content)

    def _record(self, kind: str, call: int, *content) -> None:
        """Records that a tool is called, or what it returned; the process goes on when that is on the disk."""
        recording = self._place.recording
        self.calling -= kind == RESULT
        try:
            (recording.intend if kind == INTENT else recording.result)(*content, partial(self._permit, call))
        except Replayed as error:
            self._place.fail(str(error))

    def _permit(self, call: int, answer: Any) -> None:
        if self._number is not None:  # the attempt has not ended meanwhile
            self.calling += answer is not None and answer[1] is None  # the tool runs now: no result is recorded
            self._transport.write(packed((call, True, answer)))

    def _conclude(self, returned: Any) -> None:
        """Ends the attempt of an agent: its calls are the rows; what it returned is its answer, or its reward."""
        spoken, components = self._speaker.conversation, None
        if not spoken.calls:
            return self._place.fail("the agent ended without a reply of the model; needed at least one call of its "
                                    "endpoint")
        if not (returned is None or isinstance(returned, str)):
            function = self._workflow.function
            components = Rule(getattr(function, "func", function), {}, 0).read(returned)
            if isinstance(components, str):
                return self._place.fail(components)
            if getattr(components, "tokens", None) is not None:
                return self._place.fail(f"the agent returned {str(returned)[:80]}; needed a number, or {{component: "
                                        "number}, as its tokens are those of several replies")
        text = returned if isinstance(returned, str) else spoken.last_text
        if not is_encodable(text):
            return self._place.fail("the agent returned a text with half of a surrogate pair; needed Unicode")
        return self._place.finish(spoken.rows(), text, components)

    def _task(self, call: int, method: str, arguments: tuple) -> tuple[int, bool, Any]:
        try:
            return call, True, getattr(self._workflow.task, method)(*arguments)
        except Exception as error:  # of the user's reward function, or of arguments of the wrong kind
            return call, False, brief(error)

    def _stop_clock(self, at: float) -> None:
        """Counts the time up to `at`; the clock goes on from now."""
        if not self._waiting and self._since is not None:
            self._used += max(at - self._since, 0.0)
            self._since = time.monotonic()

    def _no_longer_waits(self, call: int) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
            if not self._waiting:
                self._since = time.monotonic()

    # asyncio.Protocol
    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for message in self._unpacker.feed(data):
            host().receive(self, message)

    def connection_lost(self, error: Exception | None) -> None:
        host().receive(self, (LOST, time.monotonic()))
