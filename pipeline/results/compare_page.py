"""Writes runs/<project>/<sweep>/compare.html: a chart and a table of a sweep's points. One file, works offline."""

from typing import Any

from ouroboros.pipeline.job.progress import is_reward
from ouroboros.pipeline.results import compare_charts
from ouroboros.pipeline.results.compare import Row, number
from ouroboros.pipeline.results.page import render
from ouroboros.pipeline.results.sweep_view import SweepView
from ouroboros.pipeline.store import files


def write(sweep: SweepView, rows: list[Row], metric: str) -> None:
    """Writes the page of a sweep from the rows of `compare.compared`."""
    html = render("compare.html.j2", page(sweep, rows, metric))
    files.write_atomic(sweep.report, lambda temporary: temporary.write_text(html, encoding="utf-8"))


def page(sweep: SweepView, rows: list[Row], metric: str) -> dict[str, Any]:
    """Returns the template's variables."""
    tasksets = list(dict.fromkeys(taskset for row in rows for taskset in row.scores))
    return {
        "run": sweep.run,
        "metric": metric.replace("_", " "),
        "rows": rows,
        "labels": list(rows[0].differs) if rows else [],
        "tasksets": tasksets,
        "pictures": [p for i, taskset in enumerate(tasksets) if (p := picture(f"compare-{i}", rows, taskset))],
        "incomplete": [row for row in rows if row.reached != "complete"],
        "reports": {row.run: f"../{row.path.name}/report.html" for row in rows if (row.path / "report.html").exists()},
    }


def picture(name: str, rows: list[Row], taskset: str) -> dict[str, Any] | None:
    """Returns the chart of one evaluation set with its legend; None if nothing differs or no run has a score.

    One differing setting: a scatter. Two, one of them with few values: a colour for each of those. More: parallel
    coordinates.
    """
    scored = [row for row in rows if taskset in row.scores]
    labels = list(rows[0].differs) if rows else []
    if not scored or not labels:
        return None
    columns = {label: [_hashable(number(row.differs[label])) for row in scored] for label in labels}
    found = [row.scores[taskset] for row in scored]
    scores, share = [(s.value, s.low, s.high) for s in found], not is_reward(found[0].metric)
    few = [label for label in labels if len(set(columns[label])) <= compare_charts.MOST_SERIES]
    if len(labels) == 1:
        return {"taskset": taskset, "legend": [],
                "svg": compare_charts.scatter(name, labels[0], columns[labels[0]], scores, share=share)}
    if len(labels) > 2 or not few:
        return {"taskset": taskset, "legend": [], "svg": compare_charts.parallel(name, columns, scores, share)}
    colour = min(few, key=lambda label: (len(set(columns[label])), -labels.index(label)))
    across = next(label for label in labels if label != colour)
    svg = compare_charts.scatter(name, across, columns[across], scores, columns[colour], share)
    return {"taskset": taskset, "svg": svg,
            "legend": [f"{colour}={value}" for value in compare_charts.ordered(columns[colour])]}


def _hashable(value: Any) -> Any:
    """Converts a list or mapping to text; a setting that a run does not have is `null`."""
    return str(value) if isinstance(value, (list, dict)) else "null" if value is None else value
