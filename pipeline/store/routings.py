"""The experts that the engine gave each sampled token to, stored next to the rows of an explorer step.

They are bytes by the thousand a token, so they stay until a checkpoint is behind the last trainer step that needs them.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ouroboros.pipeline.store import files, tables
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.locations import ROUTINGS


def file_of(stage: Path, step: int) -> Path:
    name = f"step={step:06d}"
    older = stage / "experience" / name / "routings.npz"  # of an earlier release
    return older if older.exists() else stage / ROUTINGS / f"{name}.npz"


def write(stage: Path, step: int, found: Mapping[str, np.ndarray]) -> None:
    """Writes the routings of an explorer step, if it has any. found: experience_id -> [action tokens, layers, choices],
    numbers of experts."""
    def to(path: Path) -> None:
        with open(path, "wb") as file:
            np.savez_compressed(file, **{
                name: experts.astype(np.uint8 if experts.max(initial=0) < 256 else np.uint16)
                for name, experts in found.items()})

    if found:
        files.write_atomic(file_of(stage, step), to)


def read(stage: Path, step: int) -> dict[str, np.ndarray]:
    """Returns what `write` was given; nothing where it wrote nothing. Raises DataError for a damaged file."""
    path = file_of(stage, step)
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); delete the stage directory {stage} to make it again.") from error


def forget_before(stage: Path, step: int) -> None:
    """Deletes the routings of the explorer steps before `step`."""
    for number in tables.steps_present(stage, "experience"):
        if number < step:
            file_of(stage, number).unlink(missing_ok=True)
