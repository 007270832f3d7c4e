"""Small inline SVG charts by matplotlib: curves and stacks.

Colours are CSS variables of the page (`--ink`, `--muted`, `--grid`, `--s1` ...), so one chart serves light and dark
mode: matplotlib draws with placeholder colours that are replaced in its output.
"""

import html
import io
import json
import re
from collections.abc import Sequence

import numpy as np

from ouroboros.pipeline.results.query import short

SERIES = ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05")
INK, MUTED, GRID, CARD = "#010101", "#020202", "#030303", "#040404"
VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", CARD: "var(--card)",
             **{colour: f"var(--s{i})" for i, colour in enumerate(SERIES, 1)}}
PART_SERIES = {"rollout": 1, "training": 1, "sync": 2, "publishing": 2, "other": 3, "waiting": 4,
               "evaluation": 5}  # equal in all charts
MOST_POINTS = 300  # per curve; more are averaged in equal bins
INCHES = (4.0, 2.3)
STEP = "optimizer step"


def thin(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `most` points: means over equal bins of the finite ones."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= most:
        return x, y
    return tuple(np.array([part.mean() for part in np.array_split(values, most)]) for values in (x, y))


def every(x: np.ndarray, y: np.ndarray, most: int = MOST_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `most` of the finite points unchanged, evenly spaced, including the first and the last."""
    finite = np.isfinite(y)
    x, y = x[finite], y[finite]
    chosen = np.unique(np.linspace(0, len(x) - 1, min(len(x), most)).round().astype(int))
    return x[chosen], y[chosen]


def smooth(y: np.ndarray, width: float) -> np.ndarray:
    """Returns Gaussian-weighted means of neighbouring points, standard deviation `width` points; without lag.

    s_i = sum_j w_ij y_j / sum_j w_ij, w_ij = exp(-((i - j) / width)^2 / 2); at the ends there are fewer neighbours.
    """
    index = np.arange(len(y))
    weights = np.exp(-(((index[:, None] - index) / width) ** 2) / 2)
    return weights @ y / weights.sum(axis=1)


def curve(name: str, title: str, x: np.ndarray, y: np.ndarray, unit: str = "", percent: bool = False,
          exact: bool = False) -> str:
    """Draws the finite values of one metric by step. name: unique in the page. unit: label of the vertical axis.

    A measured metric has faint raw points and a smoothed line; an exact one, such as a learning rate, the line alone.
    """
    x, y = (every if exact else thin)(np.asarray(x, float), np.asarray(y, float))
    figure, axes = blank(percent, unit)
    if not len(x):
        return _empty(figure, axes, name, f"{title} by step: no finite value")
    line = y if exact else smooth(y, max(len(y) / 40, 0.1))
    if not exact:
        _dots(axes, x, y)
    axes.plot(x, line, color=SERIES[0], linewidth=1.8, solid_capstyle="round", marker="o" if len(x) == 1 else None)
    if len(x) == 1:
        axes.set_xlim(x[0] - 1, x[0] + 1)
    form = (lambda v: f"{v:.1%}") if percent else (lambda v: short(v, 4))
    said = [form(one) + f", smoothed {form(mean)}" * (not exact) for one, mean in zip(y, line, strict=True)]
    words = f"{title} by step: {form(line[0])} at step {x[0]:.0f}, {form(line[-1])} at step {x[-1]:.0f}"
    return inline(figure, name, words + " (smoothed)" * (not exact), _by_step(x, said))


def band(
    name: str, title: str, x: Sequence[int], y: Sequence[float], low: Sequence[float], high: Sequence[float],
    share: bool = True,
) -> str:
    """Draws an estimate by step with its 95% interval as a band. name: unique in the page."""
    figure, axes = blank(share, "share of responses" if share else "mean reward")
    axes.fill_between(x, low, high, color=SERIES[0], alpha=0.18, linewidth=0)
    axes.plot(x, y, color=SERIES[0], linewidth=1.8, marker="o", markersize=3.5)
    said = [f"{one:.1%} [{least * 100:.1f}, {most * 100:.1f}]" if share else f"{one:.3f} [{least:.3f}, {most:.3f}]"
            for one, least, most in zip(y, low, high, strict=True)]
    ends = [f"{said[i]} at step {x[i]}" for i in (0, -1)]
    return inline(figure, name, f"{title} by step, with its 95% interval: {', '.join(ends)}", _by_step(x, said))


def _empty(figure, axes, name: str, words: str) -> str:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", va="center", size=9, color=MUTED)
    return inline(figure, name, words)


def _dots(axes, x: np.ndarray, y: np.ndarray) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points = np.repeat(np.column_stack([x, y]), 2, axis=0)  # zero-length strokes with round ends: dots in one path
    points[1::2, 0] += 1e-9 * (x[-1] - x[0] + 1)  # matplotlib drops strokes of exactly zero length
    dots = Path(points, np.tile([Path.MOVETO, Path.LINETO], len(x)))
    dots.should_simplify = False
    axes.add_patch(PathPatch(dots, fill=False, edgecolor=SERIES[0], alpha=0.45, linewidth=3.0, capstyle="round"))


def stack(name: str, title: str, x: np.ndarray, parts: dict[str, np.ndarray]) -> str:
    """Draws seconds per step, stacked by part (of PART_SERIES) in the order given; the page has the legend."""
    x = np.asarray(x, float)
    values = _by_step(*_seconds(x, parts))
    if len(x) == 1:  # a single step gets the width of a step
        x, parts = np.array([x[0] - 0.5, x[0] + 0.5]), {label: np.repeat(y, 2) for label, y in parts.items()}
    filled = _thinned(x, parts)
    figure, axes = blank(False, "seconds")
    colours = [SERIES[PART_SERIES[label] - 1] for label in parts]
    axes.stackplot(filled[0][0], *(y for _, y in filled), colors=colours, linewidth=0)
    means = ", ".join(f"{label} {np.nan_to_num(y).mean():.3g}" for label, y in parts.items())
    return inline(figure, name, f"{title}, mean seconds a step: {means}", values)


def _thinned(x: np.ndarray, parts: dict[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [thin(x, np.nan_to_num(np.asarray(y, float)), 120) for y in parts.values()]


def _seconds(x: np.ndarray, parts: dict[str, np.ndarray]) -> tuple[np.ndarray, list[str]]:
    """Returns the drawn steps and the seconds of every part in each, as text."""
    drawn = _thinned(x, parts)
    return drawn[0][0], [", ".join(f"{label} {short(y, 3)} s" for label, y in zip(parts, found, strict=True))
                         for found in zip(*(y for _, y in drawn), strict=True)]


def _by_step(x: Sequence[float], said: Sequence[str]) -> list[tuple[float, str]]:
    """Returns what `inline` shows on hover; a point may be the mean of neighbouring steps."""
    return [(at, f"{'' if float(at).is_integer() else 'around '}step {at:.0f}: {words}")
            for at, words in zip(x, said, strict=True)]


def blank(percent: bool, unit: str, across: str = STEP, inches: tuple[float, float] = INCHES,
          place: tuple = (0.165, 0.185, 0.825, 0.745)):
    """Returns an empty figure with one pair of axes in the page's colours. unit, across: labels of the axes.

    place: left, bottom, width, height as shares of the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    figure = Figure(figsize=inches)
    axes = figure.add_axes(place)
    axes.set_xlabel(across, size=8, color=MUTED, parse_math=False)
    axes.set_ylabel(unit, size=8, color=MUTED, parse_math=False)
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


def inline(figure, name: str, words: str, values: Sequence[tuple[float, str]] = ()) -> str:
    """Returns the figure as an accessible inline element: no header or unused ids, two decimals, the page's colours.

    values: positions on the horizontal axis with what the page's script shows there on hover and with the arrow keys.
    """
    import matplotlib

    _bound_shares(figure.axes[0])
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
    body = re.sub(r" font-family: [^;\"]*;?", "", body)  # the page sets the font
    shown = f' data-values="{html.escape(json.dumps(_places(figure.axes[0], values)))}"' if values else ""
    return re.sub(r"\s*\n\s*", " ", body).replace(
        "<svg", f'<svg role="img" aria-label="{html.escape(words)}"{shown}', 1)


def _places(axes, values: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Returns the values with positions as shares of the figure's width."""
    (low, high), box = axes.get_xlim(), axes.get_position()
    return [(round(box.x0 + box.width * float((at - low) / (high - low)), 4), words) for at, words in values]


def _bound_shares(axes) -> None:
    """Limits a percent axis to at most half a line below 0% or above 100%."""
    from matplotlib.ticker import PercentFormatter

    if isinstance(axes.yaxis.get_major_formatter(), PercentFormatter):
        low, high = axes.get_ylim()
        slack = 0.01 * (high - low)
        axes.set_ylim(max(low, -slack), min(high, 1 + slack))
