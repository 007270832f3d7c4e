"""The conversations of a server: their replies by the engine, and which of them a request continues."""

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ouroboros.stages.serving.attempts import Attempt, Reply
from ouroboros.stages.serving.engine_loop import EngineLoop
from ouroboros.workflows.endpoint.conversation import Conversation
from ouroboros.workflows.endpoint.dialect import Answer, Ask, Refusal
from ouroboros.workflows.endpoint.speaker import Speaker
from ouroboros.workflows.engines.guided import check
from ouroboros.workflows.engines.vllm_tools import import_parsers, tool_calls
from ouroboros.workflows.protocol.engine import Request, Stop
from ouroboros.workflows.protocol.outcomes import Origin

RANGES = {"temperature": (0, 100), "top_p": (1e-6, 1), "top_k": (-1, 1 << 30), "seed": (0, (1 << 63) - 1)}


@dataclass(frozen=True)
class Sampling:
    """How the model is sampled where the client says nothing, or in any case (`fixed`: while it is recorded).

    longest: tokens of a sequence; prompt, reply: of its parts, if they have their own limits.
    """

    temperature: float
    top_p: float
    top_k: int
    longest: int
    fixed: bool
    prompt: int | None = None
    reply: int | None = None
    min_p: float = 0.0

    def request(self, prompt: list[int], limit: int | None, wishes: dict, schema: str | None = None,
                stop: Stop | None = None) -> Request:
        """Raises Refusal for sampling parameters out of range."""
        wished = {} if self.fixed else wishes
        for name, value in wished.items():
            low, high = RANGES[name]
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise Refusal(400, f"{name} is {value!r}; needed a number from {low} to {high}", "invalid_request")
        room = self.longest - len(prompt)
        room = min(room, self.reply or room)
        return Request(prompt, min(room, limit or room), wished.get("temperature", self.temperature),
                       wished.get("top_p", self.top_p), int(wished.get("top_k", self.top_k)),
                       int(wished.get("seed", secrets.randbits(48))), schema=schema, stop=stop, min_p=self.min_p)


class _Noted(Conversation):
    """A conversation that passes on every reply that it keeps."""

    def __init__(self, note: Callable, *arguments):
        super().__init__(*arguments)
        self._note = note

    def record(self, number, ask, prompt, reply):
        choice = super().record(number, ask, prompt, reply)
        self._note(number, ask, prompt, self._said[-1].reply)
        return choice


class Session(Speaker):
    """One conversation. name: by which the client continues it; None: of a single request."""

    def __init__(self, name: str | None, engine: EngineLoop, sampling: Sampling, tokenizer, config,
                 replied: Callable[[Attempt, Reply], None]):
        conversation = _Noted(self._note, tokenizer, config.model, config.explorer.tool_call_parser, tool_calls)
        longest = min(sampling.longest, (sampling.prompt or sampling.longest) + 1)
        super().__init__(conversation, longest, self._begin, lambda number: self._tasks[number].cancel(),
                         None if sampling.fixed else check)
        self.attempt, self.touched = Attempt(secrets.token_hex(8), name), time.monotonic()
        self._engine, self._sampling, self._replied = engine, sampling, replied
        self._tasks: dict[int, asyncio.Task] = {}
        self._asked: dict[int, tuple[Request, float]] = {}

    async def answer(self, ask: Ask) -> Answer:
        """As of a Speaker, with an id that no other response has."""
        self._sampling.request([0], 1, ask.wishes or {})  # refuses before anything is asked
        if ask.tools:
            await asyncio.to_thread(import_parsers)
        attempt, self.touched = self.attempt, time.monotonic()
        found = await super().answer(ask)
        return replace(found, id=found.id.replace("call", attempt.id))

    def _begin(self, number: int, tokens: list[int], limit: int | None, origin: Origin,
               schema: str | None, stop: Stop | None, pictures: tuple = ()) -> None:
        request = self._sampling.request(tokens, limit, json.loads(origin.wishes or "{}"), schema, stop)
        self._asked[number] = request, time.monotonic()
        self._tasks[number] = task = asyncio.create_task(self._engine.reply(request))
        task.add_done_callback(partial(self._end, number))

    def _end(self, number: int, task: asyncio.Task) -> None:
        del self._tasks[number]
        if task.cancelled():
            self._asked.pop(number)
        elif task.exception():
            self.close(Refusal(503, f"not answered: {task.exception()}", "ended"))
        else:
            self.reply(number, task.result())

    def _note(self, number: int, ask: Ask, prompt, reply) -> None:
        request, begin = self._asked.pop(number)
        self.touched = time.monotonic()
        self._replied(self.attempt, Reply(
            ask.api, prompt.tokens, reply.tokens, reply.logprobs, reply.finish_reason, prompt.retokenized,
            json.dumps(ask.wishes) if ask.wishes else None, request.temperature, request.top_p, request.top_k,
            request.seed, time.monotonic() - begin, time.time(), request.min_p))
