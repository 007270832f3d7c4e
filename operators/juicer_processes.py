"""Runs an operator of Data-Juicer in processes of its own: its rows shared among several, or code that may end one."""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from pipeline.store.errors import OuroError, StageError

OF_THE_USER = ("python_file_mapper", "python_lambda_mapper")  # operators that call code of the user


def share(run: Callable[[Any, list], tuple[list, list]], operator, batches: Sequence[list],
          processes: int) -> tuple[list, list]:
    """Runs a row-wise operator in forked processes, since our operator classes cannot be pickled.

    run: answers for a batch with kept and dropped rows. Returns those of all batches, in order. Raises StageError with
    exit code or signal when a process ends.
    """
    global _shared
    _shared = run, operator
    before, workers = multiprocessing.active_children(), []
    try:
        with ProcessPoolExecutor(processes, multiprocessing.get_context("fork"), _end_at_signals) as pool:
            pool.submit(int).result()  # starts all workers; those that have ended are no longer active children
            workers = [one for one in multiprocessing.active_children() if one not in before]
            try:
                parts = [_answer(found) for found in pool.map(_run_shared, batches)]
            except BaseException:  # the stage is asked to end, or a batch failed: nobody needs the others
                for one in workers:
                    one.terminate()
                raise
    except BrokenProcessPool as error:
        called = f" in {operator.function_name} of {operator.file_path}" if operator._name == OF_THE_USER[0] else ""
        raise StageError(f"its process {_how_ended([one.exitcode for one in workers])}{called}. Correct what it calls, "
                         "or take it out of the recipe.") from error
    return [row for kept, _ in parts for row in kept], [one for _, gone in parts for one in gone]


def _end_at_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the stage's handlers would raise in the worker
        signal.signal(number, signal.SIG_DFL)


def _how_ended(codes: list[int]) -> str:
    """How the first of several workers ended; the pool then ends the others with SIGTERM."""
    code = next((code for code in codes if code != -signal.SIGTERM), -signal.SIGTERM)
    return f"ended with exit code {code}" if code >= 0 else f"ended by signal {signal.Signals(-code).name}"


_shared: tuple[Callable, Any] | None = None  # read by the forked processes


def _run_shared(rows: list) -> tuple[list, list] | tuple[str, str]:
    """A batch's rows; of an error its type and text, since a user's own class may not be found in another process."""
    run, operator = _shared
    try:
        return run(operator, rows)
    except OuroError:
        raise
    except (Exception, SystemExit) as error:
        return type(error).__name__, str(error)


def _answer(found: tuple[Any, Any]) -> tuple[list, list]:
    if isinstance(found[0], str):
        raise type(found[0], (Exception,), {})(found[1])
    return found
