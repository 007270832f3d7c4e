"""One engine of a pool, run in a process started by workflows/engines/engine_pool.py.

    python -m workflows.engines.engine_process FD CORES

FD: the inherited end of a socket pair. CORES: the CPU cores to use, joined by commas. Each message is (method,
arguments), the first one `open` with the arguments of engines.open.open_one; each answer is (True, value) or (False,
error). The process ends after `close`, after an error, and when the other end is closed.
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


def serve(connection: Connection) -> None:
    """Answers messages one at a time."""
    engine: Engine | None = None
    method = "open"
    while method != "close":
        try:
            method, arguments = connection.recv()
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
            connection.send((False, error if isinstance(error, OuroError) else _in_words(error)))
            return
        connection.send((True, value))


def _in_words(error: Exception) -> StageError:
    return StageError(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    die_with_parent()
    show_stack_on_signal()
    os.sched_setaffinity(0, [int(core) for core in sys.argv[2].split(",")])
    with Connection(int(sys.argv[1])) as pipe:
        serve(pipe)
