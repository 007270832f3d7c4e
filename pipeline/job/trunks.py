"""The steps that a stage takes from another one, a donor, instead of making them: a run that is made longer.

Two stages make the same first k steps if their trunks (plan/identity.py), changes and learning rates, up to k, are
equal (settings/rates.py). `find` chooses donor and step, for the dry run too; pipeline/job/taking.py takes them.

Donors are listed by the settings of their trunk, store/.trunks/HASH/STAGE, when they are planned. Another root, another
repetition and stages that were planned by older releases give nothing.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from ouroboros.pipeline.job.holders import is_locked
from ouroboros.pipeline.job.schedule import Schedule, first_explored, rft_schedule
from ouroboros.pipeline.job.tasksets import read_train
from ouroboros.pipeline.settings.rates import equal_steps
from ouroboros.pipeline.settings.reward_rules import unrepeatable
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.train_batch import given_batch
from ouroboros.pipeline.settings.trainer import is_driven
from ouroboros.pipeline.store import checkpoints, files, records, recovery, routings, tables, versions
from ouroboros.pipeline.store.errors import OuroError

INDEX = ".trunks"
WATCHED = "watched.json"  # what each launch of a stage evaluated; a plan rewrites stage.json
PARTS = ("format", "code", "external", "inputs")  # of a trunk; its settings are equal where it is listed
TRIES = 5  # a donor that runs deletes what it needs no more


@dataclass(frozen=True)
class Donor:
    """A stage and what is taken of it: trainer steps up to `step`, explorer steps up to `explored`.

    evaluated: the last weights version whose scores are taken; -1: none. damaged: (table, step) of files that are not.
    total: trainer steps of the stage that takes. rewarded: of one with other rewards, where explorer steps and
    evaluations with new ones are (pipeline/job/rewarding.py). first: the first row with another reward, in words.
    """

    stage: Path
    step: int
    explored: float
    evaluated: int
    damaged: Collection[tuple[str, int]]
    total: int
    rewarded: Path | None = None
    first: str = ""

    def file(self, table: str, step: int) -> Path:
        """Returns the file of a step of a table that is taken."""
        again = self.rewarded and tables.step_file(self.rewarded, table, step)
        return again if again and again.exists() else tables.step_file(self.stage, table, step)

    def last(self, table: str) -> float:
        """Returns the last step of a table that is taken."""
        if table in recovery.OF_TRAINER:
            return self.step
        return self.evaluated if table in recovery.EVALUATED else self.explored


def enter(stage: Path, trunk: Mapping[str, Any]) -> None:
    """Lists a stage by its trunk, if it has one."""
    for key in ("settings", "unrewarded"):
        if key in trunk and not (place := stage.parent / INDEX / trunk[key] / stage.name).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()


def find(stage: Path, spec: Mapping[str, Any], config: Any, verify: str) -> tuple[Donor | None, str]:
    """Returns the donor with the largest usable step for a stage without a checkpoint, or None and why none
    can be taken.

    spec: its trunk and inputs, as in its stage.json. config: its settings. verify: how files of donors are compared, as
    in `hashes`.
    """
    donors = listed(stage, spec["trunk"]["settings"]) if spec.get("trunk") else []
    if not donors or begun(stage):
        return None, ""
    best, unlike = None, ""
    for reached, place in donors:  # a donor is read, and hashed, if it may have more than the best so far
        offered = _offered(place, spec, config, verify) if best is None or reached > best.step else ""
        if isinstance(offered, Donor):
            best = max(best or offered, offered, key=lambda one: one.step)
        elif offered:
            unlike = f"nothing is taken from {place.name}: {offered}"
    return best, unlike


def begun(stage: str | Path) -> bool:
    """Returns whether a stage goes on from a checkpoint, or is complete."""
    return bool(files.is_complete(stage) or checkpoints.complete_checkpoints(Path(stage)))


def continued(stage: Any) -> str:
    """Returns whose steps a planned stage takes, and which it makes again before its settings change; or why it takes
    none. Files are compared by their sizes; the stage compares them by hash when it takes them."""
    if not stage.trunk or not Path(stage.root, "store", INDEX).is_dir():
        return ""
    donor, unlike = find(Path(stage.directory), vars(stage), stage.config, "size")
    if donor is None:
        again = listed(Path(stage.directory), stage.trunk.get("unrewarded", "-")) if not begun(stage.directory) else []
        return f"rewards the responses of {again[0][1].name} again, and takes the steps before the first other reward" \
            if again and not unrepeatable(stage.config) else unlike
    last = max(map(int, stage.trunk.get("changes", {})), default=0)
    again = (f"; steps {donor.step + 1} to {last} of it are made again: trainer.keep_every keeps more checkpoints, "
             "synchronizer.keep=all the weights of all steps") if donor.step < last else ""
    return f"continues {donor.stage.name}@{donor.step}, {donor.total - donor.step} steps{again}"


def _offered(place: Path, spec: Mapping[str, Any], config: Any, verify: str) -> Donor | str:
    """Returns what a stage gives, or why it gives nothing; empty where it is not meant to be made longer."""
    try:
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):
                return _offer(place, spec, config, verify)
    except OuroError as error:
        return str(error)
    return "its files were deleted meanwhile"


def _offer(place: Path, spec: Mapping[str, Any], config: Any, verify: str) -> Donor | str:
    theirs = files.read_json(place / "stage.json")
    ours, made = spec["trunk"], theirs["trunk"]
    total, before = total_of(spec, config, place), _written_total(place, theirs)
    if not total or not before:
        return ""
    limit = min(total, _agreed(ours, total, made, before))
    able = [step for step in given(place) if step <= limit]
    if changed := [part for part in PARTS if made[part] != ours[part]]:
        names = [*_names(changed, ours, made)]
        same = made.get("source") == ours["source"] and not {*names} & ours["inputs"].keys() - {"tasks"}
        return f"changed since is {', '.join(names)}" if able and same else ""
    if able:
        later = [int(step) for one in (ours, made) for step, new in one.get("changes", {}).items() if new["explores"]]
        ends = min((step for step in later if step >= limit), default=total)  # rows explored ahead are others after it
        return usable(place, spec, config, verify, total, able, min(ends, total))
    equal = "" if limit == total else ("; after it settings are others (changes), or learning rates "
                                       "(lr_scheduler_type, lr_warmup_*)")
    none = f"it has no checkpoint up to step {limit}{' (trainer.keep_every keeps more)' if limit else ''}{equal}"
    return none if limit or made["rates"] == ours["rates"] else ""


def given(place: Path) -> list[int]:
    """Returns the steps whose checkpoints a stage gives: one that runs deletes those that are not scheduled."""
    running = is_locked(place / ".lock")
    return [step for step in checkpoints.complete_checkpoints(place)
            if not (running and checkpoints.is_marked(place, step, "unscheduled"))]


def _agreed(ours: Mapping[str, Any], total: int, theirs: Mapping[str, Any], others_total: int) -> float:
    """Returns the number of first steps that two trunks have in common: up to a change that one has alone, or to
    another learning rate."""
    begins = sorted({0, *(int(step) for trunk in (ours, theirs) for step in trunk.get("changes", {}))})
    for begin, end in pairwise([*begins, math.inf]):
        one, other = (_after(trunk, begin) for trunk in (ours, theirs))
        if begin and any(one[part] != other[part] for part in ("settings", "code", "external")):
            return begin
        if (equal := equal_steps(one["rates"], total, other["rates"], others_total)) < end:
            return max(equal, begin)
    return math.inf


def _after(trunk: Mapping[str, Any], step: int) -> Mapping[str, Any]:
    """Returns what a trunk has after a trainer step, by the last change up to it."""
    return max(((int(begin), one) for begin, one in trunk.get("changes", {}).items() if int(begin) <= step),
               default=(0, trunk), key=lambda found: found[0])[1]


def listed(stage: Path, settings: str) -> list[tuple[int, Path]]:
    """Returns the stages that have the same name and settings but for their ends, and the step of a checkpoint of
    each, the newest, by which they are ordered, the largest first, and of equal ones the last that was planned. The
    same name: rows are addressed by it."""
    entries = (stage.parent / INDEX / settings).glob(f"{stage.name.rpartition('-')[0]}-*")
    places = sorted(stage.parent / entry.name for entry in entries if entry.name != stage.name)
    found = [(steps[-1], place) for place in places
             if (place / "stage.json").exists() and (steps := checkpoints.complete_checkpoints(place))]
    return sorted(found, key=lambda one: (-one[0], -(one[1] / "stage.json").stat().st_mtime))


def _names(changed: Collection[str], ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of the parts in which trunks differ; of inputs and files, each one's own."""
    for part in changed:
        if isinstance(ours[part], dict):
            yield from (key for key in sorted(ours[part].keys() | theirs[part].keys())
                        if ours[part].get(key) != theirs[part].get(key))
        else:
            yield part


def usable(place: Path, spec: Mapping[str, Any], config: Any, verify: str, total: int, able: list[int],
            ends: int) -> Donor | str:
    """Returns what a stage of an equal trunk gives, up to one of the checkpoints `able`, or what the newest lacks.
    ends: the last trainer step with equal rows."""
    damaged = {*recovery.damaged_rows(place, verify), *recovery.lost(place)}
    rows, lacking = _rollouts(place, config, ends, damaged) if config.kind.is_online else [], []
    for step in reversed(able):
        explored = [row for row in rows if max(row.weights_version, row.newest_version or 0) <= step]
        if words := (lacks(place, config, total, step, len(explored), damaged) or _unfit(place, step, config, verify)):
            lacking.append(words)
            continue
        scores = explored[-1].weights_version if explored and watched(place) == [spec["trunk"]["watched"]] else -1
        return Donor(place, step, len(explored) if config.kind.is_online else math.inf, scores, damaged, total)
    return lacking[0]


def watched(stage: Path) -> list[str]:
    """Returns what the launches of a stage evaluated, as in its trunk; nothing where that is not known."""
    return files.read_json(stage / WATCHED)["watched"] if (stage / WATCHED).exists() else []


def _rollouts(place: Path, config: Any, total: int, damaged: Collection[tuple[str, int]]) -> list[records.Rollout]:
    """Returns the records of the explorer steps that the stage makes too, up to the first that is damaged, or by older
    weights than the stage allows: the last rows of a donor are trained on sooner, if at all."""
    schedule = schedule_of(config, total)
    last = min([schedule.explorer_steps, *(step - 1 for table, step in damaged if table in recovery.OF_EXPLORER)])
    rows = tables.read_steps(place, "rollouts", [s for s in tables.steps_present(place, "rollouts") if s <= last])
    bound = config.synchronizer.max_staleness if is_driven(config) else None
    return [*takewhile(lambda row: bound is None or row.weights_version >= schedule.oldest(row.step, bound), rows)]


def schedule_of(config: Any, total: int) -> Schedule:
    return replace(rft_schedule(config, 1), total_steps=total)


def lacks(place: Path, config: Any, total: int, step: int, explored: int, damaged: Collection[tuple[str, int]]) -> str:
    """Returns which rows, weights or routings a stage lacks that goes on after trainer step `step`, if any. Of the
    donor at `place` the first `explored` explorer steps are taken."""
    schedule = schedule_of(config, total) if config.kind.is_online else None
    last = schedule.last_explorer_step(step) if schedule else 0
    ends = dict.fromkeys(recovery.OF_TRAINER, step) | dict.fromkeys(recovery.OF_EXPLORER, last)
    if found := [one for one in damaged if one[1] <= ends.get(one[0], 0)]:
        return f"{recovery.named(place, min(found, key=lambda one: one[1]))} is damaged or missing"
    if schedule is None:
        return ""
    if explored < last:
        return f"explorer step {explored + 1} is by other weights than the longer stage can take"
    begins = range(0 if is_driven(config) else schedule.explorer_steps, explored, -1)
    for version in {one for one in map(schedule.weights_version, begins) if one < step}:
        home = versions.version_directory(place, version)
        if not files.is_complete(home) or versions.damage(home):
            return f"{home} is damaged or missing"
    read = range(first_explored(config, step), explored + 1) if config.algorithm.enable_router_replay else ()
    gone = [home for one in read if not (home := routings.file_of(place, one)).exists()]
    return f"{gone[0]} is missing" if gone else ""


def _unfit(place: Path, step: int, config: Any, verify: str) -> str:
    """Returns how a checkpoint is damaged, or why no trainer with these settings can load it, if so."""
    if words := checkpoints.difference(place, step, verify):
        return words
    manifest, given = checkpoints.read_manifest(place, step), config.trainer
    parts = checkpoints.checkpoint_directory(place, step).glob("*/*zero_pp_rank_*_optim_states.pt")
    found = {"zero_stage": manifest["zero_stage"], "ranks": len([*parts]),
             "packing": given.packing if given.packing == "auto" else manifest.get("packing")}
    others = [f"trainer.{name}={value}" for name, value in found.items() if value != getattr(given, name)]
    return f"its checkpoint is of {', '.join(others)}" if others else ""


def total_of(spec: Mapping[str, Any], config: Any, place: Path) -> int | None:
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
