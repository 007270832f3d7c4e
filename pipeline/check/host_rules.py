"""What a stage needs of the cores and the host memory of this machine, where it runs here.

Only what cannot go well is reported: many more processes than cores, and steps whose rows cannot be held.
"""

import os
import shutil

from pipeline.check.fit import trains
from pipeline.check.workload import explores, workload
from pipeline.job.devices import Gpus
from pipeline.job.shares import cores
from pipeline.settings.config import Config
from pipeline.store.errors import Problem

MOST_PER_CORE = 4  # processes that compute at the same time; a few more than cores is slow, and useful to try ranks
ROW_BYTES = 1 << 10  # of an experience in a process, at least: its fields without its tokens
TOKEN_BYTES = 16  # of a token, at least: its id and its log-prob


def problems(config: Config, gpus: Gpus) -> list[Problem]:
    """Lists what a stage asks too much of this machine. None where SLURM may run it on another."""
    if shutil.which("sinfo"):
        return []
    return [problem for problem in (_ranks(config, gpus), _engines(config, gpus), _rows(config)) if problem]


def _ranks(config: Config, gpus: Gpus) -> Problem | None:
    return None if gpus.any or not trains(config) else _processes("trainer.ranks", config.trainer.ranks)


def _engines(config: Config, gpus: Gpus) -> Problem | None:
    settings = config.explorer.rollout_model
    if gpus.any or not explores(config) or settings.engine_type not in ("vllm", "transformers"):
        return None
    return _processes("explorer.rollout_model.engine_num", settings.engine_num)


def _processes(key: str, asked: int) -> Problem | None:
    if asked <= MOST_PER_CORE * len(cores()):
        return None
    return Problem(key, f"without GPUs each is a process that computes on a core, and there are {len(cores())} here; "
                   f"needed at most {MOST_PER_CORE * len(cores())}.", "Lower it.", found=asked)


def _rows(config: Config) -> Problem | None:
    """Reports an explorer step, or a train batch, with more rows than the host memory can hold."""
    made = workload(config)
    rows = max(made.explored, made.trained)
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    needed = rows * (ROW_BYTES + TOKEN_BYTES)
    if needed <= room:
        return None
    buffer = config.buffer
    key = "train_batch_size" if buffer.train_batch_size and made.trained > made.explored else "batch_size"
    return Problem(f"buffer.{key}", f"a step holds {rows:,} experiences, at least {needed / 2**30:,.0f} GiB, and this "
                   f"machine has {room / 2**30:,.0f} GiB of memory.", "Lower it, or algorithm.repeat_times.",
                   found=getattr(buffer, key))
