"""Measures false alarms of `ouro run --until-decided`, and how many seeds it needs where settings differ.

    python -m benchmarks.decisions                          # simulated differences alone, four seconds
    python -m benchmarks.decisions --root /tmp/decisions    # 81 runs of a minute

Without --root 10,000 sequences of 20 differences of each of several distributions are drawn, whose mean is 0 but for
the last three, and looked at after every difference, as `ouro run --until-decided` does. With --root runs are made: the
warmup of the countdown recipe in 20 seeds, evaluated on the same tasks. Pairs of these runs differ in nothing but
chance: sequences of ten such differences, drawn again 10,000 times, are looked at after every difference, as `ouro run
--until-decided` does. A sequence that is ever decided is a false alarm. Then ten settings next to the recipe, six seeds
each: after how many it would have stopped. Runs are made side by side, one core each, as a second one saves a tenth of
an sft stage; what is complete is not made again.
"""

import argparse
import random
import statistics
from pathlib import Path

import numpy as np

from benchmarks.lanes import required
from benchmarks.measurement import Measurement, table
from ouroboros.operators.statistics import evidence
from ouroboros.pipeline.results.compare import METRIC
from ouroboros.pipeline.results.decide import ALPHA, decided_after, differences
from ouroboros.pipeline.results.view import find_view
from ouroboros.pipeline.store import tables

PROJECT = "decisions"
HELD_OUT = "SELECT question, answer FROM tasks WHERE split = 'test' ORDER BY row"
SEQUENCES, PAIRS, SEEDS, MOST = 10_000, 10, 6, 20
SAME = range(1, 2 * PAIRS + 1)
SFT = "stages=[{{stage_name:sft,buffer:{{batch_size:{batch},total_steps:{steps}}}}}]"
COMMON = ("recipe=countdown", f"project={PROJECT}", "monitor=none", "explorer.rollout_model.engine_type=transformers",
          "algorithm.algorithm_type=sft", "algorithm.optimizer.lr_scheduler_type=cosine",
          "algorithm.optimizer.lr_warmup_steps=10")
LR = "algorithm.optimizer.lr={}".format
OTHERS: dict[str, tuple[str, ...]] = {  # over the recipe's: batches of 256, 400 steps, lr 1e-3
    "lr 3e-4": (LR("3e-4"),), "lr 9e-4": (LR("9e-4"),), "lr 2e-3": (LR("2e-3"),), "lr 4e-3": (LR("4e-3"),),
    "batches of 128": (SFT.format(batch=128, steps=400),), "batches of 512": (SFT.format(batch=512, steps=400),),
    "360 steps": (SFT.format(batch=256, steps=360),), "200 steps": (SFT.format(batch=256, steps=200),),
    "weight decay 0.1": ("algorithm.optimizer.weight_decay=0.1",), "hidden size 128": ("model.init.hidden_size=128",),
}


def run_name(way: str, seed: int) -> str:
    return f"{way.replace(' ', '-')}-{seed}"


def held_out(root: Path) -> str:
    """The override by which every run is evaluated on the same tasks, those of seed 1: a generator makes others for
    another seed."""
    required(root, {"tasks": (*COMMON, "seed=1", SFT.format(batch=64, steps=1))})
    made = root / "held_out.parquet"
    with tables.connect([("run", stage.directory) for stage in find_view(root, f"{PROJECT}/tasks").stages]) as session:
        session.sql(HELD_OUT).write_parquet(str(made))
    return f"buffer.explorer_input.eval_tasksets.0.path={made}"


def runs(shared: str) -> dict[str, tuple[str, ...]]:
    cases = [("recipe", (), seed) for seed in SAME]
    cases += [(way, words, seed) for way, words in OTHERS.items() for seed in range(1, SEEDS + 1)]
    first = (LR("1e-3"), SFT.format(batch=256, steps=400))
    return {run_name(way, seed): (*COMMON, shared, f"seed={seed}", *_over(first, words)) for way, words, seed in cases}


def _over(first: tuple[str, ...], words: tuple[str, ...]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    return [*(word for word in first if word.partition("=")[0] not in given), *words]


def false_alarms(values: list[list[float]]) -> int:
    """Sequences that are decided at any look. values[i][j]: the difference of the runs i and j."""
    drawn, found = random.Random(1), 0
    for _ in range(SEQUENCES):
        order = drawn.sample(range(len(values)), len(values))
        sequence = [values[first][second] for first, second in zip(order[::2], order[1::2], strict=True)]
        found += decided_after(sequence) is not None
    return found


def simulate() -> None:
    draw, shape = np.random.default_rng(1), (SEQUENCES, MOST)  # a deviation is 1 where there is one
    normal, collapsed = draw.normal(0, 1, shape), draw.random(shape) < 0.1
    drawn = {"normal": normal, "Student's t, 3 degrees": draw.standard_t(3, shape),
             "uniform": draw.uniform(-1, 1, shape), "exponential": draw.exponential(1, shape) - 1}
    drawn |= {f"one seed in ten is {far} deviations worse": normal + far * (0.1 - collapsed) for far in (10, 30)}
    drawn |= {f"normal around {mean:g}": normal + mean for mean in (0.5, 1, 2)}
    said, rows = Measurement("decisions_simulated", f"Simulated decisions at {ALPHA:.0%} by `--until-decided`"), []
    for name, values in drawn.items():
        found = [count for one in values.tolist() if (count := decided_after(one))]
        alone = sum(any(evidence(one[:count]) >= 1 / ALPHA for count in range(1, MOST + 1)) for one in values.tolist())
        rows.append([name, f"{len(found) / SEQUENCES:.1%}", statistics.median(found), f"{alone / SEQUENCES:.1%}"])
    said.add(table(["differences", "decided", "median seeds", "by evidence alone"], rows))
    said.save({"sequences": SEQUENCES, "seeds": MOST, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="directory for store/ and runs/; without it: simulate")
    if (root := parser.parse_args().root) is None:
        simulate()
        return
    root = root.resolve()
    said = Measurement("decisions", f"Decisions at {ALPHA:.0%} by `ouro run --until-decided`")
    required(root, runs(held_out(root)), cores=1)
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
