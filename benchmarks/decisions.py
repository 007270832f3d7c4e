"""How often runs that do not differ are told apart, and how many seeds it takes for those that do.

    python -m benchmarks.decisions --root /tmp/decisions    # 80 runs of half a minute of training: two idle hours

The countdown recipe with 40 rft steps, in 20 seeds. Pairs of these runs differ in nothing but chance: sequences of ten
such differences, drawn again 10,000 times, are looked at after every difference, as `ouro run --until-decided` does. A
sequence that is ever decided is a false alarm. Then ten settings beside the recipe, six seeds each: after how many it
would have stopped. Runs are made side by side, two cores each; what is complete is not made again.
"""

import argparse
import random
from pathlib import Path

from benchmarks.lanes import required
from benchmarks.measurement import Measurement, table
from pipeline.results.compare import METRIC
from pipeline.results.decide import ALPHA, decided_after, differences
from pipeline.results.view import find_view

PROJECT = "decisions"
SEQUENCES, PAIRS, SEEDS = 10_000, 10, 6
SAME = range(1, 2 * PAIRS + 1)
COMMON = ("recipe=countdown", f"project={PROJECT}", "monitor=none", "buffer.total_steps=40")
RFT = "stages.rft"
OTHERS: dict[str, tuple[str, ...]] = {
    "lr 1e-3": (f"{RFT}.algorithm.optimizer.lr=1e-3",),
    "lr 2.5e-4": (f"{RFT}.algorithm.optimizer.lr=2.5e-4",),
    "lr 5e-5": (f"{RFT}.algorithm.optimizer.lr=5e-5",),
    "4 rollouts": (f"{RFT}.algorithm.repeat_times=4",),
    "32 tasks a step": (f"{RFT}.buffer.batch_size=32",),
    "rloo": (f"{RFT}.algorithm.algorithm_type=rloo",),
    "dr_grpo": (f"{RFT}.algorithm.algorithm_type=dr_grpo",),
    "reinforce": (f"{RFT}.algorithm.algorithm_type=reinforce",),
    "gspo": (f"{RFT}.algorithm.algorithm_type=gspo",),
    "on policy": ("synchronizer.sync_offset=0", "synchronizer.sync_interval=1"),
}


def run_name(way: str, seed: int) -> str:
    return f"{way.replace(' ', '-')}-{seed}"


def runs() -> dict[str, tuple[str, ...]]:
    cases = [("recipe", (), seed) for seed in SAME]
    cases += [(way, words, seed) for way, words in OTHERS.items() for seed in range(1, SEEDS + 1)]
    return {run_name(way, seed): (*COMMON, f"seed={seed}", *words) for way, words, seed in cases}


def false_alarms(values: list[list[float]]) -> int:
    """Sequences that are decided at any look. values[i][j]: the difference of the runs i and j."""
    drawn, found = random.Random(1), 0
    for _ in range(SEQUENCES):
        order = drawn.sample(range(len(values)), len(values))
        sequence = [values[first][second] for first, second in zip(order[::2], order[1::2], strict=True)]
        found += decided_after(sequence) is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    root = parser.parse_args().root.resolve()
    said = Measurement("decisions", f"Decisions at {ALPHA:.0%} by `ouro run --until-decided`")
    required(root, runs())
    same = [find_view(root, f"{PROJECT}/{run_name('recipe', seed)}") for seed in SAME]
    between = [[differences([one], [other], METRIC).by_seed[0] if one is not other else 0.0 for other in same]
               for one in same]
    alarms = false_alarms(between)
    said.add(f"{alarms} of {SEQUENCES} sequences of {PAIRS} differences without a cause were decided: "
             f"{alarms / SEQUENCES:.1%}")
    rows = []
    for way in OTHERS:
        own = [find_view(root, f"{PROJECT}/{run_name(way, seed)}") for seed in range(1, SEEDS + 1)]
        found = differences(same[:SEEDS], own, METRIC)
        rows.append([way, *(round(100 * value, 2) for value in (found.mean, found.low, found.high)), found.evidence,
                     decided_after(found.by_seed)])
    said.add(table(["setting", "points", "low", "high", "evidence", "decided after"], rows))
    said.save({"sequences": SEQUENCES, "false_alarms": alarms, "rows": rows})


if __name__ == "__main__":
    main()
