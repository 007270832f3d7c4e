"""Which data a stage reads: what the `tasks` and `curate` before it are made of, and nothing else.

So a changed evaluation set leaves the training as it is, a changed set of rft leaves the warmup, and stages that read
the same data share one `tasks` and one `curate`.
"""

import dataclasses
from typing import Any

from pipeline.data_config import ExperienceBuffer, Format, Taskset

NO_POOL = {"generator": None, "generator_args": {}, "inputs": [], "split": "train",
           "format": dataclasses.asdict(Format())}


def data_settings(settings: dict[str, Any], purpose: str) -> dict[str, Any]:
    """The settings with every set left out that `purpose` does not read, or that has no files of its own.

    purpose: train (demonstrations and pairs), rft, or evaluate. The pool (generator or inputs) stays where one of its
    sets takes rows from it; the seed matters to a generator alone.
    """
    buffer, pool = settings["buffer"], settings["data_processor"]["task_pipeline"]
    source, shown = buffer["explorer_input"], buffer["trainer_input"]["experience_buffer"]
    reads = {"train": [shown], "rft": source["tasksets"] or [source["taskset"]], "evaluate": source["eval_tasksets"]}
    own = [one for one in reads[purpose] if one["path"] is not None]
    alone = purpose == "rft" and not source["tasksets"]
    if len(own) == len(reads[purpose]):
        pool = pool | NO_POOL
    source = source | {
        "taskset": own[0] if alone and own else dataclasses.asdict(Taskset()),
        "tasksets": own if purpose == "rft" and not alone else [],
        "eval_tasksets": own if purpose == "evaluate" else [],
    }
    shown = own[0] if purpose == "train" and own else dataclasses.asdict(ExperienceBuffer())
    return settings | {
        "seed": settings["seed"] if pool["generator"] else 0,
        "buffer": buffer | {"explorer_input": source, "trainer_input": {"experience_buffer": shown}},
        "data_processor": settings["data_processor"] | {"task_pipeline": pool},
    }
