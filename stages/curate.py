"""Filters raw.parquet into tasks.parquet and rejected.parquet, by a Data-Juicer recipe if one is set.

The recipe is `data_processor.task_pipeline.config_path`, or `operators`. Every input row is in exactly one of the two
tables; a rejected row names the operator that dropped it and the values that operator saw. Each set with its own path
is curated separately (so that two sets may share a question) and keeps its split; the recipe splits the rest. Without
an operator that sets `split`, all rows are for training. A multi-turn conversation is judged by the concatenated user
turns and stored unchanged: no mapper edits it.
"""

from collections import Counter
from functools import partial
from typing import Any

from operators import juicer
from operators.juicer_recipes import inline_recipe, read_recipe
from pipeline.job.context import Context, run_stage
from pipeline.store import tables
from pipeline.store.digests import resolve
from pipeline.store.errors import DataError
from pipeline.store.files import hash_json
from pipeline.store.records import RawTask, Rejected, Task

SPLITS = ("train", "test", "sft", "preference", "text")
POOL = "data_processor.task_pipeline"  # the name in messages for rows outside any set


def work(context: Context) -> None:
    raw = tables.read(context.inputs["tasks"] / tables.LOCATIONS["raw"], RawTask).to_pylist()
    settings = context.config.data_processor.task_pipeline
    recipe = recipe_of(settings)
    tasks, rejected = [], []
    for name, rows in by_set(raw).items():
        log = partial(say, context, name[0])
        kept, dropped = curate(rows, recipe, log, settings.num_process)
        check_set(name, kept, dropped)
        check_unusable(name[0], rows, context.config.buffer.max_rejected_ratio, log)
        tasks += kept
        rejected += dropped
    assert len(tasks) + len(rejected) == len(raw), "a row was lost or multiplied"
    counts = Counter(task.split for task in tasks)
    check_splits(tasks, rejected)
    tables.write(context.directory / tables.LOCATIONS["tasks"], Task, tasks)
    tables.write(context.directory / tables.LOCATIONS["rejected"], Rejected, rejected)
    context.log.info("%d rows: %d kept, %d rejected", len(raw), len(tasks), len(rejected))
    context.made.update(read=len(raw), kept=len(tasks), rejected=len(rejected), **{s: counts[s] for s in SPLITS})


def say(context: Context, name: str | None, line: str) -> None:
    """Logs what an operator did; for a set with its own path with the set's name."""
    context.activity.alive()
    context.log.info("%s", line if name is None else f"{name}: {line}")


def recipe_of(settings) -> dict[str, Any]:
    """The recipe file, the configured operators as a recipe, or an empty recipe."""
    if settings.config_path is not None:
        return read_recipe(resolve(settings.config_path))
    return inline_recipe(settings.operators, settings.target_fields)


def by_set(raw: list[dict]) -> dict[tuple[str | None, str | None], list[dict]]:
    """Rows by (taskset, kind), in input order; None: the pool. Demonstrations and pairs share a kind."""
    sets: dict = {}
    for row in raw:
        split = "sft" if row["split"] == "preference" else row["split"]
        sets.setdefault((row["taskset"], split), []).append(row)
    return sets


def curate(rows: list[dict], recipe: dict, log, processes: int) -> tuple[list[Task], list[Rejected]]:
    """Runs the recipe over the rows of one set."""
    unusable = [juicer.Dropped(row["row"], "format", row["problem"]) for row in rows if row["problem"] is not None]
    texts = [as_texts(row) for row in rows if row["problem"] is None]
    kept, dropped = juicer.run_recipe(texts, recipe, log, processes)
    by_number = {row["row"]: row for row in rows}
    tasks = [make_task(changed(by_number[row["row"]], row)) for row in kept]
    return tasks, make_rejected(by_number, unusable + dropped)


def as_texts(row: dict) -> dict[str, Any]:
    """A row as the operators see it: text columns only, the turns before the question joined into one."""
    texts = {name: row[name] for name in ("row", "question", "answer", "solution", "chosen", "rejected", "split")}
    if is_conversation(row):
        earlier = [turn["content"] for turn in row["context"] if turn["role"] == "user"]
        texts["question"] = "\n".join([*earlier, row["question"]])
    return texts | {"context": "\n".join(f"{turn['role']}: {turn['content']}" for turn in row["context"]) or None}


def changed(row: dict, texts: dict) -> dict:
    """The row with the texts that the operators changed; of a conversation only its split."""
    taken = ("split",) if is_conversation(row) else ("question", "answer", "solution", "chosen", "rejected", "split")
    return row | {name: texts[name] for name in taken}


def is_conversation(row: dict) -> bool:
    """Whether the prompt is more than a system message and a question."""
    return row["messages"] is not None or any(turn["role"] != "system" for turn in row["context"])


def make_task(row: dict) -> Task:
    """A task from a row that the recipe kept; only splits sft and preference carry responses."""
    split = row["split"] or "train"
    question, answer, context, messages, choices = (
        row[name] for name in ("question", "answer", "context", "messages", "choices"))
    pair = (row["chosen"], row["rejected"]) if split == "preference" else (None, None)
    more = [one for one in (context, messages, choices) if one]
    return Task(hash_json([question, answer, *more]), row["row"], split, question, answer,
                row["solution"] if split == "sft" else None, context, *pair, row["taskset"], messages, choices,
                row["features"])


def make_rejected(by_number: dict[int, dict], dropped: list[juicer.Dropped]) -> list[Rejected]:
    """The dropped rows in their original form and input order."""
    as_read = ("row", "question", "answer", "solution", "taskset")
    return [Rejected(**{name: by_number[d.row][name] for name in as_read}, operator=d.operator, reason=d.reason)
            for d in sorted(dropped, key=lambda d: d.row)]


def check_set(name: tuple[str | None, str | None], tasks: list[Task], rejected: list[Rejected]) -> None:
    """Raises DataError when no row of a set with its own path is left."""
    if tasks or name[0] is None:
        return
    raise DataError(f"set '{name[0]}': none of its {len(rejected)} rows is left ({_reasons(rejected)}). The first: "
                    f"{rejected[0].operator}: {rejected[0].reason}. Correct its path or format, or what "
                    f"{POOL}.config_path or operators drop.")


def check_unusable(name: str | None, rows: list[dict], allowed: float, log) -> None:
    """Logs the records that could not be used; raises DataError when they are more than the share `allowed`.

    Harbor tasks that format.unsupported=skip leaves out keep their question, and do not count.
    """
    counted = [row for row in rows if row["problem"] is None or row["question"] is None]
    lost = [row for row in counted if row["problem"] is not None]
    if not lost:
        return
    line = f"{len(lost)} of {len(counted)} records cannot be used; the first: {lost[0]['problem']}"
    if len(lost) > allowed * len(counted):
        raise DataError(f"{POOL if name is None else f'set {name!r}'}: {line}. Allowed {allowed:.0%} "
                        "(buffer.max_rejected_ratio). Correct the file or its format, or allow more.")
    log(line)


def check_splits(tasks: list[Task], rejected: list[Rejected]) -> None:
    """Raises DataError for a split that no stage reads, or when the pool has no training row left."""
    unknown = sorted({str(task.split) for task in tasks} - set(SPLITS))
    if unknown:
        raise DataError(f"the recipe sets split {', '.join(unknown)}; needed one of {', '.join(SPLITS)}.")
    pool = Counter(task.split for task in tasks if task.taskset is None)
    dropped = [row for row in rejected if row.taskset is None]
    if (pool or dropped) and not any(pool[split] for split in SPLITS if split != "test"):
        kept = ", ".join(f"{count} {split}" for split, count in pool.items()) or "nothing"
        first = f"; the first, {dropped[0].operator}: {dropped[0].reason}" if dropped else ""
        raise DataError(f"nothing to train on is left: {kept} kept, {len(dropped)} rejected ({_reasons(dropped)}"
                        f"{first}). Loosen that operator in {POOL}.config_path or operators, or check the format keys.")


def _reasons(rejected: list[Rejected]) -> str:
    reasons = Counter(row.operator for row in rejected)
    return "by operator: " + (", ".join(f"{name} {count}" for name, count in reasons.most_common()) or "none")


if __name__ == "__main__":
    run_stage(work, __doc__)
