"""The final report of a launch, for a run or a sweep: results, or what failed and what exists."""

import contextlib
import os
import subprocess
from pathlib import Path

from ouroboros.commands.run.sweep import Sweep
from ouroboros.pipeline.job.context import our_environment
from ouroboros.pipeline.plan.identity import settings_of
from ouroboros.pipeline.results import learnt, view
from ouroboros.pipeline.results.sweep_view import Entry, SweepView
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.settings.kinds import REPORT
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.errors import StageError


def of(planned) -> View | SweepView:
    """Returns the view of a plan or sweep, whether launched or not."""
    if not isinstance(planned, Sweep):
        return view.of_plan(planned)
    return SweepView(f"{planned.project}/{planned.name}", planned.view,
                     [Entry(view.of_plan(point.plan), point.differs) for point in planned.points])


def conclude(shown: View | SweepView) -> str:
    """Returns the last lines of a run; for a sweep a comparison of its points, whose page is written too."""
    return _compared(shown) if isinstance(shown, SweepView) else learnt.summary(shown)


def _compared(shown: SweepView) -> str:
    from ouroboros.pipeline.results.compare import answer, compared, metric_of, rounded
    from ouroboros.pipeline.results.compare_page import write
    from ouroboros.pipeline.results.query import aligned

    metric = metric_of([shown])
    rows = compared([shown], metric)
    table = rounded(answer(rows, metric))
    write(shown, rows, metric)
    done = sum(entry.view.complete for entry in shown.entries)
    apart = sum(len(entry.view.stages) for entry in shown.entries)
    counted = f"{shown.run}: {done} of {len(rows)} points complete; {len(shown.stages)} stages, {apart} without sharing"
    return "\n".join([aligned(table.columns, table.rows), counted, f"report: {shown.report}"])


def made_again(planned) -> list[str]:
    """Returns the line naming stages of a run that will run again without a changed setting: because our code, the
    table format or a file's content differs from when the run last made them. None for a new run."""
    found: dict[str, str] = {}  # directory of the stage -> the one that the run had
    for stage in planned.stages:
        if stage.kind == REPORT or files.is_complete(Path(stage.directory)):
            continue
        link = Path(stage.root) / "runs" / stage.run / "stages" / stage.name
        before = _inputs_of_same(stage, link)
        if before is not None and all(found.get(str(Path(here)), str(Path(here))) == str(Path(before.get(role, "")))
                                      for role, here in stage.inputs.items()):
            found[stage.directory] = os.path.normpath(link.parent / link.readlink())
    names = [f"{Path(here).name} in place of {Path(there).name}" for here, there in found.items()]
    return [f"re-runs because code, table format or a file changed: {', '.join(names)}"] if names else []


def damaged_plans(plans) -> list[str]:
    """Returns a line for each run whose plan.json is damaged: it is made again from the recipe."""
    lines = []
    for path in (one.view / View.PLAN for one in plans):
        try:
            files.read_json(path) if path.exists() else {}
        except StageError as error:
            lines.append(f"made again: {str(error).partition(' Delete it')[0]}")
    return lines


def _inputs_of_same(stage, link: Path) -> dict[str, str] | None:
    """Returns the inputs of the stage behind a link of the run's view; None where it is incomplete, or has another kind
    or other settings."""
    if not files.is_complete(link):
        return None
    there = files.read_json(link / "stage.json")
    with contextlib.suppress(KeyError):  # a setting missing in another release
        if there["kind"] == stage.kind and files.hash_json(
                settings_of(stage.kind, there["config"])) == files.hash_json(settings_of(stage.kind, stage.config)):
            return there["inputs"]
    return None


def report_what_is_there(shown: View | SweepView) -> str:
    """Writes a page on the complete stages of a run in which one failed; returns its line for the terminal.

    Nothing when no training is complete, when the report exists, or for a sweep, whose own page compares its points.
    """
    if isinstance(shown, SweepView):
        return ""
    report = next(stage for stage in shown.stages if stage.kind == REPORT)
    trained = [s for s in shown.stages if s.kind.trains and files.is_complete(s.directory)]
    if not trained or files.is_complete(report.directory) or not (report.directory / "stage.json").exists():
        return ""
    done = subprocess.run(launch.command("ouroboros.stages.report", "--partial", str(report.directory)),
                          env=our_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no report of what is there: {done.stderr.strip().splitlines()[-1]}"
    return f"report of what is there: {shown.report}"
