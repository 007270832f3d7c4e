"""Tasks of a stage on the nodes of its job, as steps of SLURM (`srun`) in the job's own allocation.

    srun ... python -m ouroboros.pipeline.job.step FIRST COUNT MODULE ARGUMENT ...

On the node, the task takes COUNT of the GPUs that the node gave the job, from index FIRST (negative: from the end), and
its part of the job's cores there, sets the variables that torch.distributed reads, and becomes `python -m MODULE
ARGUMENT ...`.
"""

import os
import platform
import re
import socket
import sys

from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.job.devices import visible_gpus
from ouroboros.pipeline.job.shares import cores, deal_cores
from ouroboros.pipeline.job.threads import thread_environment
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import StageError


def nodes() -> list[str]:
    """Returns the names of this job's nodes, in order: the stage runs on the first. Raises StageError outside a job."""
    if not (number := slurm.this_job()):
        raise StageError("cluster.node_num is more than 1, and this is no job of SLURM. Several machines need SLURM: "
                         "`ouro run --profile slurm`; on one machine set cluster.node_num=1.")
    listed = slurm.ask("squeue", "-h", "-j", number, "-o", "%N")
    names = listed and slurm.ask("scontrol", "show", "hostnames", listed)
    if not names:
        raise StageError(f"squeue does not show the nodes of job {number}; is the SLURM controller up?")
    return names.split()


def command(module: list[str], first: int, count: int, on: list[str], tasks: int) -> list[str]:
    """Returns the command of `tasks` tasks, as many on each of these nodes; the step ends when one of them fails.

    first, count: the GPUs of each node that the tasks there share.
    """
    return ["srun", "--overlap", f"--nodes={len(on)}", f"--nodelist={','.join(on)}", f"--ntasks={tasks}",
            f"--ntasks-per-node={tasks // len(on)}", "--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=1",
            "--unbuffered", *launch.command("ouroboros.pipeline.job.step", str(first), str(count), *module)]


def rendezvous() -> dict[str, str]:
    """Returns the variables by which ranks on several nodes meet: at this host, where rank 0 runs, at a free port."""
    with socket.socket() as one:
        one.bind(("", 0))
        return {"MASTER_ADDR": platform.node(), "MASTER_PORT": str(one.getsockname()[1])}


def become(first: int, count: int, module: list[str]) -> None:
    """Replaces this process by the task's command."""
    here = int(re.match(r"\d+", os.environ["SLURM_STEP_TASKS_PER_NODE"])[0])  # `4` or `4(x2)`
    local = int(os.environ["SLURM_LOCALID"])
    own = deal_cores(cores(), here)[local]
    os.sched_setaffinity(0, own)
    environment = thread_environment(len(own)) | {
        "RANK": os.environ["SLURM_PROCID"], "WORLD_SIZE": os.environ["SLURM_NTASKS"], "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(here)}
    if count:
        gpus = visible_gpus(None)
        begin = first if first >= 0 else len(gpus) + first
        if begin < 0 or len(gpus) < begin + count:
            raise StageError(f"node {platform.node()} gave the job {len(gpus)} GPUs, too few: is cluster.gpu_per_node "
                             "the number of GPUs of each node?")
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[begin : begin + count])
    os.execve(sys.executable, launch.command(*module), os.environ | environment)



if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
