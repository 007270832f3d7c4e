"""The axes of a sweep: expands Hydra's multirun overrides (`a,b`, choice, range, glob) to named points.

Hydra's own override parser reads the overrides. Nothing here composes a configuration, and counting points does not
enumerate them.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ouroboros.pipeline.settings.key_names import keeps_letters, letters_lost
from ouroboros.pipeline.settings.secrets import typed
from ouroboros.pipeline.store.errors import ConfigError, Problem
from ouroboros.pipeline.store.files import hash_json

LONGEST_NAME = 60  # characters of a run's name
HASH_LENGTH = 6
BRANCH = "from"  # key of the run that a branch begins with (branching.py)
# one value for a whole sweep
OF_ALL_POINTS = ("project", "name", "checkpoint_root_dir", "continue_from_checkpoint", "sweep.max_points")


@dataclass(frozen=True)
class Axis:
    """One override with several values. word: as typed. parsed: Hydra's parse of it."""

    word: str
    parsed: Any

    @property
    def key(self) -> str:
        """Returns the dotted key or group, without the `+` of an addition."""
        return self.parsed.key_or_group

    @property
    def size(self) -> int:
        """Returns the number of values, without listing them."""
        value = self.parsed.value()
        if not self.parsed.is_range_sweep():
            return len(self._choices())
        values = value.range()
        if isinstance(values, range):
            return len(values)
        return max(math.ceil((values.stop - values.start) / values.step), 0)

    def values(self) -> list[str]:
        """Returns the values in order, each in override syntax."""
        if self.parsed.is_range_sweep():
            return list(self.parsed.sweep_string_iterator())
        return self._choices()

    def _choices(self) -> list[str]:
        from hydra.core.override_parser.types import Glob

        from ouroboros.pipeline.compose.conf_files import groups

        value = self.parsed.value()
        if isinstance(value, Glob):  # Hydra's own iterator would need a config loader that knows the group
            return value.filter(groups().get(self.key, []))
        return [_quoted(one, text) for one, text in zip(value.list, self.parsed.sweep_string_iterator(), strict=True)]

    def first(self) -> str:
        """Returns the override with its first value, without listing a long range."""
        if self.parsed.is_range_sweep():
            start = self.parsed.value().start
            return f"{self.parsed.get_key_element()}={start}"
        return self.overrides()[0]

    def overrides(self) -> list[str]:
        return [f"{self.parsed.get_key_element()}={value}" for value in self.values()]


def read(words: list[str]) -> list[str | Axis]:
    """Returns every override, those with several values as an Axis. Raises ConfigError for an invalid axis.

    A word that Hydra cannot parse is returned as it is: composing reports it. from=RUN@1,2 is from=RUN@1,RUN@2.
    """
    words = [_spread(word) if key_of(word) == BRANCH else word for word in words]
    found = {word: _parsed(word) for word in words}
    axes = [word for word in words if found[word] is not None and found[word].is_sweep_override()]
    problems = [problem for word in dict.fromkeys(axes) if (problem := _problem(word, found[word]))]
    if problems := problems + set_twice(words):
        raise ConfigError("\n  ".join(problems), problems)
    return [Axis(word, found[word]) if word in axes else word for word in words]


def _spread(word: str) -> str:
    run, _, steps = word.partition("=")[2].rpartition("@")
    return f"{BRANCH}=" + ",".join(f"{run}@{step}" for step in steps.split(",")) if run else word


@lru_cache(4096)
def parsed(word: str) -> Any:
    """Returns Hydra's parse of an override. Raises ValueError for one that is invalid.

    A text that reads as a number or a boolean keeps its letters: `name=1e5`.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        made = OverridesParser.create().parse_override(word)
        letters = word.partition("=")[2].strip()
        if keeps_letters(made.key_or_group, letters, made.value()):
            made = OverridesParser.create().parse_override(f"{word.partition('=')[0]}='{letters}'")
    except HydraException as error:
        raise ValueError(str(error)) from error
    return made


def _parsed(word: str) -> Any:
    """Does the same; None for an invalid one."""
    try:
        return parsed(word)
    except ValueError:
        return None


def key_of(word: str) -> str:
    """Returns the dotted key or group that an override sets: of `++name=x`, `name`."""
    return word.lstrip("+").partition("=")[0]


def word_of(key: str, text: object) -> str:
    """Returns the override that sets a key to a text, whatever its characters. Hydra reads backslashes as themselves,
    except before a quote."""
    escaped = re.sub(r"(\\*)('|$)", lambda one: 2 * one[1] + (one[2] and r"\'"), str(text))
    return f"{key}='{escaped}'"


def set_twice(words: list[str]) -> list[Problem]:
    """Lists the keys that two overrides set: the first override would have no effect."""
    first: dict[str, str] = {}
    problems = []
    for word in words:
        key = key_of(word)
        if "=" not in word:
            continue
        if key not in first:
            first[key] = word
        else:
            problems.append(Problem(f"'{typed(first[key])}' and '{typed(word)}'", "set the same key.",
                                    "Leave one of them out."))
    return problems


def _problem(word: str, override: Any) -> Problem | None:
    """Returns why a word cannot be an axis, or None. override: Hydra's parse of it."""
    key, wrong = override.key_or_group, partial(Problem, f"'{typed(word)}'")
    if override.is_interval_sweep():
        return wrong("an interval has no points to list.", "Write the values, or choice(...), or range(...); a search "
                     "that decides point after point is in docs/sweeps.md.")
    if getattr(override.value(), "shuffle", False):
        return wrong("the points of a sweep run side by side, so their order has no meaning.", "Leave shuffle out.")
    if key in OF_ALL_POINTS:
        return wrong(f"a sweep has one {key}; its points are named after what differs.", "Give one value.")
    if override.is_range_sweep() and not override.value().step:
        return wrong("a range with step 0 never ends; needed another step.")
    axis = Axis(override.input_line, override)
    if not axis.size:
        return wrong("has no value at all.", _groups_for(override))
    values = getattr(override.value(), "list", ())  # of choices; one that has lost its letters may seem to come twice
    if lost := [line for value in values for line in letters_lost(key, value, override.input_line)]:
        return wrong(lost[0])
    if override.is_choice_sweep() and len(set(map(plain, axis.values()))) < axis.size:
        return wrong("has a value twice.")
    return None


def _groups_for(override) -> str:
    from hydra.core.override_parser.types import Glob

    from ouroboros.pipeline.compose.conf_files import groups

    if not isinstance(override.value(), Glob):
        return ""
    choices = "; ".join(f"{group}: {', '.join(choices)}" for group, choices in groups().items())
    return f" glob chooses among the files of a group of conf/, which are {choices}."


def vary_nothing(words: list[str]) -> bool:
    """Returns whether every override has one value, `range(1)` too. False if Hydra cannot parse one: it may have
    several."""
    found = [_parsed(word) for word in words]
    return all(one is not None and (not one.is_sweep_override() or _is_short(one)) for one in found)


def _is_short(override: Any) -> bool:
    """Returns whether a sweep over a range or choices has one value."""
    counted = override.is_choice_sweep() or (override.is_range_sweep() and override.value().step)
    return bool(counted) and Axis(override.input_line, override).size == 1


def count(words: list[str | Axis]) -> int:
    """Returns the number of points."""
    return math.prod(word.size for word in words if isinstance(word, Axis))


def first_point(words: list[str | Axis]) -> list[str]:
    """Returns the overrides of the first point, however many there are."""
    return [word.first() if isinstance(word, Axis) else word for word in words]


def points(words: list[str | Axis]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Returns the overrides of every point and its axis values (key -> value); the last axis varies fastest."""
    keys = [word.key for word in words if isinstance(word, Axis)]
    choices = [word.overrides() if isinstance(word, Axis) else [word] for word in words]
    for chosen in itertools.product(*choices):
        swept = [c for c, word in zip(chosen, words, strict=True) if isinstance(word, Axis)]
        yield list(chosen), {key: plain(c.split("=", 1)[1]) for key, c in zip(keys, swept, strict=True)}


def given(words: list[str]) -> dict[str, str]:
    """Maps keys to values of plain overrides, except those shared by every point of a search."""
    found = filter(None, map(_parsed, words))
    return {p.key_or_group: plain(p.get_value_element_as_str()) for p in found if p.key_or_group not in OF_ALL_POINTS}


def _quoted(value: Any, text: str) -> str:
    """Returns one value of a choice in override syntax, with the quotes that choice(...) drops from `'1e5'`.

    text: the value without them.
    """
    return f"'{text}'" if isinstance(value, str) and _parsed(f"x={text}").value() != value else text


# ------------------------------------------------------------------------------------------------------------- names


def plain(value: str) -> str:
    """Formats a value without quotes or backslashes, the number `1e-06` as `1e-6`, the boolean `True` as `true`."""
    if value in ("True", "False"):
        return value.lower()
    if re.fullmatch(r"-?[\d.]+e[+-]\d+", value):
        return re.sub(r"(?<=e[+-])0+(?=\d)", "", value)
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    return re.sub(r"\\(.)", r"\1", value)


def labels(keys: Iterable[str]) -> dict[str, str]:
    """Returns the shortest distinct suffixes of dotted keys: `lr`, `sft.lr` for a setting of one stage."""
    keys = list(keys)
    for length in range(1, max((key.count(".") + 2 for key in keys), default=1)):
        short = {key: _end(key, length) for key in keys}
        if len(set(short.values())) == len(keys):
            return short
    return {key: key for key in keys}


def _end(key: str, length: int) -> str:
    stage = ""
    if key.startswith("stages.") and key.count(".") > 1:
        _, stage, key = key.split(".", 2)
        stage += "."
    return stage + ".".join(key.split(".")[-length:])


def point_label(differs: dict[str, str]) -> str:
    """Formats as `lr=1e-6,seed=2`."""
    short = labels(differs)
    return ",".join(f"{short[key]}={value}" for key, value in differs.items())


def name_of(base: str, differs: dict[str, str]) -> str:
    """Returns a run's name, safe in a path: `base-lr=1e-6,seed=2`. It is cut at 60 characters; if it is cut, or a
    value has other characters or one of `,=`, a hash of all differences is appended to keep names distinct."""
    if not differs:
        return base
    name = f"{base}-{point_label(differs)}"
    safe = re.sub(r"[^A-Za-z0-9_.,=+-]+", "_", name).replace("=_", "=")
    if safe == name and len(name) <= LONGEST_NAME and not re.search("[,=]", "".join(differs.values())):
        return name
    return safe[: LONGEST_NAME - HASH_LENGTH - 1].rstrip("-_.,=") + "-" + hash_json(differs)[:HASH_LENGTH]


def joined(names: Iterable[str]) -> str:
    """Joins several names as `a+b`; a long result is cut and gets a hash."""
    distinct = sorted(set(names))
    name = "+".join(distinct)
    if len(name) <= LONGEST_NAME:
        return name
    return name[: LONGEST_NAME - HASH_LENGTH - 1] + "-" + hash_json(distinct)[:HASH_LENGTH]
