"""Functions of the user that ended the process of a stage (os._exit, a crash): it starts again and calls them apart.

From then on each call, or attempt, has a process of its own, and one that ends is a failed row. The list in the stage's
directory outlives interruptions, so a resumed stage makes the same rows. A function is listed once, which bounds the
number of starts.
"""

import re
from pathlib import Path

from pipeline.job.activity import CALLS, Doing
from pipeline.job.watchdog import activity_file
from pipeline.store import files
from pipeline.store.errors import StageError

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
