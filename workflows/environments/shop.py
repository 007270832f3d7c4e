"""An agent that asks a database by SQL: the shop of operators/worlds/shop.py in DuckDB's memory.

A query is one SELECT, as in `ouro sql` (pipeline/store/read_only.py): no files, no settings, a limit of time, memory,
rows and text. What depends on the clock (`now()`) is not the same when recorded calls are repeated after a kill.
"""

import json

import duckdb  # here, so that it is loaded before attempts are forked: 0.04 s of each

from ouroboros.operators.worlds.shop import SCHEMA, as_lines, connect
from ouroboros.pipeline.store import read_only
from ouroboros.workflows.protocol.tools import Environment

SECONDS, MEMORY = 5, "256MB"  # of a query
ROWS, CHARACTERS = 50, 4000  # shown of its result


class Shop(Environment):
    """The truth of a task is `{"shop": number, "value": answer}`. accuracy: whether that was submitted."""

    idempotent = True

    def reset(self, task) -> str:
        truth = json.loads(task.answer)
        self._value, self._submitted = str(truth["value"]), ""
        self._connection = connect(truth["shop"])
        self._connection.execute(f"SET memory_limit = '{MEMORY}'")
        self._connection.execute("SET temp_directory = ''")
        read_only.lock(self._connection)
        return SCHEMA

    def query(self, sql: str) -> str:
        """Runs one SELECT of DuckDB over the tables. Returns the names of the columns, then the rows."""
        if (found := read_only.refused_statements(self._connection, sql)) is not None:
            raise ValueError(f"found {found or 'no statement'}; needed exactly one SELECT")
        with read_only.interrupted_after(self._connection, SECONDS):
            try:
                done = self._connection.execute(sql)
                columns, rows = [one[0] for one in done.description], done.fetchmany(ROWS + 1)
            except duckdb.InterruptException as error:
                raise TimeoutError(f"no answer after {SECONDS} s") from error
        shown = as_lines(columns, rows[:ROWS])
        shown = shown if len(shown) <= CHARACTERS else f"{shown[:CHARACTERS]}… (cut)"
        return f"{shown}\n(more rows)" if len(rows) > ROWS else shown

    def submit(self, answer: str | int | float) -> str:
        """Submits the answer to the question: a number or a text. The last one counts."""
        self._submitted = str(answer).strip()
        return "submitted"

    def reward(self) -> dict[str, float]:
        return {"accuracy": float(_same(self._submitted, self._value))}


def _same(said: str, truth: str) -> bool:
    """Whether two answers are equal as numbers, or as texts regardless of case."""
    try:
        return float(said) == float(truth)
    except ValueError:
        return said.casefold() == truth.casefold()
