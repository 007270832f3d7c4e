"""Translates veRL's data files to tasksets, one per file, named as in the guide's examples, with rewards."""

import os
import re
from pathlib import Path

from ouroboros.commands.bridges.tables import said, table
from ouroboros.commands.bridges.verl_objective import Facts
from ouroboros.commands.bridges.verl_source import ROLLOUT, Verl

SPLITS = ("train", "test", "validation", "valid", "val", "dev")  # file names by which a directory is read
# the switch of a scoring model, and its path, in older and newer versions
REWARD_MODELS = (("reward_model.enable", "reward_model.model.path"),
                 ("reward.reward_model.enable", "reward.reward_model.model_path"))
OWN_REWARDS = ("custom_reward_function", "reward.custom_reward_function")
SOURCE = ("buffer", "explorer_input")
SETS = {"data.train_files": (*SOURCE, "tasksets"), "data.val_files": (*SOURCE, "eval_tasksets")}
REWARD = "buffer.explorer_input.default_reward_fn_type"
GROUND_TRUTH = "reward_model.ground_truth"  # where veRL's own scripts store the truth
OF_EVALUATIONS = {"n": "repeat_times", **{name: f"rollout_args.{name}" for name in ("temperature", "top_p", "top_k")}}


def tasksets(verl: Verl, facts: Facts) -> Facts:
    """Translates `data.train_files` and `data.val_files`, with their format, sampling and rewards."""
    truths: list[str] = []
    for key, root in SETS.items():
        files, taken = listed(verl.value(key)), set()
        if key in verl.unknown:
            verl.say(key, ".".join(root), None)
        elif not files or not all(isinstance(f, str) for f in files):
            verl.leave(key, "needed the path of a file, or a list of them.")
        else:
            truths += [_taskset(verl, (*root, index), key, file, taken) for index, file in enumerate(files)]
            verl.fold(key, ".".join(root))
    sets = verl.made.below(*SETS["data.val_files"])
    for name, to in OF_EVALUATIONS.items():
        key = f"{ROLLOUT}.val_kwargs.{name}"
        if key not in verl.unknown and (not sets or verl.value(key) is None):
            verl.leave(key, "null there too." if sets else "there is no evaluation set.", idle=True)
        else:
            _of_sets(verl, key, "eval_tasksets", to, verl.value(key))
    for key, files in (("data.train_max_samples", "data.train_files"), ("data.val_max_samples", "data.val_files")):
        if len(verl.made.below(*SETS[files])) == 1 and key not in verl.unknown and verl.whole(key, None):
            _of_sets(verl, key, SETS[files][-1], "limit", verl.whole(key, None))
            if verl.is_on("data.shuffle", True):
                verl.made.note("first_rows", key=key)
    _reward_model(verl)
    for name in ("prompt_key", "response_key", "image_key", "shuffle", "seed") if truths else ():
        verl.fold(f"data.{name}", "buffer.explorer_input.tasksets.*")
    return {"is_assumed": GROUND_TRUTH in truths and "data.response_key" not in verl.values, "truth": GROUND_TRUTH,
            "has_answers": bool(truths) and not _has_model(verl)}


def listed(files: object) -> list:
    """Returns the files of a value, which may be a text with a list."""
    if isinstance(files, str):
        return [part.strip(" '\"") for part in files.strip("[]").split(",")] if files.startswith("[") else [files]
    return files if isinstance(files, list) else []


def _taskset(verl: Verl, root: tuple, key: str, file: str, taken: set[str]) -> str:
    """Writes one set; returns its truth column."""
    is_train = key == "data.train_files"
    path, split = _place(file, "train" if is_train else "test")
    truth = verl.value("data.response_key") or _truth(file)
    name = _name(path if path != file else re.sub(r"\.\w+$", "", file), "" if is_train else "_eval", taken)
    lines = [("name", name, ""), ("path", path, f"{key}: {file}"), ("split", split, ""),
             ("format.prompt_type", "messages", "veRL's prompts are lists of {role, content}"),
             ("format.prompt_key", verl.value("data.prompt_key", "prompt"), "data.prompt_key"),
             ("format.response_key", truth, "data.response_key" if "data.response_key" in verl.values else
              "where veRL's rewards read it" if truth == GROUND_TRUTH else "found in the file")]
    if image := verl.value("data.image_key"):
        lines.append(("format.image_key", image, "data.image_key"))
    if is_train and "data.shuffle" in verl.values:
        order = "shuffle" if verl.is_on("data.shuffle", True) else "sequential"
        lines.append(("data_selector.selector_type", order, "data.shuffle"))
    if is_train and isinstance(verl.value("data.seed"), int):
        lines.append(("data_selector.seed", verl.value("data.seed"), "data.seed"))
    for to, value, comment in lines:
        verl.made.choose((*root, *to.split(".")), value, comment)
    return truth


def _place(file: str, role: str) -> tuple[str, str]:
    """Returns (path, split). `dir/train.parquet` is split train of dir, as in the guide; another file is read whole.

    If a local directory has further files of that split, the file itself is named.
    """
    directory, _, last = file.rpartition("/")
    stem, _, suffix = last.rpartition(".")
    if not directory or suffix not in ("parquet", "jsonl") or stem not in SPLITS:
        return file, role
    here = Path(_here(directory))
    others = [f for f in here.rglob("*.*") if stem in re.split(r"[^a-z0-9]+", f.name.lower())] if here.is_dir() else []
    return (file, role) if len(others) > 1 else (directory, stem)


def _name(path: str, suffix: str, taken: set[str]) -> str:
    """Returns the last part of a path that is not a variable, made unique."""
    parts = [part for part in path.split("/") if part and "${" not in part]
    base = ((re.sub(r"\W+", "_", parts[-1]).strip("_") if parts else "") or "tasks") + suffix
    name = next(n for n in (base, *(f"{base}_{i}" for i in range(2, len(taken) + 3))) if n not in taken)
    taken.add(name)
    return name


def _truth(file: str) -> str:
    """Returns the truth column: the one that veRL's reward managers read, unless a file here has `answer` alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = Path(_here(file))
    if place.suffix != ".parquet" or not place.is_file():
        return GROUND_TRUTH
    try:
        names = pq.read_schema(place).names
    except (pa.ArrowException, OSError):
        return GROUND_TRUTH
    return "answer" if "answer" in names and "reward_model" not in names else GROUND_TRUTH


def _here(path: str) -> str:
    """Expands a path with this machine's environment variables."""
    return re.sub(r"\$\{oc\.env:(\w+)\}", lambda match: os.environ.get(match[1], match[0]), path).replace("\0", "")


def _of_sets(verl: Verl, key: str, section: str, to: str, value: object) -> None:
    """Writes a setting of every set of a section from one key of veRL."""
    if key in verl.unknown or key != "data.max_response_length":  # which has its own line
        verl.fold(key, f"{'.'.join(SOURCE)}.{section}.*.{to}")
    for one in verl.made.below(*SOURCE, section) if value is not None else ():
        verl.made.choose((*one, *to.split(".")), value, key)


# ------------------------------------------------------------------------------------------------------------- rewards


def _reward_model(verl: Verl) -> None:
    """Translates `reward_model.enable`: a scalar model alone rewards the rollouts, as there."""
    switch, key = next((pair for pair in REWARD_MODELS if verl.is_on(pair[0])), REWARD_MODELS[0])
    is_asked = any(verl.value(f"{own}.path") for own in OWN_REWARDS)  # the script's function asks it for a judgement
    if verl.is_on(switch) and isinstance(verl.value(key), str) and not is_asked:
        verl.done.add(key)
        verl.made.rename(verl.values[key], ("explorer", "auxiliary_models", 0, "model_path"), verl.value(key), key)
        verl.fold(switch, REWARD)
        verl.made.reward_by_model(switch)


def _has_model(verl: Verl) -> bool:
    return ("explorer", "auxiliary_models", 0, "model_path") in verl.made.entries


def overlong(verl: Verl, facts: Facts) -> None:
    """Translates the overlong penalty: here a reward function, in addition to the one for correctness."""
    prefix = next((p for p in table("verl")["penalties"] if verl.is_on(f"{p}.enable")), None)
    if prefix is None or _has_model(verl):
        return
    verl.made.entries.pop((*SOURCE, "default_reward_fn_type"), None)
    verl.say(f"{prefix}.enable", REWARD, ["accuracy_reward", "overlong_penalty"])
    factor = verl.value(f"{prefix}.penalty_factor", 1.0)
    is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
    is_halved = not all(re.search(table("verl")["of_zero_and_one"], str(file))
                        for file in listed(verl.value("data.train_files")))
    longest = next((key for key in ("reward_model.reward_kwargs.max_resp_len", "reward.reward_kwargs.max_resp_len")
                    if key in verl.values), "data.max_response_length")
    for key, name, value in ((f"{prefix}.len", "cache_length", verl.value(f"{prefix}.len")),
                             (longest, "max_response_length", verl.value(longest)),
                             (f"{prefix}.penalty_factor", "penalty_factor",
                              factor / 2 if is_number and is_halved else factor)):
        if key in verl.unknown or value is not None:
            _of_sets(verl, key, "tasksets", f"reward_fn_args.{name}", value)
    for other in (one for one in table("verl")["penalties"] if one != prefix):  # in the section of another version too
        for name in ("enable", "len", "penalty_factor"):
            if verl.value(f"{other}.{name}") == verl.value(f"{prefix}.{name}"):
                verl.leave(f"{other}.{name}", f"{prefix} says it.", idle=True)
    if is_halved:
        verl.made.note("half_penalty")


# ------------------------------------------------------------------------------------------------------------ the task


def task(verl: Verl, facts: Facts) -> None:
    """Names as lost what the names of files and models say: images, and rewards that are no comparison of answers."""
    named = table("verl")
    models = [verl.value(key) for key in ("actor_rollout_ref.model.path", "model.path", "model.partial_pretrain")]
    files = [str(file) for key in SETS for file in listed(verl.value(key))]
    for model in models:
        own = model.rstrip("/").rpartition("/")[2] if isinstance(model, str) else ""
        shown = re.search(named["shown"], own)
        if re.search(named["reads_images"], own) and not shown:
            verl.made.lack("images", model)
        if shown and verl.value("actor_rollout_ref.actor.freeze_vision_tower") is None:
            verl.choose("trainer.freeze_vision_tower", True, "veRL trains it; false needs a run without an adapter")
    for file in files:
        own = "/".join(re.sub(r"\$\{[^}]*\}", "", file).split("/")[-2:])  # directories above say where, not what
        if re.search(named["of_images"], own) and not verl.value("data.image_key"):
            verl.made.lack("images", file)
        if facts["is_rl"] and not facts["distils"] and not _has_model(verl):
            for kind in ("of_code", "of_search"):
                if re.search(named[kind], own):
                    verl.made.lack("reward", f"{said(kind)} of {file}")
