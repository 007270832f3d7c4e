"""Takes over experience that `ouro serve --record` wrote, for training without an explorer (mode=train).

Reads the directory `buffer.trainer_input.experience_buffer.path`; its tables become those of this stage by hard links,
or copies where it is on another disk. What is recorded later is not part of the stage.
"""

import os
import shutil
from pathlib import Path

from pipeline.job.context import Context, run_stage
from pipeline.settings.data import SHOWN
from pipeline.store import hashes, records, tables
from pipeline.store.digests import resolve
from pipeline.store.errors import DataError

TABLES = ("calls", "feedback", "experience", "rollouts")  # the last one marks complete steps


def work(context: Context) -> None:
    source = resolve(context.config.buffer.trainer_input.experience_buffer.path)
    steps = tables.steps_present(source, "rollouts")
    if not steps:
        raise DataError(f"{SHOWN}.path={source} has no recorded step (rollouts/step=*.parquet); needed a directory "
                        "that `ouro serve --record` wrote.")
    for name in TABLES:
        for step in steps:
            _take(tables.step_file(source, name, step), tables.step_file(context.directory, name, step), name)
    context.made |= {"explorer_steps": len(steps), "experiences": sum(
        len(tables.read(tables.step_file(source, "experience", step), records.Experience)) for step in steps)}


def _take(source: Path, target: Path, name: str) -> None:
    tables.read(source, records.TABLES[name])  # raises DataError for a damaged file
    target.parent.mkdir(parents=True, exist_ok=True)
    hashes.write(target, lambda temporary: _link_or_copy(source, temporary))


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


if __name__ == "__main__":
    run_stage(work, __doc__)
