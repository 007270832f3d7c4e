"""What a launch says when it ends, of a run or of a sweep: how it went, or what failed."""

from pipeline import sweep_view, view
from pipeline.sweep import Sweep
from pipeline.sweep_view import SweepView
from pipeline.view import View


def of(planned) -> View | SweepView:
    """The view of a plan or sweep that need not have been launched yet."""
    return sweep_view.of_sweep(planned) if isinstance(planned, Sweep) else view.of_plan(planned)


def conclude(shown: View | SweepView) -> str:
    """The last lines of a run; of a sweep the points side by side, whose page is written too."""
    return _compared(shown) if isinstance(shown, SweepView) else view.summary(shown)


def _compared(shown: SweepView) -> str:
    from pipeline.compare import METRIC, answer, compared
    from pipeline.compare_page import write
    from pipeline.query import as_table

    rows = compared([shown], METRIC)
    write(shown, rows, METRIC)
    done = sum(entry.view.complete for entry in shown.entries)
    apart = sum(len(entry.view.stages) for entry in shown.entries)
    counted = f"{shown.run}: {done} of {len(rows)} points complete; {len(shown.stages)} stages, {apart} without sharing"
    return "\n".join([as_table(answer(rows)).rsplit("\n", 1)[0], counted, f"report: {shown.report}"])


def what_failed(shown: View | SweepView, code: int) -> str:
    """The last words of what did not become complete: below snakemake's own, where one looks first."""
    return (sweep_view if isinstance(shown, SweepView) else view).what_failed(shown, code)
