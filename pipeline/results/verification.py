"""`ouro verify`: compares every file of a run with what was written, and the rows of its tables with one another."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.results.query import aligned
from pipeline.results.view import Node, Shown
from pipeline.store import checkpoints, files, hashes, tables
from pipeline.store.errors import OuroError

# (kinds of stages, what a number other than 0 means, SQL; column `run` is 'own', or the role of an input)
OWN, GAPS = "run = 'own'", "SELECT coalesce(max(step), 0) - count(*) FROM {} WHERE run = 'own'"
LINE = (
    (("curate",), "rows of raw.parquet in neither tasks.parquet nor rejected.parquet",
     f"SELECT (SELECT count(*) FROM raw) - (SELECT count(*) FROM tasks WHERE {OWN}) - (SELECT count(*) FROM rejected)"),
    (("rft", "rollout", "scored"), "rows of experience whose task is not in tasks.parquet",
     f"SELECT count(*) FROM experience WHERE {OWN} AND task_id NOT IN (SELECT task_id FROM tasks WHERE run = 'tasks')"),
    (("rft", "rollout", "scored"), "explorer steps missing before the last one", GAPS.format("rollouts")),
    (("rft", "rollout", "scored"), "explorer steps with another number of rows than recorded",
     f"""SELECT count(*) FROM (SELECT step, max(rows) AS rows, max(attempts) AS attempts FROM rollouts WHERE {OWN}
         GROUP BY step) r FULL JOIN (SELECT step, list(slot) AS slots FROM experience WHERE {OWN} GROUP BY step) e
         USING (step) WHERE len(list_filter(slots, lambda slot: slot < attempts)) IS DISTINCT FROM rows"""),
    (("rft",), "explorer steps with weights of an optimizer step that does not exist",
     f"SELECT count(*) FROM rollouts WHERE {OWN} AND weights_version > 0 AND weights_version NOT IN "
     f"(SELECT step FROM steps WHERE {OWN})"),
    (("train", "rft", "offline"), "optimizer steps missing before the last one", GAPS.format("steps")),
    (("rft", "offline"), "trained rows that are not in experience",
     f"SELECT count(*) FROM trained WHERE {OWN} AND NOT is_expert AND experience_id NOT IN "
     "(SELECT experience_id FROM experience)"),
    (("rft", "offline"), "optimizer steps with another number of trained rows than recorded",
     f"""SELECT count(*) FROM (SELECT step, trained_rows FROM steps WHERE {OWN}) FULL JOIN (SELECT train_step AS step,
         count(*) AS found FROM trained WHERE {OWN} GROUP BY train_step) USING (step)
         WHERE trained_rows IS DISTINCT FROM found"""),
    (("evaluate", "bench"), "responses to tasks that are not in tasks.parquet",
     f"SELECT count(*) FROM samples WHERE {OWN} AND task_id NOT IN (SELECT task_id FROM tasks WHERE run = 'tasks')"),
)


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
    made: list[Verdict] = []
    for stage in shown.stages:
        made.append(_verdict(stage, {one.stage.directory.name for one in made if one.problems}))
    return made


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


def _verdict(stage: Node, damaged: set[str]) -> Verdict:
    place, complete = stage.directory, files.is_complete(stage.directory)
    if not place.exists():
        return Verdict(stage, 0, 0, "not there", [])
    try:
        entries = hashes.contents(place) if complete else _so_far(place)
    except OuroError as error:
        return Verdict(stage, 0, 0, "DAMAGED", [str(error)])
    for manifest in sorted((place / "checkpoints").glob(f"step=*/{files.MANIFEST}")):
        of_checkpoint = files.read_json(manifest).get(hashes.FILES, {})
        entries = (entries or {}) | {str(manifest.parent.relative_to(place) / name): tuple(entry)
                                     for name, entry in of_checkpoint.items()}
    damage = hashes.differences(place, entries or {})
    found = [f"{files.near(place)}/{name} is damaged: {words}" for name, words in damage.items()]
    found += [] if found else list(_broken_line(stage, damaged))
    known = "intact" if entries else "no hashes: made by an older release"
    words = "DAMAGED" if found else known if complete else "not complete, so far intact"
    return Verdict(stage, len(entries or {}), sum(size for size, _ in (entries or {}).values()), words, found)


def _so_far(place: Path) -> dict[str, hashes.Entry]:
    """Returns the files in the lists of a stage that is not complete."""
    return {str((path.parent / name).relative_to(place)): entry for path in place.glob(f"*/{hashes.LIST}")
            for name, entry in hashes.recorded(path.parent).items()}


def _broken_line(stage: Node, damaged: set[str]) -> Iterator[str]:
    """Yields what is inconsistent among a complete stage's rows and those of its inputs."""
    import duckdb

    checks = [(what, question) for kinds, what, question in LINE if stage.kind in kinds]
    if not checks or not files.is_complete(stage.directory):
        return
    spec = files.read_json(stage.directory / "stage.json")
    inputs = [(role, Path(d)) for role, d in spec["inputs"].items() if role in ("tasks", "experience")]
    if any(place.name in damaged for _, place in inputs):
        return
    with tables.connect([("own", stage.directory), *inputs]) as session:
        for what, question in checks:
            try:
                ((count,),) = session.execute(question).fetchall()
            except duckdb.Error as error:
                yield f"its tables cannot be read: {str(error).splitlines()[0]}"
                return
            if count:
                yield f"{count:,} {what}"
    steps = files.read_json(stage.directory / files.MANIFEST).get("steps")
    if steps is not None and steps != max(tables.steps_present(stage.directory, "steps"), default=0):
        yield f"{steps} optimizer steps were made, and table steps ends elsewhere"
    if stage.kind in ("train", "rft", "offline"):
        made = files.read_json(stage.directory / files.MANIFEST)["weights_hash"]
        if (found := checkpoints.weights_hash(stage.directory / "model")) != made:
            yield f"the hash of the weights in model/ is {found}; {made} was trained"
