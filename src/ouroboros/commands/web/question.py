"""A question of the SQL box: a process answers it, within limits of time, memory and size, and writes no file.

    python -m ouroboros.commands.web.question     JSON {root, runs, question} -> JSON {columns, rows, more}, or {error}

DuckDB's memory_limit is none: it does not count a text that is being made, nor its copies on the way to the page.
"""

import asyncio
import json
import resource
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from ouroboros.pipeline.results import policies, query, sweep_view
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import OuroError, QueryError, message
from ouroboros.pipeline.store.parent import die_with_parent, limited_memory

ROWS = 1000
SECONDS = 60
LARGEST = 8_000_000  # bytes of an answer
ADDRESSES = 2 << 30  # bytes, besides those of the session
TERMINAL = "`ouro sql` in a terminal has no such limit"


async def answer(root: Path, runs: list[str], question: str) -> dict[str, Any]:
    """Returns `columns`, the first `rows`, and whether there are `more`. Raises QueryError with what the process says,
    or for one that takes too long or ends; it ends with this call."""
    child = await asyncio.create_subprocess_exec(*launch.command("ouroboros.commands.web.question"), stdin=PIPE,
                                                 stdout=PIPE, process_group=0,
                                                 env=launch.environment())
    try:
        asked = json.dumps({"root": str(root), "runs": runs, "question": question})
        said, _ = await asyncio.wait_for(child.communicate(asked.encode()), SECONDS)
    except TimeoutError as error:
        raise QueryError(f"no answer after {SECONDS} s. Ask for less; `ouro sql --timeout` waits longer.") from error
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
    if not said:
        raise QueryError(f"the process of the question ended with code {child.returncode}. Ask for less; {TERMINAL}.")
    found = json.loads(said)
    if "error" in found:
        raise QueryError(found["error"])
    return found


def answered(root: str, runs: list[str], question: str) -> str:
    """Returns the answer as JSON. Raises QueryError for one that is larger than LARGEST, or takes too much memory."""
    import duckdb

    session = query.session([policies.single(sweep_view.find(Path(root), name)) for name in runs])
    try:
        with limited_memory(ADDRESSES):
            query.require_read_only(session, question)
            found = query.ask(session, question, ROWS + 1)
            said = json.dumps(query.plain({"columns": found.columns, "rows": found.rows[:ROWS],
                                           "more": len(found.rows) > ROWS}), allow_nan=False)
    except (MemoryError, RuntimeError, QueryError) as error:  # RuntimeError: recursion, or no thread to hash files
        if isinstance(error, QueryError) and not isinstance(error.__cause__, duckdb.OutOfMemoryException):
            raise
        raise QueryError(f"the answer takes more than {ADDRESSES >> 30} GiB of memory, or its lists nest too deep. Ask "
                         f"for less; {TERMINAL}.") from error
    if len(said) > LARGEST:
        raise QueryError(f"the answer has {len(said) / 1e6:,.1f} MB; needed at most {LARGEST / 1e6:g}. Ask for fewer "
                         f"rows or columns, or the beginnings of texts, left(response, 1000); {TERMINAL}.")
    return said


def main() -> None:
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # nothing is spilled to the disk, or written by a trick
    try:
        print(answered(**json.load(sys.stdin)))
    except (OuroError, OSError) as error:
        print(json.dumps({"error": message(error).removeprefix("ouro: ")}))


if __name__ == "__main__":
    main()
