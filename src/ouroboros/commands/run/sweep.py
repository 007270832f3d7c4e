"""A sweep: the plans of all points of `ouro run -m` as one graph, in which shared stages appear once.

Stages with the same identity have the same directory, so merging the plans needs no comparison of settings.
A point is a run like any other, `runs/<project>/<sweep>-<what differs>/`; the sweep is the file
`runs/<project>/<sweep>/sweep.json`, which lists its points.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from ouroboros.commands.run.planning import Planner, checked_plan
from ouroboros.pipeline.check.judge import compose, judged
from ouroboros.pipeline.check.report import warn
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.results.sweep_view import SWEEP
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.config import Sweep as Settings
from ouroboros.pipeline.settings.kinds import REPORT
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, OuroError, Problem

MOST_NAMED = 4  # points listed with a problem
PROGRESS_SECONDS = 5.0  # seconds


@dataclass(frozen=True)
class Point:
    """One run of a sweep. overrides: those that compose it. differs: key -> value on every axis, as text."""

    overrides: list[str]
    differs: dict[str, str]
    plan: Plan


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep; like a Plan it has stages, targets and a `freeze`."""

    project: str
    name: str
    root: str
    points: list[Point]

    @property
    def view(self) -> Path:
        return Path(self.root) / "runs" / self.project / self.name

    @cached_property
    def stages(self) -> list[Stage]:
        """Returns every stage once, in executable order; a shared one as in its first point."""
        by_directory: dict[str, Stage] = {}
        for point in self.points:
            for stage in point.plan.stages:
                by_directory.setdefault(stage.directory, stage)
        return list(by_directory.values())

    @property
    def targets(self) -> list[str]:
        return [s.manifest for s in self.stages]

    @property
    def warnings(self) -> list[Problem]:
        """Returns a warning for each group of points with the same stages: they differ only in execution settings."""
        same: dict[tuple[str, ...], list[str]] = {}
        for point in self.points:
            made = tuple(s.directory for s in point.plan.stages if s.kind != REPORT)
            same.setdefault(made, []).append(axes.point_label(point.differs))
        return [Problem(needed=f"the points {_named(points)} plan the same stages: they differ in how a stage runs, "
                        f"not in what it makes. Each stage is made once, with the settings of {points[0]}.")
                for points in same.values() if len(points) > 1]

    def freeze(self) -> None:
        """Writes the stages' specifications and the views of the points and of the sweep. Never called by a dry run."""
        for point in reversed(self.points):  # so that a shared stage keeps the run of its first point
            point.plan.freeze()
        files.write_json(self.view / SWEEP, {"project": self.project, "name": self.name,
                                             "points": [point_record(p) for p in self.points]})


def point_record(point: Point) -> dict:
    """Returns a point's entry in sweep.json."""
    return {"run": f"{point.plan.project}/{point.plan.name}", "overrides": point.overrides, "differs": point.differs}


def rules(stages: Sequence[Stage]) -> list[tuple[str, Stage]]:
    """Names every stage's rule: the stage's own name, with its hash where several stages have that name."""
    times = Counter(stage.name for stage in stages)
    return [(s.name if times[s.name] == 1 else f"{s.name}_{s.identity}", s) for s in stages]


def make_sweep(overrides: list[str], plan_of: Planner = checked_plan) -> Sweep:
    """Composes, checks and plans every point. Raises ConfigError with the problems of all, each once.

    plan_of: plans the configuration of a point, or raises for its problems.
    More points than `sweep.max_points` are refused after the first of them is composed.
    """
    words = axes.read(overrides)
    first = _compose_first(axes.first_point(words), axes.count(words))
    chosen = list(axes.points(words))
    composed = [first, *_counted((_attempt(compose, point) for point, _ in chosen[1:]), len(chosen), "composed")]
    _refuse(composed, chosen)
    project, name, root = _shared(composed)
    if axes.BRANCH not in map(axes.key_of, overrides) or len({one.name for one in composed}) < len(composed):
        for config, (_, differs) in zip(composed, chosen, strict=True):
            config.name = axes.name_of(name, differs)
    hub.agree(composed)
    lines_of_points: list[tuple[list[str], dict[str, str]]] = [([], differs) for _, differs in chosen]
    attempts = (_attempt(partial(plan_of, on_warning=lines.append), config)
                for config, (lines, _) in zip(composed, lines_of_points, strict=True))
    plans = list(_counted(attempts, len(chosen), "planned"))
    for line in _with_points(lines_of_points):
        warn(line)
    _refuse(plans, chosen)
    points = [Point(o, differs, replace(plan, overrides=(  # quotes: the name is safe in them (axes.name_of)
        *(word for word in o if axes.key_of(word) != "name"), f"name='{plan.name}'")))
              for (o, differs), plan in zip(chosen, plans, strict=True)]
    return Sweep(project, name, root, points)


def _counted(results: Iterable, number: int, what: str) -> Iterator:
    """Yields the results as they arrive; periodically reports on stderr how many of the points are done."""
    reported = time.monotonic()
    for done, result in enumerate(results, 1):
        yield result
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            print(f"ouro: {done:,} of {number:,} points are {what}", file=sys.stderr)


def _attempt(work, argument):
    """Returns the result of `work`, or the user's mistake it raises, to report those of all points together."""
    try:
        return work(argument)
    except OuroError as error:
        return error


def _compose_first(point: list[str], number: int):
    """Composes the first point, which has the limit on the number of points; returns the configuration or mistake."""
    config = _attempt(compose, point)
    failed = isinstance(config, OuroError)
    most = _most_points(point) if failed else config.sweep.max_points
    if number <= most:
        return config
    if failed:
        raise ConfigError(f"the first of {number} points, more than sweep.max_points={most}: {config}")
    raise ConfigError(f"the sweep has {number} points, more than sweep.max_points={most}. If they are all meant: "
                      f"sweep.max_points={number}.")


def _most_points(point: list[str]) -> int:
    """Returns `sweep.max_points` of a point with problems; the default when its files cannot be read."""
    try:
        return judged(point)[0].sweep.max_points
    except ConfigError:
        return Settings().max_points


def _refuse(results: list, chosen: list[tuple]) -> None:
    """Raises ConfigError when a point has a problem: each problem once, with the points it concerns."""
    found = [(getattr(result, "problems", [str(result)]) if isinstance(result, OuroError) else [], differs)
             for result, (_, differs) in zip(results, chosen, strict=True)]
    if lines := _with_points(found):
        raise ConfigError("the sweep has problems:\n  " + "\n  ".join(lines), lines)


def _with_points(lines_of_points: Sequence[tuple[list[str], dict[str, str]]]) -> list[str]:
    """Lists every line once, with the points it concerns. lines_of_points: each point's lines and axis values."""
    concerned: dict[str, list[str]] = {}
    number = len(lines_of_points)
    for lines, differs in lines_of_points:
        for line in dict.fromkeys(lines):
            concerned.setdefault(line, []).append(axes.point_label(differs))
    return [line if number == 1 else f"{line} (all {number} points)" if len(points) == number else
            f"{line} (point{'s' if len(points) > 1 else ''}: {_named(points)})" for line, points in concerned.items()]


def _named(points: list[str]) -> str:
    """Lists the first points, and the number of the others."""
    more = f"; and {len(points) - MOST_NAMED} more" if len(points) > MOST_NAMED else ""
    return "; ".join(points[:MOST_NAMED]) + more


def _shared(configs: list[Config]) -> tuple[str, str, str]:
    """Returns project, name and root directory of the sweep; names set by different recipes are joined."""
    for key in ("project", "checkpoint_root_dir"):
        values = {getattr(config, key) for config in configs}
        if len(values) > 1:
            raise ConfigError(f"the points have {len(values)} values of {key} ({', '.join(sorted(values))}); a sweep "
                              f"has one: write {key}=VALUE.")
    first = configs[0]
    return first.project, axes.joined(config.name for config in configs), first.checkpoint_root_dir
