"""Converts a task's turns to prompt token ids through a chat template."""

import hashlib
import json
import string
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from ouroboros.pipeline.store.digests import missing, resolve
from ouroboros.pipeline.store.errors import ConfigError, DataError, ModelError
from ouroboros.pipeline.store.model_shape import json_object
from ouroboros.workflows.protocol.hugging_face import import_transformers, read_config
from ouroboros.workflows.protocol.template_trial import template_errors, try_template

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


def read_tokenizer(model: Path, trust: bool = False):
    """The tokenizer of a Hugging Face directory. trust: model.trust_remote_code. Raises ModelError when it has none."""
    transformers = import_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=trust)
        written = tokenizer(string.printable, add_special_tokens=False)["input_ids"]
    except Exception as error:  # readers raise arbitrary errors on a damaged tokenizer.json
        if "trust_remote_code" in str(error):
            raise ModelError(f"the tokenizer of {model} needs Python code of its directory (auto_map in "
                             "tokenizer_config.json). model.trust_remote_code=true runs it.") from error
        _check_config(model, trust)
        raise ModelError(f"{model} has no readable tokenizer ({type(error).__name__}: {error}). Fetch its tokenizer "
                         "files again; `git lfs pull` where they are pointers of Git LFS.") from error
    # without files transformers returns an empty tokenizer, with tokenizer_config.json alone one of a few added tokens
    if len(tokenizer) <= len(tokenizer.all_special_tokens) or not written:
        raise ModelError(f"{model} has no readable tokenizer: it has no tokens for texts. Are its files there "
                         "(tokenizer.json, or those of its kind)?")
    return tokenizer


def _check_config(model: Path, trust: bool) -> None:
    """Raises ModelError for a config.json that transformers cannot read: it chooses the tokenizer's class."""
    try:
        read_config(model, trust)
    except ModelError:
        raise
    except Exception as error:  # its validators raise errors of many kinds
        raise ModelError(f"{model}: transformers cannot read its config.json ({type(error).__name__}: {error}). "
                         "Correct it, or fetch it again.") from error


def load_tokenizer(model: Path, settings=None):
    """The policy's tokenizer, with the chat template of the section `model`, if set.

    Raises ModelError when there is no tokenizer or no end-of-sequence token, ConfigError for an unusable template.
    """
    tokenizer = read_tokenizer(model, settings is not None and settings.trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {model} has no eos_token; responses could not end. Set it in "
                         "tokenizer_config.json.")
    own = chat_template(settings) if settings else None
    if own is not None:
        tokenizer.chat_template = own
    if tokenizer.chat_template:
        try_template(tokenizer, "model.custom_chat_template or chat_template_path" if own is not None else
                      f"the chat template of {model}", is_own=own is not None)
    return tokenizer


def keep_template(directory: Path, settings) -> None:
    """Writes the user's chat template, if set, into a Hugging Face directory, to ship with the model."""
    own = chat_template(settings)
    if own is not None:
        (Path(directory) / TEMPLATE).write_text(own, encoding="utf-8")


def turns_of(question: str, system_prompt: str | None, context: Sequence[dict] = ()) -> list[dict]:
    """The messages {role, content} of a prompt: the preceding turns, and the question as a user turn.

    system_prompt is prepended unless the turns begin with one.
    """
    return with_system([*context, {"role": "user", "content": question}], system_prompt)


def with_system(turns: list[dict], system_prompt: str | None) -> list[dict]:
    """The turns with a system message before them, unless they begin with one."""
    return [{"role": "system", "content": system_prompt}] * bool(system_prompt and turns[0]["role"] != "system") + turns


def conversation_of(task) -> dict:
    """What a task's column `messages` holds (pipeline/store/task_records.py); without it the texts of its prompt."""
    return json.loads(task.messages) if task.messages is not None else {
        "messages": turns_of(task.question, None, task.context)}


def choices_of(task) -> dict:
    """What a task's record says of its attempts (pipeline/store/task_records.py): workflow, reward_fn, reply_prefix."""
    return json.loads(task.choices) if task.choices is not None else {}


def columns_of(task) -> dict:
    """Other columns of a task's record, by name; those that its set keeps (pipeline/store/task_records.py)."""
    return json.loads(task.columns) if task.columns is not None else {}


def asked_turns(task, system_prompt: str | None) -> list[dict]:
    """The messages of a task's prompt, the system message included."""
    turns = conversation_of(task)["messages"]
    return with_system(turns[:-1] if turns[-1]["role"] == "assistant" else turns, system_prompt)


def task_turns(task, config) -> list[dict]:
    """`asked_turns` of a task. config: settings with section buffer."""
    return asked_turns(task, config.buffer.explorer_input.system_prompt)


def task_tools(task) -> list[dict]:
    """The tools that a task's prompt offers, in OpenAI's form."""
    return conversation_of(task).get("tools", [])


def prompt_text(tokenizer, question: str, system_prompt: str | None, context: Sequence[dict] = (),
                enable_thinking: bool | None = None) -> str:
    """A task as text by the chat template, with generation prompt; without a template the plain turns.

    context, system_prompt: see turns_of. enable_thinking: passed to the template unless None. Raises DataError for a
    conversation that the template rejects.
    """
    return conversation_text(tokenizer, turns_of(question, system_prompt, context), enable_thinking)


def conversation_text(tokenizer, turns: list[dict], enable_thinking: bool | None = None, tools: Sequence[dict] = (),
                      asks: bool = True) -> str:
    """As `prompt_text`, for complete turns in OpenAI's form. tools: as the template takes them, the same form.

    asks: whether the generation prompt follows. Arguments of tool calls are given as objects, which most templates
    write as JSON; as text where the template takes only that (DeepSeek V3's own), or would write Python.
    """
    if not tokenizer.chat_template:
        return "\n\n".join(turn["content"] for turn in turns)
    more = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    more |= {"tools": list(tools)} if tools else {}

    def rendered(given: list[dict]) -> str:
        return tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=asks, **more)

    objects = [with_objects(turn) for turn in turns]
    try:
        text = None
        with suppress(*template_errors() if objects != turns else ()):
            text = rendered(objects)
        return rendered(turns) if text is None or _writes_python(text, objects) else text
    except template_errors() as error:
        question = turns[-1]["content"]
        roles = ", ".join(turn["role"] for turn in turns)
        raise DataError(f"the chat template refuses the conversation ({roles}) that ends with {str(question)[:80]!r}: "
                        f"{str(error).rstrip('.')}. If the template is wrong, correct it or set "
                        "model.chat_template_path to another; else leave such rows (or system_prompt) out.") from error


@lru_cache(maxsize=8)
def writes(tokenizer, what: str) -> bool:
    """Whether the chat template writes `tools`, or another field of the latest turn of the assistant; not known to be
    otherwise where it refuses the turns that are tried."""
    mark = "a_name_of_no_tool"
    tool = {"type": "function", "function": {"name": mark, "description": mark, "parameters": {"type": "object"}}}
    turns = [{"role": "user", "content": "a question"}]
    own = [] if what == "tools" else [{"role": "assistant", "content": "an answer", what: mark}]
    try:
        return mark in conversation_text(tokenizer, turns + own, None, [tool] * (not own), not own)
    except DataError:
        return True


def with_objects(message: dict) -> dict:
    """A message with the arguments of its tool calls as objects."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [
        {**call, "function": {**call["function"], "arguments": arguments_of(call["function"]["arguments"])}}
        for call in message["tool_calls"]]}


def arguments_of(text: str):
    """The arguments of a tool call; where they are no JSON, the model's own mistake, the text as it is."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _writes_python(text: str, turns: list[dict]) -> bool:
    """Whether a template wrote arguments as Python shows a dict, with single quotes."""
    given = [call["function"]["arguments"] for turn in turns for call in turn.get("tool_calls") or ()]
    return any("'" in str(one) and str(one) in text for one in given if isinstance(one, dict))


def task_texts(tokenizer, tasks: Iterable, config) -> list[str]:
    """`prompt_text` of every task. config: settings with sections model and buffer."""
    return [conversation_text(tokenizer, task_turns(task, config), config.model.enable_thinking, task_tools(task))
            for task in tasks]


def prompt_tokens(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of `prompt_text` results, which already contain all special tokens."""
    return tokenizer(texts, add_special_tokens=not tokenizer.chat_template)["input_ids"] if texts else []


def prompt_hash(tokens: list[int]) -> str:
    """First 16 hex digits of the sha256 of the token ids as int32."""
    return hashlib.sha256(np.array(tokens, np.int32).tobytes()).hexdigest()[:16]


def turn_end(tokenizer) -> int:
    """The special token that the chat template puts after a response (Gemma: <end_of_turn>); else eos."""
    answer, text = "an answer", ""
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
        with suppress(*template_errors()):  # a template for single prompts has no separate end token
            text = tokenizer.apply_chat_template(turns, tokenize=False)
    _, _, after = text.rpartition(answer)  # a default system prompt may contain the same words
    first = tokenizer(after, add_special_tokens=False)["input_ids"][:1] if after else []
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special} if first else set()
    return first[0] if special.issuperset(first) and first else tokenizer.eos_token_id


def end_tokens(tokenizer, model: Path) -> list[int]:
    """Ids that end a response: the tokenizer's, the chat template's, and generation_config.json's. Raises ModelError
    where that file has something else.

    Llama 3, Gemma and Phi-3 end a turn with a different token than the end of a text.
    """
    path = Path(model) / "generation_config.json"
    listed = json_object(path, str(model)).get("eos_token_id") if path.is_file() else None
    listed = listed if isinstance(listed, list) else [] if listed is None else [listed]
    if odd := [one for one in listed if isinstance(one, bool) or not isinstance(one, int) or one < 0]:
        raise ModelError(f"{model}: {path.name} there has eos_token_id={odd[0]!r}; needed numbers of tokens. Correct "
                         "it, or fetch it again.")
    return list(dict.fromkeys([tokenizer.eos_token_id, turn_end(tokenizer), *listed]))
