"""`stage.error`: why a stage ended without being complete, and its last line, where to look and how to go on."""

from pathlib import Path

from pipeline.store.errors import masked

NAME = "stage.error"
LOG = "log: "  # prefix of the last line


def write_error(stage: Path, problem: str, hint: str) -> None:
    """Writes the error of a stage. hint: its log, and how to go on. Raises OSError, for instance on a full disk."""
    (stage / NAME).write_text(f"{masked(problem)}\n{LOG}{hint}\n", encoding="utf-8")


def recorded_error(stage: Path) -> str | None:
    """Returns the cause in stage.error; None when stage.log is newer, since a later launch was then interrupted."""
    error, log = stage / NAME, stage / "stage.log"
    if not error.exists() or (log.exists() and log.stat().st_mtime_ns > error.stat().st_mtime_ns):
        return None
    lines = error.read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[:-1] if lines and lines[-1].startswith(LOG) else lines) or None
