"""Makes tasks.parquet and rejected.parquet out of raw.parquet with a Data-Juicer recipe.

`data_processor.task_pipeline.config_path` is the recipe. Every row that was read is in exactly one of the two tables,
a rejected one with the operator that dropped it and what that operator saw. Without an operator that sets `split`, all
rows are for training.
"""

from collections import Counter

from operators import juicer
from pipeline import tables
from pipeline.errors import DataError
from pipeline.external import resolve
from pipeline.files import hash_json
from pipeline.process import Context, run_stage
from pipeline.records import RawTask, Rejected, Task

SPLITS = ("train", "test", "sft")


def work(context: Context) -> None:
    raw = tables.read(context.inputs["tasks"] / tables.LOCATIONS["raw"], RawTask).to_pylist()
    recipe = juicer.read_recipe(resolve(context.config.data_processor.task_pipeline.config_path))
    kept, dropped = juicer.run_recipe(raw, recipe, context.log.info)
    tasks, rejected = [make_task(row) for row in kept], make_rejected(raw, dropped)
    assert len(tasks) + len(rejected) == len(raw), "a row was lost or multiplied"
    counts = Counter(task.split for task in tasks)
    check_splits(counts, rejected)
    tables.write(context.directory / tables.LOCATIONS["tasks"], Task, tasks)
    tables.write(context.directory / tables.LOCATIONS["rejected"], Rejected, rejected)
    context.made.update(read=len(raw), kept=len(tasks), rejected=len(rejected), **{s: counts[s] for s in SPLITS})


def make_task(row: dict) -> Task:
    """A task out of a row that the recipe kept; only split sft carries a solution."""
    split = row.get("split", "train")
    solution = row["solution"] if split == "sft" else None
    question, answer = row["question"], row["answer"]
    return Task(hash_json([question, answer]), row["row"], split, question, answer, solution)


def make_rejected(raw: list[dict], dropped: list[juicer.Dropped]) -> list[Rejected]:
    """The dropped rows as they were read, in the order of the input."""
    by_number = {row["row"]: row for row in raw}
    return [Rejected(**by_number[d.row], operator=d.operator, reason=d.reason)
            for d in sorted(dropped, key=lambda d: d.row)]


def check_splits(counts: Counter, rejected: list[Rejected]) -> None:
    """Raises DataError for a split that no stage reads, or when there is nothing to train on."""
    unknown = sorted(str(split) for split in counts if split not in SPLITS)
    if unknown:
        raise DataError(f"the recipe sets split {', '.join(unknown)}; needed one of {', '.join(SPLITS)}.")
    if not counts["train"] and not counts["sft"]:
        reasons = Counter(row.operator for row in rejected)
        listed = ", ".join(f"{name} {count}" for name, count in reasons.most_common()) or "none"
        kept = ", ".join(f"{count} {split}" for split, count in counts.items()) or "nothing"
        raise DataError(f"nothing to train on is left: {kept} kept, {len(rejected)} rejected (by operator: {listed}). "
                        "Loosen that operator in data_processor.task_pipeline.config_path, or check the format keys.")


if __name__ == "__main__":
    run_stage(work, __doc__)
