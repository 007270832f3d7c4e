"""Tokenizes conversations for training: every assistant turn after a user turn is a response.

The layout is that of a multi-turn rollout: first prompt, first response with its end token, the chat template's text up
to the next generation prompt, second response, and so on (workflows/template_rows.py).
"""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ouroboros.operators.turns import Unusable
from ouroboros.pipeline.store.errors import DataError, ModelError
from ouroboros.workflows.protocol.prompts import task_turns
from ouroboros.workflows.protocol.sight import TYPED, marks, with_images
from ouroboros.workflows.reward_model import conversation_tokens
from ouroboros.workflows.template_rows import Layout, TemplateRows


def demonstrations(tokenizer, tasks: list, config, every_turn: bool, shown: list | None = None,
                   alive: Callable[[], None] | None = None) -> list[list[Layout] | str]:
    """The rows of each demonstration, or why there is none. every_turn: train on every turn of the assistant.

    config: settings with sections model and buffer. shown: the images of each, whose tokens are in its prompts. alive:
    called for each prompt, where there are any.
    """
    rows = TemplateRows(tokenizer, config)
    made = [_or_reason(rows.of_demonstration, task, every_turn) for task in tasks]
    return _with_images(tokenizer, made, shown, alive)


def pairs(tokenizer, tasks: list, config, shown: list | None = None, alive: Callable[[], None] | None = None
          ) -> list[tuple[Layout, Layout] | str]:
    """The chosen and the rejected response of each pair, or why there are none. shown, alive: as of demonstrations."""
    rows = TemplateRows(tokenizer, config)
    return _with_images(tokenizer, [_or_reason(rows.of_pair, task) for task in tasks], shown, alive)


def _with_images(tokenizer, made: list, shown: list | None, alive: Callable[[], None] | None) -> list:
    """The layouts of each task with the tokens of its images in their prompts, or why there are none."""
    shown = shown or [()] * len(made)
    each = [(place, layout) for place, layouts in enumerate(made) if not isinstance(layouts, str) for layout in layouts]
    tokens, reasons = with_images(tokenizer, [prompt for _, (prompt, _, _) in each],
                                  [shown[place] for place, _ in each], alive)
    found = defaultdict[int, list[Layout]](list)
    for number, (place, (_, rest, mask)) in enumerate(each):
        found[place].append((tokens[number], rest, mask))
    refused = {each[number][0]: reason for number, reason in reasons.items()}
    typed = marks(Path(tokenizer.name_or_path)) if each else set()  # where images are in prompts alone
    refused |= {place: TYPED for place, (_, rest, _) in each if not typed.isdisjoint(rest)}
    return [refused.get(place) or (layouts if isinstance(layouts, str) else type(layouts)(found[place]))
            for place, layouts in enumerate(made)]


def whole_pairs(tokenizer, tasks: list, config, padding: int) -> list[tuple[list[int], list[int]] | str]:
    """The chosen and the rejected conversation of each pair, as a reward model is asked (workflows/reward_model.py), up
    to the last token that is not `padding`, which its score is taken at; or why there are none."""
    if not tokenizer.chat_template:
        raise ModelError("the model has no chat_template: nothing says how a reward model joins question and response. "
                         "Set model.custom_chat_template.")
    return [_whole_pair(tokenizer, task, config, padding) for task in tasks]


def _whole_pair(tokenizer, task, config, padding: int) -> tuple[list[int], list[int]] | str:
    if task.messages is not None:
        return ("it has images, tools, calls, thoughts or several turns in a response, and a reward model is asked "
                "about texts")
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


def _or_reason(make: Callable, *given: Any) -> Any:
    try:
        return make(*given)
    except (Unusable, DataError) as reason:
        return str(reason)
