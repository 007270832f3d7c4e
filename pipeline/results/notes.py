"""Tags and the note of a run: notes.json in its directory, which `ouro note` writes. No stage depends on it."""

import re
from collections.abc import Collection
from typing import Any

from ouroboros.pipeline.results.view import Shown
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import QueryError

FILE = "notes.json"
TAG = re.compile(r"[\w.:/+-]{1,50}")


def read(run: Shown) -> dict[str, Any]:
    """Returns `tags`, sorted, and `note`, a text. Raises StageError for a damaged file."""
    path = run.path / FILE
    kept = files.read_json(path, "Delete it.") if path.exists() else {}
    return {"tags": kept.get("tags") or [], "note": kept.get("note") or ""}


def change(run: Shown, added: Collection[str] = (), removed: Collection[str] = (), note: str | None = None) -> None:
    """Adds and removes tags, and replaces the note unless it is None. Raises QueryError for a tag that is no word."""
    if wrong := [tag for tag in added if not TAG.fullmatch(tag)]:
        raise QueryError(f"tag '{wrong[0]}': needed a word of at most 50 letters, digits and any of _.:/+-")
    kept = read(run)
    files.write_json(run.path / FILE, {"tags": sorted({*kept["tags"], *added} - {*removed}),
                                       "note": kept["note"] if note is None else note})
