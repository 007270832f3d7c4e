"""Compares the files that a stage reads of other stages with what those wrote, before it starts."""

import logging
import time
from pathlib import Path

from ouroboros.pipeline.job.progress import FILE_ONLY
from ouroboros.pipeline.settings.kinds import REPORT, Kind
from ouroboros.pipeline.store import checkpoints, files, hashes, recovery
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.locations import PER_STEP


def require_intact(kind: Kind, inputs: dict[str, Path], root: str, verify: str, log: logging.Logger) -> None:
    """Raises DataError or ModelError for an input that is damaged or incomplete.

    kind: of the reading stage. inputs: role -> directory; models from outside the store have no hashes.
    """
    begin, total = time.perf_counter(), []
    made = {place: role for role, place in inputs.items() if files.in_store(place, root)}
    unknown = []
    for place, role in made.items():
        read = _homes_read(kind, role)
        if role == "experience":
            _require_whole(place)
        entries = hashes.contents(place, lambda home, read=read: home in read)
        if entries is None:
            unknown.append(place.name)
            continue
        for name, words in hashes.differences(place, entries, verify).items():
            raise hashes.damaged(place / name, words)
        if role == "model" and kind.benches:
            for step in checkpoints.complete_checkpoints(place)[:-1]:
                checkpoints.require_intact(place, step, verify, "model/")
        total += [size for size, _ in entries.values()]
    if unknown:
        log.info("written by a release without hashes, so used unchecked: %s", ", ".join(unknown))
    if total:
        log.info("%d files of its inputs (%.1f MB) are intact: checked by %s in %.2f s", len(total), sum(total) / 1e6,
                 verify, time.perf_counter() - begin, extra=FILE_ONLY)


def _require_whole(place: Path) -> None:
    """Raises DataError where steps of experience are lost: batches are counted through all of them."""
    if gone := [recovery.named(place, one) for one in recovery.lost(place) if one[0] in ("experience", "rollouts")]:
        raise DataError(f"{place} has lost {', '.join(gone)}, which this stage reads. {hashes.advice(place / gone[0])}")


def _homes_read(kind: Kind, role: str) -> set[str]:
    """Returns the directories within an input whose listed files a stage reads; an empty name is that of the input."""
    if kind == REPORT:
        return {"", *PER_STEP}
    if role == "experience":
        return {"experience", "rollouts"}
    return {""}  # tasks, or a model
