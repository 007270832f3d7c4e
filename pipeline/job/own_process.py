"""Functions of the user that ended the process of a stage (os._exit, a crash): it starts again and calls them apart.

From then on each call, or attempt, runs in a separate process, and one that ends is a failed row. The list in the
stage's directory outlives interruptions, so a resumed stage makes the same rows. A function is listed once, which
bounds the number of starts.

Functions that cannot be called apart (of a loss, advantages) end the stage: `ended_early` names them.
"""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ouroboros.pipeline.job.activity import CALLS, Doing
from ouroboros.pipeline.job.watchdog import activity_file
from ouroboros.pipeline.store import files, user_calls
from ouroboros.pipeline.store.errors import StageError

LIST = "own_process.json"  # {function: how it ended the process}
REWARD, WORKFLOW = "reward function", "workflow"  # kinds of functions that can be called apart


class ProcessEnded(StageError):
    """A child of a stage ended in a call of the user's code. function: `package.module:function`."""

    def __init__(self, child: str, function: str, how: str):
        super().__init__(f"the {child} {how} in the user's function {function}")
        self.function, self.how = function, how


def called(stage: Path, child: str) -> str | None:
    """Returns the user's function that a child, which has ended, was calling."""
    file = activity_file(stage, child)
    if not file.exists() or not file.stat().st_size:
        return None
    found = re.fullmatch(rf"{CALLS}(?:{REWARD}|{WORKFLOW}) (\S+:\S+)", Doing.read(file).kind)
    return found and found[1].encode("ascii").decode("unicode_escape")


def calls_file(stage: Path, child: str) -> Path:
    """What the processes of a child are calling (pipeline/store/user_calls.py)."""
    return stage / f"{child}.calls"


def ended_early(stage: Path, child: str, processes: Sequence[subprocess.Popen]) -> tuple[int, str] | None:
    """Returns the exit code of a process that ended in a call of the user's code, or with 0 before its work was done,
    and where that was, with its log.

    processes: one for each rank, or one that starts all ranks.
    """
    log = f"\n  its log: {stage / f'{child}.log'}"
    for rank, process in enumerate(processes):
        if (code := process.poll()) is None:
            continue
        calls = user_calls.unfinished(calls_file(stage, child), rank if len(processes) > 1 else None)
        if calls:
            return code, f"while it called the user's function {' or '.join(calls)}{log}"
        if calls is not None and code == 0:
            return code, f"before its work was done{log}"
    return None


def functions(stage: Path | None) -> dict[str, str]:
    """Returns the functions that are called apart, with how each ended the process."""
    return files.read_json(stage / LIST) if stage and (stage / LIST).exists() else {}


def add(stage: Path, ended: ProcessEnded) -> bool:
    """Lists a function; returns False for one that is listed already."""
    known = functions(stage)
    if ended.function in known:
        return False
    files.write_json(stage / LIST, known | {ended.function: ended.how})
    return True
