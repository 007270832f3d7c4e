"""Which steps' weights the training stages of a run keep, as `ouro weights` shows them."""

from pathlib import Path

from tabulate import tabulate

from ouroboros.pipeline.job.policies import kept, rebuild, size
from ouroboros.pipeline.results.sweep_view import SweepView
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import files, versions
from ouroboros.pipeline.store.errors import DataError, nearest


def single(shown: View | SweepView) -> View:
    """Returns a run as it is. Raises DataError for a sweep."""
    if isinstance(shown, View):
        return shown
    raise DataError(f"{shown.run} is a sweep; name one of its points: "
                    f"{', '.join(entry.view.run for entry in shown.entries)}.")


def words_of(shown: View | SweepView) -> list[str]:
    """Returns the overrides that compose the configuration of a run. Raises DataError where they are not known."""
    view = single(shown)
    if (words := files.read_json(view.path / View.PLAN).get("overrides")) is None:
        raise DataError(f"{view.path / View.PLAN} was written by an older release and lacks the overrides of the run. "
                        "Type them: ouro run … mode=bench explorer.bench_steps=[…]")
    return words


def choose_stage(shown: View, name: str | None) -> Node:
    """Returns the training stage of that name, or the last one of the run. Raises DataError where it keeps no
    weights."""
    able = {stage.name: stage for stage in shown.stages if kept(stage.directory)}
    trained = [stage.name for stage in shown.stages if stage.kind.trains]
    wanted = name or (trained[-1] if trained else None)
    if wanted not in able:
        which = f"stage '{wanted}' of {shown.run} keeps none" if wanted else f"no stage of {shown.run} keeps any"
        raise DataError(f"weights of steps: {which}.{nearest(name, able) if name else ''} Stages that do, for --stage: "
                        f"{', '.join(able) or 'none'}.")
    return able[wanted]


def directory(run: View, stage: Node, step: int | None) -> Path:
    """Returns a model directory of a step's weights, the last kept one by default; makes it once, below the run's."""
    step = step if step is not None else kept(stage.directory)[-1].step
    out = run.path / "policies" / f"{stage.directory.name}-step={step}"
    if not out.exists():
        out.parent.mkdir(exist_ok=True)
        rebuild(stage.directory, step, out)
    return out


def table(stage: Node) -> str:
    """Returns the kept steps and the disk space of their weights, in text."""
    found = kept(stage.directory)
    rows = [(one.step, one.form, f"{one.size / 2**20:,.1f}") for one in found]
    places = [versions.version_directory(stage.directory, version) for version in versions.numbers(stage.directory)]
    taken = sum(map(size, places)) / 2**20
    steps = "1 step" if len(found) == 1 else f"{len(found)} steps"
    return "\n".join([f"stage {stage.name}: {steps}", tabulate(rows, ["step", "form", "MiB"]),
                      f"weights/ takes {taken:,.1f} MiB (synchronizer.keep)"])
