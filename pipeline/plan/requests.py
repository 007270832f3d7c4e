"""What a stage requests from SLURM: resources of its rule, in the names of Snakemake's executor plugin."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.slurm import Nodes
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.settings.config import Slurm
from ouroboros.pipeline.store import checkpoints, files
from ouroboros.pipeline.store.errors import ModelError

# host memory of a Python process with torch and vLLM or DeepSpeed loaded; with GPUs also CUDA's libraries and buffers
GIB_PER_PROCESS, GIB_PER_GPU_PROCESS = 2.0, 5.0
MIB_PER_GIB, GIB = 1024, 2**30


def is_submitted(stage: Stage) -> bool:
    """Returns whether a stage is a separate job; the others run where the command runs."""
    return stage.kind.is_job or stage.config.cluster.slurm.submit == "all"


def resources(stage: Stage) -> dict[str, Any]:
    """Returns the resources of a stage's rule: GPUs, partition, memory in MiB, time limit in minutes, ...

    Executors other than SLURM's ignore all but the GPUs.
    """
    asked = stage.config.cluster.slurm
    named = {"slurm_partition": asked.partition, "slurm_account": asked.account, "qos": asked.qos,
             "constraint": asked.constraint, "gpu_model": asked.gpu_model if stage.gpus else None,
             "runtime": asked.runtime, "slurm_extra": _extra(asked), "cpus_per_task": asked.cpus, "gpu": stage.gpus}
    if (number := nodes(stage)) > 1:
        # `mpi`: the plugin then starts the stage on the first node alone, and the stage its tasks on all (job/step.py)
        named |= {"nodes": number, "mpi": "srun", "tasks": number, "cpus_per_task": asked.cpus or stage.threads}
        if stage.gpus:  # the plugin's `gpu` is of the whole job, which SLURM may spread unevenly
            model = f"{asked.gpu_model}:" if asked.gpu_model else ""
            named |= {"gpu": 0, "gpu_model": None, "gres": f"gpu:{model}{node_gpus(stage)}", "tasks_per_gpu": 0}
    return {"mem_mb": math.ceil(memory_gib(stage) * MIB_PER_GIB),
            **{name: value for name, value in named.items() if value is not None}}


def priorities(stages: Sequence[Stage]) -> dict[str, int]:
    """Maps manifests of stages, which are in executable order, to priorities: of those that can run, one that rests on
    fewer trainings and explorations comes first, so that a model is evaluated before a stage goes on from it."""
    depth: dict[str, int] = {}
    for stage in stages:
        own = stage.kind.trains or stage.kind.makes_experience
        depth[stage.manifest] = own + max((depth.get(above, 0) for above in stage.upstream), default=0)
    return {manifest: max(depth.values()) - before for manifest, before in depth.items()}


def nodes(stage: Stage) -> int:
    """Returns the number of nodes of a stage's job."""
    return stage.config.cluster.node_num if stage.kind.computes else 1


def node_gpus(stage: Stage) -> int:
    """Returns the GPUs that a stage uses of each node."""
    return math.ceil(stage.gpus / nodes(stage))


def cores(stage: Stage, kinds: Sequence[Nodes]) -> int | None:
    """Returns the cores that a stage requests of each node; None where they are not known.

    `cluster.slurm.cpus`; else, of the smallest node of its partition that suffices, all, or with GPUs the same share as
    of the GPUs. kinds: of nodes in its partition.
    """
    if stage.config.cluster.slurm.cpus or not stage.kind.computes:
        return stage.config.cluster.slurm.cpus or stage.threads
    gpus = node_gpus(stage)
    return min((max(kind.cpus * gpus // kind.gpus, 1) if gpus else kind.cpus for kind in kinds if kind.gpus >= gpus),
               default=None)


def _extra(asked: Slurm) -> str | None:
    """Returns sbatch options for which the plugin has no resource."""
    words = [f"--nodelist={shlex.quote(asked.nodes)}"] if asked.nodes else []
    return " ".join([*words, *(["--exclusive"] if asked.exclusive else [])]) or None


def command_prefix(stage: Stage) -> str:
    """Returns the shell text before a stage's command: set-up lines and the container's command, in a job."""
    if not is_submitted(stage):  # it runs where the command does, whose environment is set up
        return "exec "
    asked = stage.config.cluster.slurm
    lines = "".join(f"{line}\n" for line in asked.setup_lines)
    return f"{lines}exec {asked.container or ''} "  # the stage itself receives the signals of snakemake


def memory_gib(stage: Stage) -> float:
    """Returns the host memory a stage requests of each node: `cluster.slurm.mem`, or an estimate, in GiB.

    Estimate: GIB_PER_PROCESS or GIB_PER_GPU_PROCESS for the stage, each trainer rank, each GPU of an engine and each
    auxiliary model; twice the weight files, for the rank that gathers and writes them and for a loading engine; eight
    times without GPUs, where weights, gradients and optimizer are in host memory, or when the optimizer is offloaded.
    """
    asked = stage.config.cluster.slurm.mem
    if asked is not None:
        return asked
    if not stage.kind.computes:  # one that reads a model holds it
        return GIB_PER_PROCESS + 2 * _weights_gib(stage.inputs.get("model"))
    trainer, explorer = stage.config.trainer, stage.config.explorer
    engine = explorer.rollout_model
    spread = trainer.ranks if stage.kind.trains else 0
    if stage.kind.asks_models:
        spread += len(explorer.auxiliary_models)
    if stage.kind.engine:
        shared_by = 1 if not stage.gpus else 2 if engine.engines_per_gpu == "auto" else engine.engines_per_gpu
        spread += engine.engine_num * engine.tensor_parallel_size * shared_by
    processes = 1 + math.ceil(spread / nodes(stage))
    copies = 2 if stage.gpus and not trainer.offload_optimizer else 8
    each = GIB_PER_GPU_PROCESS if stage.gpus else GIB_PER_PROCESS
    return each * processes + copies * _weights_gib(stage.inputs.get("model"))


def _weights_gib(model: str | None) -> float:
    """Returns the GiB of a model's weight files: of a directory, or of what a stage trained; before it is made, of what
    it begins with, and 0 where that is not made either."""
    if not model:
        return 0.0
    try:
        directory = checkpoints.model_directory(Path(model))
    except ModelError:
        frozen = Path(model) / "stage.json"
        return _weights_gib(files.read_json(frozen)["inputs"].get("model")) if frozen.exists() else 0.0
    return checkpoints.weight_bytes(directory) / GIB
