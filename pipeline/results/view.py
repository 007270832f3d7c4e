"""Reads a run back: the list of runs, the state of each stage.

A run is a directory runs/<project>/<name>/ with a plan.json and a link to each of its stages (created by plan/plan.py).
Nothing here writes files.
"""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ouroboros.pipeline.job.activity import Doing
from ouroboros.pipeline.job.ending import INTERRUPTED
from ouroboros.pipeline.job.error_file import recorded_error
from ouroboros.pipeline.job.holders import Holder, holder_of, is_locked
from ouroboros.pipeline.job.progress import rollout_words, step_line
from ouroboros.pipeline.settings.kinds import KINDS, Kind
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import DataError, OuroError, StageError, message, nearest
from ouroboros.pipeline.store.records import TABLES

TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True)
class Node:
    """A stage of a run: its name, its kind, its directory in the store."""

    name: str
    kind: Kind
    directory: Path


@dataclass(frozen=True)
class Shown:
    """A run or a sweep: `project/name`, and its directory under runs/. PLAN is written there by every launch."""

    run: str
    path: Path

    PLAN: ClassVar[str]
    PAGE: ClassVar[str]

    @property
    def report(self) -> Path:
        return self.path / self.PAGE

    @property
    def words(self) -> str:
        """Returns how a command names it: its name, and where it is unless it is here."""
        root = self.path.parents[2]
        return shlex.join([self.run, *([] if root.resolve() == Path.cwd() else ["--root", str(root)])])

    @property
    def launched(self) -> int:
        """Returns the time of the last launch, nanoseconds since 1970."""
        return (self.path / self.PLAN).stat().st_mtime_ns

    @property
    def complete(self) -> bool:
        return all(files.is_complete(s.directory) for s in self.stages)


@dataclass(frozen=True)
class View(Shown):
    """A run with its stages in executable order."""

    PLAN, PAGE = "plan.json", "report.html"
    stages: list[Node]


def open_view(path: Path) -> View:
    """Opens the run whose directory under runs/ is `path`. Raises DataError when its plan.json is invalid."""
    again = "`ouro run` with the words of that run makes it again."
    plan = files.read_json(path / "plan.json", again)
    try:
        stages = [Node(s["name"], KINDS[s["kind"]], Path(os.path.realpath(path / "stages" / s["name"])))
                  for s in plan["stages"]]
        return View(f"{plan['project']}/{plan['name']}", path, stages)
    except (KeyError, TypeError) as error:
        raise DataError(f"{path / 'plan.json'} is no plan of a run. {again}") from error


def of_plan(plan) -> View:
    """Returns the view of a plan, whether launched or not."""
    stages = [Node(s.name, s.kind, Path(s.directory)) for s in plan.stages]
    return View(f"{plan.project}/{plan.name}", plan.view, stages)


def views(root: Path) -> list[View]:
    """Returns every run below root/runs, the most recently launched first; without those whose plan.json is damaged,
    of each of which it warns."""
    found = list(opened(open_view, plans(root, View.PLAN)))
    return sorted(found, key=lambda run: run.launched, reverse=True)


def plans(root: Path, name: str) -> Iterator[Path]:
    """Yields root/runs/*/*/name, and warns of directories that cannot be read."""
    runs = Path(root) / "runs"
    projects = below(runs) if runs.is_dir() else []
    for project in projects:
        try:
            yield from (run / name for run in below(project) if (run / name).exists())
        except OSError as error:
            _tell(error)


def below(directory: Path) -> list[Path]:
    """Returns the directories in a directory. Raises OSError where it cannot be read: pathlib's glob finds nothing."""
    return [Path(entry.path) for entry in sorted(os.scandir(directory), key=lambda one: one.name) if entry.is_dir()]


def opened(open_one: Callable[[Path], Any], paths: Iterable[Path]) -> Iterator[Any]:
    """Yields what is opened of the directory of each file, and warns of those that are damaged."""
    for path in paths:
        try:
            yield open_one(path.parent)
        except (DataError, StageError, OSError) as error:
            _tell(error)


def _tell(error: OuroError | OSError) -> None:
    _warn(f"ouro: left out: {message(error).removeprefix('ouro: ')}")


@cache
def _warn(text: str) -> None:  # once: a command may look for several names
    print(text, file=sys.stderr)


def find_view(root: Path, name: str | None = None) -> View:
    """Returns the run `project/name`, or `name` if unique among projects; the latest one without a name."""
    return choose(views(root), root, name)


def choose(known: list, root: Path, name: str | None):
    """Returns the named one of `known`, runs or sweeps with the latest first. Raises DataError."""
    if not known:
        raise DataError(f"no run below {Path(root) / 'runs'}. Start one with `ouro run`, or say with --root where "
                        "the runs are (checkpoint_root_dir).")
    if name is None:
        return known[0]
    matching = matches(known, name)
    exact = [v for v in matching if v.run == _bare(name)] or matching
    if len(exact) == 1:
        return exact[0]
    names = [v.run for v in known]
    if exact:
        raise DataError(f"'{name}' is the name of several runs; say which: {', '.join(v.run for v in exact)}.")
    likely = nearest(_bare(name).rpartition("runs/")[2], [*names, *(n.split("/", 1)[1] for n in names)])
    raise DataError(f"no run '{name}'.{likely} Known: {', '.join(sorted(names))}.")


def matches(known: list, name: str) -> list:
    """Returns those of `known` that a word may name: `project/name`, `name`, or either as `name=`."""
    whole = [v for v in known if name in (v.run, v.run.split("/", 1)[1])]
    return whole or [v for v in known if _bare(name) in (v.run, v.run.split("/", 1)[1])]


def _bare(name: str) -> str:
    return name.removeprefix("name=").rstrip("/")


# ------------------------------------------------------------------------------------------------ state of a stage


@dataclass(frozen=True)
class State:
    """The state of a stage.

    seconds: of its work, once complete. latest: its last optimizer step, on one line. problem: why it failed, likewise.
    warning: why its last steps had no learning signal. process: the one that makes it. doing: what its children do.
    note: by which settings it depends on time.
    """

    name: str
    state: str
    seconds: float | None
    directory: Path
    latest: str | None
    problem: str | None = None
    warning: str | None = None
    process: Holder | None = None
    doing: tuple[str, ...] = ()
    note: str | None = None


def state_of_run(run: View) -> tuple[str, int]:
    """Returns complete, running, failed or waiting, and how many stages are complete; reads no tables."""
    left = [stage.directory for stage in run.stages if not files.is_complete(stage.directory)]
    word = ("complete" if not left else "running" if any(is_locked(place / ".lock") for place in left) else
            "failed" if any(map(recorded_error, left)) else "waiting")
    return word, len(run.stages) - len(left)


def state(stage: Node) -> State:
    """Returns complete, running (locked), failed (left a cause), interrupted, partial (killed) or waiting."""
    locked = is_locked(stage.directory / ".lock")  # first, because a stage may complete in between
    steps = tables.steps_present(stage.directory, stage.kind.steps)
    total = _total_steps(stage.directory)
    latest = _latest(stage, steps[-1], total) if steps else None
    warning, note = _warning(stage, steps), _note(stage)
    if files.is_complete(stage.directory):
        seconds = files.read_json(stage.directory / files.MANIFEST).get("seconds")
        return State(stage.name, "complete", seconds, stage.directory, latest, warning=warning, note=note)
    reached = f"step {steps[-1]} of {total or '?'}" if steps else ""
    problem = None if locked else recorded_error(stage.directory)
    if problem and problem.startswith(INTERRUPTED):
        word = INTERRUPTED
    elif locked:
        word = "running"
    elif problem:
        word = "failed"
    else:
        word = "partial" if reached or (stage.directory / "stage.log").exists() else "waiting"
    return State(stage.name, ", ".join(filter(None, (word, reached))), None, stage.directory, latest,
                 problem and shortened(problem, 1)[0], warning,
                 holder_of(stage.directory / ".lock") if locked else None, doing(stage.directory) if locked else (),
                 note)


def doing(directory: Path) -> tuple[str, ...]:
    """Returns the activity of each child of a running stage: `explorer: answers and rewards, step 3: ...`."""
    found = []
    for file in sorted(directory.glob("*.activity")):
        with contextlib.suppress(FileNotFoundError, ValueError):  # the stage ends, or a child starts
            found += [f"{file.stem}: {Doing.read(file)}"] if file.stem != "stage" else []
    return tuple(found)


def _warning(stage: Node, steps: list[int]) -> str | None:
    """Returns why the last of these steps had no learning signal, in a sentence, or None."""
    if not stage.kind.trains or not steps:
        return None
    from ouroboros.pipeline.job.no_signal import STEPS, no_signals  # with all settings: half a second
    from ouroboros.pipeline.settings.config import Config

    spec = files.read_json(stage.directory / "stage.json")
    found = (_read(stage.directory, "steps", step) for step in steps[-STEPS:])
    lines = no_signals(found, Config.of_stage(spec["kind"], spec["config"]), spec["run"])
    return f"warning: {lines[-1]}" if lines else None


def _note(stage: Node) -> str | None:
    """Returns that a repeated stage may have other rows, in a sentence, or None."""
    from ouroboros.pipeline.settings.explorer import because_of_time, depends_on_time

    spec = stage.directory / "stage.json"
    keys = depends_on_time(stage.kind, files.read_json(spec)["config"]) if spec.exists() else []
    return f"a repeated run may differ, {because_of_time(keys)}" if keys else None


def _latest(stage: Node, step: int, total: int | None) -> str:
    """Returns the last step of a stage, on one line."""
    if not stage.kind.trains:
        words = rollout_words(_read(stage.directory, "rollouts", step))
        return f"explorer step {step}" + (f"/{total}" if total else "") + f"  {words}"
    evaluated = tables.steps_present(stage.directory, "scores")[-1:]
    scores = [score for of in evaluated for score in tables.read_scores(stage.directory, of)]
    return step_line(_read(stage.directory, "steps", step), total, evaluated=scores)


def shortened(reason: str, room: int) -> list[str]:
    """Shortens an error to at most `room` lines: its first and last ones. Keeps the last line of a traceback."""
    before, trace, after = reason.partition(TRACEBACK)
    if trace:
        ends = (line for line in reversed(after.splitlines()) if re.match(r"[\w.]+(:|$)", line))  # code is indented
        reason = f"{before.strip()}: {next(ends, '').strip()}"
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return lines if len(lines) <= room else [*lines[:1], *lines[len(lines) - room + 1 :]]


def _total_steps(directory: Path) -> int | None:
    """Returns the trainer's total (total.json), else the one in the settings; None if that depends on the tasks."""
    if (directory / "total.json").exists():
        return files.read_json(directory / "total.json")["total_steps"]
    spec = directory / "stage.json"
    return files.read_json(spec)["config"].get("buffer", {}).get("total_steps") if spec.exists() else None


def _read(directory: Path, table: str, step: int):
    record = TABLES[table]
    return record(**tables.read(tables.step_file(directory, table, step), record).to_pylist()[0])
