"""The steps that a stage takes from another one, a donor, instead of making them: a run that is made longer.

Two stages make the same first k steps if their trunks (plan/identity.py) are equal and their learning rates are, up to
k (settings/rates.py). `find` chooses the donor and the step, for the dry run too; `take` links the rows, weights and
checkpoints up to it into the stage's directory, the checkpoints last. The stage is then one that was interrupted, and
goes on by `recovery.rewind`: there is no second way. A row keeps the name of the stage that made it.

Donors are listed by the settings of their trunk, store/.trunks/HASH/STAGE, when they are planned. Another root, another
repetition and stages that were planned by older releases give nothing.
"""

import contextlib
import logging
import math
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.holders import is_locked
from ouroboros.pipeline.job.schedule import Schedule, rft_schedule
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.job.threads import RECORD
from ouroboros.pipeline.settings.rates import equal_steps, is_kept
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.train_batch import given_batch
from ouroboros.pipeline.settings.trainer import is_driven
from ouroboros.pipeline.store import checkpoints, files, hashes, records, recovery, routings, tables, versions
from ouroboros.pipeline.store.errors import OuroError

INDEX, TAKING = ".trunks", ".taking.tmp"
WATCHED = "watched.json"  # what each launch of a stage evaluated; a plan rewrites stage.json
PARTS = ("format", "code", "external", "inputs")  # of a trunk; its settings are equal where it is listed
TRIES = 5  # a donor that runs deletes what it needs no more


@dataclass(frozen=True)
class Donor:
    """A stage and what is taken of it: trainer steps up to `step`, explorer steps up to `explored`.

    evaluated: the last weights version whose scores are taken; -1: none. damaged: (table, step) of files that are not.
    total: trainer steps of the stage that takes.
    """

    stage: Path
    step: int
    explored: float
    evaluated: int
    damaged: Collection[tuple[str, int]]
    total: int

    def last(self, table: str) -> float:
        """Returns the last step of a table that is taken."""
        if table in recovery.OF_TRAINER:
            return self.step
        return self.evaluated if table in recovery.EVALUATED else self.explored


def enter(stage: Path, trunk: Mapping[str, Any]) -> None:
    """Lists a stage by its trunk, if it has one."""
    if trunk and not (place := stage.parent / INDEX / trunk["settings"] / stage.name).exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()


def find(stage: Path, spec: Mapping[str, Any], config: Any, verify: str) -> tuple[Donor | None, str]:
    """Returns the donor with the largest usable step for a stage without a checkpoint, or None and what stands in the
    way: parts that changed.

    spec: its trunk and inputs, as in its stage.json. config: its settings. verify: how files of donors are compared, as
    in `hashes`.
    """
    donors = _listed(stage, spec["trunk"]["settings"]) if spec.get("trunk") else []
    if not donors or files.is_complete(stage) or checkpoints.complete_checkpoints(stage):
        return None, ""
    found, unlike = [], ""
    for place in donors:
        try:
            theirs = files.read_json(place / "stage.json")
            total, able = _shared(place, theirs, spec, config)
            changed = [part for part in PARTS if theirs["trunk"][part] != spec["trunk"][part]] if able else []
            if able and not changed:
                found += filter(None, [_usable(place, theirs, spec, config, verify, total, able)])
            elif changed and "model" not in (names := [*_names(changed, spec["trunk"], theirs["trunk"])]):
                unlike = f"nothing is taken from {place.name}: changed since is {', '.join(names)}"
        except OuroError as error:
            unlike = f"nothing is taken from {place.name}: {error}"
    return max(found, key=lambda one: one.step, default=None), unlike


def _listed(stage: Path, settings: str) -> list[Path]:
    """Returns the stages with checkpoints that have the same name and settings but for their ends.

    The same name: rows are addressed by it.
    """
    entries = (stage.parent / INDEX / settings).glob(f"{stage.name.rpartition('-')[0]}-*")
    places = sorted(stage.parent / entry.name for entry in entries if entry.name != stage.name)
    return [place for place in places if checkpoints.complete_checkpoints(place) and (place / "stage.json").exists()]


def _names(changed: Collection[str], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the parts in which trunks differ; of inputs and files, each one's own."""
    for part in changed:
        if isinstance(ours[part], dict):
            yield from (key for key in sorted(ours[part].keys() | theirs[part].keys())
                        if ours[part].get(key) != theirs[part].get(key))
        else:
            yield part


def _shared(place: Path, theirs: Mapping[str, Any], spec: Mapping[str, Any], config: Any) -> tuple[int, list[int]]:
    """Returns the trainer steps of a stage, and the checkpoints of a donor up to which learning rates are equal."""
    total, made = _total(spec, config, place), _written_total(place, theirs)
    if total is None or made is None:
        return 0, []
    limit = min(total, equal_steps(spec["trunk"]["rates"], total, theirs["trunk"]["rates"], made))
    running = is_locked(place / ".lock")
    return total, [step for step in checkpoints.complete_checkpoints(place) if step <= limit
                   and not (running and checkpoints.is_marked(place, step, "unscheduled"))]


def _usable(place: Path, theirs: Mapping[str, Any], spec: Mapping[str, Any], config: Any, verify: str, total: int,
            able: list[int]) -> Donor | None:
    """Returns what a stage of an equal trunk gives, up to one of the checkpoints `able`; None for nothing."""
    damaged = {*recovery.damaged_rows(place, verify), *recovery.lost(place)}
    whole = _before(damaged, recovery.OF_TRAINER)
    rows = _rollouts(place, config, total, damaged) if config.kind.is_online else []
    for step in [step for step in reversed(able) if step <= whole]:
        explored = [row for row in rows if max(row.weights_version, row.newest_version or 0) <= step]
        if _goes_on(place, config, total, len(explored), step) and _fits(place, step, config, verify):
            scores = explored[-1].weights_version if explored and _watched(place) == [spec["trunk"]["watched"]] else -1
            return Donor(place, step, len(explored) if config.kind.is_online else math.inf, scores, damaged, total)
    return None


def _watched(stage: Path) -> list[str]:
    """Returns what the launches of a stage evaluated, as in its trunk; nothing where that is not known."""
    return files.read_json(stage / WATCHED)["watched"] if (stage / WATCHED).exists() else []


def _rollouts(place: Path, config: Any, total: int, damaged: Collection[tuple[str, int]]) -> list[records.Rollout]:
    """Returns the records of the explorer steps that the stage makes too, up to the first that is damaged."""
    last = min(_before(damaged, recovery.OF_EXPLORER), _schedule(config, total).explorer_steps)
    there = [step for step in tables.steps_present(place, "rollouts") if step <= last]
    return [*tables.read_steps(place, "rollouts", there)]


def _schedule(config: Any, total: int) -> Schedule:
    return replace(rft_schedule(config, 1), total_steps=total)


def _before(damaged: Collection[tuple[str, int]], of: Collection[str]) -> float:
    """Returns the last step before the first damaged file of these tables."""
    return min((step - 1 for table, step in damaged if table in of), default=math.inf)


def _goes_on(place: Path, config: Any, total: int, explored: int, step: int) -> bool:
    """Returns whether the first `explored` explorer steps have the rows of trainer steps up to `step`, and the weights
    of earlier trainer steps are there with which the next explorer steps begin."""
    if not config.kind.is_online:
        return True
    schedule = _schedule(config, total)
    begin = map(schedule.weights_version, range(explored + 1, schedule.explorer_steps + 1))
    needed = set() if is_driven(config) else {*takewhile(lambda version: version < step, begin)}
    homes = [versions.version_directory(place, version) for version in needed]
    return schedule.last_explorer_step(step) <= explored and all(
        files.is_complete(home) and not versions.damage(home) for home in homes)


def _fits(place: Path, step: int, config: Any, verify: str) -> bool:
    """Returns whether a checkpoint is whole, and one that a trainer with these settings can load."""
    if checkpoints.difference(place, step, verify):
        return False
    manifest, home = checkpoints.read_manifest(place, step), checkpoints.checkpoint_directory(place, step)
    ranks = len(list((home / "state").glob("*zero_pp_rank_*_optim_states.pt")))
    return (manifest["zero_stage"], ranks) == (config.trainer.zero_stage, config.trainer.ranks) and (
        config.trainer.packing in ("auto", manifest.get("packing")))


def _total(spec: Mapping[str, Any], config: Any, place: Path) -> int | None:
    """Returns the trainer steps of a stage, by the rows of a donor with the same data where it counts passes."""
    if config.buffer.total_steps:
        return config.buffer.total_steps
    if config.kind.is_online:
        sets = read_train(Path(spec["inputs"]["tasks"]), config.buffer.explorer_input)
        return rft_schedule(config, sum(len(tasks) for _, tasks in sets)).total_steps
    count = files.read_json(place / "total.json").get("count") if (place / "total.json").exists() else None
    return count and max(config.buffer.total_epochs * count // given_batch(config.buffer)[1], 1)


def _written_total(place: Path, theirs: Mapping[str, Any]) -> int | None:
    known = at(theirs, "config.buffer.total_steps")
    return known or (files.read_json(place / "total.json")["total_steps"] if (place / "total.json").exists() else None)


def take(stage: Path, spec: Mapping[str, Any], config: Any, log: logging.Logger) -> None:
    """Gives a stage that has no checkpoint the steps of the best donor, if there is one. The stage's lock is held."""
    if spec.get("trunk"):
        files.write_json(stage / WATCHED, {"watched": sorted({*_watched(stage), spec["trunk"]["watched"]})})
    for _ in range(TRIES):
        donor, unlike = find(stage, spec, config, config.verify)
        if donor is None:
            if unlike:
                log.info("%s", unlike)
            return
        with contextlib.suppress(FileNotFoundError), files.explained(stage), _held(donor.stage / ".lock"):
            copied = _take(stage, donor, config)
            left = donor.evaluated < 0 and tables.steps_present(donor.stage, "scores")
            log.info("continues %s@%d, %d steps%s%s", donor.stage.name, donor.step, donor.total - donor.step,
                     "; copied, because the file system has no hard links" if copied else "",
                     "; without its evaluations, which are not known to be of the same data" if left else "")
            return
    log.warning("warning: nothing is taken from %s: its files were deleted meanwhile", donor.stage.name)


@contextlib.contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Keeps others from changing or deleting a stage within the block; one that runs holds its lock itself."""
    with open(lock, "a", encoding="utf-8") as file:
        files.take_lock(file, shared=True)
        yield


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
        if not all(map(files.is_complete, last)) or checkpoints.difference(temporary, donor.step, "size"):
            raise FileNotFoundError  # its rows may be of another history
        row, theirs = (tables.step_file(home, "steps", donor.step) for home in (temporary, donor.stage))
        copied = not row.samefile(theirs)
        if (donor.stage / RECORD).exists():
            files.link(donor.stage / RECORD, temporary / RECORD)
        checkpoints.begin_anew(stage)
        for made in sorted(temporary.iterdir(), key=lambda one: one.name == "checkpoints"):
            os.replace(made, stage / made.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return copied


def _take_table(temporary: Path, table: str, donor: Donor) -> None:
    """Links the files of a table, and lists their hashes."""
    entries = {}
    for step in tables.steps_present(donor.stage, table):
        if step <= donor.last(table) and (table, step) not in donor.damaged:
            source, target = (tables.step_file(home, table, step) for home in (donor.stage, temporary))
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
