"""DuckDB sessions that only read: those of `ouro sql`, and of a model that writes SQL.

DuckDB's own settings still permit COPY, ATTACH and DROP VIEW inside allowed directories, and EXPLAIN ANALYZE executes
its statement. So a text is parsed first and refused unless it is one SELECT.
"""

import contextlib
import re
import threading
from collections.abc import Iterator

LOCKED = {"enable_external_access": False, "python_enable_replacements": False, "lock_configuration": True}
EXPLAIN = re.compile(r"\s*explain\s+(?:analyze\s+)?", re.IGNORECASE)  # the rest is left to DuckDB's own lexer


def lock(connection) -> None:
    """Denies the session further files, Python variables and settings."""
    for name, value in LOCKED.items():
        connection.execute(f"SET {name} = {value}")


def refused_statements(connection, question: str) -> str | None:
    """None for exactly one SELECT (or EXPLAIN of one), else the kinds of statements found: `INSERT, then SELECT`.

    Empty for a text without a statement. Raises duckdb.Error for a text that cannot be parsed.
    """
    import duckdb
    from duckdb import StatementType as Kind

    kinds = _kinds(connection, question)
    if kinds == [Kind.EXPLAIN] and (prefix := EXPLAIN.match(question)):
        with contextlib.suppress(duckdb.Error):  # options in brackets are not parsed, but refused
            kinds = _kinds(connection, question[prefix.end() :])
    return None if kinds == [Kind.SELECT] else ", then ".join(str(kind).rpartition(".")[2] for kind in kinds)


def _kinds(connection, question: str) -> list:
    """Returns the statement types in a text. A type unknown to the Python package is a ValueError there."""
    try:
        return [statement.type for statement in connection.extract_statements(question)]
    except ValueError:
        return ["StatementType.OTHER"]


@contextlib.contextmanager
def interrupted_after(connection, seconds: float) -> Iterator[threading.Event]:
    """Interrupts the connection's query after this time; the event is then set."""
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        connection.interrupt()

    timer = threading.Timer(seconds, expire)
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()  # at exit it must hold no connection
