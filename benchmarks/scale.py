"""Counts what one step of a stage does to its file system, as the stage grows: does it depend on the steps done?

    python -m benchmarks.scale --root /tmp/scale                    100 to 100,000 steps, 10 million tasks: ten minutes
    python -m benchmarks.scale --root /tmp/scale --steps 1000 10000 --tasks 100000

Makes the store of an rft stage with files of the right number, names and sizes (hard links of one step's, so that they
take little disk), and then lets the product's own functions make further steps in it: the explorer waits for weights
and writes a step, the trainer cuts a batch, publishes weights and writes a step, the parent reports it. Only the model
is missing. `strace` counts the calls on the store. Then it times what is done at a start or for a person, and the
tasks. The root must be on the file system in question.
"""

import argparse
import json
import logging
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.measurement import Measurement, table
from benchmarks.scale_store import (
    PROMPT,
    REPEATS,
    RESPONSE,
    TASKS,
    experience,
    grow,
    make_tasks,
    make_template,
    rollout,
)
from ouroboros.pipeline.settings.setting import plain as plain_settings
from ouroboros.pipeline.store import checkpoints, files, hashes, tables

MEASURED = 20  # steps
WEIGHTS_BYTES = 1 << 20
ROLES = ("explorer", "trainer", "parent")
MARK = "/scale-mark"
TRACED = ("open,openat,creat,stat,lstat,newfstatat,statx,access,faccessat,faccessat2,rename,renameat,renameat2,unlink,"
          "unlinkat,mkdir,mkdirat,rmdir,link,linkat,getdents64,read,pread64,write,pwrite64,fsync")
CALL = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")


def context_of(stage: Path, steps: int):
    """The context of an rft stage on which nobody else works."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.compose.recipe import effective
    from ouroboros.pipeline.job.context import Context

    composed = compose([f"buffer.batch_size={TASKS}", f"algorithm.repeat_times={REPEATS}",
                        f"buffer.total_steps={steps}", "synchronizer.sync_offset=1", "synchronizer.sync_interval=1",
                        "monitor=none"])
    config = effective(composed, next(one for one in composed.stages if one["stage_name"] == "rft"))
    return Context("scale/one", "rft", "0" * 8, stage, config, {"tasks": stage.parent / "curate"},
                   logging.getLogger("scale"))


class Engine:
    """Stands for the engines: loads nothing and repeats the trainer's log-probs."""

    def load_weights(self, directory: Path) -> None:
        pass

    def probe(self, tokens: list[int]) -> list[list[float]]:
        return [[0.0] * (len(tokens) - 1)]


def measure(stage: Path, done: int) -> None:
    """Makes MEASURED further steps of a stage with `done` steps; prints the seconds of each role."""
    from types import SimpleNamespace

    from ouroboros.pipeline.job.schedule import rft_schedule
    from ouroboros.stages.explore import Explorer
    from ouroboros.stages.explorer.weights import Weights
    from ouroboros.stages.follow import TOTAL, Follower
    from ouroboros.stages.learn import Trainer
    from ouroboros.stages.learner.actor import Result
    from ouroboros.stages.learner.batches.rollouts import Rollouts
    from ouroboros.stages.learner.record import Seconds, step_record, trained_rows

    context, random = context_of(stage, 10**6), np.random.default_rng(done)
    explorer, trainer = Explorer.__new__(Explorer), Trainer.__new__(Trainer)
    explorer.context = trainer.context = context
    explorer.schedule = rft_schedule(context.config, TASKS)
    weights, source = Weights(context, Engine()), Rollouts(context)
    trainer.actor = SimpleNamespace(score=lambda tokens: [0.0] * (len(tokens) - 1), trainable_state=dict,
                                    write_trainable=write_weights)
    follower = type("Resumed", (Follower,), {"_rewind": lambda self: 0})(context)
    follower.next = done + 1
    files.write_json(stage / TOTAL, {"total_steps": 10**6})
    follower.poll()
    trainer._publish(max(done - 1, 0), [1] * 8)
    trainer._publish(done, [1] * 8)
    seconds = Counter()

    def explore(step: int) -> None:
        weights.update_to(explorer.schedule.weights_version(step))
        explorer._write(step, rows, rollout(step))

    def train(step: int) -> None:
        batch = source.with_advantages(source.cut(step))
        trainer._publish(step, batch.probe(256)[0])
        result = Result(0.0, 0.0, 0.0, None, {}, RESPONSE, [np.zeros(RESPONSE)] * len(batch.rows))
        trainer._write(trained_rows(batch, result.logprobs),
                       step_record("rft", batch, result, None, None, Seconds(0.0, 0.0, 0.0, 0.0, 0.0, None)))

    for step in range(done + 1, done + MEASURED + 2):
        rows = experience(step, random)
        first = step == done + 1  # it reads the lists of hashes from the start, once in a process
        for role, work in zip(ROLES, (explore, train, lambda step: follower.poll()), strict=True):
            begin = time.perf_counter()
            Path(f"{MARK}/{'first' if first else role}").exists()
            work(step)
            Path(f"{MARK}/end").exists()
            seconds[role] += 0.0 if first else time.perf_counter() - begin
    print(json.dumps({role: value / MEASURED for role, value in seconds.items()}))


def write_weights(state: dict, directory: Path) -> None:
    (directory / checkpoints.WEIGHTS).write_bytes(bytes(WEIGHTS_BYTES))


# --------------------------------------------------------------------------------------------------- what is counted


def counted(stage: Path, done: int) -> dict[str, Counter]:
    """Makes steps in a child under strace; returns by role the calls and bytes of one step, and its seconds."""
    log = stage.parent / "strace"
    command = [sys.executable, "-m", "benchmarks.scale", "--root", str(stage.parent), "--measure", str(done)]
    plain_run = subprocess.run(command, check=True, capture_output=True, text=True)  # without strace: the seconds
    found = {role: Counter(seconds=seconds) for role, seconds in json.loads(plain_run.stdout).items()}
    trace = ["strace", "-f", "-y", "-o", str(log), "-e", f"trace=?{TRACED.replace(',', ',?')}"]
    subprocess.run([*trace, *command[:-1], str(done + MEASURED + 1)], check=True, capture_output=True)
    role = None
    with log.open(errors="replace") as lines:
        for line in lines:
            if f"{MARK}/" in line:
                role = line.split(f"{MARK}/")[1].split('"')[0]
            elif role in ROLES and str(stage) in line and (call := CALL.match(line)):
                count(found[role], call[1], int(call[3]))
    log.unlink()
    return {role: Counter({key: value if key == "seconds" else value / MEASURED for key, value in each.items()})
            for role, each in found.items()}


def count(found: Counter, call: str, result: int) -> None:
    if call in ("read", "pread64", "write", "pwrite64"):
        found["read bytes" if "read" in call else "written bytes"] += max(result, 0)
    elif call == "fsync":
        found["flushes"] += 1
    else:
        found["metadata"] += 1


def timed(work) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def query(stage: Path) -> None:
    tables.connect([("one", stage)]).execute("SELECT count(*), avg(loss) FROM steps").fetchall()


def for_a_person(stage: Path) -> dict[str, float]:
    """Seconds of what is done outside the steps: at a start, at the end, and when somebody asks."""
    from ouroboros.pipeline.results.view import Node, state

    return {"ouro status": timed(lambda: state(Node("rft", "rft", stage))),
            "a question over all steps": timed(lambda: query(stage)),
            "look for leftovers": timed(lambda: files.remove_leftovers(stage))}


def resume(stage: Path) -> float:
    from ouroboros.stages.follow import Follower

    checkpoint = checkpoints.checkpoint_directory(stage, tables.steps_present(stage, "steps")[-1])
    checkpoint.mkdir(parents=True)
    files.write_json(checkpoint / files.MANIFEST, {"zero_stage": 1, hashes.FILES: {}})
    return timed(lambda: Follower(context_of(stage, 10**6)))


def tasks_of(root: Path, count: int) -> list:
    """Seconds to count a stage's tasks (each trainer rank), to choose a step's, and to make records of 10,000."""
    from itertools import islice

    from ouroboros.pipeline.job import selection

    make_tasks(root / "curate", count)
    found: list = []
    counting = timed(lambda: found.append(tables.read_tasks(root / "curate", "train")))
    sets = [selection.Selector(len(found[0]), "shuffle", 1)]
    first = timed(lambda: selection.select(sets, TASKS, 1, 1))
    later = timed(lambda: [selection.select(sets, TASKS, step, 1) for step in range(2, 102)]) / 100
    return [count, counting, first, later * 1e3, timed(lambda: list(islice(found[0], 10_000))) * 100]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--root", type=Path, required=True)
    arguments.add_argument("--steps", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    arguments.add_argument("--tasks", type=int, default=10_000_000)
    arguments.add_argument("--resumed", type=int, default=10_000, help="steps of the stage whose resume is timed")
    arguments.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    stage = given.root.resolve() / "stage"
    if given.measure is not None:
        measure(stage, given.measure)
        return
    report(given, stage)


def report(given: argparse.Namespace, stage: Path) -> None:
    said = Measurement("scale", "Calls on the store in one step, and what grows with a stage")
    stage.mkdir(parents=True)
    size, done, began = make_template(stage), 0, time.perf_counter()
    make_tasks(given.root / "curate", TASKS)
    files.write_json(stage / "stage.json", {"run": "scale/one", "config": plain_settings(context_of(stage, 1).config)})
    rows, others = [], []
    for steps in given.steps:
        grow(stage, done + 1, steps)
        for role, found in counted(stage, steps).items():
            rows.append([f"{steps:,}", role, *(round(found[name], 1) for name in ("metadata", "flushes")),
                         found["read bytes"] / 1e6, found["written bytes"] / 1e6, found["seconds"] * 1e3])
        done = steps + 2 * (MEASURED + 1)
        asked = for_a_person(stage)
        others.append([f"{steps:,}", *asked.values(), resume(stage) if steps == given.resumed else None])
    said.add(f"{TASKS * REPEATS} rows of {PROMPT} + {RESPONSE} tokens in a step: {size / 1e6:.2f} MB in 4 files")
    said.add(table(["steps done", "role", "metadata calls", "flushes", "MB read", "MB written", "ms"], rows))
    said.add(table(["steps done", *(f"{name}, s" for name in asked), "resume, s"], others))
    counts = [n for n in (10_000, 1_000_000, 10_000_000) if n <= given.tasks]
    tasks = [tasks_of(given.root, count) for count in counts]
    said.add(table(["tasks", "read and count, s", "choose the first step's, s", "a later step's, ms",
                    "records of a million, s"], tasks))
    used = subprocess.run(["du", "-sm", str(given.root)], check=True, capture_output=True, text=True).stdout.split()[0]
    said.add(f"{sum(1 for _ in stage.rglob('*')):,} files and directories, {used} MB of disk, "
             f"{time.perf_counter() - began:.0f} s")
    said.save({"steps": rows, "others": others, "tasks": tasks})


if __name__ == "__main__":
    main()
