"""User errors, one class per category.

Every message says what was found, what was needed and what to change. Internal errors are asserts, not these.
"""

import difflib
from collections.abc import Iterable, Sequence

from pipeline.store.secret_names import masked


class OuroError(Exception):
    """Base of all errors that are meant for the user: printed without a traceback, exit code 2. Secrets are masked."""

    def __init__(self, *words: object):
        super().__init__(*(masked(word) if isinstance(word, str) else word for word in words))


class ConfigError(OuroError):
    """A setting that does not exist, has the wrong type, or lies outside its bounds.

    problems: the message in parts that each say one thing, so that those of several configurations can be counted.
    """

    def __init__(self, message: str, problems: Iterable[str] = ()):
        super().__init__(message)
        self.problems = [masked(problem) for problem in problems] or [str(self)]

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
    if isinstance(error, OSError) and error.strerror:
        return f"ouro: {error.strerror}" + (f": {error.filename}" if error.filename else "")
    return f"ouro: {error}"
