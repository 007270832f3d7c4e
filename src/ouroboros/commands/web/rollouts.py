"""Rollouts of a stage for the page: pages of rows, a row with all it has, and a search in the texts.

A table has a file for each step, so a page reads the files of few steps: the first that hold rows for it. A row is
addressed by its step and its place in the file (from 0), a page by the row that it begins with. Token columns are read
for a single row alone.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ouroboros.pipeline.results.query import plain
from ouroboros.pipeline.store import sessions, tables
from ouroboros.pipeline.store.errors import QueryError, nearest
from ouroboros.pipeline.store.records import TABLES

ROWS = 50  # of a page
SECONDS = 1.0  # after which a page ends with what was found, and says where to go on
PREVIEW = 200  # characters in a page, of the end of a prompt and of the beginning of a response
FILES = (1, 4, 16, 64)  # that are read at once: few for the usual page, many where rows are rare
SEARCHED = 32  # files of a search between two lines of progress
HITS = 200  # of a search
OTHERS = 64  # rows of a group that are shown with one
ATTEMPT = ("calls", "tool_calls", "feedback")  # tables whose rows belong to an attempt
KEYS = {
    "experience": ("experience_id", "step", "taskset", "task_id", "group_id", "run_index", "role", "turn", "slot",
                   "reward", "accuracy", "status", "reason", "finish_reason", "weights_version", "temperature"),
    "samples": ("model", "step", "taskset", "task_id", "decoding", "run_index", "reward", "accuracy", "status",
                "reason"),
}
TEXTS = ("prompt", "response")
OLDER = "UNION ALL BY NAME SELECT NULL::VARCHAR AS role WHERE false"  # columns that files of before lack
WIDE = ("file_row_number", "kept_tokens")  # up to 1,024 numbers a token
NUMBERS = {"step", "run_index", "turn", "slot", "reward", "accuracy", "weights_version", "temperature"}  # of KEYS
is_number = re.compile(r"\d{1,18}").fullmatch  # int() has an error for more than 4,300 digits
LIMITS = {"least_reward": ("reward", ">="), "most_reward": ("reward", "<=")}


@dataclass(frozen=True)
class Address:
    """A row: its step, and its place in the step's file, from 0. `12:340` in a link."""

    step: int
    place: int

    @classmethod
    def read(cls, text: str) -> "Address":
        step, _, place = text.partition(":")
        if not (is_number(step) and is_number(place)):
            raise QueryError(f"'{text}' is no row; needed STEP:PLACE.")
        return cls(int(step), int(place))

    def __str__(self) -> str:
        return f"{self.step}:{self.place}"


@dataclass(frozen=True)
class Wanted:
    """What rows of a page must have. equal: column -> text of its value. steps: first and last one. ids: of rows that
    an optimizer step trained, all with their step; None: of any row."""

    equal: Mapping[str, str] = field(default_factory=dict)
    least_reward: float | None = None
    most_reward: float | None = None
    steps: tuple[int, int] = (0, 2**31 - 1)
    ids: tuple[str, ...] | None = None

    @classmethod
    def read(cls, table: str, given: Mapping[str, str]) -> "Wanted":
        """Reads the fields of a form. Raises QueryError for an unknown one and for a number that is none."""
        known = (*KEYS[table], *LIMITS, "steps")
        if unknown := [name for name in given if name not in known]:
            raise QueryError(f"rows cannot be chosen by '{unknown[0]}'.{nearest(unknown[0], known)}")
        first, dash, last = given.get("steps", "").replace(" ", "").partition("-")
        try:
            steps = (int(first or 0), int(last) if last else 2**31 - 1 if dash or not first else int(first))
            limits = {name: float(given[name]) for name in LIMITS if name in given}
            for name in NUMBERS & given.keys():
                if given[name] != "null":
                    float(given[name])
        except ValueError as error:
            raise QueryError("steps are one number or two (12, 12-40); numbers of a row, and limits of its reward, are "
                             "numbers, or null.") from error
        if steps[0] > steps[1]:
            raise QueryError(f"steps={given['steps']}: needed the smaller one first.")
        for name, part in (("experience_id", 1), ("group_id", 0)):  # stage/step/task/run, step/task
            if (named := given.get(name, "").split("/")[part : part + 1]) and is_number(named[0]):
                steps = max(steps[0], int(named[0])), min(steps[1], int(named[0]))
        return cls({name: value for name, value in given.items() if name in KEYS[table]}, steps=steps, **limits)

    def trained_by(self, trained: "Wanted") -> "Wanted":
        """Returns the same for the rows of `trained_in` alone."""
        steps = max(self.steps[0], trained.steps[0]), min(self.steps[1], trained.steps[1])
        return replace(self, steps=steps, ids=trained.ids)

    def condition(self) -> tuple[str, list[Any]]:
        """The condition in SQL with its parameters."""
        parts, values = ["step BETWEEN ? AND ?"], list(self.steps)
        for name, value in self.equal.items():
            parts.append(f"{name} IS NULL" if value == "null" else f"{name}::VARCHAR IN (?, ? || '.0')")
            values += [] if value == "null" else [value, value]
        for name, (column, sign) in LIMITS.items():
            if (limit := getattr(self, name)) is not None:
                parts.append(f"{column} {sign} ?")
                values.append(limit)
        if self.ids is not None:
            parts.append("experience_id IN (SELECT unnest(?::VARCHAR[]))")
            values.append(list(self.ids))
        return " AND ".join(parts), values


def page(stage: Path, table: str, wanted: Wanted, start: Address | None = None, latest: bool = False,
         count: int = ROWS) -> dict[str, Any]:
    """Returns `rows`, at most `count` in order of step and place, and `next`, the address at which the next page
    begins: null after the last row. A page whose rows are rare may end early, with fewer rows or none.

    latest: steps in descending order. Raises DataError for a damaged file.
    """
    ended = time.monotonic() + SECONDS
    condition, values = wanted.condition()
    steps = [step for step in tables.steps_present(stage, table) if wanted.steps[0] <= step <= wanted.steps[1]]
    if latest:
        steps.reverse()
    if start is not None:
        steps = [step for step in steps if (step <= start.step if latest else step >= start.step)]
    begin, rows, at, width = start or Address(-1, 0), [], 0, iter(FILES)
    files_at_once = next(width)
    while at < len(steps):
        chosen = steps[at : at + files_at_once]
        rows += _rows(stage, table, chosen, f"{condition} AND (step <> ? OR place >= ?)",
                      [*values, begin.step, begin.place], latest, count + 1 - len(rows))
        if len(rows) > count:
            return {"rows": rows[:count], "next": rows[count]["row"]}
        at += len(chosen)
        files_at_once = next(width, files_at_once)
        if time.monotonic() > ended and at < len(steps):
            return {"rows": rows, "next": str(Address(steps[at], 0))}
    return {"rows": rows, "next": None}


def _rows(stage: Path, table: str, steps: list[int], condition: str, values: list[Any], latest: bool,
          count: int) -> list[dict[str, Any]]:
    texts = f"right(prompt, {PREVIEW}) AS prompt, left(response, {PREVIEW}) AS response, length(response) AS letters"
    question = (f"SELECT step || ':' || place AS row, {', '.join(KEYS[table])}, {texts} FROM (FROM rows {OLDER}) "
                f"WHERE {condition} ORDER BY step {'DESC' if latest else 'ASC'}, place LIMIT {count}")
    return _asked(stage, table, steps, question, values)


def _asked(stage: Path, table: str, steps: list[int], question: str, values: list[Any]) -> list[dict[str, Any]]:
    """Asks the rows of these steps of a table, as `ask`."""
    import duckdb

    paths = [tables.step_file(stage, table, step) for step in steps]
    with tables.blamed(stage):
        try:
            return ask(paths, question, values)
        except duckdb.IOException as error:  # a stage that goes on from a checkpoint makes steps again
            if all(path.exists() for path in paths):
                raise
            raise QueryError(f"rows of {stage.name} were just removed, to be made again: ask once more.") from error


def ask(paths: list[Path], question: str, values: list[Any]) -> list[dict[str, Any]]:
    """Asks the rows of Parquet files, a table `rows` with the column `place`, the number of a row in its file; returns
    rows of JSON's types. Raises duckdb.Error."""
    with asked(paths, question, values) as answer:
        names = [column[0] for column in answer.description]
        return [dict(zip(names, map(plain, row), strict=True)) for row in answer.fetchall()]


@contextmanager
def asked(paths: list[Path], question: str, values: Sequence[Any] = ()) -> Iterator[Any]:
    """Asks so within the block, for an answer of DuckDB."""
    named = ", ".join(map(tables.literal, paths))
    scan = f"read_parquet([{named}], hive_partitioning=false, file_row_number=true)"
    with sessions.shared().cursor() as session:
        yield session.sql(f"WITH rows AS (SELECT *, file_row_number AS place FROM {scan}) {question}", params=values)


# ---------------------------------------------------------------------------------------------------- a single row


def address_of(stage: Path, experience_id: str) -> Address:
    """Returns where a row of `experience` is. Raises QueryError where there is none of this id."""
    step = experience_id.split("/")[1:2]  # stage/step/task/run
    if step and is_number(step[0]) and int(step[0]) in tables.steps_present(stage, "experience"):
        found = _asked(stage, "experience", [int(step[0])], "SELECT place FROM rows WHERE experience_id = ?",
                       [experience_id])
        if found:
            return Address(int(step[0]), found[0]["place"])
    raise QueryError(f"no row {experience_id} in {stage.name}.")


def row(stage: Path, table: str, at: Address) -> dict[str, Any]:
    """Returns every column of a row but kept_tokens. Raises QueryError where there is none."""
    present = at.step in tables.steps_present(stage, table)
    question = f"SELECT COLUMNS(lambda name: name NOT IN {WIDE}) FROM rows WHERE place = ?"
    found = _asked(stage, table, [at.step], question, [at.place]) if present else []
    if not found:
        raise QueryError(f"no row {at} in {stage.name}.")
    return found[0]


def group(stage: Path, table: str, of: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows that a row is compared with: of its group, or the responses of an evaluation to its task."""
    names = ("group_id",) if table == "experience" else ("model", "taskset", "task_id", "decoding")
    condition = " AND ".join(f"{name} = ?" for name in names)
    return _rows(stage, table, [of["step"]], condition, [of[name] for name in names], False, OTHERS)


def attempt(stage: Path, experience_id: str, step: int) -> dict[str, list[dict[str, Any]]]:
    """Returns what else was written of a row's attempt: table -> its rows, without token columns."""
    whole = "/".join(experience_id.split("/")[:4])  # without the turn
    return {table: found for table in ATTEMPT if step in tables.steps_present(stage, table)
            if (found := _asked(stage, table, [step], f"SELECT {_narrow(table)} FROM rows WHERE attempt = ? "
                                "ORDER BY place", [whole]))}


def _narrow(table: str) -> str:
    """The columns of a table that are no lists."""
    return ", ".join(one.name for one in fields(TABLES[table])
                     if not str(one.metadata["arrow"]).startswith("list") and not one.metadata["later"])


def curated(stage: Path, experience_id: str, step: int) -> dict[str, Any] | None:
    """Returns what data_processor.experience_pipeline made of a row; None without it."""
    if step not in tables.steps_present(stage, "curated"):
        return None
    found = _asked(stage, "curated", [step], "SELECT * EXCLUDE (file_row_number, place) FROM rows WHERE "
                   "experience_id = ?", [experience_id])
    return found[0] if found else None


def trained_on(stage: Path, experience_id: str, step: int, replayed: bool) -> list[dict[str, Any]]:
    """Returns the rows of `trained` for a row of `experience`: one for each optimizer step that trained on it.

    step: in which it was made. replayed: whether a row may be trained on more than once; else the search ends with the
    first. Steps are read outwards from the one where it is expected.
    """
    steps = tables.steps_present(stage, "trained")
    made = tables.steps_present(stage, "experience")
    expected = step * len(steps) / max(len(made), 1)
    nearest_first = sorted(steps, key=lambda one: abs(one - expected))
    found: list[dict[str, Any]] = []
    for at in range(0, len(nearest_first), FILES[-1]):
        found += _asked(stage, "trained", sorted(nearest_first[at : at + FILES[-1]]),
                        "SELECT * EXCLUDE (file_row_number, place) FROM rows WHERE experience_id = ?",
                        [experience_id])
        if found and not replayed:
            break
    return sorted(found, key=lambda one: one["train_step"])


def trained_in(stage: Path, step: int) -> Wanted:
    """Returns the rows that an optimizer step trained on. Raises QueryError where there is no such step."""
    if step not in tables.steps_present(stage, "trained"):
        raise QueryError(f"no optimizer step {step} in {stage.name}.")
    found = _asked(stage, "trained", [step], "SELECT experience_id FROM rows", [])
    ids = tuple(one["experience_id"] for one in found)
    made = [int(part) for part in {one.split("/")[1] for one in ids if one.count("/") > 2} if part.isdecimal()]
    return Wanted(steps=(min(made), max(made)) if made else (0, 0), ids=ids)


# ---------------------------------------------------------------------------------------------------- search


def search(stage: Path, table: str, text: str, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Yields `{"row": ...}` for each row whose prompt or response has this text, whatever the case, and after each
    chunk of files `{"steps": read, "of": all}`; ends after HITS rows, with `{"full": true}`."""
    condition, values = wanted.condition()
    steps = [step for step in tables.steps_present(stage, table) if wanted.steps[0] <= step <= wanted.steps[1]]
    condition += " AND (" + " OR ".join(f"contains(lower({name}), lower(?))" for name in TEXTS) + ")"
    left = HITS
    for at in range(0, len(steps), SEARCHED):
        chosen = steps[at : at + SEARCHED]
        found = _rows(stage, table, chosen, condition, [*values, *[text] * len(TEXTS)], False, left)
        yield from ({"row": one} for one in found)
        left -= len(found)
        yield {"steps": at + len(chosen), "of": len(steps)}
        if left == 0:
            yield {"full": True}
            return
