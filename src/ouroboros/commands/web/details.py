"""A row of the page with all that is known of it: tokens, group, turns, calls, truth, and the steps that trained it."""

from pathlib import Path
from typing import Any

from ouroboros.commands.web import rollouts, tokens
from ouroboros.commands.web.rollouts import Address
from ouroboros.pipeline.results.thumbnails import thumbnails
from ouroboros.pipeline.results.view import Node, View
from ouroboros.pipeline.store import files, tables

EDGE = 400  # pixels of an image's longer side
IMAGES = 24  # of a row that are shown


def of_row(run: View, stage: Node, table: str, at: Address) -> dict[str, Any]:
    """Returns `address`, `row` (its columns without lists), `group`, `task`, `images` of its prompt (as in
    thumbnails.py, the first IMAGES) and how many these are, where there is a tokenizer `pieces` (the texts of its
    response tokens), and of `experience` `tokens` (as in tokens.py), `trained`, `curated`, `attempt`.
    Raises QueryError for an absent row."""
    row, place = rollouts.row(stage.directory, table, at), stage.directory
    task = _task(run, row["task_id"])
    pictures = row.get("pictures") or (task or {}).get("pictures") or []
    found = {"address": str(at), "row": _short(row), "group": rollouts.group(place, table, row), "task": task,
             "images": thumbnails(pictures[:IMAGES], [one.directory for one in run.stages], EDGE, at.step),
             "image_count": len(pictures)}
    if table == "experience":
        trains = row["status"] == "ok" and (place / "trained").is_dir()  # another stage may train on what this one made
        replays = not stage.kind.explores or _replays(place)
        trained = rollouts.trained_on(place, row["experience_id"], at.step, replays) if trains else []
        found |= {"tokens": tokens.signals(row, trained[-1] if trained else None),
                  "trained": [_short(one) for one in trained] if (place / "trained").is_dir() else None,
                  "curated": rollouts.curated(place, row["experience_id"], at.step),
                  "attempt": rollouts.attempt(place, row["experience_id"], at.step)}
    if (tokenizer := tokens.tokenizer_of(place)) is not None:
        found["pieces"] = tokens.pieces(tokenizer, row["response_tokens"])
    return found


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its lists, which have an entry for each token or more."""
    return {name: value for name, value in row.items() if not isinstance(value, list)}


def _replays(stage: Path) -> bool:
    config = files.read_json(stage / "stage.json")["config"]
    buffer = config.get("buffer", {}).get("trainer_input", {}).get("experience_buffer", {})
    return bool(buffer.get("replay_buffer", {}).get("enable"))


def _task(run: View, task_id: str) -> dict[str, Any] | None:
    """The row of `tasks` that a stage of the run curated; None where none has it (rows of `ouro serve`)."""
    paths = (one.directory / tables.LOCATIONS["tasks"] for one in run.stages)
    question = "SELECT * EXCLUDE (file_row_number, place) FROM rows WHERE task_id = ? LIMIT 1"
    for path in filter(Path.exists, paths):
        with tables.blamed(path.parent):
            if rows := rollouts.ask([path], question, [task_id]):
                return rows[0]
    return None
