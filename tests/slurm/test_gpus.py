"""Requests for GPUs on a SLURM whose nodes have eight each (device files that are /dev/null)."""

import shlex
import subprocess
from types import SimpleNamespace

import pytest

from ouroboros.commands.run import submission
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose.recipe import effective
from ouroboros.pipeline.job import slurm

CLUSTER = {"cpus": 64, "gpus": 8}


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 8), (2, 16)])
def test_a_job_gets_its_gpus_and_cores_on_every_node(cluster, tmp_path, nodes, gpus):
    slurm.partitions.cache_clear()
    half = gpus // 2
    config = compose(["recipe=gsm8k_7b", "cluster.slurm.mem=10", "cluster.slurm.runtime=5", f"trainer.ranks={half}",
                      f"explorer.rollout_model.engine_num={half}", f"cluster.node_num={nodes}"])
    stage = SimpleNamespace(name="rft", kind="rft", gpus=gpus, threads=2, inputs={},
                            config=effective(config, config.stages[0]))
    show = f"srun --ntasks={nodes} --ntasks-per-node=1 --mem=0 sh -c 'echo $SLURM_CPUS_ON_NODE $CUDA_VISIBLE_DEVICES'"
    done = subprocess.run([*shlex.split(submission.sbatch(stage)), "--wait", "-o", str(tmp_path / "out"), "--wrap",
                           show], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text().splitlines() == ["64 0,1,2,3,4,5,6,7"] * nodes
