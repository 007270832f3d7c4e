"""Curates synthetic tasks on two processes: seconds, and resident memory of all processes together.

    python -m benchmarks.curation --root /tmp/curation                    200,000 and 1 million tasks
    python -m benchmarks.curation --root /tmp/curation --tasks 10000000   needs 10 GB of disk, and an hour on two cores
    python -m benchmarks.curation --root /tmp/curation --deduplicator document_minhash_deduplicator

The stages `tasks` and `curate` as a run starts them, on a Parquet file of which a tenth repeats an earlier question and
a twentieth is too short: a mapper, two filters, a deduplicator, a selector by a score, and priorities.
"""

import argparse
import json
import logging
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measurement import Measurement, table

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


def write_tasks(path: Path, count: int) -> None:
    with pq.ParquetWriter(path, pa.schema([("question", pa.string()), ("answer", pa.string())])) as writer:
        for begin in range(0, count, 100_000):
            numbers = range(begin, min(begin + 100_000, count))
            columns = {"question": [question(n) for n in numbers], "answer": [str(n) for n in numbers]}
            writer.write_table(pa.table(columns))


def work(name: str, root: Path, deduplicator: str) -> None:
    """Does one stage in this process."""
    from pipeline.check.judge import compose
    from pipeline.job.context import Context
    from stages import curate, tasks

    operators = json.dumps(OPERATORS).replace('"', "").replace(EXACT, deduplicator)
    given = [f"data_processor.task_pipeline.{one}" for one in (
        "generator=null", "generator_args={}", "config_path=null", f"inputs=[{root / 'input.parquet'}]",
        f"operators={operators}", "num_process=2",
        "priority_weights={quality:1.0,diversity:0.5}", "top_k=1000000")]
    config = compose(given)
    module = {"tasks": tasks, "curate": curate}[name]
    module.work(Context("curation/one", name, "0" * 8, root / name, config, {"tasks": root / "tasks"},
                        logging.getLogger("curation")))


def measured(name: str, root: Path, deduplicator: str) -> tuple[float, float, float]:
    """Seconds of a stage in a process of its own, CPU seconds, and the most gigabytes that it and its children held at
    once (PSS)."""
    begin, cpu, most = time.perf_counter(), _cpu(), 0
    child = psutil.Popen([sys.executable, "-m", "benchmarks.curation", "--root", str(root), "--stage", name,
                          "--deduplicator", deduplicator])
    while child.poll() is None:
        most = max(most, _held(child))
        time.sleep(0.5)
    if child.returncode:
        sys.exit(f"the stage {name} ended with exit code {child.returncode}")
    return time.perf_counter() - begin, _cpu() - cpu, most / GIGABYTES


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _held(child: psutil.Process) -> int:
    total = 0
    for one in (child, *_children(child)):
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


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
        root.mkdir(parents=True)
        write_tasks(root / "input.parquet", count)
        for name, made in STAGES.items():
            seconds, cpu, gigabytes = measured(name, root, given.deduplicator)
            left = pq.ParquetFile(root / name / made).metadata.num_rows
            rows.append([f"{count:,}", name, f"{left:,}", seconds, cpu, count / cpu, gigabytes])
        subprocess.run(["rm", "-r", str(root)], check=True)
    said.add(table(["tasks", "stage", "rows left", "s", "CPU s", "tasks / CPU s", "GB at most"], rows))
    said.add(f"allowed: {ALLOWED} GB; {'held' if all(row[-1] <= ALLOWED for row in rows) else 'NOT held'}")
    said.save({"rows": rows})


if __name__ == "__main__":
    main()
