"""Runs snakemake on SLURM: one `ouro run` of a run at a time, and again after a job was ended by SLURM."""

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ouroboros.commands.run.sweep import rules
from ouroboros.pipeline.check import machine
from ouroboros.pipeline.job import slurm
from ouroboros.pipeline.job.ending import INTERRUPTED, OUT_OF_TIME
from ouroboros.pipeline.job.error_file import recorded_error, write_error
from ouroboros.pipeline.job.holders import is_locked
from ouroboros.pipeline.plan import requests
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import HOME

if TYPE_CHECKING:
    from ouroboros.commands.run.console import Ended

STOPPED = ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "REVOKED")  # by SLURM, not by the stage
TIMELY = f"{INTERRUPTED} by {OUT_OF_TIME.name}"  # a stage that ended by itself, before its job's time limit
MOST_IDLE = 2  # submissions in a row that complete no further step
POLL_SECONDS = 5.0


def arguments(plan) -> list[str]:
    """Returns snakemake's arguments for jobs of SLURM: profiles/slurm, and what depends on the cluster and the run."""
    command = slurm.status_command(slurm.cluster_settings())
    cores = [f"{rule}:cpus_per_task={number}" for rule, stage in rules(plan.stages) if (number := _cores(stage))]
    return ["--profile", str(HOME / "profiles" / "slurm"), "--slurm-status-command", command,
            *(["--set-resources", *cores] if cores else []), "--slurm-logdir", str(slurm.log_directory(plan.view))]


def _cores(stage: Stage) -> int | None:
    """Returns the cores that the job of a stage requests of each node; None for a stage that runs here."""
    kinds = slurm.partitions().get(stage.config.cluster.slurm.partition or "", ())
    return requests.cores(stage, kinds) if requests.is_submitted(stage) else None


def wait_for(plan) -> None:
    """Waits while jobs of an earlier `ouro run` of this run are pending or running, or another run makes one of its
    stages: submitted now, their jobs would hold nodes and wait."""
    known: set[str] = set()
    while left := [*_left(plan)]:
        for line in left:
            if line not in known:
                known.add(line)
                _say(line)
        time.sleep(POLL_SECONDS)


def _left(plan) -> Iterator[str]:
    """Yields what is still at work on the stages of a plan, one line each."""
    for job in (one for one in slurm.jobs(plan.view) if one.state in slurm.LIVE):
        yield f"waiting for job {job.number} ({job.rule}) of an earlier `ouro run`; to end it: scancel {job.number}"
    for stage in plan.stages:
        lock = Path(stage.directory) / ".lock"
        if not files.is_complete(stage.directory) and is_locked(lock):
            yield f"waiting for {Path(stage.directory).name}: {lock.read_text().strip() or 'another process'} makes it"


def run_jobs(start: Callable[[list[str]], "Ended"], extra: list[str], plan) -> "Ended":
    """Runs snakemake on SLURM; again, while stages that SLURM ended (STOPPED) are all that failed and they advance.

    start: runs snakemake with these arguments. extra: the user's. At most MOST_IDLE submissions in a row reach no
    further step.
    """
    if problems := machine.unsatisfiable_requests(plan.stages):
        raise ConfigError.of("SLURM cannot run these stages:", problems)
    options, idle, reached = arguments(plan), 0, _progress(plan)
    with files.locked(plan.view / ".slurm.lock", lambda holder: _say(f"waiting for another `ouro run`: {holder}")):
        while True:
            wait_for(plan)
            ended = start([*options, *extra])
            stopped, failed = recorded_endings(plan, ended.began)
            if ended.code == 0 or ended.signal or failed or not stopped:
                return ended
            now = _progress(plan)
            idle = 0 if now > reached else idle + 1
            if idle >= MOST_IDLE:
                _say(f"not submitted again: {idle} submissions in a row completed no further step")
                return ended
            reached = now
            for stage in stopped:
                _say(f"{stage.name} is submitted again: it was {recorded_error(Path(stage.directory))}")


def recorded_endings(plan, since: float) -> tuple[list[Stage], list[Stage]]:
    """Returns (stages that SLURM stopped, stages that failed otherwise); records in stage.error what they did not.

    since: when snakemake was started.
    """
    stopped, failed = [], []
    left = [(rule, stage) for rule, stage in rules(plan.stages) if not files.is_complete(stage.directory)]
    shown = slurm.jobs(plan.view, "--states=all") if left else []
    for rule, stage in left:
        directory = Path(stage.directory)
        number = slurm.last_job(plan.view, rule, shown, since)
        if number is None:
            continue
        state = slurm.ended_as(number)
        own = recorded_error(directory) or ""
        (stopped if state in STOPPED or own.startswith(TIMELY) else failed).append(stage)
        if state != "FAILED" or not own:
            _record(stage, state, number, slurm.log_directory(plan.view) / f"rule_{rule}" / f"{number}.log")
    return stopped, failed


def _record(stage: Stage, state: str | None, number: str, log: Path) -> None:
    """Writes a stage.error for a stage that could not: how its job ended, and at which step."""
    directory = Path(stage.directory)
    steps = tables.steps_present(directory, stage.kind.steps)
    how = f"ended by SLURM: {state or 'unknown'}"
    if state == "FAILED":
        how = "its job failed before the stage began" if log.exists() else "sbatch refused its job, see all output"
    directory.mkdir(parents=True, exist_ok=True)
    write_error(directory, f"{how} (job {number})" + (f" at step {steps[-1]}" if steps else ""), str(log))


def _progress(plan) -> tuple[int, int]:
    """Returns the number of complete stages, and of the steps of all stages."""
    places = [Path(stage.directory) for stage in plan.stages]
    steps = sum(len(tables.steps_present(place, name)) for place in places for name in ("steps", "rollouts"))
    return sum(map(files.is_complete, places)), steps


def requested(plan) -> str:
    """Returns a table of the incomplete stages: where each runs, and for a job its sbatch command."""
    return "\n".join(f"{rule}: {sbatch(stage) if requests.is_submitted(stage) else 'runs here'}"
                     for rule, stage in rules(plan.stages) if not files.is_complete(stage.directory))


def sbatch(stage) -> str:
    """Returns the sbatch command of a stage's job as the plugin composes it, without names and log."""
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    cores = _cores(stage)
    named = _Resources(requests.resources(stage) | ({"cpus_per_task": cores} if cores else {}))
    job = SimpleNamespace(resources=named, threads=stage.threads)
    account, partition = named.get("slurm_account"), named.get("slurm_partition")
    words = {"run_uuid": "", "slurm_logfile": "", "comment_str": "", "workdir": None,
             "account": f"-A {shlex.quote(account)}" if account else "",
             "partition": f"-p {shlex.quote(partition)}" if partition else ""}
    command = get_submit_command(job, words, SimpleNamespace(requeue=False, no_requeue=True, qos=None,
                                                             reservation=None))
    unsaid = ("--job-name ''", "--output ''", "--comment ''", "--parsable", "--export=ALL")
    for part in unsaid:
        command = command.replace(part, "")
    return " ".join((command + (set_gres_string(job) if stage.gpus else "")).split())


class _Resources(dict):
    """Resources as the plugin reads them: `get`, and attributes."""

    __getattr__ = dict.get


def _say(line: str) -> None:
    print(f"ouro: {line}", file=sys.stderr, flush=True)
