"""Tokenizes conversations for training: every assistant turn after a user turn is a response.

The layout is that of a multi-turn rollout: first prompt, first response with its end token, the chat template's text up
to the next generation prompt, second response, and so on. A response of text alone is trained as it is written; one of
a conversation with tools, calls or thoughts as the template writes it (workflows/template_rows.py).
"""

from collections.abc import Callable
from typing import Any

from operators.turns import Unusable
from pipeline.store.errors import DataError, ModelError
from workflows.protocol.prompts import prompt_text, prompt_tokens, response_tokens, task_texts, task_turns, turn_end
from workflows.reward_model import conversation_tokens
from workflows.template_rows import Layout, TemplateRows


def demonstrations(tokenizer, tasks: list, config, every_turn: bool) -> list[list[Layout] | str]:
    """The rows of each demonstration, or why there is none. every_turn: train on every turn of the assistant.

    config: settings with sections model and buffer.
    """
    made, rows = whole_conversations if every_turn else last_responses, TemplateRows(tokenizer, config)
    plain = iter(_each(lambda some: made(tokenizer, some, config), [task for task in tasks if task.messages is None]))
    return [_or_reason(rows.of_demonstration, task, every_turn) if task.messages is not None else
            found if isinstance(found := next(plain), str) else [found] for task in tasks]


def pairs(tokenizer, tasks: list, config) -> list[tuple[Layout, Layout] | str]:
    """The chosen and the rejected response of each pair, or why there are none."""
    rows, plain = TemplateRows(tokenizer, config), [task for task in tasks if task.messages is None]
    made = iter(_each(lambda some: _plain_pairs(tokenizer, some, config), plain))
    return [_or_reason(rows.of_pair, task) if task.messages is not None else next(made) for task in tasks]


def whole_pairs(tokenizer, tasks: list, config, padding: int) -> list[tuple[list[int], list[int]] | str]:
    """The chosen and the rejected conversation of each pair, as a reward model is asked (workflows/reward_model.py), up
    to the last token that is not `padding`, which its score is taken at; or why there are none."""
    if not tokenizer.chat_template:
        raise ModelError("the model has no chat_template: nothing says how a reward model joins question and response. "
                         "Set model.custom_chat_template.")
    return [_whole_pair(tokenizer, task, config, padding) for task in tasks]


def _whole_pair(tokenizer, task, config, padding: int) -> tuple[list[int], list[int]] | str:
    if task.messages is not None:
        return "it has tools, calls, thoughts or several turns in a response, and a reward model is asked about texts"
    made = []
    for response in (task.chosen, task.rejected):
        tokens = conversation_tokens(tokenizer, [*task_turns(task, config), {"role": "assistant", "content": response}])
        if isinstance(tokens, str):
            return tokens
        while tokens and tokens[-1] == padding:
            tokens.pop()
        if not tokens:
            return "its conversation is padding alone"
        made.append(tokens)
    return ("both conversations are the same tokens, of which nothing is learned" if made[0] == made[1] else
            (made[0], made[1]))


def _plain_pairs(tokenizer, tasks: list, config) -> list[tuple[Layout, Layout]]:
    prompts = prompt_tokens(tokenizer, task_texts(tokenizer, tasks, config))
    responses = [response_tokens(tokenizer, [getattr(task, which) for task in tasks])
                 for which in ("chosen", "rejected")]
    return [((prompt, chosen, [1] * len(chosen)), (prompt, rejected, [1] * len(rejected)))
            for prompt, chosen, rejected in zip(prompts, *responses, strict=True)]


def _each(make: Callable[[list], list], tasks: list) -> list:
    """What is made of all tasks at once; where the template refuses one, of each alone, or the reason."""
    try:
        return make(tasks)
    except DataError:
        return [_or_reason(lambda one: make([one])[0], task) for task in tasks]


def _or_reason(make: Callable, *given: Any) -> Any:
    try:
        return make(*given)
    except (Unusable, DataError) as reason:
        return str(reason)


def last_responses(tokenizer, tasks: list, config) -> list[Layout]:
    """Every demonstration as its prompt, including earlier turns, and its last response."""
    prompts = prompt_tokens(tokenizer, task_texts(tokenizer, tasks, config))
    responses = response_tokens(tokenizer, [task.solution for task in tasks])
    return [(prompt, response, [1] * len(response)) for prompt, response in zip(prompts, responses, strict=True)]


def whole_conversations(tokenizer, tasks: list, config) -> list[Layout]:
    """Every demonstration as its first prompt and the rest; all its responses are trained on."""
    return [_whole_conversation(tokenizer, task, config) for task in tasks]


def _whole_conversation(tokenizer, task, config) -> Layout:
    """Raises DataError when the template renders earlier turns differently from how they were answered.

    (It may remove reasoning.) The tokens of a single pass would then differ from what the policy sees.
    """
    turns = [*task.context, {"role": "user", "content": task.question}, {"role": "assistant", "content": task.solution}]
    places = [i for i, turn in enumerate(turns) if turn["role"] == "assistant" and i and turns[i - 1]["role"] == "user"]
    seen = [_text_before(tokenizer, turns, place, config) for place in places]
    (prompt,) = prompt_tokens(tokenizer, seen[:1])
    tokens, mask, end = [], [], tokenizer.convert_ids_to_tokens(turn_end(tokenizer))
    for number, place in enumerate(places):
        content = turns[place]["content"]
        (response,) = response_tokens(tokenizer, [content])
        between = _between(seen, number, content) if number + 1 < len(places) else None
        if between is not None:
            own = between.startswith(end)
            response = response if own else response[:-1]
            (between,) = tokenizer([between.removeprefix(end)], add_special_tokens=False)["input_ids"]
        tokens += [*response, *(between or [])]
        mask += [1] * len(response) + [0] * len(between or [])
    return prompt, tokens, mask


def _text_before(tokenizer, turns: list[dict], place: int, config) -> str:
    """The policy's prompt for the turn at `place`."""
    return prompt_text(tokenizer, turns[place - 1]["content"], config.buffer.explorer_input.system_prompt,
                       turns[: place - 1], config.model.enable_thinking)


def _between(seen: list[str], number: int, content: str) -> str:
    """The text between response `number` and the next: end mark, user turns, generation prompt."""
    answered = seen[number] + content
    if not seen[number + 1].startswith(answered):
        raise DataError(f"the chat template (if the model has one) does not repeat {content[:60]!r} as it was answered "
                        "once another turn follows, so a conversation cannot be trained on in one pass. Set "
                        "buffer.trainer_input.experience_buffer.format.enable_concatenated_multi_turn=false.")
    return seen[number + 1][len(answered) :]
