"""The store of benchmarks.scale: stages with many steps and tasks, made of hard links of one step's files."""

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np

from ouroboros.pipeline.store import hashes, records, tables

TASKS, REPEATS, PROMPT, RESPONSE = 64, 8, 128, 512  # of an explorer step; tokens
LINKS = 1000  # of one file: ext4 allows 65,000
EVALUATED_EVERY = 100
PER_STEP = ("experience", "rollouts", "trained", "steps")


def plain(record: type, **given):
    """A row of a record; columns that are not given are null, empty or 0."""
    blank = {field.name: _blank(field.metadata) for field in dataclasses.fields(record)}
    return record(**blank | given)


def _blank(column: dict):
    kind = str(column["arrow"])
    if column["null"]:
        return None
    if kind.startswith(("list", "map")):
        return []
    return "" if kind == "string" else False if kind == "bool" else 0


def experience(step: int, random: np.random.Generator) -> list[records.Experience]:
    """The rows of an explorer step: random tokens, so that they compress as little as real ones."""
    return [plain(
        records.Experience, experience_id=f"rft/{step}/{place}/{run}", stage="rft", step=step, taskset="tasks",
        slot=place * REPEATS + run, task_id=f"{step * TASKS + place}", group_id=f"{step}/{place}", run_index=run,
        prompt="p" * 4 * PROMPT, response="r" * 4 * RESPONSE,
        prompt_tokens=random.integers(0, 150_000, PROMPT).tolist(),
        response_tokens=random.integers(0, 150_000, RESPONSE).tolist(), action_mask=[1] * RESPONSE,
        rollout_logprobs=random.normal(-1, 0.5, RESPONSE).astype(np.float32).tolist(), reward=float(run % 2),
        accuracy=float(run % 2), status="ok", weights_version=step - 1, weights_hash="0" * 16, engine="none",
        temperature=1.0, top_p=1.0, top_k=-1)
        for place in range(TASKS) for run in range(REPEATS)]


def rollout(step: int) -> records.Rollout:
    return plain(records.Rollout, stage="rft", step=step, weights_version=step - 1, rows=TASKS * REPEATS,
                 attempts=TASKS * REPEATS, tokens=TASKS * REPEATS * RESPONSE)


def grow(stage: Path, begin: int, end: int) -> None:
    """Adds the files of steps begin .. end as links of a template, with their lines in the lists of hashes."""
    template = stage.parent / "template"
    for name in PER_STEP:
        first = tables.step_file(template, name, 1)
        lines = {}
        source = first
        for step in range(begin, end + 1):
            path = tables.step_file(stage, name, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            if step % LINKS == 0 or source == first:
                shutil.copyfile(first, path)
                source = path
            else:
                os.link(source, path)
            lines[hashes.listed_as(path)[1]] = hashes.entry_of(first)
        hashes.add(stage / name, lines)
    for step in range(begin - begin % EVALUATED_EVERY + EVALUATED_EVERY, end + 1, EVALUATED_EVERY):
        tables.write(tables.step_file(stage, "scores", step), records.Score, [])


def make_template(stage: Path) -> int:
    """Writes one step of each table next to the stage; returns its bytes."""
    place = stage.parent / "template"
    rows = experience(1, np.random.default_rng(0))
    tables.write(tables.step_file(place, "experience", 1), records.Experience, rows)
    tables.write(tables.step_file(place, "rollouts", 1), records.Rollout, [rollout(1)])
    tables.write(tables.step_file(place, "trained", 1), records.Trained,
                 [plain(records.Trained, experience_id=row.experience_id) for row in rows])
    tables.write(tables.step_file(place, "steps", 1), records.Step, [plain(records.Step, step=1)])
    return sum(tables.step_file(place, name, 1).stat().st_size for name in PER_STEP)


def make_tasks(curated: Path, count: int) -> None:
    import pyarrow as pa

    schema, number = records.schema(records.Task), pa.array(np.arange(count))
    blank = {field.name: field.metadata for field in dataclasses.fields(records.Task)}
    columns = {"task_id": number.cast(pa.string()), "row": number}
    text = {"question": "What is 12345 + 67890 - 4242, and why is that so?", "answer": "76003", "split": "train"}
    for field in schema:
        if field.name not in columns:
            value = text.get(field.name, _blank(blank[field.name]))
            columns[field.name] = pa.nulls(count, field.type) if value is None else pa.array([value], field.type).take(
                pa.array(np.zeros(count, np.int64)))
    tables.write(curated / tables.LOCATIONS["tasks"], records.Task, pa.table(columns, schema=schema))
