"""`ouro verify`: compares every file of a run with what was written, and the rows of its tables with one another."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.results.query import aligned
from ouroboros.pipeline.results.view import Node, Shown
from ouroboros.pipeline.store import checkpoints, consistency, files, hashes, recovery
from ouroboros.pipeline.store.errors import OuroError


@dataclass(frozen=True)
class Verdict:
    """What was found of a stage. problems: one line each."""

    stage: Node
    files: int
    bytes: int
    words: str
    problems: list[str]


def verify(shown: Shown) -> list[Verdict]:
    """Returns a verdict on each stage, in executable order: rows are not compared with those of a damaged input."""
    made, resting = list[Verdict](), _resting(shown.stages)
    for stage in shown.stages:
        damaged = {one.stage.directory.name for one in made if one.problems}
        made.append(_verdict(stage, damaged, resting.get(stage.directory.name, [])))
    return made


def _resting(stages: list[Node]) -> dict[str, list[str]]:
    """Maps directories' names to the names of the complete stages that read them, themselves or through others."""
    found: dict[str, list[str]] = {}
    for stage in reversed(stages):
        with suppress(OuroError, FileNotFoundError):  # its own verdict names it
            for place in files.inputs_of(stage.directory).values():
                found.setdefault(place.name, []).extend([
                    *found.get(stage.directory.name, []), *[stage.name] * files.is_complete(stage.directory)])
    return {name: sorted({*above}) for name, above in found.items()}


def report(verdicts: list[Verdict]) -> str:
    """Returns a line per stage, then its problems and what makes a damaged stage again."""
    rows = [(v.stage.name, v.files, f"{v.bytes / 1e6:,.1f} MB", v.words) for v in verdicts]
    lines = [aligned(["stage", "files", "size", "verdict"], rows)]
    for verdict in (v for v in verdicts if v.problems):
        place = verdict.stage.directory
        lines += [f"{verdict.stage.name}: {problem}" for problem in verdict.problems]
        lines += [f"{verdict.stage.name}: to make it again: rm -r {files.near(place)}, then the run's command again"
                  if files.is_complete(place) else
                  f"{verdict.stage.name}: is not complete; the run's command makes it again, or says why it cannot"]
    return "\n".join(lines)


def _verdict(stage: Node, damaged: set[str], resting: list[str]) -> Verdict:
    place, complete = stage.directory, files.is_complete(stage.directory)
    absent = [] if complete or not resting else [f"{files.near(place)}/{files.MANIFEST} is missing, and on it rest "
                                                 f"stages that are complete: {', '.join(resting)}"]
    if not place.exists():
        return Verdict(stage, 0, 0, "DAMAGED" if absent else "not there", absent)
    if complete and not (place / "stage.json").exists():
        return Verdict(stage, 0, 0, "DAMAGED", [f"{files.near(place)}/stage.json is damaged: it is missing"])
    if not place.is_dir():
        return Verdict(stage, 0, 0, "DAMAGED", [f"{files.near(place)} is no directory"])
    try:
        entries, lost = (hashes.contents(place) if complete else _listed(place)), recovery.lost(place)
        for step in checkpoints.complete_checkpoints(place):
            made = checkpoints.checkpoint_directory(place, step).relative_to(place)
            entries = (entries or {}) | {str(made / name): tuple(entry) for name, entry in
                                         checkpoints.read_manifest(place, step).get(hashes.FILES, {}).items()}
        damage = hashes.differences(place, entries or {})
        found = absent + [f"{files.near(place)}/{name} is damaged: {words}" for name, words in damage.items()]
        found += [] if found else list(_broken_line(stage, damaged))
    except OuroError as error:
        return Verdict(stage, 0, 0, "DAMAGED", [str(error)])
    known = "intact" if entries else "no hashes: made by an older release"
    words = "DAMAGED" if found else known if complete else "not complete, so far intact"
    if lost:
        words += f"; lost: {', '.join(recovery.named(place, one) for one in lost)}"
    return Verdict(stage, len(entries or {}), sum(size for size, _ in (entries or {}).values()), words, found)


def _listed(place: Path) -> dict[str, hashes.Entry]:
    """Returns what a stage that is not complete has written, by its lists."""
    return {str((home / name).relative_to(place)): entry for home in hashes.homes(place)[1:]
            for name, entry in hashes.recorded(home).items()}


def _broken_line(stage: Node, damaged: set[str]) -> Iterator[str]:
    """Yields what is inconsistent among a complete stage's rows and those of its inputs."""
    if not files.is_complete(stage.directory):
        return
    inputs, manifest = files.inputs_of(stage.directory), files.read_json(stage.directory / files.MANIFEST)
    if any(inputs[role].name in damaged for role in ("tasks", "experience") if role in inputs):
        return
    yield from consistency.inconsistencies(stage.directory, stage.kind.writes, inputs, manifest)
    if stage.kind.trains and manifest["steps"] not in checkpoints.complete_checkpoints(stage.directory):
        yield f"the checkpoint of step {manifest['steps']}, its last, is missing from checkpoints/"
    made = manifest["weights_hash"] if stage.kind.trains else None
    if made and (found := checkpoints.weights_hash(stage.directory / "model")) != made:
        yield f"the hash of the weights in model/ is {found}; {made} was trained"
