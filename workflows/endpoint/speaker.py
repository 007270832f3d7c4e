"""An attempt as the endpoint sees it: its requests become calls of the model, and replies go back to them."""

import asyncio
import json
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count

from ouroboros.workflows.endpoint.conversation import Conversation, Prompt
from ouroboros.workflows.endpoint.dialect import Answer, Ask, Refusal, parts
from ouroboros.workflows.protocol.engine import Failed, Reply, Stop
from ouroboros.workflows.protocol.outcomes import Origin

ENDED = Refusal(410, "this attempt has ended", "attempt_ended")
MASKS = Refusal(400, "a JSON format of replies and a forced tool_choice mask the distribution that is trained; leave "
                     "them out. They are answered in evaluations, and by `ouro serve` without --record", "unsupported")

READER = ThreadPoolExecutor(1)  # of images: one at a time is in memory, and requests without any go on meanwhile


class Speaker:
    """The requests in progress of one attempt.

    ask(call, tokens, limit, origin, schema, stop, pictures), cancel(call): of the attempt; calls are numbered. longest:
    tokens of a sequence. check: of the JSON schemas of replies; None: they are trained on, so they may not have one.
    """

    def __init__(self, conversation: Conversation, longest: int, ask: Callable, cancel: Callable,
                 check: Callable[[str], None] | None):
        self.conversation, self._longest, self._ask, self._cancel = conversation, longest, ask, cancel
        self._check = check
        self._numbers, self._waiting, self.number = count(), {}, -1  # its own number: of the server
        self._ended: Refusal | None = None

    async def answer(self, ask: Ask) -> Answer:
        """Asks the model for every choice of a request. Raises Refusal when the attempt ends before the replies."""
        if ask.schema is not None:
            if self._check is None:
                raise MASKS
            await asyncio.to_thread(self._check, ask.schema)  # others go on meanwhile
        self._require_short(ask)
        if ask.pictures:
            ask = await asyncio.get_running_loop().run_in_executor(READER, self.conversation.looked, ask)
        prompt = self.conversation.prompt(ask)
        if not 0 < len(prompt.tokens) < self._longest:
            raise Refusal(400, f"the prompt has {len(prompt.tokens)} tokens; needed at least 1, and fewer than "
                          f"{self._longest} (model.max_model_len, or prompt + response)", "context_length_exceeded")
        if ask.wishes:
            _warn(f"agents set {', '.join(ask.wishes)}; the section `model` of the run decides how the policy is "
                  "sampled (table calls, column wishes)")
        numbers = [next(self._numbers) for _ in range(ask.number)]
        replies = await self._replies(numbers, ask, prompt)
        for reply in replies:
            if isinstance(reply, Failed):
                raise Refusal(400, reply.reason, "failed")
            if ask.logprobs and any(map(math.isnan, reply.logprobs)):
                raise Refusal(400, "the server that answers gives no log-probs; leave them out", "unsupported")
        choices = [self.conversation.record(number, ask, prompt, reply)
                   for number, reply in zip(numbers, replies, strict=True)]
        logprobs = [self.conversation.logprobs(choice) if ask.logprobs else [] for choice in choices]
        return Answer(f"call-{numbers[0]}", int(time.time()), len(prompt.tokens), choices, logprobs)

    async def _replies(self, numbers: list[int], ask: Ask, prompt: Prompt) -> list[Reply | Failed]:
        """Asks for the calls of a request and waits for their replies."""
        loop = asyncio.get_running_loop()
        origin = Origin(ask.api, prompt.retokenized, json.dumps(ask.wishes) if ask.wishes else None, ask.role)
        stop = Stop(tuple(ask.stop), ask.shows_special) if ask.stop else None
        if self._ended:  # while its images were looked at
            raise self._ended
        self._waiting |= {number: loop.create_future() for number in numbers}
        for number in numbers:
            self._ask(number, prompt.tokens, ask.max_tokens, origin, ask.schema, stop, prompt.pictures)
        try:
            return [await self._waiting[number] for number in numbers]
        except asyncio.CancelledError:  # the client is gone
            for number in numbers:
                if not self._waiting[number].done() or self._waiting[number].cancelled():
                    self._cancel(number)
            raise
        finally:
            for number in numbers:
                del self._waiting[number]

    def reply(self, number: int, reply: Reply) -> None:
        if number in self._waiting and not self._waiting[number].done():
            self._waiting[number].set_result(reply)

    def close(self, why: Refusal = ENDED) -> None:
        self._ended = why
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(why)

    def _require_short(self, ask: Ask) -> None:
        """Refuses what is too long whatever its tokens are: to count those of a large body takes a minute."""
        texts = [ask.prompt] if ask.prompt is not None else [
            part.get("text", "") for one in ask.messages for part in parts(one)]
        length = sum(map(len, texts))
        if len(texts) > self._longest or length > self._longest * self.conversation.longest_token:
            raise Refusal(400, f"the prompt has {length} characters in {len(texts)} parts, which cannot be fewer than "
                               f"{self._longest} tokens (model.max_model_len, or prompt + response)",
                          "context_length_exceeded")


@cache
def _warn(line: str) -> None:
    logging.getLogger(__name__).warning("warning: %s", line)
