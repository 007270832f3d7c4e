"""Counts, before a run, the tasks of each evaluation set that are also in the training sets.

Sets are read completely, as in the stage `tasks` and before curation; sets over LARGEST bytes are skipped here. The
evaluation itself compares with the actual training data (workflows/leakage.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.progress import task_words
from ouroboros.pipeline.settings.data import format_of
from ouroboros.pipeline.store.data_files import files_of_split, is_saved_dataset
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import OuroError
from ouroboros.pipeline.store.records import RawTask
from ouroboros.stages.tasks import read_set
from ouroboros.workflows.leakage import prompt_of

LARGEST = 32 << 20  # bytes of a set: about a second


def compare(sets: list[dict[str, Any]]) -> dict[str, list]:
    """Lists `problems`, `warnings`, `unjudged` and `facts`, in the format of stages/preview.py.

    sets: in the format of pipeline/check/samples.py, each with `held`: whether it is an evaluation set.
    """
    found: dict[str, list] = {"problems": [], "warnings": [], "unjudged": [], "facts": []}
    rows: dict[str, list[RawTask]] = {}
    for one in sets if any(one["held"] for one in sets) else []:
        if (size := _size(one)) > LARGEST:
            found["unjudged"].append(f"whether evaluation sets share tasks with {one['label']}: it has "
                                     f"{size / 2**20:.0f} MiB. Its evaluation counts them.")
            continue
        try:
            rows[one["label"]] = [*read_set(
                one["paths"], one["subset"], one["split"], format_of(one["purpose"]).partial(one["format"]),
                one["purpose"], one["key"])]
        except OuroError as error:
            found["problems"].append(str(error))
    read = [one for one in sets if one["label"] in rows]
    found["problems"] += [f"{one['label']}: none of its {len(made):,} rows can be used; row 1: {made[0].problem}."
                          for one in read if (made := rows[one["label"]]) and all(row.problem for row in made)]
    trained = {one["label"]: set(_prompts(rows[one["label"]])) for one in read if not one["held"]}
    for one in (one for one in read if one["held"]):
        _judge(found, one, rows[one["label"]][:one["limit"]], trained)
    return found


def _judge(found: dict[str, list], held: dict[str, Any], rows: list[RawTask], trained: dict[str, set[str]]) -> None:
    """Adds the overlap and the duplicates of one evaluation set to `found`."""
    usable = [row for row in rows if row.problem is None]
    tasks = {(prompt, row.answer): prompt for prompt, row in zip(_prompts(usable), usable, strict=True)}
    if len(tasks) < len(usable):
        found["facts"].append([held["name"], task_words(len(tasks), len(usable))])
    shared = {label: count for label, prompts in trained.items()
              if (count := sum(prompt in prompts for prompt in tasks.values()))}
    if shared:
        everywhere = set().union(*trained.values())
        count = sum(prompt in everywhere for prompt in tasks.values())
        both = [str(row.row + 1) for prompt, row in zip(_prompts(usable), usable, strict=True) if prompt in everywhere]
        found["warnings"].append(f"{held['label']}: {count} of its {len(tasks)} tasks are also in {', '.join(shared)} "
                                 f"(row{'s' * (len(both) > 1)} {', '.join(both[:2])}{', …' * (len(both) > 2)} of the "
                                 "evaluation file): its scores are not those of unseen tasks. Take them out of one of "
                                 "the two.")


def _prompts(rows: list[RawTask]) -> Iterator[str]:
    return (prompt_of(row.context, row.question or "", answer=row.answer) for row in rows if row.problem is None)


def _size(one: dict[str, Any]) -> int:
    """Total size of a set's files in bytes."""
    total = 0
    for name in one["paths"]:
        path = resolve(name) / (one["subset"] or "")
        if path.is_dir():
            parts = path.rglob("*") if is_saved_dataset(path) else files_of_split(path, one["split"])
        else:
            parts = [path] if path.is_file() else []  # a subset of a file: reported when it is sampled
        total += sum(Path(part).stat().st_size for part in parts)
    return total
