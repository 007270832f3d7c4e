"""Writes runs/<project>/<sweep>/compare.html: a chart and a table of a sweep's points. One file, works offline.

Scores against one or two differing settings, or parallel coordinates for more, of the `Row`s of compare.py that have
one; drawn as in charts.py.
"""

import math
from collections.abc import Sequence
from typing import Any

from ouroboros.pipeline.compose.axes import plain
from ouroboros.pipeline.job.progress import is_reward
from ouroboros.pipeline.results.charts import CARD, GRID, INK, MUTED, SERIES, blank, inline
from ouroboros.pipeline.results.compare import Row, number
from ouroboros.pipeline.results.page import render
from ouroboros.pipeline.results.query import short
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
    columns = {label: ["null" if one is None else str(one) if isinstance(one, (list, dict)) else one  # null: lacks it
                       for one in (number(row.differs[label]) for row in scored)] for label in labels}
    found = [row.scores[taskset] for row in scored]
    scores, share = [(s.value, s.low, s.high) for s in found], not is_reward(found[0].metric)
    few = [label for label in labels if len(set(columns[label])) <= MOST_SERIES]
    if len(labels) == 1:
        return {"taskset": taskset, "legend": [],
                "svg": scatter(name, labels[0], columns[labels[0]], scores, share=share)}
    if len(labels) > 2 or not few:
        return {"taskset": taskset, "legend": [], "svg": parallel(name, columns, scores, share)}
    colour = min(few, key=lambda label: (len(set(columns[label])), -labels.index(label)))
    across = next(label for label in labels if label != colour)
    svg = scatter(name, across, columns[across], scores, columns[colour], share)
    return {"taskset": taskset, "svg": svg, "legend": [f"{colour}={value}" for value in ordered(columns[colour])]}


INCHES = (7.6, 3.4)
MOST_SERIES = len(SERIES)
MOST_TICKS = 8
LONGEST_LABEL = 24
LOGARITHMIC = 20.0  # ratio of largest to smallest value from which a scale is logarithmic
APART = 5.0  # points between the intervals of two series at the same position

Scored = tuple[float, float, float]  # value and its 95% interval


def scatter(name: str, label: str, x: Sequence[Any], scores: Sequence[Scored],
            series: Sequence[Any] | None = None, share: bool = True) -> str:
    """Draws scores with intervals against one setting. series: values of a second one, one colour each. share: whether
    scores are shares rather than rewards."""
    figure, axes = blank(share, "score" if share else "mean reward", label, INCHES, (0.085, 0.15, 0.9, 0.8))
    place = scale_of(axes, label, x)
    kinds = ordered(series) if series else [None]
    for index, kind in enumerate(kinds):
        mine = [i for i in range(len(x)) if series is None or series[i] == kind]
        _intervals(axes, [place[x[i]] for i in mine], [scores[i] for i in mine], SERIES[index],
                   (index - (len(kinds) - 1) / 2) * APART)
    best = max(range(len(x)), key=lambda i: scores[i][0])
    highest = _score(scores[best][0], share)
    return inline(figure, name, f"score by {label}, {len(x)} runs: best {highest} at {word(x[best])}")


def _score(value: float, share: bool) -> str:
    return f"{value:.1%}" if share else f"{value:.3f}"


def _intervals(axes, x: list[float], scores: list[Scored], colour: str, shift: float) -> None:
    """Draws dots with vertical 95% intervals, shifted right by `shift` points."""
    from matplotlib.transforms import ScaledTranslation

    moved = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    axes.vlines(x, [s[1] for s in scores], [s[2] for s in scores], color=colour, alpha=0.45, linewidth=2.4,
                transform=moved)
    axes.plot(x, [s[0] for s in scores], "o", color=colour, markersize=5.5, transform=moved)
    axes.update_datalim([(at, end) for at, s in zip(x, scores, strict=True) for end in s])
    axes.autoscale_view()


def scale_of(axes, label: str, values: Sequence[Any]) -> dict[Any, float]:
    """Sets up the horizontal axis; returns value -> position. Numbers are to scale, other values evenly spaced."""
    distinct = ordered(values)
    axes.set_xlabel(label, size=9, color=INK, parse_math=False)
    axes.margins(x=0.08, y=0.08)
    if not _numeric(distinct):
        axes.set_xticks(range(len(distinct)), [word(value) for value in distinct], parse_math=False)
        axes.set_xlim(-0.6, len(distinct) - 0.4)
        return {value: float(i) for i, value in enumerate(distinct)}
    axes.set_xscale("log" if logarithmic(distinct) else "linear")
    axes.xaxis.set_major_formatter(lambda value, _: word(value))
    axes.set_xticks([], minor=True)
    if len(distinct) <= MOST_TICKS:
        axes.set_xticks(distinct)
    if len(distinct) == 1:
        axes.set_xlim(distinct[0] - 1, distinct[0] + 1)
    return {value: value for value in distinct}


def logarithmic(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= LOGARITHMIC


def parallel(name: str, columns: dict[str, Sequence[Any]], scores: Sequence[Scored], share: bool = True) -> str:
    """Draws parallel coordinates: a line per run through its value on every axis to its score, the best in colour.

    columns: label -> the value of every run, in the order of the scores. share: as for `scatter`.
    """
    figure, axes = blank(False, "", "", INCHES, (0.04, 0.1, 0.9, 0.86))
    values = [score[0] for score in scores]
    places = [_places(column) for column in columns.values()]
    low, high = min(values), max(values)
    heights = [[place[value] for place, value in zip(places, row, strict=True)]
               for row in zip(*columns.values(), strict=True)]
    heights = [[*row, (v - low) / (high - low) if high > low else 0.5] for row, v in zip(heights, values, strict=True)]
    order = sorted(range(len(values)), key=lambda i: values[i])
    for i in order:
        best = i == order[-1]
        axes.plot(range(len(columns) + 1), heights[i], color=SERIES[0] if best else MUTED, solid_capstyle="round",
                  linewidth=2.4 if best else 1.1, alpha=1.0 if best else 0.2 + 0.5 * heights[i][-1])
    ticks = {_score(v, share): (v - low) / (high - low) if high > low else 0.5 for v in (low, (low + high) / 2, high)}
    _uprights(axes, [*columns, "score"], [*({word(v): at for v, at in place.items()} for place in places), ticks])
    won = ", ".join(f"{label} {word(column[order[-1]])}" for label, column in columns.items())
    return inline(figure, name, f"parallel coordinates of {len(values)} runs: best {_score(high, share)} at {won}")


def _places(values: Sequence[Any]) -> dict[Any, float]:
    """Maps values to heights between 0 and 1: numbers to scale, other values evenly spaced."""
    distinct = ordered(values)
    if len(distinct) == 1:
        return {distinct[0]: 0.5}
    if not _numeric(distinct):
        return {value: i / (len(distinct) - 1) for i, value in enumerate(distinct)}
    scaled = [math.log(value) if logarithmic(distinct) else value for value in distinct]
    return {value: (at - scaled[0]) / (scaled[-1] - scaled[0]) for value, at in zip(distinct, scaled, strict=True)}


def _uprights(axes, labels: list[str], ticks: list[dict[str, float]]) -> None:
    """Draws the axes of parallel coordinates, each with labelled values."""
    axes.spines["bottom"].set_visible(False)
    axes.grid(visible=False)
    axes.set_yticks([])
    axes.set_xticks(range(len(labels)), labels, parse_math=False)
    axes.tick_params(axis="x", labelsize=9, labelcolor=INK)
    axes.set_xlim(-0.12, len(labels) - 0.78)
    for x, values in enumerate(ticks):
        axes.plot([x, x], [0, 1], color=GRID, linewidth=1.2, zorder=0)
        shown = list(values.items())
        for text, height in shown if len(shown) <= MOST_TICKS else (shown[0], shown[-1]):
            axes.text(x + 0.025, height, text, size=8, color=MUTED, va="center", zorder=9, parse_math=False,
                      bbox={"facecolor": CARD, "edgecolor": "none", "pad": 1.0, "alpha": 0.85})


def ordered(values: Sequence[Any]) -> list[Any]:
    """Returns the distinct values: numbers by size, others in order of first appearance."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct) if _numeric(distinct) else distinct


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def word(value: Any) -> str:
    """Formats a value as a label: four digits of a number, `1e-6` for 1e-06; the beginning of a long text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return plain(short(value, 4))
    text = str(value)
    return text if len(text) <= LONGEST_LABEL else text[: LONGEST_LABEL - 1] + "…"
