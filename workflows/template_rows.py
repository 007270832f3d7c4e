"""Demonstrations and pairs as rows to train on: what the chat template writes.

The response at a turn of the assistant is what lies between two renderings: of the turns before it with the generation
prompt, and of the turns up to it. So texts, calls and thoughts are trained in the template's own form, with its blanks
and its end token. A thought in the text that the template would cut out is kept.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path

from ouroboros.operators.turns import Turn, Unusable, said
from ouroboros.pipeline.store.errors import DataError
from ouroboros.workflows.protocol.prompts import (
    choices_of,
    conversation_of,
    conversation_text,
    end_tokens,
    prompt_tokens,
    task_texts,
    turn_end,
    with_system,
)

Layout = tuple[list[int], list[int], list[int]]  # prompt [P], remaining tokens [R], mask [R]: 1 on trained tokens
LINKS = {"tool": ("tool_call_id", "name")}  # fields by role that only repeat which call is answered
OPENS, CLOSES = r"(?:<(?:\w+:)?think(?:ing)?>|\[THINK\])", r"(?:</(?:\w+:)?think(?:ing)?>|\[/THINK\])"  # a thought
TAGS = re.compile(rf"(?:\s*(?:{OPENS}|{CLOSES})\s*)+$")  # with which a prompt begins a response
STUB = "an answer without a thought"


class Unwritten(Unusable):
    """The chat template leaves out, or writes otherwise, what a row has as needed: another one may write it."""


class TemplateRows:
    """The rows of conversations; remembers what the template reads in conversations of the same shape."""

    def __init__(self, tokenizer, config):
        """config: settings with sections model and buffer."""
        self._tokenizer, self._thinking = tokenizer, config.model.enable_thinking
        self._system = config.buffer.explorer_input.system_prompt
        self._special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._end, self._read = turn_end(tokenizer), set()
        self._ends = set(end_tokens(tokenizer, Path(tokenizer.name_or_path)))
        marks = [token.content for number, token in tokenizer.added_tokens_decoder.items() if number in self._ends]
        self._mark = "|".join(map(re.escape, marks)) or "(?!)"

    def of_demonstration(self, task, every_turn: bool) -> list[Layout]:
        """The last response of a demonstration; with every_turn all after the first turn of the user.

        Those that the template repeats as they were answered share a row, others begin one. Raises Unusable for a
        conversation that the template refuses, or of which it leaves something out.
        """
        given = conversation_of(task)
        turns, tools = given["messages"], given.get("tools", [])
        if turns[-1]["role"] != "assistant":
            turns.append({"role": "assistant", "content": task.solution})
        turns = with_system(turns, self._system)
        first = next(place for place, turn in enumerate(turns) if turn["role"] == "user")
        places = [place for place, turn in enumerate(turns) if turn["role"] == "assistant" and place > first]
        return self._rows(turns, tools, places if every_turn else places[-1:], task.messages is not None)

    def of_pair(self, task) -> tuple[Layout, Layout]:
        """Both responses of a pair, chosen first; all the assistant's turns in them are trained on. Raises Unusable."""
        given = conversation_of(task)
        asked = with_system(given["messages"], self._system)
        made = []
        for which in ("chosen", "rejected"):
            turns = [*asked, *given.get(which, [{"role": "assistant", "content": getattr(task, which)}])]
            places = [place for place in range(len(asked), len(turns)) if turns[place]["role"] == "assistant"]
            rows = self._rows(turns, given.get("tools", []), places, task.messages is not None)
            if len(rows) > 1:
                raise Unwritten(f"the chat template does not repeat the turns of {which} as they were answered, so "
                                "they are no single response")
            made += rows
        return made[0], made[1]

    def prompt(self, task) -> str:
        """The text of a task's prompt. Raises Unusable as `of_demonstration` does."""
        given = conversation_of(task)
        turns, tools = with_system(given["messages"], self._system), given.get("tools", [])
        self._require_read(turns, tools)
        return self._text(turns, tools)

    def _rows(self, turns: list[Turn], tools: list[dict], places: Sequence[int], is_rich: bool) -> list[Layout]:
        """is_rich: whether the turns say more than texts, all of which the template must read."""
        turns = [self._without_end(turn) if turn["role"] == "assistant" else turn for turn in turns]
        if is_rich:
            self._require_read(turns, tools)
        rows: list[Layout] = []
        written, ends = "", True  # the text of the last row so far, and whether its end token is in it
        for before, reply, tokens, is_ended in self._answers([turns[:place + 1] for place in places], tools):
            if rows and before.startswith(written):
                _, after, mask = rows[-1]
                between = self._tokens(before[len(written):])
                if not ends and between[:1] == after[-1:]:
                    del between[0]  # the next turn begins with what stops the model
                elif not ends:
                    del after[-1], mask[-1]
                after += [*between, *tokens]
                mask += [0] * len(between) + [1] * len(tokens)
            else:
                rows.append((prompt_tokens(self._tokenizer, [before])[0], tokens, [1] * len(tokens)))
            written, ends = before + reply, is_ended
        return rows

    def _answers(self, asked: list[list[Turn]], tools: list[dict]) -> list[tuple[str, str, list[int], bool]]:
        """`_answer` of each; where the template does not write one, the reason has what setting does."""
        try:
            return [self._answer(turns, tools) for turns in asked]
        except Unwritten as reason:
            other, works = copy(self), []
            for value in (False, True):
                other._thinking = value
                with suppress(Unusable):
                    works += [f"{value}".lower()] * all(other._reply(turns, tools)[2] is not None for turns in asked)
            way = f". model.enable_thinking={' or '.join(works)} works, and another template may" if works else ""
            raise Unwritten(f"{reason}{way}") from reason

    def _answer(self, turns: list[Turn], tools: list[dict]) -> tuple[str, str, list[int], bool]:
        """(prompt, response, tokens of the response with its end token, whether the text has that) at the last turn."""
        if found := re.search(self._mark, json.dumps(turns[-1], ensure_ascii=False)):
            raise Unusable(f"turn {len(turns)}: {found[0]}, with which the model ends a response, is in the middle of "
                           "what is said. Take it out, or end the turn there")
        before, after, reply = self._reply(turns, tools)
        if reply is None:
            raise Unwritten(f"turn {len(turns)}: the chat template " + (
                f"does not write all of content; it writes {after[len(before):][:80]!r}"
                if after.startswith(before) else
                f"writes a turn of the assistant otherwise than its generation prompt begins one ({before[-40:]!r})"))
        end = re.search(rf"(?:{self._mark})(?=(?:\s|{self._mark})*$)", reply)  # Phi-3 writes eos behind it
        shown = reply[:end.end()] if end else reply.rstrip()
        tokens = self._tokens(shown)
        if tokens and tokens[-1] in self._special:
            return before, shown, tokens, True
        return before, reply, [*self._tokens(reply), self._end_after(turns, tools)], False

    def _reply(self, turns: list[Turn], tools: list[dict]) -> tuple[str, str, str | None]:
        """(prompt, rendering of the turns, what of it is the response) at the last turn; None as response where the
        rendering does not go on from the prompt, or lacks content."""
        before, content = self._text(turns[:-1], tools, True), turns[-1]["content"]
        if not self._tokenizer.chat_template:
            return before, before + content, content
        begun = TAGS.search(before)
        is_over = bool(begun and re.search(rf"{CLOSES}\s*$", begun[0]))
        if is_over:  # the prompt has an empty thought already
            content = re.sub(rf"^\s*{OPENS}\s*{CLOSES}\s*", "", content)
            turns = [*turns[:-1], {**turns[-1], "content": content}]
        after = self._text(turns, tools, False)
        if is_over and re.match(rf"\s*{OPENS}", content):
            return before, "", None  # a thought cannot follow
        needed = _bare(content) if is_over or not begun else _bare(content).removeprefix(_bare(begun[0]))
        reply = after[len(before):] if after.startswith(before) else None
        if reply is None or needed not in _bare(reply):
            reply = None if is_over else self._with_thought(before, begun, turns, tools)
        return before, after, reply

    def _with_thought(self, before: str, begun: re.Match | None, turns: list[Turn], tools: list[dict]) -> str | None:
        """The response with the thought in its text, which the template cuts out or begins otherwise; None where there
        is none. begun: the tag with which the prompt opens one."""
        opened, content = begun[0] if begun else "", turns[-1]["content"]
        brought = re.match(rf"\s*({OPENS})", content)
        tag, rest = brought[1] if brought else opened.strip(), content[brought.end() if brought else 0:]
        if opened.strip() not in ("", tag) or f"{tag[:1]}/{tag[1:]}" not in rest or re.search(OPENS, rest):
            return None
        head, _, tail = self._text([*turns[:-1], {**turns[-1], "content": STUB}], tools, False).rpartition(STUB)
        if not opened:
            return content + tail if head == before else None
        if TAGS.sub("", head).rstrip() != TAGS.sub("", before).rstrip():
            return None
        return rest.removeprefix(opened.partition(tag)[2]) + tail

    def _without_end(self, turn: Turn) -> Turn:
        """A turn of the assistant without the end tokens that its text brings: the template writes one."""
        content = re.sub(rf"(?:(?:{self._mark})\s*)+$", "", turn["content"])
        return turn if content == turn["content"] else {**turn, "content": content}

    def _end_after(self, turns: list[Turn], tools: list[dict]) -> int:
        """The token that stops the model behind a turn whose text has none: the one that the template begins the next
        turn with (GLM's <|user|> or <|observation|>), where it is one, else that of other turns."""
        calls = turns[-1].get("tool_calls")
        said = [*turns[:-1], {"role": "assistant", "content": STUB} | ({"tool_calls": calls} if calls else {})]
        answer = {"role": "tool", "tool_call_id": calls[0].get("id", "")} if calls else {"role": "user"}
        with suppress(Unusable):
            now, later = self._text(said, tools), self._text([*said, answer | {"content": STUB}], tools, False)
            first = self._tokens(later[len(now):])[:1] if later.startswith(now) else []
            if first and self._ends.issuperset(first):
                return first[0]
        return self._end

    def _tokens(self, text: str) -> list[int]:
        return self._tokenizer([text], add_special_tokens=False)["input_ids"][0]

    def _text(self, turns: list[Turn], tools: list[dict], asks: bool | None = None) -> str:
        """The turns through the template. asks: whether its generation prompt follows; None: unless the assistant has
        the last one."""
        if asks is None:
            asks = turns[-1]["role"] != "assistant"
        try:
            return conversation_text(self._tokenizer, turns, self._thinking, tools, asks)
        except DataError as error:
            raise Unusable(str(error)) from error

    def _require_read(self, turns: list[Turn], tools: list[dict]) -> None:
        """Raises Unusable where the text is the same without a field: the template does not read it.

        A field is looked for when it was said: templates may leave out the thoughts of earlier turns.
        """
        ends = [place + 1 for place, turn in enumerate(turns) if turn["role"] == "assistant"] + [len(turns)]
        for place in range(len(turns)):
            until = turns[: next(end for end in ends if end > place)]
            self._require_field(until, tools, place, _shape(until, tools))
        if tools:
            asked = turns[:-1] if turns[-1]["role"] == "assistant" else turns
            self._require_field(asked, tools, None, _shape(asked, tools))

    def _require_field(self, turns: list[Turn], tools: list[dict], place: int | None, shape: tuple) -> None:
        """place: of the turn whose fields are looked for; None: the tools."""
        if (shape, place) in self._read:
            return
        changes = [(f"turn {place + 1}: {name}", [*turns[:place], changed, *turns[place + 1:]], tools)
                   for name, changed in _without(turns[place])] if place is not None else [
            ("tools (format.tools_key)", turns, [])]
        text = self._text(turns, tools)
        if what := next((what for what, *changed in changes if self._is_same(text, *changed)), None):
            raise Unwritten(f"{what}: " + (
                "the chat template does not read it: with and without it the text is the same"
                if self._tokenizer.chat_template else "the model has no chat template"))
        self._read.add((shape, place))  # only this: another conversation of the shape may say more there

    def _is_same(self, text: str, turns: list[Turn], tools: list[dict]) -> bool:
        try:
            return self._text(turns, tools) == text
        except Unusable:
            return False  # the template needs the field


def task_prompts(tokenizer, tasks: Sequence, config) -> tuple[list[str], dict[int, str]]:
    """The text of every task's prompt, with what its reply begins with; and, by place, why the template cannot write
    one: its text is then the question.

    config: settings with sections model and buffer. Raises DataError for a prompt of texts that the template refuses.
    """
    rich = {place: task for place, task in enumerate(tasks) if task.messages is not None}
    rows = TemplateRows(tokenizer, config) if rich else None
    written, reasons = {}, {}
    for place, task in rich.items():
        try:
            written[place] = rows.prompt(task)
        except Unusable as reason:
            written[place], reasons[place] = task.question, str(reason)
    plain = iter(task_texts(tokenizer, [task for task in tasks if task.messages is None], config))
    texts = [written[place] if place in rich else next(plain) for place in range(len(tasks))]
    return [text + choices_of(task).get("reply_prefix", "") for text, task in zip(texts, tasks, strict=True)], reasons


def _bare(text: str) -> str:
    """Without white space, which templates write anew."""
    return "".join(text.split())


def _shape(turns: list[Turn], tools: list[dict]) -> tuple:
    """What decides which fields a template reads: roles, fields that say something, calls with arguments."""
    return bool(tools), *((turn["role"],
                           *sorted(name for name, value in turn.items() if name != "content" or said(turn).strip()),
                           *(call["function"]["arguments"] != "{}" for call in turn.get("tool_calls", ())))
                          for turn in turns)


def _without(turn: Turn) -> Iterator[tuple[str, Turn]]:
    """(what is left out, the turn without it) for everything that the turn says."""
    for name, value in turn.items():
        if name == "tool_calls":
            yield from _without_calls(turn)
        elif name == "content":
            if isinstance(value, list):
                yield "an image", {**turn, "content": [part for part in value if part["type"] != "image"]}
            elif value.strip():  # templates write white space anew
                yield name, {**turn, "content": ""}
        elif name not in ("role", "content", *LINKS.get(turn["role"], ())):
            yield name, {key: one for key, one in turn.items() if key != name}


def _without_calls(turn: Turn) -> Iterator[tuple[str, Turn]]:
    calls = turn["tool_calls"]
    for place, call in enumerate(calls):
        rest = [*calls[:place], *calls[place + 1:]]
        others = {key: one for key, one in turn.items() if key != "tool_calls"}
        yield "tool_calls", {**others, "tool_calls": rest} if rest else others
        if call["function"]["arguments"] != "{}":
            empty = {**call, "function": {**call["function"], "arguments": "{}"}}
            yield "arguments of tool_calls", {**turn, "tool_calls": [*calls[:place], empty, *calls[place + 1:]]}
