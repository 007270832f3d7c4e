"""Which steps' weights the training stages of a run keep, as `ouro weights` shows them."""

from tabulate import tabulate

from pipeline.job.policies import kept, size
from pipeline.results.sweep_view import SweepView
from pipeline.results.view import Node, View
from pipeline.store import files, versions
from pipeline.store.errors import DataError, nearest


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
    """Returns the stage of that name, or the last one of the run with kept weights. Raises DataError without one."""
    able = [stage for stage in shown.stages if kept(stage.directory)]
    names = [stage.name for stage in able]
    if name is None and able:
        return able[-1]
    found = next((stage for stage in able if stage.name == name), None)
    if found is None:
        which = f"stage '{name}' of {shown.run} keeps none" if name else f"no stage of {shown.run} keeps any"
        raise DataError(f"weights of steps: {which}.{nearest(name, names) if name else ''} Stages that do: "
                        f"{', '.join(names) or 'none'}.")
    return found


def table(stage: Node) -> str:
    """Returns the kept steps and the disk space of their weights, in text."""
    found = kept(stage.directory)
    rows = [(one.step, one.form, f"{one.size / 2**20:,.1f}") for one in found]
    places = [versions.version_directory(stage.directory, version) for version in versions.numbers(stage.directory)]
    taken = sum(map(size, places)) / 2**20
    steps = "1 step" if len(found) == 1 else f"{len(found)} steps"
    return "\n".join([f"stage {stage.name}: {steps}", tabulate(rows, ["step", "form", "MiB"]),
                      f"weights/ takes {taken:,.1f} MiB (synchronizer.keep)"])
