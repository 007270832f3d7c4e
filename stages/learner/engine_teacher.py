"""A teacher that an engine of ours has: a model of explorer.auxiliary_models, in place of a copy of each rank.

Its processes are those of rank 0, on the GPUs of that model; a signal that asks the trainer to save and end does not
reach them. Prompts are computed in pieces, whose logits are what the estimate counts (pipeline/check/fit.py).
"""

from pathlib import Path

import numpy as np

from ouroboros.pipeline.job.context import Context
from ouroboros.pipeline.job.devices import visible_gpus
from ouroboros.pipeline.job.shares import auxiliary_gpus
from ouroboros.pipeline.settings import schema
from ouroboros.pipeline.settings.config import Config, longest_sequence
from ouroboros.pipeline.settings.explorer import PROMPT_PIECE
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.checkpoints import model_directory
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.engine.batch import Row
from ouroboros.stages.learner.engine.process import Process
from ouroboros.stages.learner.served_teacher import HELD_BYTES, AskedTeacher
from ouroboros.workflows.engines.engine_pool import EnginePool

PLACE_BYTES = 8  # of an id and its log-prob in an answer; an engine has some ten times as many while it makes it
SEQUENCES = 16  # at once: a piece of prompts is soon full, and nothing is decoded, so that graphs would be idle too
ENGINE = ("engine_type", "engine_num", "tensor_parallel_size", "gpu_memory_utilization")


class EngineTeacher(AskedTeacher):
    """Asked by rank 0, which starts it."""

    def __init__(self, context: Context, student: Path, process: Process):
        """Raises also what an engine raises that cannot start."""
        self.setting = f"model.teacher_name={context.config.model.teacher_name}"
        super().__init__(context, student, process)
        self.engine, self.copies = None, context.config.own_teacher.engine_num
        self.together(self._open)

    def _open(self) -> None:
        config, gpus = self.context.config, visible_gpus(self.context.config.cluster.gpu_per_node)
        own = auxiliary_gpus(config, config.explorer.auxiliary_models.index(config.own_teacher))
        first = 0 if config.mode == "colocate" else config.trainer.ranks
        self.engine = EnginePool(
            model_directory(self.context.inputs["teacher"]), settings_of(config, self.tops, bool(gpus)), [], False,
            self.context.directory, name="teacher", gpus=gpus[first + own.start : first + own.stop])

    def asked(self, rows: list[Row]) -> list[np.ndarray]:
        found, most = [], HELD_BYTES // (PLACE_BYTES * (self.tops + 1))  # tokens whose answers are held at once
        while len(found) < len(rows):
            some, tokens = [], 0
            for row in rows[len(found) :]:
                tokens += len(row.tokens)
                if len(some) >= self.copies and tokens > most:
                    break
                some.append(row)
            said = self.engine.prompt_logprobs([row.tokens for row in some], self.tops)
            found += [self.of_row(row, *arrays) for row, arrays in zip(some, said, strict=True)]
        return found


def settings_of(config: Config, tops: int, gpu: bool) -> Config:
    """The settings of the teacher's engine. config: the stage's. tops: likeliest tokens that it is asked for."""
    one = config.own_teacher
    tree = {"mode": config.mode, "explorer": {
                "auxiliary_models": [plain(one)],
                "rollout_model": {"engines_per_gpu": 1, "enforce_eager": True, "max_num_seqs": SEQUENCES,
                                  **{name: getattr(one, name) for name in ENGINE}}},
            "model": {"dtype": one.dtype, "trust_remote_code": config.model.trust_remote_code,
                      "max_model_len": longest_sequence(config.model) + AskedTeacher.added}}
    read, problems = schema.read(tree, Config)
    if problems:
        raise ConfigError.of("the engine of model.teacher_name:", problems)
    return read.but("explorer.rollout_model.extra_engine_args", {
        "max_logprobs": max(tops, 1), **({"max_num_batched_tokens": PROMPT_PIECE} if gpu else {})})
