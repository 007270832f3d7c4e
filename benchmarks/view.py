"""How long the page of `ouro view` takes for its rows, where a stage has 10 million rollouts.

    python -m benchmarks.view [--rows 10000000] [--root DIR]

Makes a stage of steps with 10,000 rows each (--step-rows), responses of 200 characters of random words, in DIR (1.1 GB;
kept, and used again), then measures each request as the server answers it: the first once, then REPEATS times warm.
`none` is a column without such a value: the page ends after a second with what it found, and tells where to go on. The
requests about all rows count them the first time, as the server does when it starts. The search looks for a word that
one row in 100,000 has, and for one that none has. `--rows 1024000 --step-rows 512` is a stage of 2,000 steps.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tabulate import tabulate

from ouroboros.commands.web import counted, distributions, rollouts
from ouroboros.commands.web.rollouts import Wanted
from ouroboros.pipeline.store import records, tables
from tests.factories import row

GROUP, TOKENS, CHARACTERS = 8, 16, 200
REPEATS = 21
RARE = 100_000


def make(stage: Path, rows: int, step_rows: int) -> None:
    """Writes the steps that are not there."""
    random = np.random.default_rng(1)
    words = np.array(["".join(chr(97 + letter) for letter in random.integers(0, 26, 6)) for _ in range(5000)])
    texts = [" ".join(words[random.integers(0, len(words), 40)])[:CHARACTERS] for _ in range(step_rows)]
    one = row(records.Experience, stage=stage.name, taskset="made", status="ok", response_tokens=[5] * TOKENS,
              rollout_logprobs=[-0.5] * TOKENS, action_mask=[1] * TOKENS, prompt="What follows from this?")
    table = tables.to_arrow([one] * step_rows, records.Experience)
    numbers = np.arange(step_rows)
    for step in range(1, rows // step_rows + 1):
        path = tables.step_file(stage, "experience", step)
        if path.exists():
            continue
        groups = pc.binary_join_element_wise(str(step), pa.array(numbers // GROUP).cast(pa.string()), "/")
        runs = pa.array(numbers % GROUP).cast(pa.string())
        marked = [f"{text[:-12]} needle" if (step * step_rows + at) % RARE == RARE // 2 else text
                  for at, text in enumerate(texts)]
        columns = {"step": pa.array(np.full(step_rows, step, np.int32)), "group_id": groups,
                   "run_index": pa.array((numbers % GROUP).astype(np.int32)), "slot": pa.array(numbers),
                   "task_id": pa.array((numbers // GROUP).astype(str)),
                   "experience_id": pc.binary_join_element_wise(stage.name, groups, runs, "/"),
                   "reward": pa.array(random.random(step_rows)), "response": pa.array(marked)}
        for name, values in columns.items():
            at = table.schema.get_field_index(name)
            table = table.set_column(at, table.schema.field(at), values)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, **tables.FORMAT)


def seconds(work) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--step-rows", type=int, default=10_000)
    parser.add_argument("--root", type=Path, default=Path(".bench-view"))
    given = parser.parse_args()
    stage = given.root / "rft-0000abcd"
    make(stage, given.rows, given.step_rows)
    last = given.rows // given.step_rows
    middle = max(last // 2, 1)

    def page(latest: bool = False, **fields: str):
        return lambda: rollouts.page(stage, "experience", Wanted.read("experience", fields), latest=latest)

    asked = {
        "first page": page(), "latest first": page(latest=True), "a step": page(steps=str(middle)),
        "an id": page(experience_id=f"{stage.name}/{middle}/37/3"),
        "an id, as a link": lambda: rollouts.address_of(stage, f"{stage.name}/{middle}/37/3"),
        "a group": page(group_id=f"{middle}/37"), "a number": page(run_index="3"),
        "a reward": page(least_reward="0.99"), "none (a second, then the next page)": page(taskset="absent"),
        "a task over steps": lambda: counted.of_task(stage, "experience", "7"),
        "distributions": lambda: counted.by_step(stage, "experience", distributions.count),
        "a row": lambda: rollouts.row(stage, "experience", rollouts.Address(middle, 303)),
    }
    rows = []
    for name, work in asked.items():
        first, warm = seconds(work), [seconds(work) for _ in range(REPEATS)]
        rows.append((name, 1000 * first, 1000 * statistics.median(warm), 1000 * max(warm)))
    print(f"{last:,} steps of {given.step_rows:,} rows")
    print(tabulate(rows, ["request", "first, ms", "median, ms", "slowest, ms"], floatfmt=".0f"))
    found = []
    for word in ("needle", "nowhere to be found"):
        began = time.monotonic()
        lines = rollouts.search(stage, "experience", word, Wanted())
        hits = [time.monotonic() - began for one in lines if "row" in one]
        found.append((word, len(hits), hits[0] if hits else None, time.monotonic() - began))
    print(tabulate(found, ["search", "rows", "first row, s", "all, s"], floatfmt=".2f"))


if __name__ == "__main__":
    main()
