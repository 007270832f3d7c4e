"""Runs operators of Data-Juicer in separate processes: shards shared among several, or code that may end one."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from ouroboros.pipeline.store.errors import OuroError, StageError
from ouroboros.pipeline.store.parent import die_with_parent

PROCESSES = "data_processor.task_pipeline.num_process"
OF_THE_USER = ("python_file_mapper", "python_lambda_mapper")  # operators that call code of the user


def apart(of_kind: Callable[[Any, list], tuple[list, list]], operator, rows: list) -> tuple[list, list]:
    """Runs an operator that calls code of the user in its own process. Raises StageError when that ends."""
    called = f" in {operator.function_name} of {operator.file_path}" if operator._name == OF_THE_USER[0] else ""
    return share(partial(of_kind, operator), [rows], 1, called=called)[0]


def share(run: Callable[[Any], Any], items: Sequence, processes: int, subject: str = "its process", called: str = "",
          done: Callable[[], None] = lambda: None) -> list:
    """Answers of `run` to each item, in order, from forked processes, since our operator classes cannot be pickled.

    subject, called: what a process is, and whose code runs there, for messages. done: is called after each item. Raises
    StageError with exit code or signal when a process ends.
    """
    global _shared
    outer, _shared = _shared, run  # in a worker, whose operator has its own process, it has other items to come
    before, workers, found = multiprocessing.active_children(), [], []
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _end_with_the_stage) as pool:
            pool.submit(int).result()  # starts all workers; those that have ended are no longer active children
            workers = [one for one in multiprocessing.active_children() if one not in before]
            try:
                for answer in pool.map(_run_shared, items):
                    found.append(_answer(answer))
                    done()
            except BaseException:  # the stage is asked to end, or an item failed: nobody needs the others
                for one in workers:
                    one.terminate()
                raise
    except BrokenProcessPool as error:
        raise StageError(f"{subject} {_how_ended([one.exitcode for one in workers], called)}") from error
    finally:
        _shared = outer
    return found


def _end_with_the_stage() -> None:
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the stage's handlers would raise in the worker
        signal.signal(number, signal.SIG_DFL)


def _how_ended(codes: list[int], called: str) -> str:
    """How the first of several workers ended, and what to do; the pool then ends the others with SIGTERM."""
    code = next((code for code in codes if code != -signal.SIGTERM), -signal.SIGTERM)
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    do = (f"Memory may be short, for which the kernel does this: lower {PROCESSES} if it is above 1."
          if code == -signal.SIGKILL else "Correct what it calls, or take it out of the recipe.")
    return f"ended {'with' if code >= 0 else 'by'} {how}{called}. {do}"


_shared: Callable[[Any], Any] | None = None  # read by the forked processes


def _run_shared(item: Any) -> tuple[str, Any]:
    """The answer to an item; of an error its type and text, since a user's own class may not be found in another
    process."""
    try:
        return "", _shared(item)
    except OuroError:
        raise
    except (Exception, SystemExit) as error:
        return type(error).__name__, str(error)


def _answer(found: tuple[str, Any]) -> Any:
    kind, answer = found
    if kind:
        raise type(kind, (Exception,), {})(answer)
    return answer
