"""Small pictures as inline SVG: curves and stacks by matplotlib, the DAG by hand.

Colours are CSS variables of the page (`--ink`, `--muted`, `--grid`, `--s1` ...), so one picture serves light and dark:
matplotlib draws with stand-in colours that are replaced in its output.
"""

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05")
INK, MUTED, GRID, CARD = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)",
             **{colour: f"var(--s{i})" for i, colour in enumerate(SERIES, 1)}}
PART_SERIES = {"rollout": 1, "training": 1, "sync": 2, "publishing": 2, "other": 3, "waiting": 4,
               "evaluation": 5}  # the same everywhere
MOST_POINTS = 300  # of a curve; more are averaged in equal bins
INCHES = (4.0, 2.1)


def thin(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points: means over equal bins of the finite ones."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most:
        return x, y
    return tuple(np.array([part.mean() for part in np.array_split(values, most)]) for values in (x, y))


def smooth(y: np.ndarray, width: float) -> np.ndarray:
    """Mean of the neighbours with Gaussian weights of standard deviation `width` points; without lag.

    s_i = sum_j w_ij y_j / sum_j w_ij, w_ij = exp(-((i - j) / width)^2 / 2); at the ends there are fewer neighbours.
    """
    index = np.arange(len(y))
    weights = np.exp(-(((index[:, None] - index) / width) ** 2) / 2)
    return weights @ y / weights.sum(axis=1)


def curve(name: str, title: str, x: np.ndarray, y: np.ndarray, percent: bool = False) -> str:
    """One metric by step: faint raw points and the smoothed line of what is finite. name: unique in the page."""
    x, y = thin(np.asarray(x, float), np.asarray(y, float))
    figure, axes = blank(percent)
    if not len(x):
        return _empty(figure, axes, name, f"{title} by step: no finite value")
    line = smooth(y, max(len(y) / 40, 0.1))
    _dots(axes, x, y)
    axes.plot(x, line, color=SERIES[0], linewidth=1.8, solid_capstyle="round")
    if len(x) == 1:
        axes.set_xlim(x[0] - 1, x[0] + 1)
    form = (lambda v: f"{v:.1%}") if percent else (lambda v: f"{v:.3g}")
    words = f"{title} by step: {form(line[0])} at step {x[0]:.0f}, {form(line[-1])} at step {x[-1]:.0f} (smoothed)"
    return inline(figure, name, words)


def band(
    name: str, title: str, x: Sequence[int], y: Sequence[float], low: Sequence[float], high: Sequence[float],
    share: bool = True,
) -> str:
    """An estimate by step as it was measured, with its 95% interval as a band. name: unique in the page."""
    figure, axes = blank(share)
    axes.fill_between(x, low, high, color=SERIES[0], alpha=0.18, linewidth=0)
    axes.plot(x, y, color=SERIES[0], linewidth=1.8, marker="o", markersize=3.5)
    ends = [f"{y[i]:.1%} [{low[i] * 100:.1f}, {high[i] * 100:.1f}] at step {x[i]}" if share else
            f"{y[i]:.3f} [{low[i]:.3f}, {high[i]:.3f}] at step {x[i]}" for i in (0, -1)]
    return inline(figure, name, f"{title} by step, with its 95% interval: {', '.join(ends)}")


def _empty(figure, axes, name: str, words: str) -> str:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", size=9, color=MUTED)
    return inline(figure, name, words)


def _dots(axes, x: np.ndarray, y: np.ndarray) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points = np.repeat(np.column_stack([x, y]), 2, axis=0)  # strokes of no length with round ends: dots in one path
    points[1::2, 0] += 1e-9 * (x[-1] - x[0] + 1)  # matplotlib drops strokes of exactly no length
    dots = Path(points, np.tile([Path.MOVETO, Path.LINETO], len(x)))
    dots.should_simplify = False
    axes.add_patch(PathPatch(dots, fill=False, edgecolor=SERIES[0], alpha=0.3, linewidth=2.2, capstyle="round"))


def stack(name: str, title: str, x: np.ndarray, parts: dict[str, np.ndarray]) -> str:
    """Seconds per step, stacked by part (of PART_SERIES) in the order given; the legend is the page's."""
    x = np.asarray(x, float)
    if len(x) == 1:  # one step is as wide as a step
        x, parts = np.array([x[0] - 0.5, x[0] + 0.5]), {label: np.repeat(y, 2) for label, y in parts.items()}
    filled = [thin(x, np.nan_to_num(np.asarray(y, float)), 120) for y in parts.values()]
    figure, axes = blank(False)
    colours = [SERIES[PART_SERIES[label] - 1] for label in parts]
    axes.stackplot(filled[0][0], *(y for _, y in filled), colors=colours, linewidth=0)
    means = ", ".join(f"{label} {np.nan_to_num(y).mean():.3g}" for label, y in parts.items())
    return inline(figure, name, f"{title}, mean seconds a step: {means}")


def blank(percent: bool, inches: tuple[float, float] = INCHES, place: tuple = (0.125, 0.11, 0.865, 0.82)):
    """A figure with one pair of axes in the page's colours. place: left, bottom, width, height as shares of it."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=inches)
    axes = figure.add_axes(place)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.ticklabel_format(axis="y", scilimits=(-3, 4), useOffset=False)
    axes.yaxis.offsetText.set(size=8, color=MUTED)
    if percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure, axes


def inline(figure, name: str, words: str) -> str:
    """The figure as an accessible inline element: no header, no unused ids, two decimals, the page's colours."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "path.simplify": False}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    used = set(re.findall(r"#([\w.]+)", body))
    body = re.sub(r' id="([\w.]+)"', lambda m: m.group(0) if m.group(1) in used else "", body)
    body = re.sub(r'"[^"]*"', lambda m: re.sub(r"(\d\.\d\d)\d+", r"\1", m.group()), body)  # attributes, not labels
    body = re.sub(r" (?:width|height)=\"[\d.]+pt\"| xmlns(?::xlink)?=\"[^\"]*\"| version=\"1.1\"", "", body)
    for colour, variable in VARIABLES.items():
        body = body.replace(colour, variable)
    body = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body).replace("xlink:href", "href")
    body = re.sub(r" font-family: [^;\"]*;?", "", body)  # the page's
    return re.sub(r"\s*\n\s*", " ", body).replace("<svg", f'<svg role="img" aria-label="{html.escape(words)}"', 1)


# --------------------------------------------------------------------------------------------------------- the DAG


@dataclass(frozen=True)
class Box:
    """A stage in the picture: its words, the names of the stages it reads, and whether it stands beside the chain."""

    name: str
    words: str
    inputs: Sequence[str]
    aside: bool


WIDE, HIGH, ACROSS, DOWN, EDGE = 150, 48, 40, 24, 14  # box, gaps, margin: pixels


def dag(boxes: Sequence[Box]) -> str:
    """Boxes from left to right by their longest way from the start; edges that a longer way implies are left out.

    `boxes` are in an order in which they could be made. Those that stand aside (models, evaluations) go below.
    """
    column, lane = _places(boxes)
    at = {n: (EDGE + column[n] * (WIDE + ACROSS), EDGE + lane[n] * (HIGH + DOWN)) for n in column}
    lanes = max(lane.values()) + 1
    width, bus = EDGE * 2 + (max(column.values()) + 1) * (WIDE + ACROSS) - ACROSS, EDGE + lanes * (HIGH + DOWN) - 6
    taken = {(column[n], lane[n]) for n in column}
    edges = []
    for source, target in _edges(boxes):
        blocked = any((c, lane[source]) in taken for c in range(column[source] + 1, column[target]))
        edges.append(_edge(at[source], at[target], bus if blocked else None))
    drawn = [f'<path class="edge" d="{path}" marker-end="url(#arrow)"/>' for path in edges]
    drawn += [_box(box, *at[box.name]) for box in boxes]
    order = ", ".join(f"{b.name} ({b.words})" for b in boxes)
    return (
        f'<svg class="dag" role="img" viewBox="0 0 {width} {bus + 12}" style="min-width:{width * 0.72:.0f}px" '
        f'aria-label="{html.escape("stages in order: " + order)}">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>' + "".join(drawn) + "</svg>"
    )


def _places(boxes: Sequence[Box]) -> tuple[dict[str, int], dict[str, int]]:
    """Column and lane of every box; two boxes never share a place."""
    column: dict[str, int] = {}
    lane: dict[str, int] = {}
    taken: set[tuple[int, int]] = set()
    for box in boxes:
        column[box.name] = max((column[i] + 1 for i in box.inputs), default=0)
        lane[box.name] = int(box.aside)
        while (column[box.name], lane[box.name]) in taken:
            lane[box.name] += 1
        taken.add((column[box.name], lane[box.name]))
    return column, lane


def _edges(boxes: Sequence[Box]) -> list[tuple[str, str]]:
    """Input -> stage, without those that go through another input anyway."""
    above: dict[str, set[str]] = {}
    for box in boxes:
        above[box.name] = set(box.inputs).union(*(above[i] for i in box.inputs))
    return [(i, b.name) for b in boxes for i in b.inputs if not any(i in above[other] for other in b.inputs)]


def _edge(source: tuple[float, float], target: tuple[float, float], bus: float | None) -> str:
    """From the right side to the left side; around the bottom when a box stands in the way."""
    (x0, y0), (x1, y1) = (source[0] + WIDE, source[1] + HIGH / 2), (target[0], target[1] + HIGH / 2)
    if bus is None:
        bend, x2 = ACROSS / 2, x1 - ACROSS  # along its lane, then across in the last gap
        return f"M{x0} {y0}H{x2}C{x2 + bend} {y0} {x2 + bend} {y1} {x1 - 1} {y1}"
    x0, y0, x1, y1 = source[0] + WIDE / 2, source[1] + HIGH, target[0] + WIDE / 2, target[1] + HIGH
    return f"M{x0} {y0}V{bus - 10}Q{x0} {bus} {x0 + 10} {bus}H{x1 - 10}Q{x1} {bus} {x1} {bus - 10}V{y1 + 1}"


def _box(box: Box, x: float, y: float) -> str:
    return (
        f'<rect class="{"aside" if box.aside else "box"}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="7"/>'
        f'<text class="name" x="{x + WIDE / 2}" y="{y + 21}">{html.escape(box.name)}</text>'
        f'<text class="words" x="{x + WIDE / 2}" y="{y + 37}">{html.escape(box.words)}</text>'
    )
