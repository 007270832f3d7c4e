"""What an interrupted stage keeps: its newest intact checkpoint, and the rows that belong before it.

Files are compared with their hashes first (pipeline/store/hashes.py); rows that a resumed stage reads no more, from
before its oldest checkpoint, only with their sizes, because they may be terabytes (with their hashes when it ends). A
damaged checkpoint is set aside, and the next older one is used. A damaged row file is made again, so the stage ends as
if undisturbed: optimizer step t from a checkpoint of an earlier step; explorer step s with the weights version that it
used, from weights/, or else from a checkpoint of at most that step, since the trainer then publishes that version
again. Where no such checkpoint is left and no later step reads the file, it is lost: the stage goes on and lists it.
"""

from collections.abc import Callable
from pathlib import Path

from ouroboros.pipeline.store import checkpoints, files, hashes, tables
from ouroboros.pipeline.store import versions as weights
from ouroboros.pipeline.store.errors import StageError
from ouroboros.pipeline.store.locations import step_of

OF_TRAINER = ("steps", "trained")
OF_EXPLORER = ("rollouts", "experience", "curated", "selection", "calls", "tool_calls", "shown")
SCORED = ("reference", "teacher")  # computed again where a file is absent
EVALUATED = ("scores", "samples", "sample_shown")
COUNTED = {"steps": "trained", "rollouts": "experience"}  # numbered from 1 without a gap; what each has a file of

UNKNOWN = 2**31  # larger than any step
PART = 256  # steps that are read at once

Damage = dict[tuple[str, int], str]  # (table, step) -> the file and how it differs


def rewind(stage: Path, warn: Callable[[str], None], verify: str = "hash",
           first_read: Callable[[int], int] = lambda step: 1,
           version_of: Callable[[int], int | None] = lambda explored: None) -> int:
    """Resets an interrupted stage to its last usable checkpoint; returns that step, 0 when there is none.

    Deletes rows and weights of later, lost optimizer steps, so that the files have a single history; rollouts by
    weights up to the checkpoint are kept and not generated again. first_read: trainer step -> the first explorer step
    that optimizer steps after it read. version_of: explorer step -> the weights version that it begins with; None where
    that is not fixed, or there is no such step. What only a start from step 1 could make again is lost, with a warning,
    and listed in lost.json; where a later step reads it, StageError is raised.
    """
    for kept in (0, *checkpoints.complete_checkpoints(stage)):  # as little as possible
        begins = dict.fromkeys(OF_TRAINER, kept + 1) if kept else {}
        if kept and (stage / "experience").exists():
            begins |= dict.fromkeys(OF_EXPLORER, first_read(kept))
        damage = damaged_rows(stage, verify) if kept else {}
        try:
            return _rewind(stage, warn, verify, first_read, version_of,
                           {key: damage[key] for key in damage if key[1] < begins.get(key[0], 0)})
        except StageError as error:
            refusal = error
    raise refusal


def _rewind(stage: Path, warn: Callable[[str], None], verify: str, first_read: Callable[[int], int],
            version_of: Callable[[int], int | None], old: Damage) -> int:
    """old: what is lost where that lets the stage go on."""
    oldest = min(checkpoints.complete_checkpoints(stage), default=0)
    begins = {"trained": oldest + 1} if oldest else {}
    if oldest and (stage / "experience").exists():
        begins |= dict.fromkeys((*OF_EXPLORER[1:], *SCORED), first_read(oldest))
    given_up = {*lost(stage), *old}
    damage = {key: words for key, words in damaged_rows(stage, verify, begins).items() if key not in given_up}
    first = min((step for table, step in damage if table in OF_EXPLORER), default=UNKNOWN)
    versions = _versions(stage, damage, given_up, oldest, first)
    least = max((version for version in versions.values() if version != UNKNOWN), default=0)  # of the next step
    damage |= _damaged_weights(stage, min(least, *(
        version for explored, version in versions.items() if explored >= first), UNKNOWN))
    following = max(tables.steps_present(stage, "rollouts"), default=0) + 1
    damage |= _missing_weights(stage, version_of(min(first, following)))
    step = _choose(stage, _bounds(stage, damage, versions, first), verify, warn)
    _lose(stage, old, warn)
    if step < oldest:  # no checkpoint was intact
        versions = _versions(stage, damage, given_up, step, first)
    _report(damage, f"made again from {f'the checkpoint of step {step}' if step else 'the start'}", warn)
    for later in [one for one in checkpoints.complete_checkpoints(stage) if one > step]:
        files.remove_tree(checkpoints.checkpoint_directory(stage, later))
    damaged = {table for table, _ in damage}  # which goes last: an interruption must leave it to be seen
    # the step of EVALUATED is a weights version
    for table in (*OF_TRAINER, *sorted(EVALUATED, key=damaged.__contains__)):
        for one in sorted(_steps(stage, table), reverse=True):  # an interruption must leave no gap
            if one > step or (table in EVALUATED and {(name, one) for name in EVALUATED} & damage.keys()):
                hashes.remove(tables.step_file(stage, table, one))
    newest = _newest(stage, damage, versions)
    for explored, version in sorted(versions.items(), reverse=True):
        if max(version, newest.get(explored, 0)) > step or explored >= first:
            _remove_explored(stage, explored)
    for table, explored in damage:
        if table in SCORED:
            hashes.remove(tables.step_file(stage, table, explored))
    for directory in (stage / "weights").glob("version=*"):
        # without a checkpoint the trainer publishes version 0 again: the explorer must not load it meanwhile
        version = int(directory.name.removeprefix("version="))
        if version > step or not step or ("weights", version) in damage:
            files.remove_tree(directory)
    return step


def rewind_explorer(stage: Path, warn: Callable[[str], None], verify: str = "hash") -> int:
    """Resets a stage that only explores to its last step before a damaged one; returns that step."""
    damage = {key: words for key, words in damaged_rows(stage, verify).items() if key[0] in OF_EXPLORER}
    complete = tables.steps_present(stage, "rollouts")
    last = min((step - 1 for _, step in damage), default=max(complete, default=0))
    _report(damage, f"made again; explorer steps up to {last} are kept", warn)
    for explored in sorted({step for table in OF_EXPLORER for step in _steps(stage, table)}, reverse=True):
        if explored > last:
            _remove_explored(stage, explored)
    return last


def lose_damaged(stage: Path, verify: str, warn: Callable[[str], None]) -> None:
    """Compares all rows of a stage that has its last checkpoint; nothing makes damaged ones again."""
    rows = {key: words for key, words in damaged_rows(stage, verify).items() if key[0] in (*OF_TRAINER, *OF_EXPLORER)}
    _lose(stage, rows, warn)


def lost(stage: Path) -> list[tuple[str, int]]:
    """Returns table and step of each file that is lost."""
    listed = files.read_json(stage / checkpoints.LOST) if (stage / checkpoints.LOST).exists() else {}
    return [(table, step) for table, steps in listed.items() for step in steps
            if not tables.step_file(stage, table, step).exists()]


def named(stage: Path, one: tuple[str, int]) -> str:
    """Returns the name of a table's file in its stage."""
    return str(tables.step_file(stage, *one).relative_to(stage))


def _lose(stage: Path, damage: Damage, warn: Callable[[str], None]) -> None:
    """Lists files as lost; those that are there get a name that no reader takes."""
    if not damage:
        return
    known: dict[str, list[int]] = {}
    for table, step in sorted({*lost(stage), *damage}):
        known.setdefault(table, []).append(step)
        path = tables.step_file(stage, table, step)
        _forget(stage, table, step)
        if path.exists():
            path.rename(path.with_name(f"_{path.name}.damaged"))
    files.write_json(stage / checkpoints.LOST, known)
    words = [*damage.values()]
    more = f" (and {len(words) - 1} more files)" if len(words) > 1 else ""
    warn(f"{words[0]}{more}: no checkpoint before it is left to make it again, and no later step reads it. The stage "
         f"goes on without it, and {stage / checkpoints.LOST} lists it.")


def _remove_explored(stage: Path, step: int) -> None:
    """Deletes an explorer step, and what fixed models scored of it."""
    for table in (*OF_EXPLORER, *SCORED):
        _forget(stage, table, step)
        tables.step_file(stage, table, step).unlink(missing_ok=True)


def _forget(stage: Path, table: str, step: int) -> None:
    """Removes the file of a step from the list of its table, by each name that a release gave it."""
    for name in [name for name in hashes.recorded(stage / table) if step_of(Path(name)) == step]:
        hashes.forget(stage / table / name)


def _report(damage: Damage, repair: str, warn: Callable[[str], None]) -> None:
    """Warns about damage, one line for each group of tables that is repaired in the same way."""
    for group, what in (((*OF_EXPLORER, *OF_TRAINER, "weights"), repair), (SCORED, "computed again"),
                        (EVALUATED, "this evaluation is lost; the training does not depend on it")):
        found = [words for (table, _), words in sorted(damage.items(), key=lambda one: one[0][1]) if table in group]
        if found:
            more = f" (and {len(found) - 1} more files)" if len(found) > 1 else ""
            warn(f"{found[0]}{more}: {what}")


def _steps(stage: Path, table: str) -> set[int]:
    """Returns the steps of a table that are there, or were written."""
    return {*tables.steps_present(stage, table), *map(step_of, map(Path, hashes.recorded(stage / table)))}


def damaged_rows(stage: Path, verify: str, begins: dict[str, int] | None = None) -> Damage:
    """Finds files of tables that differ from what was written, and gaps in numbered tables; without lost ones. Of a
    file whose list is gone too, the other table of its step, or a later checkpoint, tells that it was written.

    begins: table -> the first step whose file is compared by hash, those before only by size; by default all.
    """
    found: Damage = {}
    for table in tables.PER_STEP:
        home, begin = stage / table, (begins or {}).get(table, 0)
        later: dict[bool, dict[str, hashes.Entry]] = {False: {}, True: {}}
        for name, entry in hashes.recorded(home).items():
            later[step_of(Path(name)) >= begin][name] = entry
        differing = hashes.differences(home, later[True], verify) | hashes.differences(home, later[False], "size")
        for name, words in differing.items():
            found[table, step_of(Path(name))] = f"{home / name} is damaged: {words}"
    for table, other in COUNTED.items():
        present = {*tables.steps_present(stage, table)}
        reached = max(checkpoints.complete_checkpoints(stage), default=0) if table == "steps" else 0
        made = {(table, step) for step in range(1, max({*present, reached}, default=0) + 1)}
        made |= {(other, step) for step in present if table == "rollouts" or (stage / other).is_dir()}
        for one in made:
            if not (path := tables.step_file(stage, *one)).exists():
                found.setdefault(one, f"{path} is missing")
    given_up = {*lost(stage)}
    return {key: words for key, words in found.items() if key not in given_up}


def _damaged_weights(stage: Path, from_version: int) -> Damage:
    """Finds published weights that cannot be loaded, among those that later explorer steps may need."""
    places = {version: weights.version_directory(stage, version) for version in weights.numbers(stage)}
    found = {version: weights.damage(place) for version, place in places.items() if version >= from_version}
    return {("weights", version): words for version, words in found.items() if words}


def _missing_weights(stage: Path, version: int | None) -> Damage:
    """Finds the weights that the next explorer step begins with, where optimizer steps after them are complete and they
    are gone: nothing would publish them again."""
    if version is None or files.is_complete(place := weights.version_directory(stage, version)):
        return {}
    passed = tables.step_file(stage, "steps", version + 1).exists()
    return {("weights", version): f"{place} is missing"} if passed else {}


def _versions(stage: Path, damage: Damage, given_up: set[tuple[str, int]], since: int, first: int) -> dict[int, int]:
    """Maps explorer steps to the weights version that they used; where unreadable, to that of the step before.

    Without those before step `first` whose version is at most `since`: nothing depends on them.
    """
    complete = {step for step in tables.steps_present(stage, "rollouts") if ("rollouts", step) not in given_up}
    damaged = {step for table, step in damage if table == "rollouts"}
    intact, read = sorted(complete - damaged), {}
    while intact and not (read and min(read) < first and read[min(read)] <= since):  # versions never fall
        intact, part = intact[:-PART], intact[-PART:]
        rows = tables.read_steps(stage, "rollouts", part)
        read |= {step: row.weights_version for step, row in zip(part, rows, strict=True)}
    found, last = {}, 0
    for step in sorted({*damaged, *(one for table in OF_EXPLORER for one in _steps(stage, table))}):
        if (intact and step < min(read)) or ("rollouts", step) in given_up:
            continue
        if step in read:
            last = read[step]
        found[step] = last if step in complete | damaged else UNKNOWN  # interrupted while it was written
    return found


def _newest(stage: Path, damage: Damage, versions: dict[int, int]) -> dict[int, int]:
    """Maps complete explorer steps to the version they ended with, where answers went on under newer weights."""
    steps = [step for step in sorted(versions) if ("rollouts", step) not in damage
             and tables.step_file(stage, "rollouts", step).exists()]
    rows = tables.read_steps(stage, "rollouts", steps)
    return {step: row.newest_version for step, row in zip(steps, rows, strict=True) if row.newest_version is not None}


def _bounds(stage: Path, damage: Damage, versions: dict[int, int], first: int) -> dict[int, str]:
    """Maps the steps of the newest checkpoints that damaged rows can be made again from to the damage.

    first: explorer step from which rollouts are made again: of the weights that they need, those in weights/ are there.
    """
    found = {step - 1: words for (table, step), words in damage.items() if table in OF_TRAINER}
    found |= {version: words for (table, version), words in damage.items() if table == "weights"}
    there = set(weights.numbers(stage))
    for explored, version in versions.items():
        if explored >= first and version not in {*there, UNKNOWN}:
            found[version] = next(damage[table, first] for table in OF_EXPLORER if (table, first) in damage)
    return found


def _choose(stage: Path, bounds: dict[int, str], verify: str, warn: Callable[[str], None]) -> int:
    """Returns the step of the newest intact checkpoint that is within all bounds; 0 without a checkpoint."""
    kept = checkpoints.complete_checkpoints(stage)
    newest = _newest_intact(stage, kept, verify, warn)
    if newest is None or (bound := min(bounds, default=newest)) >= newest:
        return newest or 0
    able = [step for step in kept if step <= bound and not checkpoints.difference(stage, step, verify)]
    if not able:
        raise StageError(f"{bounds[bound]}. Its rows can only be made again from step 1: needed a checkpoint of step "
                         f"{bound} or before, found {', '.join(map(str, kept))}. Put a copy of the file back and run "
                         f"the same command again, or delete {stage} first: the stage then restarts at step 1.")
    return able[-1]


def _newest_intact(stage: Path, kept: list[int], verify: str, warn: Callable[[str], None]) -> int | None:
    """Returns the newest intact one of the checkpoints `kept`; sets damaged newer ones aside and drops them."""
    while kept and (words := checkpoints.difference(stage, kept[-1], verify)):
        checkpoints.set_aside(stage, kept.pop())
        warn(f"{words}: set aside; " + (f"the stage resumes from the checkpoint of step {kept[-1]} instead" if kept
                                        else "no older checkpoint is left, so it restarts at step 1"))
    return kept[-1] if kept else None
