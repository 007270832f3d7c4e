"""An engine that is a server of OpenAI's interface: for evaluation and debugging, not for training.

Such a server takes messages and gives text. Workflows speak in token ids: those of `text_tokenizer`, one for each byte,
whose chat template writes a conversation as JSON, which the engine reads back. Log-probs are NaN.
"""

import asyncio
import json
import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import StageError
from ouroboros.workflows.engines.remote import Remote, RequestFailed
from ouroboros.workflows.protocol.engine import WAIT_SECONDS, Engine, Failed, Reply, Request
from ouroboros.workflows.protocol.forced_calls import as_fields, as_text
from ouroboros.workflows.protocol.hugging_face import import_transformers

END = "<|end of reply|>"
TEMPLATE = "{{ {'messages': messages, 'tools': tools or []} | tojson }}"
UNLIMITED = 1 << 24  # bytes of a conversation: the server has its own limits


def limits(config):
    """The settings without limits on the length of conversations, which count bytes here; replies keep theirs."""
    return config.merged({"model": {"max_prompt_tokens": UNLIMITED, "max_model_len": 2 * UNLIMITED}})


@cache
def text_tokenizer():
    """A tokenizer with a token for each byte, whose chat template is JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def write_model(directory: Path, settings) -> dict[str, str]:
    """Writes a server as a model: the tokenizer by which it is asked, and a config.json with its address, returned.

    settings: the section explorer.rollout_model.external.
    """
    where = {"base_url": settings.base_url, "model_name": settings.model_name}
    text_tokenizer().save_pretrained(directory)
    files.write_json(directory / "config.json", where)
    return where


class OpenAIEngine(Engine):
    """Requests to a server, made on an event loop in its own thread."""

    def __init__(self, model: Path | None, config, end_tokens: list[int], sleeps: bool, adapter=None):
        """model: directory of a stage `server`, which has its address; None: config has it. The rest is not used."""
        settings = config.explorer.rollout_model.external
        if model is not None:
            settings = settings.model_copy(update=files.read_json(model / "config.json"))
        self._loop, self._numbers, self._done = asyncio.new_event_loop(), count(), queue.SimpleQueue()
        self._flying: dict[int, Future] = {}
        threading.Thread(target=self._loop.run_forever, daemon=True, name="openai").start()
        self.remote = asyncio.run_coroutine_threadsafe(_opened(settings), self._loop).result()
        self.version = f"{settings.model_name} at {settings.base_url}"

    def submit(self, requests: Sequence[Request]) -> list[int]:
        numbers = [next(self._numbers) for _ in requests]
        for number, request in zip(numbers, requests, strict=True):
            future = asyncio.run_coroutine_threadsafe(self._reply(request), self._loop)
            self._flying[number] = future
            future.add_done_callback(lambda _, number=number: self._done.put(number))
        return numbers

    def advance(self, seconds: float = WAIT_SECONDS) -> dict[int, Reply]:
        replies: dict[int, Reply] = {}
        try:
            number = self._done.get(timeout=seconds)
            while True:
                if future := self._flying.pop(number, None):
                    replies[number] = future.result()
                number = self._done.get_nowait()
        except queue.Empty:
            return replies

    def cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._flying.pop(number).cancel()

    async def _reply(self, request: Request) -> Reply:
        text = text_tokenizer().decode(request.prompt_tokens)
        sampling = {"temperature": request.temperature, "top_p": request.top_p, "max_tokens": request.max_tokens,
                    "seed": request.seed}
        try:
            if (asked := _conversation(text)) is None:
                said = (await self.remote.complete(text, **sampling)).choices[0]
                return _as_reply(said.text, said.finish_reason)
            tools = {"tools": asked["tools"]} if asked["tools"] else {}
            constraint = as_fields(request.schema, asked["tools"])
            said = (await self.remote.chat(asked["messages"], **tools, **constraint, **sampling)).choices[0]
        except RequestFailed as error:
            return Failed(str(error))
        called = said.message.tool_calls or ()
        if "tool_choice" in constraint and called:
            called = [(one.function.name, one.function.arguments) for one in called]
            return _as_reply(as_text(called), said.finish_reason)
        calls = "".join(map(_call, called))
        return _as_reply((said.message.content or "") + calls, said.finish_reason)

    def score(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        raise StageError("a server of OpenAI's interface scores no tokens: set explorer.rollout_model.engine_type to "
                         "vllm or transformers.")

    def probe(self, sequence: list[int]) -> list[list[float]]:
        return [self.score([sequence])[0]]

    def likeliest(self, sequence: list[int], temperature: float) -> list[dict[int, float]]:
        return self.score([sequence])

    def load_weights(self, directory: Path) -> None:
        self.score([])

    def sleep(self) -> None:
        """Does nothing: the memory is the server's."""

    def wake(self) -> None:
        """Does nothing: the memory is the server's."""

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.remote.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _opened(settings) -> Remote:
    return Remote(settings)


def _conversation(text: str) -> dict[str, Any] | None:
    """The messages and tools that a prompt was made of; None for plain text."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not (isinstance(found, dict) and found.keys() == {"messages", "tools"}):
        return None
    for call in (call for message in found["messages"] for call in message.get("tool_calls") or ()):
        if not isinstance(call["function"]["arguments"], str):  # an object for chat templates, a text for the server
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return found


def _call(call) -> str:
    """A tool call as the parser `hermes` reads it."""
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = call.function.arguments
    content = json.dumps({"name": call.function.name, "arguments": arguments}, ensure_ascii=False)
    return f"\n<tool_call>\n{content}\n</tool_call>"


def _as_reply(text: str, finish: str | None) -> Reply:
    tokens = text_tokenizer()(text, add_special_tokens=False)["input_ids"]
    if finish != "length":
        tokens.append(text_tokenizer().eos_token_id)
    return Reply(tokens, [float("nan")] * len(tokens), "length" if finish == "length" else "stop")
