"""The frame of every stage process: read its specification, lock its directory, log, report failures.

    python -m ouroboros.stages.NAME STAGE_DIR

STAGE_DIR holds `stage.json` (written by the launcher: plan/plan.py); the work is complete when `manifest.json` exists
too. Two processes that want the same stage wait for each other; a killed one leaves only files that the next one either
reuses (steps, checkpoints) or removes (temporary ones).
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

from ouroboros.pipeline.job import own_process, segments, taking
from ouroboros.pipeline.job.activity import Activity
from ouroboros.pipeline.job.claims import claimed
from ouroboros.pipeline.job.ending import Ending, Stopped, end_with_runner
from ouroboros.pipeline.job.error_file import LOG, NAME, write_error
from ouroboros.pipeline.job.failed_rewards import failed_reward
from ouroboros.pipeline.job.guard import guarded
from ouroboros.pipeline.job.inputs import require_intact
from ouroboros.pipeline.job.slurm import this_job
from ouroboros.pipeline.job.threads import cores_taken, recorded_threads
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.explorer import depends_on_time, runs_programs
from ouroboros.pipeline.settings.kinds import KINDS
from ouroboros.pipeline.store import consistency, files, hashes, launch, recovery
from ouroboros.pipeline.store.errors import ModelError, OuroError, StageError, masked
from ouroboros.pipeline.store.secret_names import conceal_secrets
from ouroboros.pipeline.store.user_errors import brief, users_frames, users_traceback

# Hub files are fetched before a run's first job. A reward that queries it: explorer.env_vars.HF_HUB_OFFLINE=0.
OFFLINE = {"HF_HUB_OFFLINE": "1"}
TOTAL = "total.json"  # written by the trainer once the number of steps is known


@dataclass
class Context:
    """A running stage.

    config: the settings that the stage may read; reading another raises Absent. inputs: role -> directory.
    made: the stage's additions to its manifest. earlier_seconds: those of the steps completed by earlier, interrupted
    launches of the stage. activity, ending: what this process is doing, and the requests to end it. waits: whether
    another process makes the stage now, whose end an error of this one is not. until: the trainer step after which the
    settings change (pipeline/job/segments.py); None: they do not.
    """

    run: str
    name: str
    identity: str
    directory: Path
    config: Config
    inputs: dict[str, Path]
    log: logging.Logger
    made: dict[str, Any] = field(default_factory=dict)
    earlier_seconds: float = 0.0
    activity: Activity = field(default_factory=Activity)
    ending: Ending = field(default_factory=Ending)
    waits: bool = False
    until: int | None = None

    @property
    def id(self) -> str:
        """Returns the directory name: stage name and hash."""
        return self.directory.name

    @property
    def goes_on(self) -> bool:
        """Returns whether the stage has more steps than those until its settings change."""
        return self.until is not None and self.until < files.read_json(self.directory / TOTAL)["total_steps"]


def run_stage(work: Callable[[Context], None], doc: str) -> None:
    """The `main` of a stage module: parses the command line, runs `work`, exits 0, or prints the error and exits 2."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="stage directory in store/, with a stage.json")
    directory = parser.parse_args().directory
    os.environ |= OFFLINE
    try:
        context = open_stage(directory)
    except OuroError as error:
        print(f"{directory.name}: {error}", file=sys.stderr)
        sys.exit(2)
    with guarded(directory, context.log.handlers[0].stream, partial(_record, context)) as context.activity:
        again = _run(work, context)
    if again:
        os.execv(sys.executable, sys.orig_argv)  # as the same command would, without the threads of this process


def _run(work: Callable[[Context], None], context: Context) -> bool:
    """Does the work when it is this process's turn; exits with a code other than 0 after a failure.

    Returns whether to start again: with other settings, or because user code ended a process of the stage and is called
    apart from now on.
    """
    directory = context.directory
    try:
        context.ending.listen(lambda stopped: _record(context, f"{stopped}, and again: ended at once"))
        end_with_runner()
        with (files.explained(directory), files.locked(directory / ".lock", lambda holder: _wait(context, holder))):
            context.waits = False
            if files.is_complete(directory):
                context.ending.complete()
                context.log.info("already complete")
                return False
            spec = files.read_json(directory / "stage.json")
            if words := failed_reward(directory, spec):
                raise StageError(words)
            taking.take(directory, spec, context.config, context.log)  # its threads too
            with (cores_taken(directory, spec["root"], context.log),
                  claimed(KINDS[spec["kind"]], context.config, spec["root"], context.log)):
                return _make(work, context, spec)
    except Stopped as stopped:
        _fail(context, str(stopped), stopped.exit_code)
    except own_process.ProcessEnded as ended:
        if not own_process.add(directory, ended):
            _fail(context, str(ended), 2)
        first, *saved = str(ended).splitlines()
        context.log.warning("warning: %s; the stage restarts, and calls it in separate processes: where one "
                            "ends, its row fails%s", first, "".join(f";{words}" for words in saved))
        return True
    except OuroError as error:
        _fail(context, advised(error, context), 2)
    except BaseException as error:  # sys.exit of user code too
        whose = "" if users_frames(error) else "unexpected failure: "
        _fail(context, f"{whose}{brief(error)}\n{users_traceback(error)}", 1)


def _wait(context: Context, holder: str) -> None:
    """Logs who makes the stage. Raises StageError in a job of SLURM: waiting there would hold a node."""
    if this_job():
        raise StageError(f"{holder} is making it; this job ends, so that it holds no node meanwhile")
    context.waits = True
    context.log.info("waiting: %s is making it", holder)


def advised(error: OuroError, context: Context) -> str:
    """Returns the text of an error; for a model made by an earlier stage, with the directory to delete."""
    damaged = [str(place) for place in context.inputs.values() if (place / "stage.json").exists()
               and isinstance(error, ModelError) and f"{place}/" in f"{error}/"]
    advice = f" The model was made by a stage: delete {damaged[0]} and type the same command again." if damaged else ""
    return f"{error}{advice}"


def _fail(context: Context, problem: str, code: int) -> NoReturn:
    """Reports the failure on the terminal, in stage.log and in stage.error, and ends the process."""
    _record(context, problem)
    sys.exit(code)


def _record(context: Context, problem: str) -> None:
    place = context.directory
    hint = f"{place / 'stage.log'}; to go on: the same command again, or {repeat_command(place)}"
    context.log.error("%s", problem)
    context.log.error("%s%s", LOG, hint)
    with contextlib.suppress(OSError):  # the failure itself may be a full disk
        if not context.waits and not files.is_complete(place):
            write_error(place, problem, hint)


def repeat_command(directory: Path) -> str:
    """Returns the command that repeats one stage by hand; without its specification it must be planned again."""
    if not (directory / "stage.json").exists():
        return "ouro run"
    kind = KINDS[files.read_json(directory / "stage.json")["kind"]]
    return f"{sys.executable} -m {kind.module} {shlex.quote(str(directory))}"


def open_stage(directory: Path, log_name: str = "stage.log", terminal: bool = True) -> Context:
    """Reads a stage directory's specification. Raises StageError when there is none.

    terminal: whether to log to standard error too; a child's standard error already is its log file.
    """
    conceal_secrets()
    spec_file = directory / "stage.json"
    if not spec_file.exists():
        raise StageError(f"{spec_file} does not exist. Stage directories are made by `ouro run`, or without running "
                         "anything by `ouro stages --write`.")
    spec = files.read_json(spec_file)
    inputs = {role: Path(d) for role, d in spec["inputs"].items()}
    for role, path in inputs.items():
        if files.in_store(path, spec["root"]) and not files.is_complete(path):
            raise StageError(f"input '{role}' is not complete: {path} has no {files.MANIFEST}. Make it first: "
                             f"{repeat_command(path)}")
    config, until = segments.chosen(directory, Config.of_stage(spec["kind"], secrets.reveal(spec["config"])))
    with files.explained(directory / log_name):
        log = open_log(directory / log_name, spec["name"], config.log.level, terminal)
    return Context(spec["run"], spec["name"], spec["identity"], directory, config, inputs, log, until=until)


def _make(work: Callable[[Context], None], context: Context, spec: dict[str, Any]) -> bool:
    """Does the work, and completes the stage unless its settings change now; returns whether they do."""
    context.activity.now("works")
    begin, clock = time.time(), time.monotonic()  # the former may be set back
    context.log.info("started: process %d on %s", os.getpid(), platform.node())
    files.remove_leftovers(context.directory)
    (context.directory / NAME).unlink(missing_ok=True)
    kind = KINDS[spec["kind"]]
    require_intact(kind, context.inputs, spec["root"], context.config.verify, context.log)
    work(context)
    if context.goes_on:
        assert segments.choose(context.directory, context.config) != context.until, "the next launch would end here too"
        context.log.info("settings change after step %d: the stage restarts", context.until)
        return True
    consistency.require(context.directory, kind.writes, context.inputs, context.made)
    manifest = {
        "name": context.name,
        "identity": context.identity,
        "commit": commit(),
        "started": begin,
        **({"hub": spec["hub"]} if spec.get("hub") else {}),
        "seconds": round(time.monotonic() - clock + context.earlier_seconds, 3),
        "threads": recorded_threads(context.directory),
        **({"depends_on_time": keys} if (keys := depends_on_time(kind, context.config)) else {}),
        **({"isolation": "none"} if "none" in (runs_programs(kind, context.config) or ()) else {}),
        **({"slurm_job": this_job()} if this_job() else {}),
        **({"own_process": ended} if (ended := own_process.functions(context.directory)) else {}),
        **context.made,
        **({"lost": [recovery.named(context.directory, one) for one in lost]}
           if (lost := recovery.lost(context.directory)) else {}),
        hashes.FILES: hashes.seal(context.directory),
    }
    with context.ending.deferred():
        files.write_json(context.directory / files.MANIFEST, manifest)
        context.ending.complete()
    context.log.info("complete in %.1f s: %s", manifest["seconds"], json.dumps(context.made, ensure_ascii=False)[:300])
    return False


def environment(env_vars: dict[str, Any]) -> dict[str, str]:
    """Returns `explorer.env_vars` as the environment of a process that runs workflows."""
    return {name: str(value) for name, value in env_vars.items()}


class _Masked(logging.Formatter):
    """Masks secrets, tracebacks included: exceptions of user code may quote them."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _ToFile(logging.FileHandler):
    """A log file that may lose lines when its disk is full: the terminal then shows the cause and no traceback."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def open_log(path: Path, name: str, level: str, terminal: bool = True) -> logging.Logger:
    """Returns a logger to a file, with secrets masked, and optionally to the terminal without time stamps.

    A record with `extra={"file_only": True}` stays off the terminal: pipeline/job/progress.py shows it there itself.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    log = logging.Logger(f"ouro.{name}", level)
    to_file = _ToFile(path, encoding="utf-8")
    to_file.setFormatter(_Masked("%(asctime)s %(levelname)s %(message)s"))
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setFormatter(_Masked(f"{name}: %(message)s"))
    to_terminal.addFilter(lambda record: not getattr(record, "file_only", False))
    log.addHandler(to_file)
    if terminal:
        log.addHandler(to_terminal)
    return log


@cache
def commit() -> str:
    """Returns the git commit of the code; '+dirty' if tracked files differed. 'unknown' in a copy without git."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=files.HOME, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        top, _, head = git("rev-parse", "--show-toplevel", "--short=12", "HEAD").partition("\n")
        if not head or Path(top) != files.HOME:  # installed, perhaps below a repository of the user
            built = files.HOME / "COMMIT"  # by ouroboros/wheel.py
            return built.read_text(encoding="utf-8") if built.is_file() else "unknown"
        return head + ("+dirty" if git("status", "--porcelain", "-uno") else "")
    except FileNotFoundError:
        return "unknown"


def our_environment() -> dict[str, str]:
    """Returns the environment for a process of ours."""
    return launch.environment() | OFFLINE


def ending(code: int) -> str:
    """Describes how a process ended. code: as from subprocess, negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    memory = " (the kernel does this when memory runs out)" if code == -signal.SIGKILL else ""
    return f"ended by signal {signal.Signals(-code).name}{memory}"


def exit_code(code: int) -> int:
    """Converts a subprocess return code to a shell's exit code: -9 to 137."""
    return code if code >= 0 else 128 - code
