"""Loads the plan of a run in the Snakefile, so that a user's mistake is a message and not a traceback."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from ouroboros.commands.run.override_words import split_overrides
from ouroboros.commands.run.planning import Planner, checked_plan, make_checked_plan
from ouroboros.commands.run.sweep import make_sweep
from ouroboros.pipeline.compose.axes import vary_nothing
from ouroboros.pipeline.job.ending import RUNNER, end_with_runner
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.errors import ConfigError, OuroError, message
from ouroboros.pipeline.store.secret_names import conceal_secrets

MULTIRUN = "-m"  # among the overrides: they have several values


def make_plan_or_sweep(words: list[str], plan_of: Planner = checked_plan):
    """Returns a Plan, or a Sweep if the overrides contain `-m`."""
    if MULTIRUN in words:
        several = [w for w in words if w != MULTIRUN]
        if vary_nothing(several):
            raise ConfigError("-m makes a run of every value, and no override has several. Write them with commas, "
                              "such as seed=1,2, or leave -m out.")
        return make_sweep(several, plan_of)
    return make_checked_plan(words, plan_of)


@contextlib.contextmanager
def mistakes_printed() -> Iterator[None]:
    """Prints a user's mistake in the block and exits with code 2."""
    try:
        yield
    except (OuroError, OSError) as error:
        print(message(error), file=sys.stderr)
        sys.exit(2)


def load_plan(given: dict[str, Any], ask: bool = True):
    """Returns the plan, or with `-m` the sweep, for snakemake's `config`. ask: as for `checked_plan`; false in a job.

    From here on `python` is the interpreter that runs Snakemake, whether or not its environment is activated, because
    the rules call it.
    """
    end_with_runner()
    conceal_secrets()
    os.environ[RUNNER] = str(os.getpid())
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    os.environ["PYTHONPATH"] = launch.python_path()
    with mistakes_printed():
        _refuse_bare(given)
        words = split_overrides(given.get("overrides", ""))
        plan = make_plan_or_sweep(words, partial(checked_plan, ask=ask))
        if not all(stage.config.continue_from_checkpoint for stage in plan.stages):
            raise ConfigError("continue_from_checkpoint=false: `ouro run` alone names the run that begins. Use it, or "
                              "set repetition to a number that no run had.")
        return plan


def freeze(plan) -> None:
    """Fetches the hub files that the stages read and writes the run's specifications."""
    with mistakes_printed(), files.explained(plan.view):
        plan.freeze()


def refuse_idle_status(executor_settings: Any) -> None:
    """Exits with code 2 when SLURM's executor would ask sacct on a cluster without accounting, which waits forever."""
    from ouroboros.pipeline.job import slurm

    if getattr(executor_settings, "status_command", None) == "sacct":
        with mistakes_printed():
            if (needed := slurm.status_command(slurm.cluster_settings())) != "sacct":
                raise ConfigError(f"this cluster has no accounting, so `sacct` never shows that a job ended. Add "
                                  f"--slurm-status-command {needed}, or use `ouro run --profile slurm`.")


def follow_steadily(executor_settings: Any) -> None:
    """Changes how SLURM's executor follows jobs: at a constant interval, and a cancelled or preempted job has ended.

    By itself it asks ever less often, up to every 180 s, which delays the next stage by so much; it does not know the
    state `CANCELLED by 1000`, as sacct has it; and it waits for SLURM to requeue a preempted job, which `--no-requeue`
    excludes.
    """
    if not hasattr(executor_settings, "init_seconds_before_status_checks"):
        return
    import snakemake_executor_plugin_slurm as plugin

    interval, ask = executor_settings.init_seconds_before_status_checks, plugin.query_job_status

    async def query(command, logger):
        states, seconds = await ask(command, logger)
        states = states and {job: state.split()[0] for job, state in states.items()}
        ended = executor_settings.no_requeue
        return states and {job: "CANCELLED" if ended and state == "PREEMPTED" else state
                           for job, state in states.items()}, seconds

    plugin.query_job_status = query
    plugin.Executor.next_seconds_between_status_checks = property(lambda executor: interval, lambda executor, _: None)


def _refuse_bare(given: dict[str, Any]) -> None:
    """Raises ConfigError for `--config seed=2`, which Snakemake accepts and nothing would read."""
    bare = [f"{key}={value}" for key, value in given.items() if key != "overrides"]
    if bare:
        meant = shlex.join([*split_overrides(given.get("overrides")), *bare])
        raise ConfigError(f"--config {shlex.join(bare)}: the only key that is read is `overrides`. Write --config "
                          f'overrides="{meant}", or use `ouro run {meant}`.')
