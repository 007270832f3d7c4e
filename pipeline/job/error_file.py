"""`stage.error`: why a stage ended without being complete, and its last line, where to look and how to go on."""

import re
from pathlib import Path

from ouroboros.pipeline.store.errors import masked
from ouroboros.pipeline.store.user_errors import ESCAPE

NAME = "stage.error"
LOG = "log: "  # prefix of the last line
# what libraries print when an interpreter ends, whatever ended it
AT_EXIT = re.compile(r"^nanobind: |^ - (leaked |\.\.\. skipped)|^See https://nanobind|resource_tracker: |"
                     r"destroy_process_group\(\) was not called|^ *warnings\.warn\(")


def write_error(stage: Path, problem: str, hint: str) -> None:
    """Writes the error of a stage. hint: its log, and how to go on. Raises OSError, for instance on a full disk."""
    (stage / NAME).write_text(f"{masked(problem)}\n{LOG}{hint}\n", encoding="utf-8")


def recorded_error(stage: Path) -> str | None:
    """Returns the cause in stage.error; None when stage.log is newer, since a later launch was then interrupted."""
    error, log = stage / NAME, stage / "stage.log"
    if not error.exists() or (log.exists() and log.stat().st_mtime_ns > error.stat().st_mtime_ns):
        return None
    lines = told(error.read_text(encoding="utf-8").splitlines())
    return "\n".join(lines[:-1] if lines and lines[-1].startswith(LOG) else lines) or None


def told(lines: list[str]) -> list[str]:
    """Returns the lines of an output without those that libraries print at an interpreter's end."""
    return [line for line in lines if not AT_EXIT.search(ESCAPE.sub("", line))]


def last_line(log: str) -> list[str]:
    """Returns the last line of a log that may be a reason, or none."""
    return [line for line in told(ESCAPE.sub("", log).splitlines()) if line.strip()][-1:]
