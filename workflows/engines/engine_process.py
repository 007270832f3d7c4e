"""One engine of a pool, run in a process started by workflows/engines/engine_pool.py.

    python -m workflows.engines.engine_process [CORES]

CORES: the CPU cores to use, joined by commas; without them those that it may use. Each message on standard input is
(method, arguments), the first one `open` with the arguments of engines.open.open_one; each answer on standard output is
(True, value) or (False, error). What the engine prints goes to standard error. The process ends after `close`, after an
error, and when its standard input is closed.
"""

import os
import sys
import traceback
from multiprocessing.connection import Connection

from pipeline.job.activity import show_stack_on_signal
from pipeline.job.ending import die_with_parent
from pipeline.job.opening import opening
from pipeline.store.errors import OuroError, StageError, masked
from workflows.engines.engine import Engine
from workflows.engines.open import open_one


def serve(questions: Connection, answers: Connection) -> None:
    """Answers messages one at a time."""
    engine: Engine | None = None
    method = "open"
    while method != "close":
        try:
            method, arguments = questions.recv()
        except EOFError:
            return
        try:
            if method == "open":
                with opening():
                    engine = open_one(*arguments)
                value = engine.version
            else:
                value = getattr(engine, method)(*arguments)
        except Exception as error:  # forward any error to the pool with its original message
            print(masked(traceback.format_exc()), file=sys.stderr)
            answers.send((False, error if isinstance(error, OuroError) else _in_words(error)))
            return
        answers.send((True, value))


def _in_words(error: Exception) -> StageError:
    return StageError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    die_with_parent()
    show_stack_on_signal()
    if sys.argv[1:]:
        os.sched_setaffinity(0, [int(core) for core in sys.argv[1].split(",")])
    with Connection(os.dup(0), writable=False) as read, Connection(os.dup(1), readable=False) as write:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        serve(read, write)
