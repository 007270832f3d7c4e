"""The trainer's GPUs in a Trinity-RFT configuration: those that the engines leave, of each stage by itself.

The original counts them so: where a stage explores nothing its trainer has all of them. It shards the model over them.
"""

from typing import Any

from pipeline.bridges.translation import Entry, Path, Translation
from pipeline.bridges.trinity_sizes import ITS_DEFAULT
from pipeline.settings.algorithms import GIVEN

ENGINES, RANKS = ("explorer", "rollout_model", "engine_num"), ("trainer", "ranks")


def gpus(made: Translation, machines: Any) -> None:
    """Lines for `trainer.ranks`, of all stages and of those that differ. machines: cluster.node_num of the source."""
    if made.entries.get(("trainer", "offload_param"), Entry(False)).value is True:
        made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
    if RANKS in made.entries:
        made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
        return
    if isinstance(machines, int) and machines > 1:
        _on_one_machine(made, machines)
    left = _left(made, ())
    if left is not None and left != 1:
        _say(made, (), left)
    of_all = made.entries.get(RANKS, Entry(1)).value
    for stage in sorted({path[:2] for path in made.entries if path[0] == "stages"}, key=str):
        left = _left(made, stage)
        if left not in (None, of_all):
            _say(made, stage, left)


def _say(made: Translation, stage: Path, left: int) -> None:
    """The line and its reason. left: GPUs for the trainer; none or fewer where the engines take all."""
    each, name = _number(made, stage, None, "cluster", "gpu_per_node"), made.entries.get((*stage, "stage_name"))
    told = f" in stage {name.value}" if name else ""
    made.choose(("trainer", "zero_stage"), 3, f"{ITS_DEFAULT}, fsdp")
    if left < 1:
        made.chosen.append(f"trainer.ranks{told} is not set: the engines take {each - left} of {each} GPUs and leave "
                           "none. Lower explorer.rollout_model.engine_num, or set mode=colocate.")
        return
    leave = "the engine leaves" if not _models(made, stage) else "engines and auxiliary models leave"
    which = f"all {each} GPUs" if _is_alone(made, stage) else f"of {each} GPUs, those that {leave}"
    made.choose((*stage, *RANKS), left, "all GPUs" if _is_alone(made, stage) else f"the GPUs that {leave}")
    budgets = "" if stage else " A train batch need not divide by them: micro-batches are token budgets."
    made.chosen.append(f"trainer.ranks={left}{told}: {which}, as in Trinity-RFT.{budgets}")


def _on_one_machine(made: Translation, machines: int) -> None:
    """Engines of several machines that would leave the trainer nothing of one: this one's share of them."""
    each, explored = _number(made, (), None, "cluster", "gpu_per_node"), _explored(made, ())
    engines = _number(made, (), 1, *ENGINES)
    if not each or not explored or not engines or explored < each or engines < machines:
        return
    share = engines // machines
    made.entries[ENGINES] = Entry(share, f"{engines} there, on {machines} machines")
    made.chosen.append(f"explorer.rollout_model.engine_num={share}: there {engines} on {machines} machines, and a run "
                       "takes one.")


def _left(made: Translation, stage: Path) -> int | None:
    """GPUs of the trainer; None where it has no place of its own, or a number is not known."""
    each = _number(made, stage, None, "cluster", "gpu_per_node")
    if not each or _value(made, stage, "both", "mode") not in ("both", "train"):
        return None
    explored = 0 if _is_alone(made, stage) else _explored(made, stage)
    return None if explored is None else each - explored


def _is_alone(made: Translation, stage: Path) -> bool:
    """Whether nothing is explored beside the trainer."""
    algorithm = _value(made, stage, None, "algorithm", "algorithm_type")
    return _value(made, stage, "both", "mode") == "train" or algorithm in GIVEN


def _explored(made: Translation, stage: Path) -> int | None:
    """GPUs of the engines and of the auxiliary models, which score; None where a number is not known."""
    taken = 0
    for model in [("explorer", "rollout_model"), *_models(made, stage)]:
        copies, split = (_number(made, stage, 1, *model, name) for name in ("engine_num", "tensor_parallel_size"))
        if copies is None or split is None:
            return None
        taken += copies * split
    return taken


def _models(made: Translation, stage: Path) -> list[Path]:
    """Where the auxiliary models stand, below a stage or the whole: a list of a stage's replaces the other."""
    of_all = ("explorer", "auxiliary_models")
    scope = stage if any(path[:4] == (*stage, *of_all) for path in made.entries) else ()
    size = len(scope)
    return sorted({path[size:size + 3] for path in made.entries if path[:size + 2] == (*scope, *of_all)}, key=str)


def _value(made: Translation, stage: Path, default: Any, *path: Any) -> Any:
    """What a stage says, or all; the default where neither does."""
    return made.entries.get((*stage, *path), made.entries.get(path, Entry(default))).value


def _number(made: Translation, stage: Path, default: int | None, *path: Any) -> int | None:
    value = _value(made, stage, default, *path)
    return value if isinstance(value, int) and value > 0 else None
