"""Filters problems caused by others: rules that were applied to a substituted value.

A setting that is unreadable or out of bounds is replaced by the run's value in a stage, else by the default
(settings/schema.py). A rule broken by the substituted value would point the user to a number that he did not set.
"""

import re
from collections.abc import Iterable

# `stage 'rft': buffer.batch_size=0: ...`, `key 'seed': ...`: lines of settings/schema.py; `x.yaml, line 3: key 'seed'`
READING = re.compile(r"(?:.*?, line \d+: )?(?:stage '(?P<stage>\w+)': )?(?:key ')?(?P<key>[a-z_]\w*(?:\.\w+)*)(?=[='])")

ELEMENT = re.compile(r"\.\d+$")  # one that cannot be read is omitted, which changes the list


def without_consequences(broken: Iterable[str], read: Iterable[str], stages: list[str]) -> list[str]:
    """Drops the lines of broken rules that name a setting with a substituted value.

    read: problems of reading the settings. stages: names of all. A line that concerns several stages is dropped when
    each of them has such a setting.
    """
    wrong = [_place(match, stages) for line in read if (match := READING.match(line))]
    return [line for line in broken if not all(
        any(stage in (None, one) and _names(line, key) for stage, key in wrong) for one in _concerned(line, stages))]


def _place(match: re.Match, stages: list[str]) -> tuple[str | None, str]:
    """Returns (stage, key) of a read problem; while interpolations are resolved, an entry has an index, not a name."""
    key = ELEMENT.sub("", match["key"])
    numbered = re.match(r"stages\.(\d+)\.(.+)", key)
    if numbered and int(numbered[1]) < len(stages):
        return stages[int(numbered[1])], numbered[2]
    return match["stage"], key


def _concerned(line: str, stages: list[str]) -> list[str]:
    """Returns the stages before the first colon of a line; all if it names none."""
    before = re.match(r"stages? ((?:'\w+'(?:, )?)+): ", line)
    return re.findall(r"\w+", before[1]) if before else stages or [""]


def _names(line: str, key: str) -> bool:
    """Returns whether a line names a setting, or one below it."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", line) is not None
