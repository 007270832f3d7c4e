"""The data files of veRL as tasksets: a set for each file, named as in the guide's examples."""

import os
import re
from pathlib import Path
from typing import Any

from pipeline.bridges.verl_source import ROLLOUT, Verl

SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # names of files by which a directory is read
# the switch of a scoring model, and its path, as older and newer versions name them
REWARD_MODELS = (("reward_model.enable", "reward_model.model.path"),
                 ("reward.reward_model.enable", "reward.reward_model.model_path"))
TRUTH_KEPT_BY_VERL = "reward_model.ground_truth"


def tasksets(verl: Verl) -> None:
    """`data.train_files` and `data.val_files`, with how they are read, sampled and rewarded."""
    input_ = ("buffer", "explorer_input")
    sets = [("data.train_files", "tasksets", ""), ("data.val_files", "eval_tasksets", "_eval")]
    truths: list[str] = []
    for key, to, suffix in sets:
        files = verl.value(key)
        if key in verl.unknown:
            verl.say(key, f"buffer.explorer_input.{to}", None)
            continue
        if isinstance(files, str):
            files = [part.strip(" '\"") for part in files.strip("[]").split(",")] if files.startswith("[") else [files]
        if not isinstance(files, list) or not files or not all(isinstance(f, str) for f in files):
            verl.leave(key, "needed the path of a file, or a list of them.")
            continue
        taken: set[str] = set()
        for index, file in enumerate(files):
            truths.append(_taskset(verl, (*input_, to, index), key, file, suffix, taken))
        verl.fold(key, f"buffer.explorer_input.{to}")
    _sampling_of_evaluations(verl)
    reward_model(verl)
    if truths:
        _reading(verl, truths)


def _taskset(verl: Verl, root: tuple, key: str, file: str, suffix: str, taken: set[str]) -> str:
    """Writes one set; returns the column of its truths."""
    path, split = _place(file, "test" if suffix else "train")
    name = _name(path if path != file else re.sub(r"\.\w+$", "", file), suffix, taken)
    made, truth = verl.made, verl.value("data.response_key") or _truth(file)
    made.choose((*root, "name"), name, "")
    made.choose((*root, "path"), path, f"{key}: {file}")
    made.choose((*root, "split"), split, "")
    made.choose((*root, "format", "prompt_type"), "messages", "veRL's prompts are lists of {role, content}")
    made.choose((*root, "format", "prompt_key"), verl.value("data.prompt_key", "prompt"), "data.prompt_key")
    made.choose((*root, "format", "response_key"), truth,
                "data.response_key" if "data.response_key" in verl.values else
                f"check it: in files that veRL's own scripts make it is {TRUTH_KEPT_BY_VERL}"
                if truth == "answer" else "found in the file")
    if not suffix and "data.shuffle" in verl.values:
        order = "shuffle" if verl.is_on("data.shuffle", True) else "sequential"
        made.choose((*root, "data_selector", "selector_type"), order, "data.shuffle")
    if not suffix and isinstance(verl.value("data.seed"), int):
        made.choose((*root, "data_selector", "seed"), verl.value("data.seed"), "data.seed")
    return truth


def _place(file: str, role: str) -> tuple[str, str]:
    """(path, split). `dir/train.parquet` is split train of dir, as in the guide; another file is read whole.

    Of a directory that is here and holds other files of that split, the file itself is named.
    """
    directory, _, last = file.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if not directory or suffix not in ("parquet", "jsonl") or stem not in SPLITS:
        return file, role
    here = Path(_here(directory))
    others = [f for f in here.rglob("*.*") if stem in re.split(r"[^a-z0-9]+", f.name.lower())] if here.is_dir() else []
    return (file, role) if len(others) > 1 else (directory, stem)


def _name(path: str, suffix: str, taken: set[str]) -> str:
    """The last part of a path that is no variable, made unique."""
    parts = [part for part in path.split("/") if part and "${" not in part]
    base = re.sub(r"\W+", "_", parts[-1]).strip("_") if parts else "tasks"
    base = (base or "tasks") + suffix
    number = next(i for i in range(1, len(taken) + 2) if (base if i == 1 else f"{base}_{i}") not in taken)
    name = base if number == 1 else f"{base}_{number}"
    taken.add(name)
    return name


def _truth(file: str) -> str:
    """The column of the truths: what a file that is here has, else what the guide writes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = Path(_here(file))
    if place.suffix != ".parquet" or not place.is_file():
        return "answer"
    try:
        schema = pq.read_schema(place)
    except (pa.ArrowException, OSError):
        return "answer"
    kind = schema.field("reward_model").type if "reward_model" in schema.names else None
    nested = kind is not None and pa.types.is_struct(kind) and kind.get_field_index("ground_truth") >= 0
    return TRUTH_KEPT_BY_VERL if nested and "answer" not in schema.names else "answer"


def _here(path: str) -> str:
    """A path with the variables of this machine's environment filled in."""
    return re.sub(r"\$\{oc\.env:(\w+)\}", lambda match: os.environ.get(match[1], match[0]), path).replace("\0", "")


def _sampling_of_evaluations(verl: Verl) -> None:
    """`val_kwargs`: how often and how warm the evaluation sets are sampled."""
    count = len({path[3] for path in verl.made.entries if path[:3] == ("buffer", "explorer_input", "eval_tasksets")})
    for name, to in (("n", ("repeat_times",)), ("temperature", ("rollout_args", "temperature")),
                     ("top_p", ("rollout_args", "top_p")), ("top_k", ("rollout_args", "top_k"))):
        key = f"{ROLLOUT}.val_kwargs.{name}"
        value: Any = verl.value(key)
        if key in verl.unknown:
            verl.say(key, f"buffer.explorer_input.eval_tasksets.*.{'.'.join(to)}", None)
            continue
        if key not in verl.values:
            continue
        if not count or value is None:
            verl.leave(key, "there is no evaluation set." if not count else "null there too.", idle=True)
            continue
        verl.fold(key, f"buffer.explorer_input.eval_tasksets.*.{'.'.join(to)}")
        for index in range(count):
            verl.made.choose(("buffer", "explorer_input", "eval_tasksets", index, *to), value, key)


def reward_model(verl: Verl) -> None:
    """`reward_model.enable`: a scalar model rewards the rollouts, alone, as there."""
    switch, key = next((pair for pair in REWARD_MODELS if verl.is_on(pair[0])), REWARD_MODELS[0])
    if not verl.is_on(switch) or not isinstance(verl.value(key), str):
        return
    verl.done.add(key)
    verl.made.rename(verl.values[key], ("explorer", "auxiliary_models", 0, "model_path"), verl.value(key), key)
    verl.fold(switch, "buffer.explorer_input.default_reward_fn_type")
    verl.made.reward_by_model(switch)


def _reading(verl: Verl, truths: list[str]) -> None:
    """What holds for all sets: the keys of their columns, the reward."""
    for key in ("data.prompt_key", "data.response_key", "data.shuffle", "data.seed"):
        verl.fold(key, "buffer.explorer_input.tasksets.*")
    if "answer" in truths and "data.response_key" not in verl.values:
        verl.made.chosen.append(f"format.response_key=answer: as in the guide, which says to check it. Files that "
                                f"veRL's own scripts make keep the truth in {TRUTH_KEPT_BY_VERL}.")
    if ("explorer", "auxiliary_models", 0, "model_path") in verl.made.entries:
        return
    verl.choose("buffer.explorer_input.default_reward_fn_type", "accuracy_reward",
                "veRL chooses by the column data_source; here each set names its function")
    verl.made.chosen.append("default_reward_fn_type=accuracy_reward: veRL chooses the reward by the rows' data_source; "
                            "here a taskset names its own. accuracy_reward compares the final answer (after ####, or "
                            "boxed) with the truth.")
