"""Problems that only follow from others: rules that were tried with a value which nobody gave.

Of a setting that cannot be read, or is a number outside its bounds, another value stands in (settings/schema.py): the
run's in a stage, else the default. What a rule says of that value would send the user after a number of ours.
"""

import re
from collections.abc import Iterable

# `stage 'rft': buffer.batch_size=0: ...`, `key 'seed': ...`: lines of settings/schema.py; `x.yaml, line 3: key 'seed'`
READING = re.compile(r"(?:.*?, line \d+: )?(?:stage '(?P<stage>\w+)': )?(?:key ')?(?P<key>[a-z_]\w*(?:\.\w+)*)(?=[='])")

ELEMENT = re.compile(r"\.\d+$")  # one that cannot be read is left out, and the list is another than the one given


def without_consequences(broken: Iterable[str], read: Iterable[str], stages: list[str]) -> list[str]:
    """The lines of broken rules that name no setting of which another value stands in.

    read: problems of reading the settings. stages: names of all. A line that concerns several stages is left out when
    in each of them one does.
    """
    wrong = [_place(match, stages) for line in read if (match := READING.match(line))]
    return [line for line in broken if not all(
        any(stage in (None, one) and _names(line, key) for stage, key in wrong) for one in _concerned(line, stages))]


def _place(match: re.Match, stages: list[str]) -> tuple[str | None, str]:
    """(stage, key) of a problem of reading: interpolations are filled in while an entry has a number and no name."""
    key = ELEMENT.sub("", match["key"])
    numbered = re.match(r"stages\.(\d+)\.(.+)", key)
    if numbered and int(numbered[1]) < len(stages):
        return stages[int(numbered[1])], numbered[2]
    return match["stage"], key


def _concerned(line: str, stages: list[str]) -> list[str]:
    """The stages before the first colon of a line; all where it names none."""
    before = re.match(r"stages? ((?:'\w+'(?:, )?)+): ", line)
    return re.findall(r"\w+", before[1]) if before else stages or [""]


def _names(line: str, key: str) -> bool:
    """Whether a line names a setting, or one below it."""
    return re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", line) is not None
