"""The conversation of an attempt with the model: messages to token ids and back, token in and token out.

When the messages of a request extend those of an earlier call and its reply, the tokens of that call are reused as they
were computed, and only what the chat template puts after the reply is tokenized. Otherwise (history was rewritten, the
template renders earlier turns differently, such as without their thoughts) the whole request is tokenized and begins a
row of its own. What the generation prompt put before the reply (a thought that it opened, an empty one, a channel) may
be absent from the history: it stays in the row as the model saw it.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from os.path import commonprefix

from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.foreign_text import escaped
from ouroboros.pipeline.store.pictures import Picture
from ouroboros.workflows.endpoint.dialect import Ask, Choice, meanings, parts, plain
from ouroboros.workflows.endpoint.merging import merged
from ouroboros.workflows.protocol.engine import STOP_TEXT, Reply
from ouroboros.workflows.protocol.forced_calls import calls_in
from ouroboros.workflows.protocol.prompts import conversation_text, prompt_tokens, turn_end, writes
from ouroboros.workflows.protocol.sight import sight_of, with_images
from ouroboros.workflows.protocol.trajectory import Trajectory

FORMATS = {  # mark in a chat template -> vLLM's name of the parser for its tool calls
    "<|python_tag|>": "llama3_json",
    "[TOOL_CALLS]": "mistral",
    "<｜tool▁calls▁begin｜>": "deepseek_v3",
    "<tool_call>": "hermes",
}
MARKS = re.compile(r"<[^<>]*>|\s")  # what a template may put before a reply besides its generation prompt
THOUGHTS = "reasoning_content"  # field of a turn of the assistant
AROUND_THOUGHTS = re.compile(r"\s*(</?think>)\s*")  # templates write a thought's line breaks anew


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue. text: as the template renders it; retokenized: none of an earlier call could be reused.
    pictures: whose tokens are among them."""

    tokens: list[int]
    text: str
    retokenized: bool
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class _Said:
    """A reply of the model, and the request that it answers. ended: its last token ends the turn."""

    number: int
    ask: Ask
    prompt: Prompt
    reply: Reply
    choice: Choice
    ended: bool

    @property
    def messages(self) -> list[dict]:
        return [*self.ask.messages, self.choice.message]


class Conversation:
    """What an attempt asked the model, and what it replied."""

    def __init__(self, tokenizer, model, parser: str | None, parse: Callable,
                 look: Callable[[Sequence[str]], list[Picture]] | None = None):
        """model: the settings of that section. parser: explorer.tool_call_parser. parse: of vllm_tools. look: stores
        the images of a request, or raises DataError; None: none is shown."""
        self._look = look
        self._tokenizer, self._thinking, self._said = tokenizer, model.enable_thinking, []
        template = tokenizer.chat_template or ""
        name = parser or next((name for mark, name in FORMATS.items() if mark in str(template)), "hermes")
        self._parse = partial(parse, name, tokenizer)

    @property
    def longest_token(self) -> int:
        """The most characters of a token."""
        return _longest_token(self._tokenizer)

    @property
    def calls(self) -> int:
        return len(self._said)

    @property
    def last_text(self) -> str:
        """The text of the latest reply."""
        return max(self._said, key=lambda said: said.number).choice.text

    def looked(self, ask: Ask) -> Ask:
        """The request with its images stored. Raises DataError for one that is not shown."""
        if self._look is None:
            raise DataError("images are shown to the model by agents of `ouro run` alone; needed texts")
        shown = iter([{"type": "image", "image": one} for one in self._look(ask.pictures)])
        return replace(ask, messages=[one if isinstance(one.get("content") or "", str) else {**one, "content": [
            next(shown) if part["type"] == "image" else part for part in parts(one)]} for one in ask.messages])

    def _expanded(self, tokens: list[int], pictures: Sequence[Picture]) -> list[int]:
        """Tokens of a text with those of its images. Raises DataError where it does not fit them."""
        (made,), reasons = with_images(self._tokenizer, [tokens], [pictures], None)
        if reasons:
            raise DataError(reasons[0])
        return made

    def _goes_on(self, said: _Said, pictures: tuple[Picture, ...]) -> bool:
        """Whether further images can follow a call: features go to the first tokens that stand for some."""
        before = said.prompt.pictures
        return len(before) == len(pictures) or not sight_of(self._tokenizer.name_or_path).sampled(
            [*said.prompt.tokens, *said.reply.tokens], before)

    def prompt(self, ask: Ask) -> Prompt:
        """The tokens that continue an earlier call, if the request does; else those of the whole request."""
        if ask.prompt is not None:
            is_text, known = isinstance(ask.prompt, str), len(self._tokenizer)
            if not is_text and not all(0 <= token < known for token in ask.prompt):
                raise DataError(f"prompt has an id that is no token; needed ids from 0 to {known - 1}")
            tokens = self._expanded(prompt_tokens(self._tokenizer, [ask.prompt])[0] if is_text else ask.prompt, ())
            return Prompt(tokens, ask.prompt if is_text else "", False)
        pictures = ask.pictures
        text = escaped(self._rendered(ask))  # arguments of tool calls are JSON, which can name what is no Unicode
        if not self._tokenizer.chat_template:  # the plain turns, as in training; none marks the end of a reply
            return Prompt(self._expanded(prompt_tokens(self._tokenizer, [text])[0], ()), text,
                          any(one["role"] == "assistant" for one in ask.messages))
        asked = [plain(one) for one in ask.messages]
        earlier = [said for said in self._said if said.ask.tools == ask.tools and not said.ask.forced
                   and len(said.messages) < len(asked)
                   and [plain(one) for one in said.messages] == asked[: len(said.messages)]]
        for said in sorted(earlier, key=lambda said: -len(said.messages)):
            if (after := self._after(said, text)) is not None and self._goes_on(said, pictures):
                new = self._expanded(self._tokenizer([after], add_special_tokens=False)["input_ids"][0],
                                     pictures[len(said.prompt.pictures) :])
                return Prompt([*said.prompt.tokens, *said.reply.tokens, *new], text, False, pictures)
        known = any(one["role"] == "assistant" for one in ask.messages)
        return Prompt(self._expanded(prompt_tokens(self._tokenizer, [text])[0], pictures), text, known, pictures)

    def _rendered(self, ask: Ask, asks: bool = True) -> str:
        """The conversation through the chat template, with generation prompt if asks; without a template its turns."""
        if (ask.tools or ask.pictures) and not self._tokenizer.chat_template:
            raise DataError("the model has no chat template, which writes tools and images; set "
                            "model.chat_template_path")
        for what in ("tools",) * bool(ask.tools) + (THOUGHTS,) * any(one.get(THOUGHTS) for one in ask.messages):
            if not writes(self._tokenizer, what):
                _warn(what)
        return conversation_text(self._tokenizer, list(ask.messages), self._thinking, ask.tools, asks)

    def _after(self, said: _Said, text: str) -> str | None:
        """What the template puts after a reply: the end of its turn, unless that was sampled, and what follows.

        None where the template renders the call or its reply differently from how they were computed.
        """
        rest = self._since(said, text)
        if rest is None:
            return None
        end = self._tokenizer.convert_ids_to_tokens(turn_end(self._tokenizer))
        again, found, after = rest.partition(end)
        shown, calls = self._read(again, said.ask)
        same = _repeats(shown, said.choice.text) and meanings(calls) == meanings(said.choice.calls)
        return (after if said.ended else found + after) if found and same else None

    def _since(self, said: _Said, text: str) -> str | None:
        """What a later rendering has in place of the reply and after it; None where it changes what was before.

        The history may lack a part of the generation prompt, of which it keeps the beginning (the role).
        """
        if text.startswith(said.prompt.text):
            return text[len(said.prompt.text) :]
        before = self._rendered(said.ask, asks=False)
        if not (said.prompt.text.startswith(before) and text.startswith(before)):
            return None
        opened, rest = said.prompt.text[len(before) :], text[len(before) :]
        shared = commonprefix([opened, rest])  # noqa: RUF071 (texts, no paths)
        kept = re.sub(r"<[^<>]*$", "", shared)  # <think> and <tool_call> begin alike
        return rest[len(kept) :]

    def _read(self, text: str, ask: Ask) -> tuple[str, list[tuple[str, str]]]:
        """Content and tool calls (name, arguments) of a reply."""
        if ask.forced:
            calls = calls_in(text)
            return "" if calls else text, calls
        return self._parse(text, ask.tools) if ask.tools and ask.calls_tools else (text, [])

    def record(self, number: int, ask: Ask, prompt: Prompt, reply: Reply) -> Choice:
        """Keeps a reply; returns what the client sees of it. number: of the call in the attempt."""
        ended = reply.finish_reason == "stop"
        body = reply.tokens[:-1] if ended else reply.tokens
        text, calls = self._read(self._decode(body, ask), ask)
        cut = self._cut(body, ask)
        if cut or reply.finish_reason == STOP_TEXT:  # without a cut where the engine makes another text of the tokens
            length, text = cut or (len(body), text)
            reply = Reply(reply.tokens[:length], reply.logprobs[:length], "stop")
            ended, calls = False, []
        named = [(f"call{number % 1000:03d}{place % 100:02d}", *map(escaped, call)) for place, call in enumerate(calls)]
        finish = "tool_calls" if calls else reply.finish_reason
        choice = Choice(text, named, finish, reply.tokens, reply.logprobs)
        self._said.append(_Said(number, ask, prompt, reply, choice, ended))
        return choice

    def tool_calls(self, text: str) -> list[tuple[str, str]]:
        """(name, arguments) of the tool calls in a reply, whatever tools there are."""
        return self._parse(text, ())[1]

    def _decode(self, tokens: list[int], ask: Ask) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=not ask.shows_special)

    def _cut(self, tokens: list[int], ask: Ask) -> tuple[int, str] | None:
        """Number of tokens up to the first stop text, and the text before it; None if there is none."""
        text = self._decode(tokens, ask)
        places = [text.find(stop) for stop in ask.stop if stop in text]
        if not places:
            return None
        low, high = 1, len(tokens)
        while low < high:  # the fewest tokens whose text has a stop
            middle = (low + high) // 2
            has = any(stop in self._decode(tokens[:middle], ask) for stop in ask.stop)
            low, high = (low, middle) if has else (middle + 1, high)
        return low, text[: min(places)]

    def logprobs(self, choice: Choice) -> list[tuple[str, float]]:
        """(text, log-prob) of each token of a reply."""
        texts = self._tokenizer.batch_decode([[token] for token in choice.tokens])
        return list(zip(texts, choice.logprobs, strict=True))

    def rows(self) -> list[Trajectory]:
        """The rows to train on, in order of their first calls: calls that extend each other are one row."""
        said = sorted(self._said, key=lambda said: said.number)
        return merged([Trajectory(s.prompt.tokens, s.reply.tokens, s.reply.logprobs, [1] * len(s.reply.tokens),
                                  s.reply.finish_reason, role=s.ask.role, pictures=s.prompt.pictures) for s in said])


@cache
def _warn(what: str) -> None:
    logging.getLogger(__name__).warning(
        "agents send %s, and the chat template does not write them: the model sees none of it. Set "
        "model.chat_template_path to one that does, or write them in the prompt", what)


@lru_cache(maxsize=1)
def _longest_token(tokenizer) -> int:
    return max(map(len, tokenizer.get_vocab()))


def _repeats(shown: str, text: str) -> bool:
    """Whether a rendering shows a reply's text, with no more than marks before it."""
    shown, text = (AROUND_THOUGHTS.sub(r"\1", one.strip()) for one in (shown, text))
    return shown.endswith(text) and not MARKS.sub("", shown[: len(shown) - len(text)])
