"""One point of a sequential search for Optuna or another sweeper: overrides in, score out.

`ouro run -m` knows all points beforehand; here a sweeper requests one, sees its score and chooses the next. Points
share stages like those of a sweep, because both use the same store. Usage: docs/sweeps.md.
"""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ouroboros.commands.run import invoke
from ouroboros.commands.run.planning import make_checked_plan
from ouroboros.commands.run.sweep import SWEEP, Point, point_record
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.results import view
from ouroboros.pipeline.results.compare import METRIC, last_scores
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError, Problem, StageError

GOES_ON = Problem("continue_from_checkpoint", found=False, needed="true: a search and --until-decided go on with the "
                  "points that they have made; to make them anew, set repetition to a number that none of them had")


def objective(overrides: Sequence[str], metric: str = METRIC, taskset: str | None = None,
              snakemake: Sequence[str] = ()) -> float:
    """Runs the point that the overrides compose and returns the score of its last evaluated stage, 0 to 1.

    The run is named after the recipe and its overrides, and is added to `runs/<project>/<name>/sweep.json`, so that
    `ouro compare NAME` shows the search while it runs. A complete point is not run again.
    taskset: which evaluation set; None is the first. snakemake: words for snakemake, such as a profile.
    Raises ConfigError before anything runs, StageError when a stage fails, DataError when nothing is evaluated.
    """
    shown = make(overrides, snakemake)
    found = [s for s in last_scores(shown) if s.metric == metric and taskset in (None, s.taskset)]
    if not found:
        measured = ", ".join(f"{s.metric} on {s.taskset}" for s in last_scores(shown)) or "nothing"
        wanted = metric + (f" on {taskset}" if taskset else "")
        raise DataError(f"{shown.run} has no score {wanted}. Its last evaluation measured: {measured}. Needed an "
                        "evaluation set (buffer.explorer_input.eval_tasksets) and a metric of it.")
    return found[0].value


def make(overrides: Sequence[str], snakemake: Sequence[str] = ()) -> view.View:
    """Runs the point that the overrides compose, unless it is complete, and adds it to its search; returns the run."""
    with _own_hydra():
        differs, base = axes.given(list(overrides)), composed(list(overrides)).name
        words = [w for w in overrides if axes.key_of(w) != "name"] + [f"name='{axes.name_of(base, differs)}'"]
        plan = make_checked_plan(words)
    shown = view.of_plan(plan)
    _run(plan, shown, words, list(snakemake))
    _record(plan.view.with_name(base), Point(words, differs, plan))
    return shown


def composed(overrides: list[str]) -> Config:
    """Returns the configuration of a point. Raises ConfigError for one that would begin a new run each time."""
    config = compose(overrides)
    if not config.continue_from_checkpoint:
        raise ConfigError(GOES_ON)
    return config


@contextlib.contextmanager
def _own_hydra() -> Iterator[None]:
    """Suspends the caller's Hydra, which composes for one application at a time and may be a sweeper's."""
    from hydra.core.global_hydra import GlobalHydra

    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer


def _run(plan: Plan, shown: view.View, words: list[str], snakemake: list[str]) -> None:
    if shown.complete:
        plan.freeze()  # the run's view may show another configuration
        return
    ended = invoke.start(words, snakemake, plan)
    if ended.signal:
        raise KeyboardInterrupt  # otherwise the search would continue with the next point
    if ended.code:
        raise StageError(invoke.explain(shown, ended, shlex.join(invoke.typed(words, snakemake))))


def _record(search: Path, point: Point) -> None:
    """Adds the point to sweep.json in the search's directory; safe for concurrent processes."""
    with files.locked(search / ".sweep.lock", lambda holder: None):
        kept = files.read_json(search / SWEEP)["points"] if (search / SWEEP).exists() else []
        added = point_record(point)
        points = [*(p for p in kept if p["run"] != added["run"]), added]
        files.write_json(search / SWEEP, {"project": point.plan.project, "name": search.name, "points": points})
