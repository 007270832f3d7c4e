"""User errors, one class per category.

Every message says what was found, what was needed and what to change. Internal errors are asserts, not these.
"""

import difflib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ouroboros.pipeline.store.secret_names import masked

UNSAID = object()  # a problem that quotes no value
PARTS = ("key", "found", "needed", "do", "stages", "file", "line")


LONGEST = 1000  # characters of a value, and of either end of a line, that a message shows
MOST_LINES = 100  # of a message


class Problem(str):
    """A mistake in a configuration, or a remark on it: the sentence that is printed, with its parts as attributes.

    key: the dotted setting, or what else is wrong, such as a path; found: its value, UNSAID without one. needed: what
    is needed, or why the value is wrong; do: what to change. stages: names of the stages concerned, none for all.
    file, line: where the value is written, from line 1; None where unknown.
    """

    def __new__(cls, key: str = "", needed: str = "", do: str = "", *, found: Any = UNSAID,
                stages: Sequence[str] = (), file: str | None = None, line: int | None = None):
        concerned = f"stage{'s' * (len(stages) > 1)} {', '.join(map(repr, stages))}" if stages else ""
        value = "" if found is UNSAID else shown(found)
        cut = value if len(value) <= LONGEST else f"{value[:LONGEST]}… ({len(value):,} characters)"
        subject = key if found is UNSAID else f"{key}={cut}"
        place = f" ({file}, line {line})" if line else f" ({file})" if file else ""
        do = do.strip()
        text = f"{': '.join(filter(None, (concerned, subject, needed)))} {do}".strip() + place
        made = super().__new__(cls, shortened(text))
        made.key, made.found, made.needed, made.do = key, found, needed, do
        made.stages, made.file, made.line = tuple(stages), file, line
        return made

    def but(self, **changed: Any) -> "Problem":
        """Returns the problem with other parts."""
        parts = {name: getattr(self, name) for name in PARTS} | changed
        return type(self)(parts.pop("key"), parts.pop("needed"), parts.pop("do"), **parts)

    def below(self, section: str) -> "Problem":
        """Returns the problem of a section's setting with the key from the root."""
        return self.but(key=f"{section}.{self.key}" if self.key else section) if section else self

    def of(self, stages: Sequence[str]) -> "Problem":
        """Returns the problem as one of these stages; a single one stands for NAME in keys of the advice."""
        named = stages[0] if len(stages) == 1 else "NAME"
        return self.but(stages=stages, do=self.do.replace("stages.NAME.", f"stages.{named}."))

    def masked(self, mask: Callable[[str], str] = masked) -> "Problem":
        """Returns the problem with its texts masked; by default without secrets."""
        return self if mask(str(self)) == self else self.but(
            key=mask(self.key), needed=mask(self.needed), do=mask(self.do),
            found=self.found if self.found is UNSAID else mask(shown(self.found)))

    def parts(self) -> dict[str, Any]:
        """Returns everything as JSON: the parts that are known, and the sentence as `text`."""
        found = {} if self.found is UNSAID else {"found": shown(self.found)}
        given = {"key": self.key, **found, "needed": self.needed, "do": self.do, "stages": list(self.stages),
                 "file": self.file, "line": self.line}
        return {name: value for name, value in given.items() if value} | {"text": str(self)}


def shown(value: Any) -> str:
    """Formats a value as YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value) or "''"


def wrong_type(value: Any, needed: str, key: str) -> Problem:
    """Returns the problem of a value of another type."""
    kinds = {type(None): "null", dict: "a mapping", list: "a list", bool: str(value).lower()}
    found = f"the text {str(value)!r}" if isinstance(value, str) else kinds.get(type(value), value)
    return Problem(key, f"needed {needed}, found {found}.")


def shortened(text: str) -> str:
    """Returns a message whose long lines lack their middle, as do many lines: what is needed is often at the end."""
    lines = [line if len(line) <= 3 * LONGEST else f"{line[:LONGEST]} … ({len(line):,} characters) … {line[-LONGEST:]}"
             for line in text.split("\n")]
    left_out = len(lines) - MOST_LINES
    if left_out > 0:
        lines[MOST_LINES // 2:-MOST_LINES // 2] = [f"… ({left_out:,} lines more) …"]
    return "\n".join(lines)


class OuroError(Exception):
    """Base of all errors that are meant for the user: printed without a traceback, exit code 2. Secrets are masked, and
    long messages shortened."""

    def __init__(self, *words: object):
        super().__init__(*(word.masked() if isinstance(word, Problem) else shortened(masked(word))
                           if isinstance(word, str)
                           else word for word in words))


class ConfigError(OuroError):
    """A setting that does not exist, has the wrong type, or lies outside its bounds.

    problems: the parts of the message that each say one thing; those of several configurations are counted by them.
    """

    def __init__(self, message: str, problems: Iterable[str] = ()):
        super().__init__(message)
        self.problems = [one.masked() if isinstance(one, Problem) else Problem(needed=masked(one))
                         for one in problems or self.args]

    @classmethod
    def of(cls, title: str, problems: Iterable[str]) -> "ConfigError":
        """Returns all problems below a title, each once."""
        once = list(dict.fromkeys(problems))
        return cls("\n  ".join([title, *once]), once)


class DataError(OuroError):
    """A task, demonstration or experience file that is missing, empty, corrupt or of another schema."""


class ModelError(OuroError):
    """A model directory without weights or tokenizer, or a checkpoint that cannot be read."""


class QueryError(OuroError):
    """A question in SQL that DuckDB does not accept."""


class SyncError(OuroError):
    """Weights reached the rollout engine but did not prove to be the trainer's."""


class StageError(OuroError):
    """A stage cannot go on: a process died, a wait timed out, too many rollouts failed, no disk."""


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known name, or the empty string."""
    meant = close(name, list(known))
    return f" Did you mean '{meant}'?" if meant else ""


def close(name: str, known: Sequence[str], cutoff: float = 0.6) -> str | None:
    """Returns the most similar known name; transposed letters rank first: `model` for `modle`, not `mode`."""
    same = (one for one in known if sorted(one) == sorted(name))
    return next(same, None) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=cutoff)), None)


def pick(table: dict, name: str, what: str):
    """Looks `name` up in a visible table of names; the error lists the table."""
    if name not in table:
        raise ConfigError(f"unknown {what} '{name}'.{nearest(name, table)} Known: {', '.join(sorted(table))}.")
    return table[name]


def message(error: OuroError | OSError) -> str:
    """Returns a one-line message for a user's mistake or an operating system error: its text and the path."""
    if isinstance(error, shutil.Error):  # of a copied tree: a list of (source, target, reason)
        return shortened("ouro: " + re.sub(r"^\[Errno \d+\] ", "", str(error.args[0][0][-1])))
    if isinstance(error, OSError) and error.strerror:
        return shortened(f"ouro: {error.strerror}" + (f": {error.filename}" if error.filename else ""))
    return f"ouro: {error}"
