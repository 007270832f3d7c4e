"""SLURM, asked by its commands: configuration, partitions, and the jobs of this user."""

import functools
import math
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.store.errors import ConfigError

ASK_SECONDS = 30.0  # limit of one question
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED")
LEAST_JOB_AGE = 240  # seconds that squeue must show an ended job: how it ended is read after snakemake


def ask(*command: str, **environment: str) -> str | None:
    """Returns the output of a SLURM command; None if it is missing, fails or does not answer in ASK_SECONDS."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=ASK_SECONDS,
                              env=os.environ | environment)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def this_job() -> str | None:
    """Returns the number of the job that this process belongs to."""
    return os.environ.get("SLURM_JOB_ID")


def ends_at() -> float | None:
    """Returns when this job reaches its time limit, seconds since 1970; None outside a job or without a limit."""
    if not (number := this_job()):
        return None
    known = os.environ.get("SLURM_JOB_END_TIME")
    known = known or ask("squeue", "-h", "-j", number, "-o", "%e", SLURM_TIME_FORMAT="%s")
    return float(known) if known and known.isdigit() else None


# ----------------------------------------------------------------------------------------------- configuration


def cluster_settings() -> dict[str, str]:
    """Returns SLURM's configuration (`scontrol show config`). Raises ConfigError where there is no SLURM."""
    if not shutil.which("sbatch"):
        raise ConfigError("--profile slurm: this machine has no `sbatch`. Run it on a login node of the cluster, or "
                          "without --profile on this machine.")
    answer = ask("scontrol", "show", "config")
    if answer is None:
        raise ConfigError("--profile slurm: `scontrol show config` failed or did not answer in "
                          f"{ASK_SECONDS:.0f} s. Is the SLURM controller up (`scontrol ping`)?")
    pairs = (line.split("=", 1) for line in answer.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def status_command(settings: dict[str, str]) -> str:
    """Returns the command that shows how jobs ended: sacct with accounting, squeue without.

    (The plugin takes sacct wherever it is installed; without accounting that waits forever.) Raises ConfigError when
    neither can: squeue must show ended jobs for LEAST_JOB_AGE seconds.
    """
    accounting = settings.get("AccountingStorageType", "")
    if accounting.endswith(("slurmdbd", "mysql")) and ask("sacct", "-X", "-n", "-S", "now") is not None:
        return "sacct"
    age = int(settings.get("MinJobAge", "0").split()[0])
    if age < LEAST_JOB_AGE:
        raise ConfigError(f"this cluster has no accounting that answers (AccountingStorageType={accounting}), and "
                          f"squeue forgets ended jobs after MinJobAge={age} s; needed at least {LEAST_JOB_AGE}: ask "
                          "its administrator for one of them.")
    return "squeue"


@dataclass(frozen=True)
class Nodes:
    """Nodes of one kind in a partition. cpus, memory (MiB), gpus: of each. minutes: the time limit; None: unlimited."""

    cpus: int
    memory: int
    gpus: int
    minutes: int | None


@functools.cache
def partitions() -> dict[str, list[Nodes]]:
    """Returns the partitions that `sinfo` lists, the default one also as ''; empty where there is no SLURM."""
    found: dict[str, list[Nodes]] = {}
    for line in (ask("sinfo", "-h", "-o", "%P|%c|%m|%G|%l") or "").splitlines():
        name, cpus, memory, gres, limit = line.split("|")
        nodes = Nodes(int(cpus.rstrip("+")), int(memory.rstrip("+")), _gpus(gres), _minutes(limit))
        for each in [name.rstrip("*"), *([""] if name.endswith("*") else [])]:
            found.setdefault(each, []).append(nodes)
    return found


def _gpus(gres: str) -> int:
    """Returns the GPUs in `gpu:h100:8(S:0-1),gpu:a100:2`."""
    return sum(int(number) for number in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))


def _minutes(limit: str) -> int | None:
    """Returns the minutes of a time limit, `2-00:00:00`, `1:00:00` or `30:00`; None for `infinite`."""
    days, _, clock = limit.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in parts):
        return None
    hours, minutes, seconds = ([0, 0, 0] + [int(part) for part in parts])[-3:]
    return int(days or 0) * 1440 + hours * 60 + minutes + math.ceil(seconds / 60)


# ------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Job:
    """A job of a run. rule: that Snakemake submitted it for."""

    number: str
    state: str
    rule: str


def log_directory(view: Path) -> Path:
    """Returns the directory of the jobs' output; its name in squeue shows which run a job belongs to."""
    return Path(os.path.abspath(view)) / "logs" / "slurm"


def jobs(view: Path, *options: str) -> list[Job]:
    """Returns the jobs of a run that squeue lists. Raises ConfigError when it does not answer."""
    answer = ask("squeue", "--me", "-h", *options, "-O", "JobID:20|,State:20|,STDOUT:4000")
    if answer is None:
        raise ConfigError("`squeue --me` failed or did not answer: whether jobs of this run are at work is not known. "
                          "Try again.")
    place, found = f"{log_directory(view)}/rule_", []
    for line in answer.splitlines():
        number, state, output = (part.strip() for part in line.split("|", 2))
        if output.startswith(place):
            found.append(Job(number, state, output.removeprefix(place).split("/")[0]))
    return found


def last_job(view: Path, rule: str, shown: list[Job], since: float) -> str | None:
    """Returns the last job submitted for a rule after `since`: from `shown`, the jobs that squeue remembers, and the
    logs."""
    kept = [file.stem for file in (log_directory(view) / f"rule_{rule}").glob("*.log") if file.stat().st_mtime >= since]
    numbers = [int(number) for number in (*kept, *(job.number for job in shown if job.rule == rule))
               if number.isdigit()]
    return str(max(numbers)) if numbers else None


def ended_as(number: str) -> str | None:
    """Returns the final state of a job, such as TIMEOUT, from accounting or, while SLURM remembers it, from its
    controller; None if neither knows."""
    if answer := ask("sacct", "-X", "-n", "-P", "-o", "State", "-j", number):
        return answer.splitlines()[0].split()[0]
    shown = ask("scontrol", "-o", "show", "job", number)
    words = [word for word in (shown or "").split() if word.startswith("JobState=")]
    return words[0].removeprefix("JobState=") if words else None
