"""`ouro compare`: a table of runs with their differences and scores, the best first.

A run's score is that of its last evaluated stage. A run whose last evaluation is incomplete has no score yet, and shows
its progress.
"""

from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.job.progress import SAMPLED
from ouroboros.pipeline.results import difference, learnt, query, sweep_view
from ouroboros.pipeline.results.sweep_view import SweepView
from ouroboros.pipeline.results.view import View
from ouroboros.pipeline.settings.kinds import EVALUATE
from ouroboros.pipeline.settings.secrets import mask
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import DataError, nearest
from ouroboros.pipeline.store.records import Score

METRIC = SAMPLED[0]
SAMPLED_BY = ("temperature", "top_p", "top_k", "min_p", "max_tokens")  # of rollout_args


@dataclass(frozen=True)
class Row:
    """One run. differs: label -> value. reached: `complete`, or its progress. scores: evaluation set -> Score."""

    run: str
    path: Path
    differs: dict[str, Any]
    reached: str
    scores: dict[str, Score]

    @property
    def value(self) -> float | None:
        """Returns the value for ranking: the score on its first evaluation set."""
        return next((score.value for score in self.scores.values()), None)


def metric_of(shown: list[View | SweepView]) -> str:
    """Returns the metric for comparing runs: the mean reward if none has an accuracy."""
    measured = {score.metric for one in shown for run in sweep_view.runs_of(one) for score in last_scores(run)}
    return next((metric for metric in SAMPLED if metric in measured), METRIC)


def compared(shown: list[View | SweepView], metric: str = METRIC) -> list[Row]:
    """Returns a row for each run, or each point of a sweep, the best first, those without a score last.

    Raises DataError for a metric that none has although others were measured.
    """
    runs = list({run.run: run for one in shown for run in sweep_view.runs_of(one)}.values())
    found = [last_scores(run) for run in runs]
    _refuse_unknown(metric, found)
    rows = [Row(run.run, run.path, differs, sweep_view.reached(run),
                {s.taskset: s for s in scores if s.metric == metric})
            for run, differs, scores in zip(runs, what_differs(shown, runs), found, strict=True)]
    return sorted(rows, key=lambda row: (row.value is not None, row.value), reverse=True)


def last_scores(run: View) -> list[Score]:
    """Returns every score of the last evaluation of a run; empty if it is incomplete."""
    evaluations = [s.directory for s in run.stages if s.kind == EVALUATE]
    if not evaluations or not files.is_complete(evaluations[-1]):
        return []
    return tables.read_scores(evaluations[-1], tables.steps_present(evaluations[-1], "scores")[-1])


def _refuse_unknown(metric: str, found: list[list[Score]]) -> None:
    metrics = sorted({score.metric for scores in found for score in scores})
    if metrics and metric not in metrics:
        raise DataError(f"no score is called '{metric}'.{nearest(metric, metrics)} Measured: {', '.join(metrics)}.")


def what_differs(shown: list[View | SweepView], runs: list[View]) -> list[dict[str, Any]]:
    """Maps each run's labels to values: of the axes of one sweep, else of the settings in which the runs differ."""
    if len(shown) == 1 and isinstance(shown[0], SweepView):
        points = [entry.differs for entry in shown[0].entries]
        keys = list(dict.fromkeys(key for point in points for key in point))
        if len(points) > 1:  # a search passes overrides that are equal at all its points
            keys = [key for key in keys if len({point.get(key) for point in points}) > 1]
    else:
        configs = [difference.frozen(run.path) for run in runs]
        keys = [key for key in difference.differing(configs) if not difference.is_how(key)]
        points = [difference.flatten(mask(config)) for config in configs]
    labels = axes.labels(keys)
    return [{labels[key]: point.get(key) for key in keys} for point in points]


def paired(runs: list[View], metric: str) -> list[str]:
    """Returns a line for each run after the first and each evaluation set of both: what the run is better by, paired
    over the tasks where both answered the same ones. Only of metrics whose responses are in `samples`."""
    if metric not in SAMPLED:
        return []
    lines, first = [], {score.taskset: score for score in last_scores(runs[0]) if score.metric == metric}
    for run in runs[1:]:
        both = [(first[score.taskset], score) for score in last_scores(run)
                if score.metric == metric and score.taskset in first]
        for change in learnt.against(runs[0], run, both):
            on = f" on {change.last.taskset}" if len(first) > 1 else ""
            before, after = (sampling(one, change.last.taskset) for one in (runs[0], run))
            unlike = ", ".join(f"{name} {before[name]} | {after[name]}" for name in before
                               if before[name] != after[name])
            lines.append(f"{run.run} against {runs[0].run}{on}: {change.words()}"
                         + f"; sampled differently: {unlike}" * bool(unlike))
    return lines


def sampling(run: View, taskset: str) -> dict[str, Any]:
    """Returns with what the last evaluation of a run sampled a set: of the set itself, or of the model."""
    spec = files.read_json([s.directory for s in run.stages if s.kind == EVALUATE][-1] / "stage.json")["config"]
    sets = at(spec, "buffer.explorer_input.eval_tasksets", [])
    own = next((one.get("rollout_args") or {} for one in sets if one.get("name") == taskset), {})
    return {name: at(spec, f"model.{name}") if own.get(name) is None else own[name] for name in SAMPLED_BY}


def answer(rows: list[Row], metric: str) -> query.Answer:
    """Returns the rows as a table: run, per evaluation set value and 95% interval of the metric, differences,
    progress."""
    labels = list(rows[0].differs) if rows else []
    tasksets = list(dict.fromkeys(taskset for row in rows for taskset in row.scores))
    ends = [""] if len(tasksets) == 1 else [f" {taskset}" for taskset in tasksets]
    columns = ["run", *(part + end for end in ends for part in ("value", "low", "high")), *labels, "metric", "state"]
    cells = []
    for row in rows:
        scores = [row.scores.get(taskset) for taskset in tasksets]
        numbers = [n for s in scores for n in ((s.value, s.low, s.high) if s else (None, None, None))]
        cells.append((row.run, *numbers, *map(number, row.differs.values()), metric, row.reached))
    return query.Answer(columns, cells)


def rounded(shown: query.Answer) -> query.Answer:
    """Returns the table with scores of four digits, for people."""
    scores = [column.partition(" ")[0] in ("value", "low", "high") for column in shown.columns]
    return query.Answer(shown.columns, [
        tuple(Decimal(query.short(cell, 4)) if is_score and isinstance(cell, float) else cell
              for cell, is_score in zip(row, scores, strict=True)) for row in shown.rows])


def number(value: Any) -> Any:
    """Converts a numeric text to a number, so that it is right-aligned and sorted as one; others stay."""
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
