"""Compares what stages request from SLURM with its partitions, where its commands are installed."""

import getpass
from collections.abc import Iterable

from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.store.errors import Problem

SECTION = "cluster.slurm"


def unsatisfiable_requests(stages: Iterable[Stage]) -> list[Problem]:
    """Lists requests that no node of the cluster can satisfy: SLURM would refuse the job, or keep it pending."""
    found = [problem for stage in stages if requests.is_submitted(stage) for problem in _of(stage)]
    return list(dict.fromkeys(found))


def _of(stage: Stage) -> list[Problem]:
    asked, known = stage.config.cluster.slurm, slurm.partitions()
    name = asked.partition or ""
    if not known:
        return []
    if name not in known:
        there = ", ".join(sorted(filter(None, known)))
        what = "the cluster has no such partition" if name else "is not set, and the cluster has no default"
        return [Problem(f"{SECTION}.partition", f"{what}.", f"Its partitions: {there}.", found=name)]
    return [*_limit(asked.runtime, known[name]), *_nodes(stage, known[name]), *_account(asked.account)]


def _limit(minutes: int | None, kinds: list[slurm.Nodes]) -> list[Problem]:
    limits = [kind.minutes for kind in kinds]
    if minutes is None or None in limits or minutes <= max(limits):
        return []
    return [Problem(f"{SECTION}.runtime", f"the partition's limit is {max(limits)} minutes.",
                    "Ask for less (a stage saves and stops before the limit, and is submitted again), or name another "
                    "partition.", found=minutes)]


def _nodes(stage: Stage, kinds: list[slurm.Nodes]) -> list[Problem]:
    """Compares GPUs and memory of a job with the nodes of its partition."""
    memory, most = requests.memory_gib(stage), max(kind.gpus for kind in kinds)
    needed = requests.node_gpus(stage)
    fitting = [kind for kind in kinds if kind.gpus >= needed]
    if not fitting:
        return [Problem(f"{SECTION}.partition", f"stage '{stage.name}' needs {needed} GPUs on a node; nodes of "
                        f"this partition have at most {most}.", "Name another partition, or ask for fewer GPUs.",
                        found=stage.config.cluster.slurm.partition)]
    if all(kind.memory < memory * requests.MIB_PER_GIB for kind in fitting):
        largest = max(kind.memory for kind in fitting) / requests.MIB_PER_GIB
        return [Problem(f"{SECTION}.mem", f"stage '{stage.name}' asks for {memory:.0f} GiB of host memory; the largest "
                        f"node of the partition has {largest:.0f}.", "Set a smaller one, or name another partition.",
                        found=stage.config.cluster.slurm.mem)]
    if (asked := stage.config.cluster.slurm.cpus) and asked > (most := max(kind.cpus for kind in fitting)):
        return [Problem(f"{SECTION}.cpus", f"nodes of the partition have at most {most} cores.", "Ask for fewer.",
                        found=asked)]
    return []


def _account(account: str | None) -> list[Problem]:
    """Compares the account with those of this user, where the cluster keeps any."""
    answer = account and slurm.ask("sacctmgr", "-n", "-P", "show", "assoc", f"user={getpass.getuser()}",
                                   "format=Account")
    known = set((answer or "").split())
    if not known or account in known:
        return []
    return [Problem(f"{SECTION}.account", f"is none of yours: {', '.join(sorted(known))}.", found=account)]
