"""Draws training solve rate by step, and held-out scores, of several runs.

    python -m benchmarks.learning_curve countdown seed2 seed3 --out docs/learning-curve.png
    python -m benchmarks.learning_curve sums/seed-1 sums/seed-2 sums/seed-3 --window 3 --out docs/pictures/sums.png
"""

import argparse
from pathlib import Path

from ouroboros.pipeline.results import view
from ouroboros.pipeline.store import tables

QUESTION = "SELECT run, step, solve_rate FROM steps WHERE solve_rate IS NOT NULL ORDER BY run, step"
SCORES = """
SELECT run, model LIKE 'rft-%' AS after, value, low, high FROM scores
WHERE metric = 'sampled_accuracy' AND stage LIKE 'evaluate%'
ORDER BY run, after"""


def running_mean(values: list[float], window: int) -> list[float]:
    """Mean of the last `window` values at each position."""
    return [sum(values[max(0, i - window + 1) : i + 1]) / min(i + 1, window) for i in range(len(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="names of complete runs")
    parser.add_argument("--root", type=Path, default=Path("."), help="directory with store/ and runs/")
    parser.add_argument("--window", type=int, default=15, help="steps in the running mean")
    parser.add_argument("--out", type=Path, required=True, help="PNG to write")
    given = parser.parse_args()
    found = [view.find_view(given.root, name) for name in given.runs]
    pairs = [(one.run, stage.directory) for one in found for stage in one.stages]
    session = tables.connect(pairs)
    draw(session.sql(QUESTION).fetchall(), session.sql(SCORES).fetchall(), given.window, given.out)


def draw(steps: list[tuple], scores: list[tuple], window: int, out: Path) -> None:
    """steps: (run, step, solve rate); scores: (run, after rft?, value, low, high); window: of the mean, in steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.6), dpi=120)
    for index, run in enumerate(dict.fromkeys(row[0] for row in steps)):
        curve = [(step, rate) for name, step, rate in steps if name == run]
        axes.plot([s for s, _ in curve], [r for _, r in curve], color=f"C{index}", alpha=0.18, linewidth=0.8)
        axes.plot([s for s, _ in curve], running_mean([r for _, r in curve], window), color=f"C{index}", label=run)
        last = curve[-1][0]
        for name, after, value, low, high in scores:
            if name == run:
                axes.errorbar(last * 1.02 if after else -last * 0.02, value, [[value - low], [high - value]],
                              color=f"C{index}", marker="o", capsize=3)
    axes.set_xlabel("GRPO step")
    axes.set_ylabel("solve rate at T = 1")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(title=f"training rollouts (mean of {window} steps)\npoints: held-out tasks, 95% interval", fontsize=8,
                title_fontsize=8)
    figure.tight_layout()
    figure.savefig(out)


if __name__ == "__main__":
    main()
