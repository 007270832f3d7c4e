"""DuckDB sessions in memory, with threads by number instead of by core.

By itself DuckDB starts four threads that read and write for each core of the machine, however few work on its tasks:
256 on 64 cores, each with a stack of 8 MiB.
"""

from functools import cache

ASYNC = 4  # for each thread that works


def new(threads: int):
    """Returns a session with `threads` that work on its tasks."""
    import duckdb

    return duckdb.connect(config={"threads": threads, "async_threads": ASYNC * threads})


@cache
def one():
    """Returns a session of one thread, whose answers are always the same, each through a `cursor()`."""
    return new(1)


@cache
def shared():
    """Returns a session of this process for short questions, each through a `cursor()`: to open a session takes 20 ms.

    It keeps nothing of files, which a resumed stage makes again under the same names."""
    import duckdb

    return duckdb.connect(config={"threads": 2, "async_threads": 2 * ASYNC, "enable_external_file_cache": False})
