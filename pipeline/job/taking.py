"""Takes the steps of another stage (pipeline/job/trunks.py): links its rows, weights and checkpoints into a stage's
directory, the checkpoints last. The stage is then one that was interrupted, and goes on by `recovery.rewind`: there is
no second way. A row keeps the name of the stage that made it.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job import rewarding
from ouroboros.pipeline.job.threads import RECORD
from ouroboros.pipeline.job.trunks import TRIES, WATCHED, Donor, find, lacks, watched
from ouroboros.pipeline.settings.rates import is_kept
from ouroboros.pipeline.store import checkpoints, files, hashes, routings, tables, versions

TAKING = ".taking.tmp"
UNSURE = ("have the rewards of before", "are not known to be of the same data")


def take(stage: Path, spec: Mapping[str, Any], config: Any, log: logging.Logger) -> None:
    """Gives a stage that has no checkpoint the steps of the best donor, if there is one. The stage's lock is held."""
    if spec.get("trunk"):
        files.write_json(stage / WATCHED, {"watched": sorted({*watched(stage), spec["trunk"]["watched"]})})
    for _ in range(TRIES):
        donor, unlike = find(stage, spec, config, config.verify)
        donor = donor or rewarding.find(stage, spec, config, log)
        if donor is None:
            if unlike:
                log.info("%s", unlike)
            return
        with (contextlib.suppress(FileNotFoundError), files.explained(stage),
              open(donor.stage / ".lock", "a", encoding="utf-8") as lock):
            files.take_lock(lock, shared=True)  # nobody changes or deletes it; a donor at work holds its lock itself
            copied = _take(stage, donor, config)
            left = donor.evaluated < 0 and tables.steps_present(donor.stage, "scores")
            log.info("continues %s@%d, %d steps%s%s%s", donor.stage.name, donor.step, donor.total - donor.step,
                     "; copied, because the file system has no hard links" if copied else "",
                     f"; the first response with another reward: {donor.first}" if donor.first else "",
                     f"; without its evaluations, which {UNSURE[donor.rewarded is None]}" if left else "")
            return
    log.warning("warning: nothing is taken from %s: its files were deleted meanwhile", donor.stage.name)


def _take(stage: Path, donor: Donor, config: Any) -> bool:
    """Links what is taken; returns whether it had to be copied. Raises FileNotFoundError if the donor deleted some."""
    temporary = stage / TAKING
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for table in tables.PER_STEP:
            _take_table(temporary, table, donor)
        for step in tables.steps_present(donor.stage, "experience"):
            if step <= donor.explored and (source := routings.file_of(donor.stage, step)).exists():
                files.link(source, routings.file_of(temporary, step))
        for version in versions.numbers(donor.stage):
            if version <= donor.step:
                files.link_files(*(versions.version_directory(home, version) for home in (donor.stage, temporary)))
        for step in checkpoints.complete_checkpoints(donor.stage):
            if step <= donor.step:
                _take_checkpoint(temporary, step, donor, config)
        last = [checkpoints.checkpoint_directory(home, donor.step) for home in (temporary, donor.stage)]
        if not all(map(files.is_complete, last)) or checkpoints.difference(temporary, donor.step, "size") or lacks(
                temporary, config, donor.total, donor.step, donor.explored, ()):
            raise FileNotFoundError  # its rows may be of another history
        row, theirs = (tables.step_file(home, "steps", donor.step) for home in (temporary, donor.stage))
        copied = not row.samefile(theirs)
        if (donor.stage / RECORD).exists():
            files.link(donor.stage / RECORD, temporary / RECORD)
        checkpoints.begin_anew(stage)
        for made in sorted(temporary.iterdir(), key=lambda one: one.name == "checkpoints"):
            os.replace(made, stage / made.name)
    finally:
        for each in (temporary, stage / rewarding.TEMPORARY):
            shutil.rmtree(each, ignore_errors=True)
    return copied


def _take_table(temporary: Path, table: str, donor: Donor) -> None:
    """Links the files of a table, and lists their hashes."""
    entries = {}
    for step in tables.steps_present(donor.stage, table):
        if step <= donor.last(table) and (table, step) not in donor.damaged:
            source, target = donor.file(table, step), tables.step_file(temporary, table, step)
            files.link(source, target)
            if entry := hashes.entry_of(source):
                entries[target.name] = entry
    if entries:
        hashes.add(temporary / table, entries)


def _take_checkpoint(temporary: Path, step: int, donor: Donor, config: Any) -> None:
    """Links a checkpoint that a run from nothing would have too, or that the stage begins with. Its marks are those of
    the stage that takes it."""
    kept, due = is_kept(config, donor.total, step), step % config.trainer.save_interval == 0
    if (step < donor.step and not (kept or due)) or checkpoints.difference(donor.stage, step, "size"):
        return
    target = checkpoints.checkpoint_directory(temporary, step)
    files.link_files(checkpoints.checkpoint_directory(donor.stage, step), target)
    manifest = {key: value for key, value in checkpoints.read_manifest(donor.stage, step).items()
                if key not in ("kept", "unscheduled")}
    mark = "kept" if kept else None if due or step == donor.total else "unscheduled"
    files.write_json(target / files.MANIFEST, manifest | ({mark: True} if mark else {}))
