"""What stages request from SLURM, and what the cluster's partitions can give."""

import asyncio
from types import SimpleNamespace

import pytest
import snakemake_executor_plugin_slurm as plugin

from ouroboros.commands.run.snakefile import follow_steadily
from ouroboros.pipeline.check import machine
from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import KINDS

NODES = {"gpu": [slurm.Nodes(128, 512_000, 8, 2880)], "cpu": [slurm.Nodes(32, 64_000, 0, None)]}


def stage(kind="rft", gpus=8, node_num=1, per_gpu=1, **asked):
    settings = {"partition": None, "account": None, "qos": None, "constraint": None, "gpu_model": None, "runtime": None,
                "mem": None, "cpus": None, "nodes": None, "exclusive": False, "setup_lines": [], "container": None,
                "submit": "heavy"}
    config = Config.partial({
        "cluster": {"slurm": settings | asked, "node_num": node_num},
        "trainer": {"ranks": 4, "offload_optimizer": False},
        "explorer": {"rollout_model": {"engine_num": 4, "tensor_parallel_size": 1, "engines_per_gpu": per_gpu},
                     "auxiliary_models": []}})
    return SimpleNamespace(name="rft", kind=KINDS[kind], gpus=gpus, threads=64, config=config, inputs={})


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    monkeypatch.setattr(slurm, "partitions", lambda: NODES)


@pytest.mark.parametrize(("asked", "keys"), [
    ({"partition": "gpu", "runtime": 2880}, []),
    ({"partition": "gpu", "runtime": 2881}, ["cluster.slurm.runtime"]),
    ({"partition": "gqu"}, ["cluster.slurm.partition"]),
    ({}, ["cluster.slurm.partition"]),  # there is no default one
    ({"partition": "cpu"}, ["cluster.slurm.partition"]),  # it has no GPUs
    ({"partition": "gpu", "mem": 501.0}, ["cluster.slurm.mem"]),
    ({"partition": "gpu", "cpus": 129}, ["cluster.slurm.cpus"]),
    ({"partition": "gpu", "gpus": 16}, ["cluster.slurm.partition"]),
    ({"partition": "gpu", "gpus": 16, "node_num": 2}, [])])
def test_a_request_that_no_node_can_satisfy_is_a_problem(asked, keys):
    assert [problem.key for problem in machine.unsatisfiable_requests([stage(**asked)])] == keys


def test_a_stage_that_runs_here_requests_nothing():
    assert machine.unsatisfiable_requests([stage("curate", 0)]) == []
    assert len(machine.unsatisfiable_requests([stage("curate", 0, submit="all")])) == 1


def test_set_up_lines_and_container_are_those_of_a_job():
    asked = {"setup_lines": ["module load cuda", "source env.sh"], "container": "apptainer exec image.sif"}
    assert requests.command_prefix(stage(**asked)) == (
        "module load cuda\nsource env.sh\nexec apptainer exec image.sif ")
    assert requests.command_prefix(stage("curate", 0, **asked)) == "exec "


def test_the_memory_of_a_job_is_that_of_its_processes():
    """One stage, four ranks, four engines: nine processes of 5 GiB; on CPUs of 2 GiB."""
    assert requests.memory_gib(stage()) == 45.0
    assert requests.memory_gib(stage(gpus=0)) == 18.0
    assert requests.memory_gib(stage(per_gpu="auto")) == 65.0  # it may be eight engines
    assert requests.memory_gib(stage(node_num=2)) == 25.0  # of each node: the stage, two ranks, two engines
    assert requests.resources(stage(mem=1.5))["mem_mb"] == 1536


def test_cores_are_the_share_of_a_node_that_the_gpus_are():
    assert requests.cores(stage(gpus=2), NODES["gpu"]) == 32
    assert requests.cores(stage(gpus=8, node_num=2), NODES["gpu"]) == 64  # four of each node
    assert requests.cores(stage(gpus=0), NODES["cpu"]) == 32
    assert requests.cores(stage(gpus=2, cpus=5), NODES["gpu"]) == 5
    assert requests.cores(stage(gpus=2), NODES["cpu"]) is None
    assert requests.cores(stage("curate", 0), NODES["cpu"]) == 64  # its own threads


def test_gpus_of_several_nodes_are_requested_by_node():
    found = requests.resources(stage(gpus=16, node_num=2, gpu_model="h100"))
    assert {name: found[name] for name in ("nodes", "tasks", "gpu", "gres", "tasks_per_gpu")} == {
        "nodes": 2, "tasks": 2, "gpu": 0, "gres": "gpu:h100:8", "tasks_per_gpu": 0}
    assert "gpu_model" not in found


def test_resources_have_the_names_of_the_plugin():
    found = requests.resources(stage(partition="gpu", account="lab", runtime=60, nodes="gpu[01-02]", exclusive=True))
    assert found == {"mem_mb": 45 * 1024, "gpu": 8, "slurm_partition": "gpu", "slurm_account": "lab", "runtime": 60,
                     "slurm_extra": "--nodelist='gpu[01-02]' --exclusive"}


@pytest.mark.parametrize(("read", "text", "number"), [
    (slurm._gpus, "(null)", 0), (slurm._gpus, "gpu:8", 8), (slurm._gpus, "gpu:h100:4(S:0-1),gpu:a100:2", 6),
    (slurm._minutes, "1:00:00", 60), (slurm._minutes, "2-00:00:00", 2880), (slurm._minutes, "30:00", 30),
    (slurm._minutes, "20", 1), (slurm._minutes, "infinite", None)])
def test_gpus_of_a_node_and_time_limits_of_sinfo(read, text, number):
    assert read(text) == number


@pytest.mark.parametrize(("no_requeue", "preempted"), [(True, "CANCELLED"), (False, "PREEMPTED")])
def test_the_executor_knows_the_states_of_cancelled_and_preempted_jobs(monkeypatch, no_requeue, preempted):
    """sacct says who cancelled a job; the plugin takes a state that it does not know for one of a running job."""
    async def answer(command, logger):
        return {"4": "CANCELLED by 0", "5": "PREEMPTED", "6": "RUNNING"}, 0.1

    monkeypatch.setattr(plugin, "query_job_status", answer)
    monkeypatch.setattr(plugin.Executor, "next_seconds_between_status_checks", None, raising=False)
    follow_steadily(SimpleNamespace(init_seconds_before_status_checks=10, no_requeue=no_requeue))
    assert asyncio.run(plugin.query_job_status("sacct", None))[0] == {"4": "CANCELLED", "5": preempted, "6": "RUNNING"}
