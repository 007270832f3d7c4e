"""Our operators for Data-Juicer recipes: countdown truths, exact patterns, the train/test split.

Each function takes Data-Juicer's module `ops.base_op` and returns an operator class; operators/juicer.py registers them
under the names in OURS. This way no import of Data-Juicer is needed here, and the rules themselves are plain functions.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ouroboros.operators.generate import countdown_key, is_solvable
from ouroboros.operators.reward import parse_countdown
from ouroboros.pipeline.store.errors import DataError

MOST_NUMBERS = 12

Row = dict[str, Any]
STATS, META = "__dj__stats__", "__dj__meta__"  # columns in which Data-Juicer's operators store their results


@dataclass(frozen=True)
class Dropped:
    """A row that an operator dropped. scores: numbers that operators found of the row before."""

    row: int
    operator: str
    reason: str
    scores: dict[str, Any] = field(default_factory=dict, compare=False)


def _countdown_solvable_filter(base):
    class CountdownSolvableFilter(base.Filter):
        """Keeps rows whose `answer` is a well-formed countdown truth, reachable with + and - in some order."""

        def compute_stats_single(self, sample, context=False):
            sample[STATS]["countdown"] = countdown_problem(sample["answer"]) or "solvable"
            return sample

        def process_single(self, sample):
            return sample[STATS]["countdown"] == "solvable"

    return CountdownSolvableFilter


def _full_match_filter(base):
    class FullMatchFilter(base.Filter):
        """Keeps rows whose whole text matches a regular expression."""

        def __init__(self, pattern: str, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.pattern = re.compile(pattern, re.DOTALL)

        def compute_stats_single(self, sample, context=False):
            sample[STATS]["full_match"] = bool(self.pattern.fullmatch(sample[self.text_key]))
            return sample

        def process_single(self, sample):
            return sample[STATS]["full_match"]

    return FullMatchFilter


def _join_columns_mapper(base):
    class JoinColumnsMapper(base.Mapper):
        """Adds a column joining the texts of others by line ends, null as empty. For deduplication."""

        def __init__(self, columns: list[str], into: str = "text", *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.columns, self.into = columns, into

        def process_single(self, sample):
            return {**sample, self.into: "\n".join(sample[name] or "" for name in self.columns)}

    return JoinColumnsMapper


def _split_by_hash_mapper(base):
    class SplitByHashMapper(base.Mapper):
        """Fills the column `split`: test for a share `test_ratio` of all keys, chosen by hash, else train.

        A row with a solution is a demonstration (split sft), one with two responses a pair (split preference); either
        is dropped when its key is held out for the test. A row that already has a split keeps it. key: a name in KEYS.
        The same key gets the same split in every run and every file.
        """

        _batched_op = True

        def __init__(self, test_ratio: float, key: str = "question", *args, **kwargs):
            super().__init__(*args, **kwargs)
            if key not in KEYS or not 0 <= test_ratio < 1:
                raise ValueError(f"key must be one of {', '.join(KEYS)}, test_ratio at least 0 and below 1")
            self.test_ratio, self.key, self.reasons = test_ratio, key, {}

        def process_batched(self, samples):
            rows = [dict(zip(samples, values, strict=True)) for values in zip(*samples.values(), strict=True)]
            kept = []
            for row in rows:
                if row.get("split") is not None:
                    kept.append(row)
                    continue
                key = KEYS[self.key](row)
                held_out, shown = hash_share(key) < self.test_ratio, _shows(row)
                if held_out and shown:
                    self.reasons[row["row"]] = f"held out: a demonstration of '{key[:80]}', which is a test task"
                else:
                    kept.append({**row, "split": shown or ("test" if held_out else "train")})
            return {name: [row[name] for row in kept] for name in dict.fromkeys([*samples, "split"])}

    return SplitByHashMapper


def _shows(row: Row) -> str | None:
    """The split of a row that contains a response: sft or preference; None for a task alone."""
    if row["solution"] is not None:
        return "sft"
    return "preference" if row.get("chosen") is not None else None


def countdown_problem(answer: str) -> str | None:
    """Why a countdown truth is invalid, or None."""
    try:
        given, target = parse_countdown(answer)
    except DataError as error:
        return str(error)
    if len(given) > MOST_NUMBERS:
        return f"{len(given)} numbers, more than the {MOST_NUMBERS} for which every choice of signs is tried"
    return None if is_solvable(given, target) else f"{list(given)} cannot make {target} with + and -"


def hash_share(key: str) -> float:
    """A number in [0, 1), uniform over keys, from the first 8 bytes of the key's sha256."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


# the key whose rows a split keeps together
KEYS: dict[str, Callable[[Row], str]] = {
    "countdown": lambda row: countdown_key(*parse_countdown(row["answer"])),
    "first_line": lambda row: " ".join(row["question"].partition("\n")[0].split()),  # first turn of a conversation
    "question": lambda row: " ".join(row["question"].split()),
}

OURS = {
    "countdown_solvable_filter": _countdown_solvable_filter,
    "full_match_filter": _full_match_filter,
    "join_columns_mapper": _join_columns_mapper,
    "split_by_hash_mapper": _split_by_hash_mapper,
}
