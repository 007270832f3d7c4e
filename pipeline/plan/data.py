"""The data settings a stage depends on: those that determine the `tasks` and `curate` stages before it.

A changed evaluation set therefore leaves the training unchanged, a changed rft set leaves the warmup, and stages that
read the same data share one `tasks` and one `curate`.
"""

from typing import Any

from pipeline.plan.modes import kind_of
from pipeline.settings.data import ExperienceBuffer, Format, Taskset
from pipeline.settings.train_batch import expert_buffer

SETS = ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets.*", "buffer.explorer_input.eval_tasksets.*",
        "buffer.trainer_input.experience_buffer", "buffer.trainer_input.auxiliary_buffers.*")
PATHS = tuple(f"{one}.path" for one in SETS)
NO_POOL = {"generator": None, "generator_args": {}, "inputs": [], "split": "train",
           "format": Format().model_dump()}


def data_settings(settings: dict[str, Any], purpose: str) -> dict[str, Any]:
    """Returns the settings without the sets that `purpose` does not read, or that have no files of their own.

    purpose: train (demonstrations, pairs and texts), rft (with the expert rows that it mixes in), or evaluate.
    The pool (generator or inputs) remains if one of its sets takes rows from it; the seed matters only to a
    generator.
    """
    buffer, pool = settings["buffer"], settings["data_processor"]["task_pipeline"]
    source, shown = buffer["explorer_input"], buffer["trainer_input"]["experience_buffer"]
    reads = {"train": [shown], "rft": source["tasksets"] or [source["taskset"]], "evaluate": source["eval_tasksets"]}
    own = [one for one in reads[purpose] if one["path"] is not None]
    experts = _experts(settings) if purpose == "rft" else {}
    alone = purpose == "rft" and not source["tasksets"]
    if all(one["path"] is not None for one in [*reads[purpose], *experts.values()]):
        pool = pool | NO_POOL
    source = source | {
        "taskset": own[0] if alone and own else Taskset().model_dump(),
        "tasksets": own if purpose == "rft" and not alone else [],
        "eval_tasksets": own if purpose == "evaluate" else [],
    }
    shown = _as_read(own[0], settings) if purpose == "train" and own else ExperienceBuffer().model_dump()
    given = {"experience_buffer": shown,
             "auxiliary_buffers": {name: one for name, one in experts.items() if one["path"] is not None}}
    return settings | {
        "seed": settings["seed"] if pool["generator"] else 0,
        "buffer": buffer | {"explorer_input": source, "trainer_input": given},
        "data_processor": settings["data_processor"] | {"task_pipeline": pool},
    }


def _experts(settings: dict[str, Any]) -> dict[str, dict]:
    """Returns the auxiliary buffer that a stage mixes rows from, by name; empty without one."""
    algorithm, buffers = settings["algorithm"], settings["buffer"]["trainer_input"]["auxiliary_buffers"]
    if algorithm["sample_strategy"] != "mix" or kind_of(settings) != "rft":
        return {}
    name = expert_buffer(algorithm)
    return {name: buffers[name]}


def _as_read(shown: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns an experience buffer as a stage reads it: for cpt its prompts are the whole text."""
    if settings["algorithm"]["algorithm_type"] != "cpt":
        return shown
    return shown | {"format": shown["format"] | {"response_key": None}}
