"""Commands of `ouro` that a page asks, each in a process: they read the user's code as it is by then."""

import json
import shlex
import subprocess
import threading
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import DataError, OuroError, QueryError

SECONDS, ONE = 600, threading.Lock()


def command(*words: str) -> subprocess.CompletedProcess:
    """Returns what a command printed. Raises DataError where it takes longer than SECONDS."""
    try:
        return subprocess.run(launch.command("ouroboros", *words), capture_output=True, text=True, check=False,
                              stdin=subprocess.DEVNULL, timeout=SECONDS, env=launch.environment())
    except subprocess.TimeoutExpired as error:
        raise DataError(f"`ouro {' '.join(words[:2])}` took longer than {SECONDS} seconds.") from error


def rewards(root: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Returns what `ouro reward diff --json` prints of a run under `words`: a recipe or overrides, in a text. Raises
    OuroError with what it reports instead."""
    run, words = asked.get("run"), asked.get("words")
    if not (isinstance(run, str) and isinstance(words, str)):
        raise QueryError("needed {run: NAME, words: TEXT}")
    try:
        given = shlex.split(words)
    except ValueError as error:
        raise QueryError(f"{words}: {error}.") from error
    if options := [word for word in (run, *given) if word.startswith("-")]:
        raise QueryError(f"{options[0]}: needed a recipe, or key=value.")
    if not ONE.acquire(blocking=False):
        raise QueryError("another request is still being answered; one at a time.")
    try:
        done = command("reward", "diff", "--json", "--root", str(root), run, *given)
    finally:
        ONE.release()
    if done.returncode:
        raise OuroError(done.stderr.strip().rpartition("ouro: ")[2])
    return json.loads(done.stdout)
