"""What a stage requests from SLURM: resources of its rule, in the names of Snakemake's executor plugin."""

import math
import shlex
from pathlib import Path
from typing import Any

from pipeline.plan.identity import HEAVY, Stage
from pipeline.settings.config import Slurm
from pipeline.store import checkpoints
from pipeline.store.errors import ModelError

# host memory of a Python process with torch and vLLM or DeepSpeed loaded; with GPUs also CUDA's libraries and buffers
GIB_PER_PROCESS, GIB_PER_GPU_PROCESS = 2.0, 5.0
MIB_PER_GIB, GIB = 1024, 2**30


def is_submitted(stage: Stage) -> bool:
    """Returns whether a stage is a job of its own; the others run where the command runs."""
    return stage.kind in HEAVY or stage.config.cluster.slurm.submit == "all"


def resources(stage: Stage) -> dict[str, Any]:
    """Returns the resources of a stage's rule: partition, account, memory in MiB, time limit in minutes, ...

    Executors other than SLURM's ignore them.
    """
    asked = stage.config.cluster.slurm
    named = {"slurm_partition": asked.partition, "slurm_account": asked.account, "qos": asked.qos,
             "constraint": asked.constraint, "gpu_model": asked.gpu_model if stage.gpus else None,
             "runtime": asked.runtime, "slurm_extra": _extra(asked)}
    number = stage.config.cluster.node_num if is_submitted(stage) and stage.kind in HEAVY else 1
    # `mpi`: the plugin then starts the stage on the first node alone, and the stage its tasks on all (job/step.py)
    spread = {"nodes": number, "mpi": "srun", "tasks": number, "cpus_per_task": stage.threads} if number > 1 else {}
    return {**spread, "mem_mb": math.ceil(memory_gib(stage) * MIB_PER_GIB),
            **{name: value for name, value in named.items() if value is not None}}


def _extra(asked: Slurm) -> str | None:
    """Returns sbatch options for which the plugin has no resource."""
    words = [f"--nodelist={shlex.quote(asked.nodes)}"] if asked.nodes else []
    return " ".join([*words, *(["--exclusive"] if asked.exclusive else [])]) or None


def command_prefix(stage: Stage) -> str:
    """Returns the shell text before a stage's command: set-up lines, and the container's command."""
    asked = stage.config.cluster.slurm
    lines = "".join(f"{line}\n" for line in asked.setup_lines)
    return f"{lines}exec {asked.container or ''} "  # the stage itself receives the signals of snakemake


def memory_gib(stage: Stage) -> float:
    """Returns the host memory a stage requests: `cluster.slurm.mem`, or an estimate, in GiB.

    Estimate: GIB_PER_PROCESS or GIB_PER_GPU_PROCESS for the stage, each trainer rank, each GPU of an engine and each
    auxiliary model; twice the weight files, for the rank that gathers and writes them and for a loading engine; eight
    times without GPUs, where weights, gradients and optimizer are in host memory, or when the optimizer is offloaded.
    """
    asked = stage.config.cluster.slurm.mem
    if asked is not None:
        return asked
    if stage.kind not in HEAVY:
        return GIB_PER_PROCESS
    trainer, explorer = stage.config.trainer, stage.config.explorer
    engine = explorer.rollout_model
    processes = 1 + (trainer.ranks if stage.kind in ("train", "rft", "offline") else 0)
    if stage.kind not in ("train", "offline"):
        shared_by = 1 if not stage.gpus else 2 if engine.engines_per_gpu == "auto" else engine.engines_per_gpu
        processes += engine.engine_num * engine.tensor_parallel_size * shared_by + len(explorer.auxiliary_models)
    copies = 2 if stage.gpus and not trainer.offload_optimizer else 8
    each = GIB_PER_GPU_PROCESS if stage.gpus else GIB_PER_PROCESS
    return each * processes + copies * _weights_gib(stage.inputs.get("model"))


def _weights_gib(model: str | None) -> float:
    """Returns the GiB of a model's weight files: of a directory, or of what a stage trained; 0 if not made yet."""
    if not model:
        return 0.0
    try:
        directory = checkpoints.model_directory(Path(model))
    except ModelError:
        return 0.0
    return sum(file.stat().st_size for file in directory.glob("*.safetensors")) / GIB
