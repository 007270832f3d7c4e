"""What a stage needs of this machine, where it runs here: cores, host memory, variables with keys of servers, kernels.

Only what cannot go well is reported: many more processes than cores, and steps whose rows cannot be held.
"""

import os
import shutil

from ouroboros.pipeline.check import engine_rules
from ouroboros.pipeline.check.fit import trains
from ouroboros.pipeline.check.sources import explores, tasksets
from ouroboros.pipeline.check.workload import held_sets, workload
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.truncation import truncations
from ouroboros.pipeline.store.errors import Problem

MOST_PER_CORE = 4  # processes that compute at the same time; a few more than cores is slow, and useful to try ranks
POOL = "data_processor.task_pipeline"
ROW_BYTES = 1 << 10  # of an experience in a process, at least: its fields without its tokens
TOKEN_BYTES = 16  # of a token, at least: its id and its log-prob


def unfit_host(config: Config, gpus: Gpus) -> list[Problem]:
    """Lists what a stage asks too much of this machine. None where SLURM may run it on another."""
    if shutil.which("sinfo"):
        return []
    curates = _processes(f"{POOL}.num_process", config.data_processor.task_pipeline.num_process)
    found = (_ranks(config, gpus), _engines(config, gpus), _rows(config), _sets(config), curates)
    limits = [problem for problem in found if problem]
    return [*limits, *_keys(config), *engine_rules.unfit_engine(config, gpus)]


def _keys(config: Config) -> list[Problem]:
    """Reports environment variables that should hold a server's key and are not set."""
    explorer, asked = config.explorer, {}
    if explorer.rollout_model.engine_type == "openai":
        asked["explorer.rollout_model.external.api_key_env"] = explorer.rollout_model.external.api_key_env
    for place, one in tasksets(config):
        if "judge_reward" in reward_functions(one, config.buffer.explorer_input):
            key = f"buffer.explorer_input.{place}.reward_fn_args.judge_key_env"
            asked[key] = one.reward_fn_args.get("judge_key_env")
    there = os.environ.keys() | explorer.env_vars.keys()
    return [Problem(key, "the environment variable is not set.", "Set it to the server's key.", found=name)
            for key, name in asked.items() if name and name not in there]


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
    return Problem(key, f"each is a process that computes on a core, and there are {len(cores())} here; "
                   f"needed at most {MOST_PER_CORE * len(cores())}.", "Lower it.", found=asked)


def _sets(config: Config) -> Problem | None:
    """Reports truncated sampling that keeps more of what tokens were sampled among than the host memory holds."""
    needed = held_sets(config) if explores(config) else 0
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed <= room:
        return None
    prefix, one = max(truncations(config).items(), key=lambda each: each[1]["top_k"])
    return Problem(f"{prefix}.top_k", "what each token of a reply in progress was sampled among takes up to "
                   f"{needed / 2**30:,.0f} GiB, and this machine has {room / 2**30:,.0f} GiB of memory.",
                   "Lower it, or explorer.rollout_model.max_num_seqs.", found=one["top_k"])


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


def unknown_gpus(gpus: list[Gpus]) -> list[Problem]:
    """Reports unknown properties of the GPUs available to the stages."""
    found = []
    if any(one.count is None for one in gpus):
        found.append(Problem("cluster.gpu_per_node", "is not set: whether there are enough GPUs is unknown. Jobs of "
                             "SLURM ask for none without it where the machine that submits them shows none."))
    if any(one.any and not one.gib for one in gpus):
        found.append(Problem("cluster.gpu_memory_gib", "is not set, and no GPU shows its own: whether the memory "
                             "estimates fit is unknown."))
    return found
