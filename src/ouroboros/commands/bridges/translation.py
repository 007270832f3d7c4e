"""The result of a bridge: a recipe, and for every key of the source: kept, renamed or left out, and why."""

import re
from dataclasses import dataclass, field
from typing import Any

from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import said
from ouroboros.pipeline.settings.combinations import LONGEST_NAME
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.guide import general
from ouroboros.pipeline.settings.schema import setting_problems
from ouroboros.pipeline.settings.secrets import kept_out
from ouroboros.pipeline.store.errors import UNSAID

Path = tuple[str | int, ...]
# what a task is made of: without one of these a recipe is another training, in the order in which they are named
TASK = ("mode", "dataset class", "demonstrations", "reward", "tools", "multi-turn", "judge or teacher", "quantization",
        "images", "multi-token prediction")


@dataclass(frozen=True)
class Entry:
    """One line of a recipe. comment: its origin, unless that has the same name."""

    value: Any
    comment: str = ""


@dataclass
class Unread:
    """A key whose value is only known at run time. to: our keys that are therefore not set."""

    given: Given
    why: str
    to: list[str] = field(default_factory=list)


@dataclass
class Translation:
    """source: name of the input. entries: the recipe. chosen: decisions and their reasons.

    left_out: keys that have an effect there and none here; idle: keys whose effect is not needed here. (line, what):
    skipped was not read and may matter, assumed is an assumption, passed has no effect.
    """

    source: str
    entries: dict[Path, Entry] = field(default_factory=dict)
    kept: list[Given] = field(default_factory=list)
    renamed: list[tuple[Given, str]] = field(default_factory=list)
    left_out: list[tuple[Given, str]] = field(default_factory=list)
    idle: list[tuple[Given, str]] = field(default_factory=list)
    unknown: list[Unread] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # to be resolved before the recipe is equivalent to the source
    skipped: list[tuple[int, str]] = field(default_factory=list)
    assumed: list[tuple[int, str]] = field(default_factory=list)
    passed: list[tuple[int, str]] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)  # lines with words that may set any key
    lost: list[int] = field(default_factory=list)  # lines with overrides that were not read
    lacking: dict[str, list[str]] = field(default_factory=dict)  # of TASK -> what of the source was lost

    @property
    def keys(self) -> int:
        return sum(map(len, (self.kept, self.renamed, self.left_out, self.idle, self.unknown)))

    @property
    def doubt(self) -> str:
        """Returns the reservation for a default of the source; empty if every word was read."""
        return f", unless {lines_of(self.unread)}, which could not be read, says otherwise" if self.unread else ""

    def keep(self, given: Given) -> None:
        """Keeps name and value; an invalid value is left out with its reason."""
        reason = unfit(given.key, given.value) or self._taken(given.path)
        if reason:  # an operator without its key makes no rows, such as one that asks people
            self.leave(given, reason, "demonstrations" if "operators" in given.path else "")
        else:
            self.entries[given.path] = Entry(given.value)
            self.kept.append(given)

    def rename(self, given: Given, path: Path, value: Any, comment: str) -> None:
        """Changes name or value. A value under our own name takes precedence, unless it is null."""
        key = ".".join(map(str, path))
        if value is not None and path in self.entries and self.entries[path].value is None:
            del self.entries[path]  # null means unset
        if reason := unfit(key, value):
            self.left_out.append((given, reason if key == given.key else f"as {key}: {reason}"))
        elif path in self.entries and self.entries[path].value == value:
            self.renamed.append((given, key))
        elif reason := self._taken(path):
            self.left_out.append((given, reason))
        else:
            self.entries[path] = Entry(value, comment)
            self.renamed.append((given, key))

    def lose(self, line: int, what: str) -> None:
        """Records an override that was not read: the recipe lacks its setting."""
        self.lost.append(line)
        self.skipped.append((line, what))

    def leave(self, given: Given, reason: str, loses: str = "") -> None:
        """Leaves a key out. loses: the part of the task that is lost with it."""
        self.left_out.append((given, reason))
        if loses:
            self.lack(loses, given.key)

    def lack(self, part: str, what: str) -> None:
        """Records that a part of the task is lost: the recipe is then marked incomplete."""
        assert part in TASK, part
        self.lacking.setdefault(part, []).append(what)

    @property
    def incomplete(self) -> str:
        """Returns what the recipe lacks of the task itself; empty if nothing."""
        parts = [f"{part} ({', '.join(dict.fromkeys(self.lacking[part]))})" for part in TASK if part in self.lacking]
        return said("incomplete", parts="; ".join(parts)) if parts else ""

    def note(self, name: str, /, **values: Any) -> None:
        """Adds a sentence about a decision. name: of tables/sentences.yaml."""
        self.chosen.append(said(name, **values))

    def ask(self, name: str, /, **values: Any) -> None:
        """Adds an open question for the user: the import then exits with 1."""
        self.asked.append(said(name, **values))

    def value(self, *path: str | int) -> Any:
        """Returns the value of a line; None if missing."""
        return self.entries[path].value if path in self.entries else None

    def below(self, *path: str | int) -> list[Path]:
        """Returns the elements of a list of the recipe, in order."""
        size = len(path)
        return sorted({one[:size + 1] for one in self.entries if one[:size] == path and len(one) > size}, key=str)

    def choose(self, path: Path, value: Any, comment: str) -> None:
        """Adds a line that the source does not have, unless the recipe already has it."""
        if not self._taken(path):
            self.entries[path] = Entry(value, comment)

    def reward_by_model(self, why: str) -> None:
        """Rewards rollouts by the model of explorer.auxiliary_models alone; evaluations count solved tasks."""
        source = ("buffer", "explorer_input")
        self.choose((*source, "default_reward_fn_type"), "reward_model", why)
        for taskset in self.below(*source, "eval_tasksets"):
            self.choose((*taskset, "default_reward_fn_type"), "accuracy_reward", "an evaluation counts what is solved")
        self.note("reward_by_model")

    def keep_secrets_out(self) -> None:
        """Leaves out a line that contains a secret; every line is checked here, whichever rule wrote it."""
        for path, entry in list(self.entries.items()):
            key = ".".join(map(str, path))
            if why := kept_out(key, entry.value):
                self.withdraw(path, why)

    def withdraw(self, path: Path, why: str) -> None:
        """Removes a line; the source's keys for it are left out with the reason."""
        key, entry = ".".join(map(str, path)), self.entries.pop(path)
        source = [g for g in self.kept if g.path == path] + [g for g, to in self.renamed if to == key]
        self.kept = [given for given in self.kept if given not in source]
        self.renamed = [(given, to) for given, to in self.renamed if given not in source]
        self.left_out += [(given, why) for given in source or [Given(path, entry.value, 0)]]

    def _taken(self, path: Path) -> str | None:
        """Returns why nothing more can be written at a path: a value is there, above it or below it."""
        at = next((p for p in self.entries if p == path or p == path[:len(p)] or path == p[:len(path)]), None)
        if at is None:
            return None
        said = f" as {self.entries[at].value}" if at == path else ""
        return f"{'.'.join(map(str, at))} is given already{said}."


def places(path: Path) -> list[Path]:
    """Returns where a setting for a path may be: there, or for a stage in the run-wide settings.

    A stage merges sections by key, but replaces a list as a whole (compose/recipe.py): empty for a set in one.
    """
    own = path[2:]
    return [path, own] if path[0] == "stages" and not any(isinstance(part, int) for part in own) else [path]


def first(values: dict[Path, Any], path: Path) -> Any:
    """Returns the value for a path: a stage's own, or the run-wide one; None if neither exists."""
    return next((values[place] for place in places(path) if values.get(place) is not None), None)


def lines_of(numbers: list[int]) -> str:
    """Formats `line 3`, or `lines 3, 5`."""
    lines = sorted(set(numbers))
    return f"lines {', '.join(map(str, lines))}" if lines[1:] else f"line {lines[0]}"


def unfit(key: str, value: Any) -> str | None:
    """Returns why a value is invalid for our key: a secret, another type, a number out of bounds, null."""
    if why := kept_out(key, value):
        return why
    item, is_number = SETTINGS.get(general(key)), isinstance(value, (int, float)) and not isinstance(value, bool)
    if item is None:
        return None
    if value is None:
        nullable = "None" in str(item.annotation) or item.annotation is Any
        return None if nullable else "null is no value for it: our default applies."
    problems = [] if "${" in str(value) else setting_problems(general(key), value)
    wrong = next((one for one in problems if is_number or one.found is UNSAID), None)  # a choice has rows in the tables
    return wrong and wrong.needed.removesuffix(".") + "; our default applies."


def off(value: Any, idle: tuple = ()) -> str:
    """Notes that a key is disabled in the source too. idle: values that disable it."""
    switched = value is None or value is False or value in ("", [], {}) or any(value == i for i in idle)
    return "disabled there too: " if switched else ""


def directory_name(value: Any) -> Any:
    """Converts a name to a valid directory name; a value with an interpolation is unchanged."""
    text = str(value)
    if "${" in text:
        return value
    cut = cut_to_limit(re.sub(r"[^\w.,=-]+", "-", text).lstrip(".,=-"))
    return value if cut == text != "" else cut or "run"


def cut_to_limit(name: str) -> str:
    """Returns the beginning of a name that a directory may have."""
    return name.encode()[:LONGEST_NAME].decode(errors="ignore")


SETTINGS = dict(walk())
