"""Reads a sweep back: its points, their progress and failures. Like pipeline/results/view.py it writes nothing."""

import os
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.job.ending import INTERRUPTED
from ouroboros.pipeline.results import view
from ouroboros.pipeline.results.query import aligned
from ouroboros.pipeline.results.view import Node, Shown, View
from ouroboros.pipeline.store import files

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Entry:
    """A point of a sweep: its run, and key -> value on every axis."""

    view: View
    differs: dict[str, str]


@dataclass(frozen=True)
class SweepView(Shown):
    """A sweep with its points in the order of its axes."""

    PLAN, PAGE = SWEEP, "compare.html"
    entries: list[Entry]

    @property
    def stages(self) -> list[Node]:
        """Returns every stage of the points once."""
        return list({s.directory.resolve(): s for entry in self.entries for s in entry.view.stages}.values())


PLANS = (View.PLAN, SweepView.PLAN)  # either is in every directory under runs/


def open_sweep(path: Path) -> SweepView:
    """Opens the sweep whose directory under runs/ is `path`; points whose run was deleted are left out."""
    kept = files.read_json(path / SWEEP, "`ouro run` with the words of that sweep makes it again.")
    project = path.parent.parent
    entries = [Entry(view.open_view(project / point["run"]), point["differs"]) for point in kept["points"]
               if (project / point["run"] / "plan.json").exists()]
    return SweepView(f"{kept['project']}/{kept['name']}", path, entries)


def known(root: Path) -> list[View | SweepView]:
    """Returns every run and sweep below root/runs, the one launched last first; optionally only of one name."""
    found = [*view.views(root), *view.opened(open_sweep, view.plans(root, SWEEP))]
    found.sort(key=lambda one: one.launched, reverse=True)
    latest: dict[str, View | SweepView] = {}
    for one in found:
        latest.setdefault(one.run, one)
    return list(latest.values())


def find(root: Path, name: str | None = None) -> View | SweepView:
    """Returns the run or sweep of that name; without a name, the one launched last.

    name: NAME, PROJECT/NAME, either as `name=NAME`, or the path of its directory under runs/.
    """
    return (name and _at(root, name)) or view.choose(known(root), root, name)


def _at(root: Path, name: str) -> View | SweepView | None:
    """Returns the run or sweep of a directory, which may be relative to the current one or to `root`."""
    for place in (os.path.abspath(os.path.expanduser(name)), os.path.abspath(root / name)):
        for opens, file in ((open_sweep, SWEEP), (view.open_view, View.PLAN)):
            if os.path.isfile(f"{place}/{file}") and Path(place).parents[1].name == "runs":
                return opens(Path(place))
    return None


def is_known(root: Path, name: str) -> bool:
    """Returns whether a word names a run or sweep, as `find` reads it; names of a sweep's points contain `=`."""
    return _at(root, name) is not None or bool(view.matches(known(root), name))


def runs_of(shown: View | SweepView) -> list[View]:
    """Returns the runs of a name: the run itself, or the points of a sweep."""
    return [entry.view for entry in shown.entries] if isinstance(shown, SweepView) else [shown]


# ------------------------------------------------------------------------------------------------- how far it is


def reached(run: View) -> str:
    """Summarizes a point's progress: complete, `failed: rft`, `running: rft, step 3 of 10`, `2 of 8 stages`."""
    states = [view.state(stage) for stage in run.stages]
    for word in ("failed", "running", INTERRUPTED):
        if named := [s.name + s.state.removeprefix(word) for s in states if s.state.startswith(word)]:
            return f"{word}: {'; '.join(named)}"
    done = sum(s.state == "complete" for s in states)
    return "complete" if done == len(states) else f"{done} of {len(states)} stages"


def status(shown: View | SweepView) -> str:
    """Returns a line for each stage of a run or point of a sweep, then the stages' messages and failures."""
    if isinstance(shown, SweepView):
        return _status_of_points(shown)
    states = [view.state(stage) for stage in shown.stages]
    rows = [(s.name, s.state, "" if s.seconds is None else Decimal(f"{s.seconds:.1f}"), s.process or "",
             files.near(s.directory)) for s in states]
    waiting = [s.name for s in states if not s.state.startswith(("complete", "running"))]
    latest = [f"{s.name}: {line}" for s in states
              for line in filter(None, (s.latest, *s.doing, s.note, s.warning, s.problem))]
    following = [f"next: {', '.join(waiting)}"] if waiting else []
    table = aligned(["stage", "state", "seconds", "process", "directory"], rows)
    return "\n".join([shown.run, table, *latest, *following])


def _status_of_points(shown: SweepView) -> str:
    rows = [(e.view.run, reached(e.view)) for e in shown.entries]
    lines = [shown.run, aligned(["point", "state"], rows)]
    failed = [(stage, problem) for stage in shown.stages if (problem := view.state(stage).problem)]
    return "\n".join([*lines, *(f"{s.name} ({points_with(shown, s)}): {problem}" for s, problem in failed)])


def points_with(shown: SweepView, stage: Node) -> str:
    """Lists the points that have a stage: `lr=0.1; lr=0.5`, or `all 3 points`."""
    place = stage.directory.resolve()
    have = [axes.point_label(entry.differs) or entry.view.run for entry in shown.entries
            if place in {s.directory.resolve() for s in entry.view.stages}]
    return f"all {len(have)} points" if len(have) == len(shown.entries) > 1 else "; ".join(have)
