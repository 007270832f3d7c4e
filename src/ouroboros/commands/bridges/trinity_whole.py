"""Derives what depends on several settings of a Trinity-RFT configuration: objective, lengths, GPUs, stages.

Where the original's default differs from ours and the source does not set it, the recipe sets the original's.
"""

import re
from typing import Any

from ouroboros.commands.bridges.tables import said, table
from ouroboros.commands.bridges.translation import SETTINGS, Entry, Path, Translation, first, places
from ouroboros.pipeline.compose.recipe import RESERVED
from ouroboros.pipeline.settings.algorithms import MIXED_LOSSES, facts
from ouroboros.pipeline.settings.train_batch import taken_groups

ITS_DEFAULT = "Trinity-RFT's default"
KIND, ENGINES = ("algorithm", "algorithm_type"), ("explorer", "rollout_model", "engine_num")
NODES, MODELS = ("cluster", "node_num"), ("explorer", "auxiliary_models")
RANKS, TOKENS = ("trainer", "ranks"), ("trainer", "max_token_len_per_gpu")


def stages_of(paths: Any) -> list[Path]:
    """Returns the stages that paths are in, in order."""
    return sorted({path[:2] for path in paths if path[0] == "stages" and len(path) > 2}, key=str)


def of_stage(values: dict[Path, Any], stage: Path, *path: Any) -> Any:
    """Returns a stage's value, or with an empty stage the run-wide one; None if neither sets it."""
    return values.get((*stage, *path), values.get(path))


def say_defaults(made: Translation, values: dict[Path, Any], given: set[str]) -> None:
    """Writes the original's defaults that differ from ours. given: the source's keys, generalized."""
    _say_algorithm(made, values)
    _say_objective(made, values)
    if not {"buffer.batch_size", "buffer.train_batch_size"} & given:
        made.choose(("buffer", "batch_size"), 1, ITS_DEFAULT)
    if any("eval_tasksets" in path[:-1] for path in made.entries):
        for name, default in (("eval_interval", 100), ("eval_on_startup", True)):
            if f"explorer.{name}" not in given:
                made.choose(("explorer", name), default, ITS_DEFAULT)
    cosine = [path for path, entry in made.entries.items()
              if path[-1] == "lr_scheduler_type" and entry.value == "cosine"]
    for path in sorted(cosine, key=str):  # run-wide ones before those of stages, which inherit them
        end = (*path[:-1], "min_lr_ratio")
        if not any(place in made.entries or place in values for place in places(end)):
            made.choose(end, 0.01, ITS_DEFAULT)
    ratios = [path for path, entry in made.entries.items() if path[-2:] == ("over_rollout", "ratio") and entry.value]
    for path in sorted(ratios, key=len):
        if first(made.entries, wait := (*path[:-1], "wait_after_min")) is None:
            made.choose(wait, 30.0, ITS_DEFAULT)
    limit = first(made.entries, ("algorithm", "sample_strategy_args", "max_staleness"))
    if made.value("synchronizer", "sync_style") not in (None, "fixed") and limit and isinstance(limit.value, int):
        made.choose(("synchronizer", "max_staleness"), limit.value, "rollouts that are older are not made")
    made.choose(("trainer", "max_checkpoints_to_keep"), None, f"{ITS_DEFAULT}: all are kept")
    _whole_run(made, values)


def _say_algorithm(made: Translation, values: dict[Path, Any]) -> None:
    """Writes the algorithm of a training configuration that names none."""
    stages = stages_of(values)
    silent = not stages or any((*stage, *KIND) not in values for stage in stages)
    has_tasks = any(path[-1] == "path" and "explorer_input" in path for path in made.entries)
    if silent and has_tasks and values.get(("mode",)) != "bench":
        made.choose(KIND, "ppo", ITS_DEFAULT)


def _say_objective(made: Translation, values: dict[Path, Any]) -> None:
    """Writes the original's losses for every named algorithm, run-wide or of a stage."""
    def say(section: Path, key: str, value: Any) -> None:
        path, entries = (*section, *key.split(".")), {place: entry.value for place, entry in made.entries.items()}
        if first(entries, path) is None and (path[-2] != "kl_loss_fn_args" or path not in entries):
            made.entries.pop(path, None)
            made.choose(path, value, ITS_DEFAULT)

    for scope in ((), *stages_of(made.entries)):
        section, kind = (*scope, "algorithm"), made.entries.get((*scope, *KIND))
        if kind and (first(values, (*scope, "mode")) or "both") in ("both", "train"):
            losses = table("trinity")["objective"].get(str(kind.value), {})
            for key, value in losses.items() if first(values, (*section, "kl_loss_fn")) is None else ():
                say(section, key, value)
        if (loss := made.entries.get((*section, "policy_loss_fn"), kind)) and str(loss.value) in ("gspo", "sapo"):
            say(section, "loss_agg_mode", "token-mean")


# -------------------------------------------------------------------------------------------------------------- lengths


def lengths(made: Translation) -> None:
    """Splits max_model_len into prompt and response, filling in missing values like the original."""
    whole, prompt, response = (made.value("model", name) for name in ("max_model_len", *LENGTHS))
    if not isinstance(whole, int) or whole < 2:
        return
    if prompt is None and response is None:
        prompt = whole // 2
        made.choose(("model", "max_prompt_tokens"), prompt, "half of max_model_len, as in Trinity-RFT")
    if response is None and isinstance(prompt, int):
        made.choose(("model", "max_response_tokens"), max(whole - prompt, 1), "the rest of max_model_len")
    if prompt is None and isinstance(response, int):
        if response >= whole:
            cut = f"{response} there, less one token for the prompt"
            made.entries[("model", "max_response_tokens")] = Entry(whole - 1, cut)
        made.choose(("model", "max_prompt_tokens"), max(whole - response, 1), "the rest of max_model_len")
    if isinstance(prompt, int) and isinstance(response, int) and prompt + response > whole:
        made.withdraw(("model", "max_model_len"), said("model_len_too_short", both=prompt + response))


def train_batch(made: Translation) -> None:
    """Removes a train batch that does not divide the rollouts of explorer steps, or the reverse."""
    batch, rows, times = (made.value(*path) for path in (("buffer", "train_batch_size"), ("buffer", "batch_size"),
                                                         ("algorithm", "repeat_times")))
    if not all(isinstance(n, int) and n > 0 for n in (batch, rows, times)) or made.value(*KIND) in MIXED_LOSSES:
        return
    ratio = made.value("explorer", "over_rollout", "ratio")
    explored = taken_groups(rows, ratio if isinstance(ratio, float) and 0 < ratio < 1 else 0.0) * times
    if explored % batch and batch % explored:
        why = said("train_batch_does_not_divide", made=explored, batch=batch)
        made.withdraw(("buffer", "train_batch_size"), why)


def budget(made: Translation) -> None:
    """Writes the token budget, at least the longest sequence; default: twice that, the original's micro-batch."""
    whole, *parts = (made.value("model", name) for name in ("max_model_len", *LENGTHS))
    longest = whole if isinstance(whole, int) and whole else sum(parts) if all(isinstance(n, int) for n in parts) else 0
    split = made.value("trainer", "ulysses_sequence_parallel_size")
    longest = -(-longest // split) if isinstance(split, int) and split > 0 else longest  # its GPUs hold it together
    given = made.entries.get(TOKENS)
    if given and isinstance(given.value, int) and given.value < longest:
        made.entries[TOKENS] = Entry(longest, f"{given.value} there, raised to the longest sequence")
        made.note("budget_of_trinity_raised", longest=longest, given=given.value)
    elif not given and longest > SETTINGS["trainer.max_token_len_per_gpu"].default:
        made.choose(TOKENS, 2 * longest, f"{ITS_DEFAULT}: two sequences of the greatest length")


def _whole_run(made: Translation, values: dict[Path, Any]) -> None:
    """Has the trainer's half of an asynchronous pair explore too, where it names the tasks."""
    has_tasks = any(path[-1] == "path" and path[:2] == ("buffer", "explorer_input") for path in made.entries)
    is_half = values.get(("mode",)) == "train" and not stages_of(values) and facts(str(values.get(KIND))).on_rollouts
    if not (is_half and has_tasks):
        return
    made.entries[("mode",)] = Entry("both", "train there")
    made.note("half_of_trainer")
    rows, times = made.value("buffer", "train_batch_size"), made.value("algorithm", "repeat_times")
    if isinstance(rows, int) and isinstance(times, int) and times > 0 and rows % times == 0:
        made.choose(("buffer", "batch_size"), rows // times, "tasks of a train batch")


# ----------------------------------------------------------------------------------------------------------------- GPUs


def gpus(made: Translation) -> None:
    """Writes `trainer.ranks`, run-wide and for stages that differ.

    The original gives the trainer the GPUs that the engines leave, all of them where a stage does not explore, and
    shards the model over them. Several machines have as many ranks and engines each; where that does not come out, one
    is taken, and engines that leave none on it are scaled down to its share.
    """
    if made.value("trainer", "offload_param") is True or RANKS in made.entries:
        made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
    if RANKS in made.entries:
        return
    machines = _on_one_machine(made)
    each, taken, engines, _, _ = _gpus_of(made, ())
    if machines > 1 and each and taken and taken >= each and engines >= machines:
        share = engines // machines
        made.entries[ENGINES] = Entry(share, f"{engines} there, on {machines} machines")
        made.note("engines_of_one_machine", share=share, engines=engines, machines=machines)
    for stage in ((), *stages_of(made.entries)):
        each, taken, _, leave, mode = _gpus_of(made, stage)
        # nothing explores at the same time
        is_alone = mode == "train" or not facts(str(_value(made, stage, None, *KIND))).on_rollouts
        taken = 0 if is_alone else taken
        left = each - taken if each and mode in ("both", "train") and taken is not None else None
        if left not in (None, (made.value(*RANKS) or 1) if stage else 1):
            name = made.entries.get((*stage, "stage_name"))
            where = f" in stage {name.value}" if name else ""
            made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
            if left < 1:
                made.note("engines_take_all", where=where, taken=taken, each=each)
                continue
            made.choose((*stage, *RANKS), left, "all GPUs" if is_alone else f"the GPUs that {leave}")
            made.note("ranks", left=left, where=where, budgets="" if stage else said("budgets"),
                      which=f"all {each} GPUs" if is_alone else f"of {each} GPUs, those that {leave}")


def _on_one_machine(made: Translation) -> int:
    """Returns the machines of the source that a run cannot take, whose number is then left out; else 1."""
    nodes = made.value(*NODES)
    if not isinstance(nodes, int) or nodes < 2:
        return 1
    each, taken, engines, _, mode = _gpus_of(made, ())
    left = None if None in (each, taken) else each if mode == "train" else each - taken
    if left is not None and left > 0 and not (left % nodes or engines % nodes or made.below(*MODELS)):
        made.note("slurm")
        return 1
    made.withdraw(NODES, said("nodes_of_trinity", nodes=nodes))
    return nodes


def _gpus_of(made: Translation, stage: Path) -> tuple[int | None, int | None, int | None, str, Any]:
    """Returns a stage's GPUs, those of engines and auxiliary models, its engines, what leaves the rest, its mode.

    None: unknown. A stage's list of auxiliary models replaces the run-wide one.
    """
    def number(default: int | None, *path: Any) -> int | None:
        found = _value(made, stage, default, *path)
        return found if isinstance(found, int) and found > 0 else None

    models = [path[len(stage):] for path in made.below(*stage, *MODELS)] or made.below(*MODELS)
    pairs = [[number(1, *model, name) for name in ("engine_num", "tensor_parallel_size")]
             for model in (ENGINES[:2], *models)]
    taken = None if any(None in pair for pair in pairs) else sum(copies * split for copies, split in pairs)
    leave = "engines and auxiliary models leave" if models else "the engine leaves"
    each, nodes = number(None, "cluster", "gpu_per_node"), number(1, *NODES)
    return each and nodes and each * nodes, taken, pairs[0][0], leave, _value(made, stage, "both", "mode")


def _value(made: Translation, stage: Path, default: Any, *path: Any) -> Any:
    return made.entries.get((*stage, *path), made.entries.get(path, Entry(default))).value


# --------------------------------------------------------------------------------------------------------------- stages


def names_of(values: dict[Path, Any]) -> dict[int, str]:
    """Maps positions to distinct stage names that are valid as rules and directories. values: of the source."""
    names: dict[int, str] = {}
    for _, position in sorted(stage for stage in stages_of(values) if isinstance(stage[1], int)):
        name = re.sub(r"\W+", "_", str(values.get(("stages", position, "stage_name")) or ""), flags=re.ASCII).strip("_")
        name = name or str(position + 1)
        if not name[0].isalpha() or name in (*RESERVED, "all") or name.startswith("evaluate_"):
            name = f"stage_{name}"
        while name in names.values():
            name += "_2"
        names[position] = name
    return names


def complete_stages(made: Translation, values: dict[Path, Any]) -> None:
    """Names stages that have no name, updates references to renamed ones, and adds notes."""
    names = names_of(values)
    for position, name in names.items():
        made.choose(("stages", position, "stage_name"), name, "it has none there")
    renamed = {str(values.get(("stages", position, "stage_name"))): name for position, name in names.items()}
    for path, entry in made.entries.items():
        if path[0] == "stages" and path[2:] == ("after",):
            after = [renamed.get(str(n), n) for n in (entry.value if isinstance(entry.value, list) else [entry.value])]
            made.entries[path] = Entry(after, entry.comment)
    own = {path[2] for path in values if path[0] == "stages" and len(path) > 3}
    if both := sorted(own & {path[0] for path in values if path[0] != "stages"}):
        made.note("merged_stages", sections=", ".join(both))
    kind, mode = values.get(KIND), values.get(("mode",))
    if kind is not None and facts(str(kind)).on_rollouts and ("algorithm", "repeat_times") not in made.entries:
        made.note("repeat_times")
    if not names and mode == "bench" and values.get(("model", "external_model", "enable")) is not True:
        made.ask("bench")
    if not names and made.value("mode") == mode and (
            mode == "explore" or (mode == "train" and facts(str(kind)).on_rollouts)):
        made.note("half", mode=mode, alone=said(f"{mode}_alone"))


LENGTHS = ("max_prompt_tokens", "max_response_tokens")
