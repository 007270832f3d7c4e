"""Translates a script that starts veRL's SFT trainer to a recipe of one sft stage.

There are two: fsdp_sft_trainer reads a column of prompts and one of responses, or conversations with
`data.multiturn.enable`; sft_trainer reads conversations. A step of both is an optimizer step, as here.
"""

from pipeline.bridges import verl_rules
from pipeline.bridges.source import Given
from pipeline.bridges.tables import said
from pipeline.bridges.translation import SETTINGS
from pipeline.bridges.verl_data import listed
from pipeline.bridges.verl_objective import adapter
from pipeline.bridges.verl_source import Verl

BUFFER, GPUS = "buffer.trainer_input.experience_buffer", verl_rules.GPUS


def translate(verl: Verl, options: dict[str, Given]) -> None:
    """Applies every rule for the keys of an SFT trainer. options: those of torchrun, by the equivalent key."""
    verl.algorithm_type, verl.interval = "sft", 1
    verl.made.choose(("stages", 0, "stage_name"), "sft", "")
    started = verl.entry.module if verl.entry else "its keys are those of veRL's SFT trainer"
    verl.choose("algorithm.algorithm_type", "sft", started)
    verl.choose("mode", "train", "no rollouts are made")
    _gpus(verl, options)
    _data(verl)
    _lengths(verl)
    adapter(verl, "model")
    verl_rules.names(verl, "gsm8k-sft")
    verl_rules.interval(verl, "trainer.save_freq", "trainer.save_interval")
    verl_rules.in_optimizer_steps(verl, "trainer.total_training_steps", "buffer.total_steps")
    verl_rules.kept(verl, "trainer.max_ckpt_to_keep")
    verl_rules.monitor(verl)


def defaults(verl: Verl) -> None:
    """Returns the defaults of the trainer that a script starts."""
    verl_rules.defaults(verl, "verl_sft", "defaults")
    is_older = verl.entry is None or verl.entry.name == "fsdp_sft_trainer"
    verl_rules.defaults(verl, "verl_sft", "defaults_of_fsdp_sft_trainer" if is_older else "defaults_of_sft_trainer")


def _gpus(verl: Verl, options: dict[str, Given]) -> None:
    """Translates GPUs from torchrun's options; without these from the keys that veRL does not use."""
    for key, given in options.items():
        if verl.value(key) not in (None, given.value):
            verl.made.note("torchruns_option", key=key, value=verl.value(key), counts=given.value)
        verl.unknown.pop(key, None)
        verl.values[key] = given
    each = verl.whole(GPUS, 1)
    verl_rules.nodes(verl, each)
    if each:
        verl.choose("trainer.ranks", each, "all GPUs, one process each")
        verl.choose("trainer.zero_stage", 3, said("sharded"))
    else:
        verl.made.note("not_set", to="trainer.ranks", doubt=verl.doubt(GPUS))


def _data(verl: Verl) -> None:
    """Translates `data.train_files` to an experience buffer: columns, nested columns, or conversations."""
    key, files = "data.train_files", listed(verl.value("data.train_files"))
    if key in verl.unknown or isinstance(verl.value(key), (str, list)):
        verl.say(key, f"{BUFFER}.path", files[0] if len(files) == 1 else files)
    else:
        verl.leave(key, "needed the path of a file, or a list of them.")
    is_newer = verl.entry.name != "fsdp_sft_trainer" if verl.entry else "data.messages_key" in verl.values
    if verl.is_on("data.multiturn.enable", is_newer and "data.prompt_key" not in verl.values):
        verl.fold("data.multiturn.enable", f"{BUFFER}.format.prompt_type")
        verl.choose(f"{BUFFER}.format.prompt_type", "messages", "conversations: lists of {role, content}")
        key = "data.multiturn.messages_key" if "data.multiturn.messages_key" in verl.values else "data.messages_key"
        verl.say(key, f"{BUFFER}.format.messages_key", verl.value(key, "messages"), default=True)
        verl.choose(f"{BUFFER}.format.enable_concatenated_multi_turn", True,
                    "veRL trains on every turn of the assistant")
    else:
        verl.leave("data.multiturn.enable", "said by prompt_type=plaintext.", idle=True)
        verl.leave("data.multiturn.messages_key", "means nothing without data.multiturn.enable=True.", idle=True)
        for name, default in (("prompt", "question"), ("response", "answer")):
            _column(verl, name, default)


def _column(verl: Verl, name: str, default: str) -> None:
    """Returns `data.prompt_key`, with the nested field of `data.prompt_dict_keys` if set."""
    key, within, to = f"data.{name}_key", f"data.{name}_dict_keys", f"{BUFFER}.format.{name}_key"
    fields, column = verl.value(within), verl.value(key, default)
    if isinstance(fields, list) and len(fields) == 1 and isinstance(column, str):
        column = f"{column}.{fields[0]}"
        verl.fold(within, to)
    elif fields in (None, []) and within not in verl.unknown:
        verl.leave(within, "off there too: the column itself is read.", idle=True)
    else:
        verl.leave(within, "needed one field: a column leads into a struct here as column.field.")
    verl.say(key, to, column, default=True)


def _lengths(verl: Verl) -> None:
    """Splits the limit of the whole sequence into prompt and response; also writes the micro-batch tokens."""
    key, to, tokens = "data.max_length", "trainer.max_token_len_per_gpu", "data.max_token_len_per_gpu"
    longest = verl.whole(key, 1024)
    if longest is None:
        verl.say(key, "model.max_prompt_tokens", verl.value(key))
        if key in verl.unknown:
            verl.say(key, "model.max_response_tokens", None)
        verl.made.note("not_set", to=to, doubt=verl.doubt(key))
        return
    verl.say(key, "model.max_prompt_tokens", longest, default=True)
    verl.choose("model.max_response_tokens", longest, key)
    verl.made.note("both_lengths", longest=longest)
    least, note = 2 * longest, "at least a prompt and a response"
    rows = next((k for k in ("data.micro_batch_size_per_gpu", "data.micro_batch_size") if k in verl.values), "")
    if tokens in verl.values:
        is_short = (verl.whole(tokens, None) or least) < least
        verl.say(tokens, to, least if is_short else verl.value(tokens), f", {note}" if is_short else "")
    elif rows and (number := verl.whole(rows, None)):
        verl.say(rows, to, max(number * longest, least), f" x {longest} tokens, {note}")
    elif least > SETTINGS[to].default:
        verl.choose(to, least, note)
