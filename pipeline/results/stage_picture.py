"""Draws a run's stages as inline SVG: boxes from left to right, edges to the stages that read them."""

import html
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A stage in the diagram: its text, the names of its inputs, and whether it is outside the chain."""

    name: str
    words: str
    inputs: Sequence[str]
    aside: bool


WIDE, HIGH, ACROSS, DOWN, EDGE = 160, 56, 40, 22, 14  # box, gaps, margin: pixels
LETTERS = 18  # characters that fit a box; longer names are cut in the middle


def dag(boxes: Sequence[Box]) -> str:
    """Draws boxes from left to right by their longest path from the start; edges implied by longer paths are omitted.

    `boxes` are in executable order. Those outside the chain (models, evaluations) go below.
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
    """Returns column and lane of every box; two boxes never share a position."""
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
    """Returns edges input -> stage, without those implied by another input."""
    above: dict[str, set[str]] = {}
    for box in boxes:
        above[box.name] = set(box.inputs).union(*(above[i] for i in box.inputs))
    return [(i, b.name) for b in boxes for i in b.inputs if not any(i in above[other] for other in b.inputs)]


def _edge(source: tuple[float, float], target: tuple[float, float], bus: float | None) -> str:
    """Draws an edge from right side to left side; below a box that is in the way."""
    (x0, y0), (x1, y1) = (source[0] + WIDE, source[1] + HIGH / 2), (target[0], target[1] + HIGH / 2)
    if bus is None:
        bend, x2 = ACROSS / 2, x1 - ACROSS  # along its lane, then across in the last gap
        return f"M{x0} {y0}H{x2}C{x2 + bend} {y0} {x2 + bend} {y1} {x1 - 1} {y1}"
    x0, y0, x1, y1 = source[0] + WIDE / 2, source[1] + HIGH, target[0] + WIDE / 2, target[1] + HIGH
    return f"M{x0} {y0}V{bus - 10}Q{x0} {bus} {x0 + 10} {bus}H{x1 - 10}Q{x1} {bus} {x1} {bus - 10}V{y1 + 1}"


def _box(box: Box, x: float, y: float) -> str:
    name = box.name if len(box.name) <= LETTERS else f"{box.name[:8]}…{box.name[9 - LETTERS:]}"
    return (
        f'<g><title>{html.escape(box.name)}: {html.escape(box.words)}</title>'
        f'<rect class="{"aside" if box.aside else "box"}" x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="7"/>'
        f'<text class="name" x="{x + WIDE / 2}" y="{y + 25}">{html.escape(name)}</text>'
        f'<text class="words" x="{x + WIDE / 2}" y="{y + 41}">{html.escape(box.words)}</text></g>'
    )
