"""Facts of a script that starts veRL's SFT trainer, for a recipe of one sft stage.

There are two: fsdp_sft_trainer reads a column of prompts and one of responses, or conversations with
`data.multiturn.enable`; sft_trainer reads conversations. A step of both is an optimizer step, as here.
"""

from ouroboros.commands.bridges.translation import SETTINGS
from ouroboros.commands.bridges.verl_data import listed
from ouroboros.commands.bridges.verl_objective import Facts
from ouroboros.commands.bridges.verl_source import Verl


def started(verl: Verl, facts: Facts) -> Facts:
    """Returns the program; torchrun's options, by the equivalent key, count instead of keys that veRL does not use."""
    verl.algorithm_type, verl.interval = "sft", 1
    verl.made.choose(("stages", 0, "stage_name"), "sft", "")
    for key, given in facts["options"].items():
        if verl.value(key) not in (None, given.value):
            verl.made.note("torchruns_option", key=key, value=verl.value(key), counts=given.value)
        verl.unknown.pop(key, None)
        verl.values[key] = given
    return {"started": verl.entry.module if verl.entry else "its keys are those of veRL's SFT trainer"}


def ranks(verl: Verl, facts: Facts) -> Facts:
    """Returns whether the number of GPUs is known."""
    return {"has_gpus": facts["each"] is not None, "to": "trainer.ranks"}


def demonstrations(verl: Verl, facts: Facts) -> Facts:
    """Returns the files of `data.train_files`, and their columns: nested columns, or conversations."""
    key, value = "data.train_files", verl.value("data.train_files")
    files = listed(value)
    is_newer = verl.entry.name != "fsdp_sft_trainer" if verl.entry else "data.messages_key" in verl.values
    turns = verl.is_on("data.multiturn.enable", is_newer and "data.prompt_key" not in verl.values)
    found = {"files": files[0] if len(files) == 1 else files, "turns": turns,
             "has_files": key in verl.unknown or isinstance(value, (str, list)),
             **{name: f"data.{within}{name}_key" for name in ("messages", "tools")
                for within in ("", "multiturn.") if not within or f"data.multiturn.{name}_key" in verl.values}}
    for name, default in (("prompt", "question"), ("response", "answer")):
        within, column = f"data.{name}_dict_keys", verl.value(f"data.{name}_key", default)
        fields = verl.value(within)
        is_nested = isinstance(fields, list) and len(fields) == 1 and isinstance(column, str)
        is_column = fields in (None, []) and within not in verl.unknown
        found |= {name: f"{column}.{fields[0]}" if is_nested else column,
                  f"{name}_field": None if turns or not (is_nested or is_column) else is_nested}
    return found


def sequence(verl: Verl, facts: Facts) -> Facts:
    """Returns the limit of the whole sequence, for prompt and response each, and the micro-batch tokens."""
    key, tokens, to = "data.max_length", "data.max_token_len_per_gpu", "trainer.max_token_len_per_gpu"
    longest = verl.whole(key, 1024)
    found = {"longest": longest, "has_length": longest is not None, "is_length_unknown": key in verl.unknown,
             "length": verl.value(key) if longest is None else longest, "to": to, "doubt": verl.doubt(key)}
    if longest is None:
        return found | {"budget_by": None}
    least, raised = 2 * longest, ", at least a prompt and a response"
    rows = next((k for k in ("data.micro_batch_size_per_gpu", "data.micro_batch_size") if k in verl.values), "")
    if tokens in verl.values:
        is_short = (verl.whole(tokens, None) or least) < least
        return found | {"budget_by": "given", "budget": least if is_short else verl.value(tokens),
                        "raised": raised if is_short else ""}
    if rows and (number := verl.whole(rows, None)):
        return found | {"budget_by": "rows", "rows": rows, "budget": max(number * longest, least)}
    return found | {"budget_by": "least" if least > SETTINGS[to].default else None, "budget": least}
