"""Curates synthetic tasks on two processes: seconds, and resident memory of all processes together.

    python -m benchmarks.curation --root /tmp/curation                    200,000 and 1 million tasks
    python -m benchmarks.curation --root /tmp/curation --tasks 10000000   needs 10 GB of disk, and an hour on two cores
    python -m benchmarks.curation --root /tmp/curation --deduplicator document_minhash_deduplicator

The stages `tasks` and `curate` as a run starts them, on a Parquet file of which a tenth repeats an earlier question and
a twentieth is too short: a mapper, two filters, a deduplicator, a selector by a score, and priorities. The same command
again goes on with what was interrupted: curation with its next shard; times and memory of all starts count.
"""

import argparse
import json
import logging
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measurement import Measurement, table
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.parent import die_with_parent

GIGABYTES, ALLOWED = 1e9, 2.0
EXACT = "document_deduplicator"
OPERATORS = [
    {"name": "whitespace_normalization_mapper"}, {"name": "text_length_filter", "args": {"min_len": 20}},
    {"name": "alphanumeric_filter", "args": {"min_ratio": 0.3}}, {"name": EXACT},
    {"name": "topk_specified_field_selector", "args": {"field_key": "__dj__stats__.text_len", "top_ratio": 0.9}}]
STAGES = {"tasks": "raw.parquet", "curate": "tasks.parquet"}


def question(number: int) -> str:
    """Every tenth is that of the one before; every twentieth is short."""
    if number % 20 == 7:
        return f"{number} + 1?"
    number -= number % 10 == 3
    return (f"A shop has {number % 9973} boxes of {number % 7 + 3} apples  and sells {number % 389}; "
            f"customer {number} takes the rest. How many apples are {'left' * (1 + number % 3)}?")


def write_tasks(count: int, path: Path) -> None:
    with pq.ParquetWriter(path, pa.schema([("question", pa.string()), ("answer", pa.string())])) as writer:
        for begin in range(0, count, 100_000):
            numbers = range(begin, min(begin + 100_000, count))
            columns = {"question": [question(n) for n in numbers], "answer": [str(n) for n in numbers]}
            writer.write_table(pa.table(columns))


def work(name: str, root: Path, deduplicator: str) -> None:
    """Does one stage in this process."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.job.context import Context
    from ouroboros.stages import curate, tasks

    die_with_parent()
    operators = json.dumps(OPERATORS).replace('"', "").replace(EXACT, deduplicator)
    given = [f"data_processor.task_pipeline.{one}" for one in (
        "generator=null", "generator_args={}", "config_path=null", f"inputs=[{root / 'input.parquet'}]",
        f"operators={operators}", "num_process=2",
        "priority_weights={quality:1.0,diversity:0.5}", "top_k=1000000")]
    config = compose(given)
    module = {"tasks": tasks, "curate": curate}[name]
    module.work(Context("curation/one", name, "0" * 8, root / name, config, {"tasks": root / "tasks"},
                        logging.getLogger("curation")))


@dataclass(frozen=True)
class Used:
    """What all starts of a stage took; gigabytes: the most at once (PSS). whole: whether it is complete."""

    seconds: float = 0.0
    cpu: float = 0.0
    gigabytes: float = 0.0
    starts: int = 0
    whole: bool = False


def measured(name: str, root: Path, deduplicator: str) -> Used:
    """Does a stage in its own process; what it and its children use is kept in a file, twice a second."""
    record = root / f"{name}.json"
    before = Used(**files.read_json(record)) if record.exists() else Used()
    if before.whole:
        return before
    begin, cpu, most = time.perf_counter(), 0.0, before.gigabytes
    child = psutil.Popen([sys.executable, "-m", "benchmarks.curation", "--root", str(root), "--stage", name,
                          "--deduplicator", deduplicator])
    running = True
    while running:
        running = child.poll() is None
        found = [_used(one) for one in (child, *_children(child))] if running else []
        cpu, most = max(cpu, sum(spent for spent, _ in found)), max(most, sum(held for _, held in found) / GIGABYTES)
        now = Used(before.seconds + time.perf_counter() - begin, before.cpu + cpu, most, before.starts + 1, not running)
        if running or child.returncode == 0:
            files.write_json(record, asdict(now))
        time.sleep(0.5 * running)
    if child.returncode:
        sys.exit(f"the stage {name} ended with exit code {child.returncode}")
    return now


def _used(process: psutil.Process) -> tuple[float, int]:
    """CPU seconds of a process and its ended children, and bytes that it holds (PSS)."""
    try:
        return sum(process.cpu_times()[:4]), process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0, 0


def _children(child: psutil.Process) -> list[psutil.Process]:
    try:
        return child.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--root", type=Path, required=True)
    arguments.add_argument("--tasks", type=int, nargs="+", default=[200_000, 1_000_000])
    arguments.add_argument("--deduplicator", default=EXACT)
    arguments.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.stage:
        work(given.stage, given.root, given.deduplicator)
        return
    said, rows = Measurement("curation", "Curating synthetic tasks: time and memory"), []
    for count in given.tasks:
        root = given.root.resolve() / str(count)
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "input.parquet").exists():
            files.write_atomic(root / "input.parquet", partial(write_tasks, count))
        for name, made in STAGES.items():
            used = measured(name, root, given.deduplicator)
            left = pq.ParquetFile(root / name / made).metadata.num_rows
            rows.append([f"{count:,}", name, f"{left:,}", used.seconds, used.cpu, count / used.cpu, used.starts,
                         used.gigabytes])
    said.add(table(["tasks", "stage", "rows left", "s", "CPU s", "tasks / CPU s", "starts", "GB at most"], rows))
    said.add(f"allowed: {ALLOWED} GB; {'held' if all(row[-1] <= ALLOWED for row in rows) else 'NOT held'}")
    said.save({"rows": rows})
    for count in given.tasks:
        files.remove_tree(given.root.resolve() / str(count))


if __name__ == "__main__":
    main()
