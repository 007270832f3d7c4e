"""Where the tables of a stage are in its directory. A table of steps is a directory with a file a step."""

import errno
import os
import re
from pathlib import Path

LOCATIONS = {
    "images": "images.parquet",
    "pictures": "pictures.parquet",
    "raw": "raw.parquet",
    "tasks": "tasks.parquet",
    "shown": "shown/step=*.parquet",
    "rejected": "rejected.parquet",
    "experience": "experience/**/*.parquet",  # older releases wrote experience/step=000012/part-0.parquet
    "curated": "curated/step=*.parquet",
    "selection": "selection/step=*.parquet",
    "profile": "profile.parquet",
    "trained": "trained/step=*.parquet",
    "reference": "reference/step=*.parquet",
    "teacher": "teacher/step=*.parquet",
    "steps": "steps/step=*.parquet",
    "rollouts": "rollouts/step=*.parquet",
    "calls": "calls/step=*.parquet",
    "tool_calls": "tool_calls/step=*.parquet",
    "feedback": "feedback/step=*.parquet",
    "samples": "samples/step=*.parquet",
    "sample_shown": "sample_shown/step=*.parquet",
    "scores": "scores/step=*.parquet",
}
PER_STEP = tuple(table for table, location in LOCATIONS.items() if "/" in location)  # also their directories
STEP = re.compile(r"step=(\d+)(\.parquet)?")  # a file, or a directory of an older release
ROUTINGS = "routings"  # pipeline/store/routings.py


def step_file(stage: Path, table: str, step: int) -> Path:
    """Returns the file of one step of a per-step table."""
    name = f"step={step:06d}"
    if table == "experience" and (older := Path(stage) / table / name / "part-0.parquet").exists():
        return older
    return Path(stage) / table / f"{name}.parquet"


def steps_present(stage: Path, table: str) -> list[int]:
    """Returns the steps whose file of `table` exists, ascending. A stage may have many thousand."""
    try:
        names = [entry.name for entry in os.scandir(Path(stage) / table)]
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return []
    found = filter(None, map(STEP.fullmatch, names))
    return sorted({int(one[1]) for one in found if one[2] or step_file(stage, table, int(one[1])).exists()})


def step_of(path: Path) -> int:
    """Returns the step of a file of a per-step table."""
    (part,) = (part for part in path.parts[-2:] if part.startswith("step="))
    return int(part.removeprefix("step=").removesuffix(".parquet"))


def same_step(path: Path, table: str) -> Path:
    """Returns the file of another table for the step of a file of `experience`."""
    home = next(place for place in path.parents if place.name == "experience")
    return step_file(home.parent, table, step_of(path))
