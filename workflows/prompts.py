"""Converts a task's turns to prompt token ids through a chat template."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.store.digests import missing, resolve
from pipeline.store.errors import ConfigError, DataError, ModelError
from pipeline.store.model_shape import json_object
from workflows.engines.hugging_face import import_transformers

TEMPLATE = "chat_template.jinja"  # in a Hugging Face directory; overrides tokenizer_config.json


def chat_template(settings) -> str | None:
    """The template that the section `model` sets, from a file or as text; None: the tokenizer's."""
    if settings.chat_template_path is None:
        return settings.custom_chat_template
    path = resolve(settings.chat_template_path)
    if not path.is_file():
        raise missing(Path(settings.chat_template_path), "model.chat_template_path")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"model.chat_template_path={path} is no text ({error}); needed a Jinja template.") from error


def read_tokenizer(model: Path):
    """The tokenizer of a Hugging Face directory. Raises ModelError when it has none."""
    transformers = import_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True)
    except Exception as error:  # readers raise arbitrary errors on a damaged tokenizer.json
        raise ModelError(f"{model} has no readable tokenizer ({type(error).__name__}: {error}). Fetch its tokenizer "
                         "files again; `git lfs pull` where they are pointers of Git LFS.") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # without files transformers returns an empty tokenizer
        raise ModelError(f"{model} has no readable tokenizer: only special tokens were found. Are its files there "
                         "(tokenizer.json, or those of its kind)?")
    return tokenizer


def load_tokenizer(model: Path, settings=None):
    """The policy's tokenizer, with the chat template of the section `model`, if set.

    Raises ModelError when there is no tokenizer or no end-of-sequence token, ConfigError for an unusable template.
    """
    tokenizer = read_tokenizer(model)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {model} has no eos_token; responses could not end. Set it in "
                         "tokenizer_config.json.")
    own = chat_template(settings) if settings else None
    if own is not None:
        tokenizer.chat_template = own
    if tokenizer.chat_template:
        _try_template(tokenizer, "model.custom_chat_template or chat_template_path" if own is not None else
                      f"the chat template of {model}", is_own=own is not None)
    return tokenizer


def _try_template(tokenizer, named: str, is_own: bool) -> None:
    """Raises ConfigError for a template that does not parse or omits the user's text, and a user's own that fails."""
    from jinja2 import TemplateSyntaxError

    try:
        text = tokenizer.apply_chat_template([{"role": "user", "content": "a question"}], tokenize=False,
                                             add_generation_prompt=True)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{named}, line {error.lineno}: {error.message}. Needed a Jinja template over `messages`: "
                          "correct it, or set model.chat_template_path to another.") from error
    except _template_errors() as error:
        if not is_own:  # a model's own may need a system message, or reject some rows: reported when rows are read
            return
        raise ConfigError(f"{named} fails on one message of the user ({error}). Needed a Jinja template over "
                          "`messages` that takes it.") from error
    if "a question" not in text:
        raise ConfigError(f"{named} leaves out the user's message: it makes {text[:200]!r} of 'a question'. Needed a "
                          "Jinja template over `messages`; model.chat_template_path replaces that of a model.")


def _template_errors() -> tuple[type[Exception], ...]:
    """Exceptions that a template, which is code, may raise."""
    from jinja2 import TemplateError

    return TemplateError, ArithmeticError, LookupError, TypeError, ValueError


def keep_template(directory: Path, settings) -> None:
    """Writes the user's chat template, if set, into a Hugging Face directory, to ship with the model."""
    own = chat_template(settings)
    if own is not None:
        (Path(directory) / TEMPLATE).write_text(own, encoding="utf-8")


def turns_of(question: str, system_prompt: str | None, context: Sequence[dict] = ()) -> list[dict]:
    """The messages {role, content} of a prompt: the preceding turns, and the question as a user turn.

    system_prompt is prepended unless the turns begin with one.
    """
    turns = [*context, {"role": "user", "content": question}]
    if system_prompt and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system_prompt})
    return turns


def task_turns(task, config) -> list[dict]:
    """`turns_of` a task. config: settings with section buffer."""
    return turns_of(task.question, config.buffer.explorer_input.system_prompt, task.context)


def prompt_text(tokenizer, question: str, system_prompt: str | None, context: Sequence[dict] = (),
                enable_thinking: bool | None = None) -> str:
    """A task as text by the chat template, with generation prompt; without a template the plain turns.

    context, system_prompt: see turns_of. enable_thinking: passed to the template unless None. Raises DataError for a
    conversation that the template rejects.
    """
    return conversation_text(tokenizer, turns_of(question, system_prompt, context), enable_thinking)


def conversation_text(tokenizer, turns: list[dict], enable_thinking: bool | None = None, tools: Sequence[dict] = (),
                      asks: bool = True) -> str:
    """As `prompt_text`, for complete turns {role, content}. tools: as the template takes them, OpenAI's form.

    asks: whether the generation prompt follows.
    """
    if not tokenizer.chat_template:
        return "\n\n".join(turn["content"] for turn in turns)
    more = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    more |= {"tools": list(tools)} if tools else {}
    try:
        return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=asks, **more)
    except _template_errors() as error:
        question = turns[-1]["content"]
        roles = ", ".join(turn["role"] for turn in turns)
        raise DataError(f"the chat template refuses the conversation ({roles}) that ends with {str(question)[:80]!r}: "
                        f"{str(error).rstrip('.')}. If the template is wrong, correct it or set "
                        "model.chat_template_path to another; else leave such rows (or system_prompt) out.") from error


def task_texts(tokenizer, tasks: Iterable, config) -> list[str]:
    """`prompt_text` of every task. config: settings with sections model and buffer."""
    system, thinking = config.buffer.explorer_input.system_prompt, config.model.enable_thinking
    return [prompt_text(tokenizer, task.question, system, task.context, thinking) for task in tasks]


def prompt_tokens(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of `prompt_text` results, which already contain all special tokens."""
    return tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"] if texts else []


def response_tokens(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of demonstrated responses, each ended by `turn_end`."""
    encoded, end = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else [], turn_end(tokenizer)
    return [[*tokens, end] for tokens in encoded]


def opened_tag(prompt: str) -> str:
    """The tag that a prompt ends with, such as <think>, which a response then only closes; else an empty text."""
    found = re.search(r"<[a-zA-Z]\w*>\s*$", prompt)
    return found.group() if found else ""


def turn_end(tokenizer) -> int:
    """The special token that the chat template puts after a response (Gemma: <end_of_turn>); else eos."""
    from jinja2 import TemplateError

    answer, text = "an answer", ""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
        with suppress(TemplateError):  # a template for single prompts has no end token of its own
            text = tokenizer.apply_chat_template(turns, tokenize=False)
    _, _, after = text.rpartition(answer)  # a default system prompt may contain the same words
    first = tokenizer(after, add_special_tokens=False)["input_ids"][:1] if after else []
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special} if first else set()
    return first[0] if special.issuperset(first) and first else tokenizer.eos_token_id


def end_tokens(tokenizer, model: Path) -> list[int]:
    """Ids that end a response: the tokenizer's, the chat template's, and generation_config.json's.

    Llama 3, Gemma and Phi-3 end a turn with a different token than the end of a text.
    """
    path = Path(model) / "generation_config.json"
    listed = json_object(path, str(model)).get("eos_token_id") if path.is_file() else None
    listed = listed if isinstance(listed, list) else [] if listed is None else [listed]
    return list(dict.fromkeys([tokenizer.eos_token_id, turn_end(tokenizer), *listed]))
