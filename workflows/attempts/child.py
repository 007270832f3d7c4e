"""The process of one attempt: runs the workflow, and passes its questions to the explorer.

Forked by workflows/attempts/host.py. What the parameters `model` and `task` of the workflow are is defined here.
"""

import asyncio
import contextlib
import inspect
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from operator import index
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.user_errors import brief
from ouroboros.workflows.attempts.toolbox import AsyncToolbox, Toolbox, ToolFailed
from ouroboros.workflows.attempts.wire import Unpacker, packed
from ouroboros.workflows.protocol.engine import Reply
from ouroboros.workflows.protocol.outcomes import Outcome
from ouroboros.workflows.protocol.tools import TOOLBOX, Toolset
from ouroboros.workflows.protocol.trajectory import Endpoint

# kinds of messages to the explorer; the first two are also the parameters of a workflow that ask
MODEL, TASK, CANCEL, DONE, FAILED = "model", "task", "cancel", "done", "failed"
BEGUN = "begun"  # the workflow's own code: all before it is the start of a process, which no limit counts
ENDPOINT = "endpoint"  # parameter of a workflow that asks the model by HTTP
AUXILIARY = "auxiliary_models"  # parameter of one that asks them


@dataclass(slots=True)
class Job:
    """An attempt. task: messages and answer for a workflow with a parameter `task`; endpoint: for one with that.

    tools: for one with a parameter `toolbox`; situation: the task as tools see it. auxiliary: how the models are asked,
    for one with a parameter `auxiliary_models`.
    """

    workflow: Callable
    prompt: list[int]
    task: tuple[list[dict], str] | None
    endpoint: Endpoint | None = None
    tools: Toolset | None = None
    situation: tuple[list[dict], str] | None = None
    auxiliary: list[Endpoint] | None = None


class Refused(Exception):
    """The explorer could not answer a question of the workflow."""


class Calls:
    """Questions to the explorer, from any thread; each has a number and gets one answer."""

    def __init__(self, channel: socket.socket):
        self._channel, self._numbers, self._waiting = channel, count(), {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, kind: str, *question) -> tuple[int, Future]:
        """Sends a question; returns its number and its future answer."""
        future: Future = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
            self._channel.sendall(packed((kind, time.monotonic(), number, *question)))
        return number, future

    def forget(self, number: int) -> None:
        with self._lock:
            if self._waiting.pop(number, None):
                self._channel.sendall(packed((CANCEL, time.monotonic(), number)))

    def tell(self, message: bytes) -> None:
        with self._lock:
            self._channel.sendall(message)

    def _read(self) -> None:
        unpacker = Unpacker()
        with contextlib.suppress(ConnectionResetError):  # the explorer was killed before it read everything
            while data := self._channel.recv(1 << 16):
                for number, is_fine, value in unpacker.feed(data):
                    future = self._waiting.pop(number, None)
                    if future and future.set_running_or_notify_cancel():  # not given up at this moment
                        future.set_result(value) if is_fine else future.set_exception(Refused(value))
        os._exit(1)  # the explorer has ended this attempt


class Model:
    """The policy: `model(tokens)` returns the Reply that continues a prompt."""

    def __init__(self, calls: Calls):
        self._calls = calls

    def __call__(self, prompt: Sequence[int]) -> Reply:
        return self._calls.ask(MODEL, _tokens(prompt))[1].result()


def _tokens(prompt: Sequence[int]) -> list[int]:
    """Token ids as plain integers; raises TypeError for anything else, which the engine would reject later."""
    return [index(token) for token in prompt]


class AsyncModel(Model):
    """The policy in an `async def`: `await model(tokens)`."""

    async def __call__(self, prompt: Sequence[int]) -> Reply:
        number, future = self._calls.ask(MODEL, _tokens(prompt))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._calls.forget(number)
            raise


class RemoteTask:
    """ouroboros.workflows.task_at_hand.TaskAtHand, whose tokenizer and reward functions are in the explorer."""

    def __init__(self, calls: Calls, messages: list[dict], answer: str):
        self._calls, self.messages, self.answer = calls, messages, answer

    def prompt(self, messages: list[dict]) -> list[int]:
        return self._ask("prompt", messages)

    def text(self, tokens: list[int]) -> str:
        return self._ask("text", tokens)

    def judge(self, reply: Reply) -> Outcome:
        return self._ask("judge", reply)

    def has_room(self, prompt: list[int]) -> bool:
        return self._ask("has_room", prompt)

    def served(self) -> str:
        return self._ask("served")

    def python(self, environment: str) -> Path:
        return self._ask("python", environment)

    def _ask(self, method: str, *arguments) -> Any:
        return self._calls.ask(TASK, method, arguments)[1].result()


def run(channel: socket.socket, tools: socket.socket | None = None) -> None:
    """Runs the attempt whose Job is the first message of the channel, and ends the process.

    tools: takes orders to fork processes of its tools, if it has some.
    """
    unpacker, jobs = Unpacker(), []
    while not jobs:
        if not (data := channel.recv(1 << 16)):
            os._exit(1)
        jobs += unpacker.feed(data)
    try:
        toolbox = _toolbox(jobs[0], tools)
    except BaseException as error:  # of the user's module, which may also exit
        channel.sendall(packed((FAILED, time.monotonic(), brief(error))))
        os._exit(0)
    os.register_at_fork(after_in_child=channel.close)  # what the workflow forks must not hold it open
    calls = Calls(channel)
    calls.tell(packed((BEGUN, time.monotonic())))
    try:
        message = packed((DONE, time.monotonic(), _outcome(jobs[0], calls, toolbox)))
    except ToolFailed as error:
        message = packed((FAILED, time.monotonic(), str(error)))
    except BaseException as error:  # the user's workflow, which may also exit or return what cannot be sent
        message = packed((FAILED, time.monotonic(), brief(error)))
    if toolbox and (lost := toolbox.failed):  # also where the agent, or its library, went on
        message = packed((FAILED, time.monotonic(), lost))
    if toolbox:
        with contextlib.suppress(Exception):  # of a server that is left anyway
            toolbox.close()
    calls.tell(message)
    sys.stdout.flush()
    os._exit(0)


def _toolbox(job: Job, control: socket.socket | None) -> Toolbox | None:
    kind = AsyncToolbox if _is_async(job.workflow) else Toolbox
    return kind(job.tools, job.situation, control) if job.tools else None


def _is_async(workflow: Callable) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(getattr(workflow, "func", workflow)))


def _outcome(job: Job, calls: Calls, toolbox: Toolbox | None) -> Any:
    given: dict[str, Any] = {TASK: RemoteTask(calls, *job.task)} if job.task else {}
    if toolbox:
        toolbox.connect(lambda *question: calls.ask(*question)[1].result())
        given[TOOLBOX] = toolbox
    if job.auxiliary is not None:
        given[AUXILIARY] = clients(job.auxiliary, _is_async(job.workflow))
    if job.endpoint:
        os.environ.update(job.endpoint.variables)
        found = job.workflow(**given, **{ENDPOINT: job.endpoint})
    else:
        asks = MODEL in inspect.signature(job.workflow).parameters
        model = (AsyncModel if _is_async(job.workflow) else Model)(calls)
        found = job.workflow(job.prompt, **given, **({MODEL: model} if asks else {}))
    if inspect.isgenerator(found):
        return _advanced(found, Model(calls))
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


def _advanced(attempt: Generator, model: Model) -> Any:
    """What a generator returns that calls tools between its questions to the model."""
    reply = None
    while True:
        try:
            asked = attempt.send(reply)
        except StopIteration as done:
            return done.value
        reply = model(asked)


async def _awaited(found) -> Any:
    return await found


def clients(asked: list[Endpoint], is_async: bool) -> list[Any]:
    """OpenAI clients of these, each with the name of its model as `model_path`."""
    import openai

    kind, http = (openai.AsyncOpenAI, openai.DefaultAsyncHttpxClient) if is_async else (
        openai.OpenAI, openai.DefaultHttpxClient)
    made = []
    for one in asked:
        client = kind(base_url=one.base_url, api_key=one.api_key, max_retries=0,
                      http_client=http(trust_env=False, timeout=None))  # past any proxy; a reply takes its time
        client.model_path = one.model
        made.append(client)
    return made
