"""Filters raw.parquet into tasks.parquet and rejected.parquet, by a Data-Juicer recipe if one is set.

The recipe is `data_processor.task_pipeline.config_path`, or `operators`. Every input row is in exactly one of the two
tables; a rejected row names the operator that dropped it and the values that operator saw. Each set with its own path
is curated separately (so that two sets may share a question) and keeps its split; the recipe splits the rest. Without
an operator that sets `split`, all rows are for training. `priority_weights` and `top_k` then order the training tasks
of a set and keep the first ones. A multi-turn conversation is judged by the concatenated user turns and stored
unchanged: no mapper edits it. Rows pass in shards (operators/shards.py), whose files stages/shard_files.py keeps until
the stage is complete: an interrupted stage goes on with the next shard.
"""

import time
from collections import Counter
from typing import Any

from ouroboros.operators import juicer, shards
from ouroboros.operators.curation import Dropped
from ouroboros.operators.juicer_recipes import inline_recipe, read_recipe
from ouroboros.operators.juicer_whole import BYTES
from ouroboros.operators.task_priority import Priority
from ouroboros.pipeline.job.context import Context, run_stage
from ouroboros.pipeline.store import pictures, tables
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ConfigError, DataError
from ouroboros.pipeline.store.files import hash_json
from ouroboros.pipeline.store.host_memory import total_memory
from ouroboros.pipeline.store.records import RawTask, Rejected, Task
from ouroboros.stages.shard_files import ShardFiles, Tally, curating, finish, sets_of

NOTABLE = 2.0  # GB
SPLITS = ("train", "test", "sft", "preference", "text")
POOL = "data_processor.task_pipeline"  # the name in messages for rows outside any set


def work(context: Context) -> None:
    raw = tables.Groups(context.inputs["tasks"] / tables.LOCATIONS["raw"], RawTask)
    settings = context.config.data_processor.task_pipeline
    operators = [*juicer.build(recipe_of(settings)), *priority_of(settings)]
    check_memory(context, operators, max((sum(end - begin for _, begin, end in runs) for _, runs in sets_of(raw)),
                                         default=0))
    done, total = [], Tally()
    with curating(context.directory, raw.path, settings.num_process, operators) as place:
        for number, (name, runs) in enumerate(sets_of(raw)):
            begin = time.perf_counter()
            made = ShardFiles(place / f"{number:03d}", raw, runs, settings.num_process, as_texts, curated)
            shards.run(made.job(operators), settings.num_process, context.activity.alive)
            found = made.tally()
            report(context, name[0], found, time.perf_counter() - begin)
            check_set(name[0], found)
            check_unusable(context, name[0], found)
            done.append(made)
            total.add(found, name[0] is None)
        check_splits(total)
        finish(context.directory, done, ordered=bool(priority_of(settings)))
        pictures.link(context.inputs["tasks"], context.directory)
    kept, rejected = sum(total.kept.values()), sum(total.dropped.values())
    context.log.info("%d rows: %d kept, %d rejected", kept + rejected, kept, rejected)
    context.made.update(read=kept + rejected, kept=kept, rejected=rejected, **{s: total.kept[s] for s in SPLITS})


def check_memory(context: Context, operators: list[Any], rows: int) -> None:
    """Says what an operator that holds all rows of a set will need, before hours of work. Raises ConfigError where this
    machine does not have it and no operator before may drop rows. rows: of the largest set."""
    names = [one._name for one in operators]
    for at, (name, operator) in enumerate(zip(names, operators, strict=True)):
        need = BYTES[name] * operator.num_permutation * rows / 1e9 if name in BYTES else 0
        there, all_of_them = total_memory() / 1e9, all(one.endswith("_mapper") for one in names[:at])
        if need > there and all_of_them:
            raise ConfigError(f"operator '{name}' would hold the {rows:,} rows of a set in about {need:,.0f} GB of "
                              f"memory, and this machine has {there:,.0f}. Needed fewer rows, a filter before it, or "
                              "document_deduplicator, which takes a hundredth of it.")
        if need > NOTABLE:
            context.log.warning("%s holds %s%d rows in about %.0f GB of memory; this machine has %.0f", name,
                                "" if all_of_them else "at most ", rows, need, there)


def report(context: Context, name: str | None, found: Tally, seconds: float) -> None:
    """Logs what the operators did; for a set with its own path with the set's name."""
    of_set = "" if name is None else f"{name}: "
    for operator, count in found.dropped.items():
        context.log.info("%s%s: dropped %d", of_set, operator, count)
    context.log.info("%skept %d of %d rows (%.2f s)", of_set, sum(found.kept.values()),
                     sum(found.kept.values()) + sum(found.dropped.values()), seconds)


def priority_of(settings) -> list[Priority]:
    """What orders the tasks, if anything does."""
    wanted = settings.priority_weights or settings.top_k > 0
    return [Priority(settings.priority_weights, settings.top_k)] if wanted else []


def recipe_of(settings) -> dict[str, Any]:
    """The recipe file, the configured operators as a recipe, or an empty recipe."""
    if settings.config_path is not None:
        return read_recipe(resolve(settings.config_path))
    return inline_recipe(settings.operators, settings.target_fields)


def curated(rows: list[dict], kept: list[dict], dropped: list[Dropped]) -> tuple[list[Task], list[Rejected]]:
    """The tasks and the rejected rows of a shard. kept: the texts that are left, as operators changed them."""
    by_number = {row["row"]: row for row in rows}
    assert len(kept) + len(dropped) == len(rows), "a row was lost or multiplied"
    return [make_task(changed(by_number[row["row"]], row)) for row in kept], make_rejected(by_number, dropped)


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
    return row | {name: texts[name] for name in taken} | {"priority": texts.get("priority")}


def is_conversation(row: dict) -> bool:
    """Whether the prompt is more than a system message and a question."""
    return row["messages"] is not None or any(turn["role"] != "system" for turn in row["context"])


def make_task(row: dict) -> Task:
    """A task from a row that the recipe kept; only splits sft and preference carry responses."""
    split = row["split"] or "train"
    question, answer, context, messages, choices, columns, images = (
        row[name] for name in ("question", "answer", "context", "messages", "choices", "columns", "pictures"))
    pair = (row["chosen"], row["rejected"]) if split == "preference" else (None, None)
    more = [one for one in (context, messages, choices, columns, images) if one]
    return Task(hash_json([question, answer, *more]), row["row"], split, question, answer,
                row["solution"] if split == "sft" else None, context, *pair, row["taskset"], messages, choices,
                row["features"], row.get("priority"), row["margin"] if split == "preference" else None, columns,
                images)


def make_rejected(by_number: dict[int, dict], dropped: list[Dropped]) -> list[Rejected]:
    """The dropped rows in their original form and input order."""
    as_read = ("row", "question", "answer", "solution", "taskset")
    return [Rejected(**{name: by_number[d.row][name] for name in as_read}, operator=d.operator, reason=d.reason)
            for d in sorted(dropped, key=lambda d: d.row)]


def check_set(name: str | None, found: Tally) -> None:
    """Raises DataError when no row of a set with its own path is left."""
    if found.kept or name is None:
        return
    raise DataError(f"set '{name}': none of its {sum(found.dropped.values())} rows is left ({_reasons(found)}). The "
                    f"first: {found.first}. Correct its path or format, or what {POOL}.config_path or operators drop.")


def check_unusable(context: Context, name: str | None, found: Tally) -> None:
    """Logs the records that could not be used; raises DataError when they are more than buffer.max_rejected_ratio.

    Harbor tasks that format.unsupported=skip leaves out keep their question, and do not count.
    """
    if not found.lost:
        return
    allowed = context.config.buffer.max_rejected_ratio
    line = f"{found.lost} of {found.counted} records cannot be used; the first: {found.problem}"
    if found.lost > allowed * found.counted:
        raise DataError(f"{POOL if name is None else f'set {name!r}'}: {line}. Allowed {allowed:.0%} "
                        "(buffer.max_rejected_ratio). Correct the file or its format, or allow more.")
    context.log.info("%s%s", "" if name is None else f"{name}: ", line)


def check_splits(total: Tally) -> None:
    """Raises DataError for a split that no stage reads, or when the pool has no training row left."""
    unknown = sorted({*total.kept} - {*SPLITS})
    if unknown:
        raise DataError(f"the recipe sets split {', '.join(unknown)}; needed one of {', '.join(SPLITS)}.")
    pool = total.pool
    if pool and (pool.kept or pool.dropped) and not any(pool.kept[split] for split in SPLITS if split != "test"):
        kept = ", ".join(f"{count} {split}" for split, count in pool.kept.items()) or "nothing"
        first = f"; the first, {pool.first}" if pool.dropped else ""
        raise DataError(f"nothing to train on is left: {kept} kept, {sum(pool.dropped.values())} rejected "
                        f"({_reasons(pool)}{first}). Loosen that operator in {POOL}.config_path or operators, or check "
                        "the format keys.")


def _reasons(found: Tally) -> str:
    reasons = Counter(found.dropped)
    return "by operator: " + (", ".join(f"{name} {count}" for name, count in reasons.most_common()) or "none")


if __name__ == "__main__":
    run_stage(work, __doc__)
