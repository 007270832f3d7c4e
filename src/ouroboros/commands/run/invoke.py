"""`ouro run`: runs a recipe with snakemake and reports what was learnt."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ouroboros.commands.run.override_words import encoded
from ouroboros.pipeline.compose.axes import key_of
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import HOME, near

if TYPE_CHECKING:
    from ouroboros.commands.run.console import Ended
    from ouroboros.commands.run.sweep import Sweep
    from ouroboros.pipeline.plan.plan import Plan
    from ouroboros.pipeline.results.sweep_view import SweepView
    from ouroboros.pipeline.results.view import View

SIGNALLED = 128  # the exit code of a command ended by a signal is this plus the signal
INTERRUPTED = SIGNALLED + signal.SIGINT
STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM", signal.SIGHUP: "stopped by SIGHUP",
           signal.SIGQUIT: "stopped by SIGQUIT"}
PRINTS_ONLY = re.compile(  # arguments with which snakemake runs nothing
    r"-\w*[hn]\w*|--(help|version|report|dry-?run|dag|rulegraph|filegraph|d3dag|summary|detailed-summary|lint|list.*|unlock|touch)(=.*)?")


def run(overrides: list[str], extra: list[str], multirun: bool, verbose: bool, update_hub: bool, detach: bool = False,
        profile: str | None = None, dry: bool = False, view: bool = False) -> tuple[int, "Plan | Sweep"]:
    """Runs every incomplete stage of the recipe with snakemake, then reports what was learnt; returns the exit code,
    and what was run.

    extra: arguments for snakemake. detach: in a new session. profile: `slurm` submits stages as jobs. dry: only
    print where each would run. view: `ouro view` shows it. No problem that a check knows may appear after a stage."""
    from ouroboros.commands.run import outcome, submission
    from ouroboros.commands.run.snakefile import MULTIRUN, make_plan_or_sweep
    from ouroboros.pipeline.check import preflight, times
    from ouroboros.pipeline.plan import hub

    print("ouro: checking the configuration and what it names", file=sys.stderr, flush=True)
    preflight.forget()
    words, prints_only = [MULTIRUN, *overrides] if multirun else overrides, any(map(PRINTS_ONLY.fullmatch, extra))
    judge = partial(preflight.judged_plan, update_hub=update_hub, plans_only=dry or prints_only)
    plan_of = partial(make_plan_or_sweep, plan_of=judge)
    plan = plan_of(words)
    if (new := anew(words, plan)) != words:
        words, plan = new, plan_of(new)
        command = shlex.join(typed(words, extra, profile))
        print(f"ouro: {plan.project}/{plan.name} begins; to go on with it: {command}")
    remark(plan, extra, profile, multirun, update_hub)
    if dry:
        print(submission.requested(plan))
        return 0, plan
    shown = outcome.of(plan)
    if shown.complete and not extra:
        plan.freeze()  # the run's view may show another configuration
        print(f"nothing to do: all {len(plan.stages)} stages of {shown.run} are complete\n{outcome.conclude(shown)}")
        return 0, plan
    if not prints_only:
        hub.fetch_missing(plan.stages)  # here for its progress on the terminal; plain snakemake does it on startup
    for line in outcome.made_again(plan):
        print(f"ouro: {line}")
    if detach:
        return start_detached(plan, shown, typed(words, extra, profile, verbose)), plan
    before, expected = _made(plan), [] if prints_only else _expected(plan)
    begin = partial(start, words, plan=plan, verbose=verbose)
    with watched(plan, shown) if view else contextlib.nullcontext():
        ended = submission.run_jobs(begin, extra, plan) if profile else begin(extra)
    for line in times.compared(expected):
        print(f"ouro: {line}", file=sys.stderr)
    return report(shown, ended, shlex.join(typed(words, extra, profile)), _made(plan) != before), plan


def _expected(plan: "Plan | Sweep") -> list[tuple]:
    """Prints what each stage that trains will take; returns it for `times.compared`."""
    from ouroboros.pipeline.plan import hub

    expected = {(one[0].name, one[0].identity): one for each in hub.plans_of(plan) for one in each.expected}
    for line in dict.fromkeys(f"ouro: {stage.name}: time {sentence}" for stage, sentence, _ in expected.values()):
        print(line, file=sys.stderr)  # one for points of a sweep that take as long
    return list(expected.values())


def remark(plan: "Plan | Sweep", extra: list[str], profile: str | None, multirun: bool, update_hub: bool) -> None:
    """Prints what there is to say of a plan before it runs. Raises ConfigError where it needs SLURM."""
    from ouroboros.commands.run import outcome
    from ouroboros.pipeline.check.report import warn
    from ouroboros.pipeline.plan import hub

    plans = hub.plans_of(plan)
    for one in plans if update_hub else ():
        print("\n".join(f"ouro: {name} is at {commit[:12]}" for name, commit in hub.pins(one.config).items()))
    there = dict.fromkeys(f"{name}: {words}" for one in plans for name, words in one.continued)
    for line in [*outcome.damaged_plans(plans), *there]:
        print(f"ouro: {line}")
    for line in [*(plan.warnings if multirun else ()), *gpu_warnings(plan, [*extra, profile or ""])]:
        warn(line)
    if not profile and not to_slurm(extra):
        refuse_several_nodes(plan)


def anew(words: list[str], planned) -> list[str]:
    """Returns the overrides of a plan or sweep; with continue_from_checkpoint=false those of a run that repeats it
    next to what was begun of it. It keeps its name if there is no run of that name yet.

    words: those that made it, without a second one for a key.
    """
    from ouroboros.pipeline.plan import hub

    if all(stage.config.continue_from_checkpoint for stage in planned.stages):
        return words
    new = {"continue_from_checkpoint": "true"}  # the printed command goes on with the new run
    if any((Path(stage.directory) / "stage.log").exists() for stage in planned.stages
           if stage.kind.trains or stage.kind.explores) or any(one.continued for one in hub.plans_of(planned)):
        new["repetition"] = time.strftime("%Y%m%d%H%M%S")
        if planned.view.exists():
            new["name"] = f"{planned.name}_{new['repetition']}"
    return [*(word for word in words if key_of(word) not in new), *map("=".join, new.items())]


@contextlib.contextmanager
def watched(plan: "Plan | Sweep", shown: "View | SweepView") -> Iterator[None]:
    """Shows a run in a browser within the block: `ouro view`, which prints its address, as a separate process."""
    plan.freeze()
    first = [] if hasattr(shown, "entries") else [shown.run]  # of a sweep no point is preferred
    command = launch.command("ouroboros", "view", *first, "--root", str(shown.path.parents[2]))
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=launch.environment())
    try:
        yield
    finally:
        page.terminate()
        page.wait()


def start_detached(plan: "Plan | Sweep", shown: "View | SweepView", command: list[str]) -> int:
    """Starts `ouro run` in a new session, which no terminal ends; prints how to follow it."""
    plan.freeze()
    log = shown.path / "logs" / f"run-{time.strftime('%Y%m%d-%H%M%S')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = launch.command("ouroboros", *command[1:])
    with open(log, "ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True, env=launch.environment())
    root = shown.path.parents[2]
    name = shlex.join([shown.run, *([] if root == Path() else ["--root", str(root)])])
    print(f"ouro: {shown.run} runs in the background as process {process.pid}; what it prints: {near(log)}\n"
          f"  ouro status {name}\n  ouro logs {name} --follow\n  ouro stop {name}")
    return 0


def report(shown: "View | SweepView", ended: "Ended", command: str, progressed: bool) -> int:
    """Prints the last lines of a run; returns its exit code. command: the command to continue. progressed: a stage was
    completed (a dry run completes none)."""
    from ouroboros.commands.run import failure, outcome
    from ouroboros.pipeline.job.context import exit_code
    from ouroboros.pipeline.results.sweep_view import SweepView

    if ended.signal:
        lines = [f"ouro: {STOPPED[ended.signal]}; {failure.how_far(shown)} and kept",
                 *failure.interrupted(shown, ended.began), f"  to go on: {command}"]
        print("\n".join(lines), file=sys.stderr)
        return SIGNALLED + ended.signal
    if progressed and (ended.code == 0 or isinstance(shown, SweepView)):
        print(outcome.conclude(shown))
    if ended.code:
        if progressed and (line := outcome.report_what_is_there(shown)):
            print(line)
        print(explain(shown, ended, command), file=sys.stderr)
    return exit_code(ended.code)


def typed(words: list[str], extra: list[str], profile: str | None = None, verbose: bool = False) -> list[str]:
    """Returns the command line of a run. words, extra: as for `start`."""
    options = [*(["-v"] if verbose else []), *(["--profile", profile] if profile else [])]
    return ["ouro", "run", *options, *words, *(["--", *extra] if extra else [])]


def explain(shown, ended: "Ended", command: str) -> str:
    """Returns the last lines of a failed run. command: the command to continue."""
    from ouroboros.commands.run.failure import what_failed
    from ouroboros.pipeline.job.context import ending

    if ended.output is None:
        return what_failed(shown, ended.code, command, since=ended.began)
    if ended.output.log is None:
        return f"ouro: snakemake {ending(ended.code)} before a stage was started; its output is above"
    return what_failed(shown, ended.code, command, ended.output.errors(), ended.output.place, ended.began)


def to_slurm(extra: list[str]) -> bool:
    """Returns whether snakemake submits jobs to SLURM with these arguments."""
    return any(word.endswith("slurm") for word in extra)


def refuse_several_nodes(plan: "Plan | Sweep") -> None:
    if any(stage.config.cluster.node_num > 1 for stage in plan.stages):
        raise ConfigError("cluster.node_num is more than 1: several machines need SLURM. Use `ouro run --profile "
                          "slurm`, or set cluster.node_num=1.")


def gpu_warnings(plan: "Plan | Sweep", extra: list[str]) -> list[str]:
    """Returns a line when stages go to SLURM without requesting GPUs because none are configured."""

    if to_slurm(extra) and any(s.kind.computes and not s.gpus and s.config.cluster.gpu_per_node is None
                        for s in plan.stages):
        return ["cluster.gpu_per_node is not set and this machine shows no GPU: the jobs of SLURM ask for none. Set it "
                "to the GPUs of a node, or to 0 if none is meant."]
    return []


def start(overrides: list[str], extra: list[str], plan, verbose: bool = False) -> "Ended":
    """Runs snakemake on the configuration. extra: arguments for snakemake. plan: the plan to display.

    verbose: the terminal shows the output of snakemake and the stages, and no file keeps it.
    """
    from ouroboros.commands.run.console import Console, Ended, Output
    from ouroboros.commands.run.failure import asked_to_end
    from ouroboros.commands.run.planning import SUMMARY_FOLLOWS
    from ouroboros.pipeline.job.process_group import run_group
    from ouroboros.pipeline.plan import hub

    if not any(PRINTS_ONLY.fullmatch(word) for word in extra):
        plan.freeze()  # so that `ouro status` has it while snakemake starts
    command = snakemake_command(overrides, extra)
    environment = launch.environment() | hub.variable(plan) | {SUMMARY_FOLLOWS: "1"}
    began, grace = time.time(), max(stage.config.log.grace_seconds for stage in plan.stages)
    # on SLURM a job's end concerns its stage alone
    asked = partial(asked_to_end, [] if to_slurm(extra) else plan.stages, began)
    if verbose:
        return Ended(began, *run_group(command, environment, {}, asked, grace))
    output = Output(plan.view / "logs")
    with Console(plan.stages) as console:
        def poll() -> int | None:
            output.copy()
            console.poll()
            return asked()

        streams = {"stdout": output.stdout, "stderr": output.stderr}
        ended = Ended(began, *run_group(command, environment, streams, poll, grace), output)
        poll()
    if not output.log and not ended.signal:
        output.answer()
    return ended


def snakemake_command(overrides: list[str], extra: list[str]) -> list[str]:
    """Returns the snakemake command line.

    An option follows --config, which takes every word up to the next one; of two --cores the last counts. A failed
    stage stops only those that depend on it, also with a workflow profile that is not ours.
    """
    elsewhere = [] if Path.cwd() == HOME else ["--snakefile", str(HOME / "Snakefile"), "--directory", str(Path.cwd())]
    config = ["--config", f"overrides={encoded(overrides)}"] if overrides else []
    return launch.command("snakemake", *elsewhere, *config, "--cores", "all", "--keep-going", *extra)


def _made(plan) -> dict[str, int]:
    """Maps each complete stage to its completion time."""
    return {m: os.stat(m).st_mtime_ns for m in plan.targets if os.path.exists(m)}
