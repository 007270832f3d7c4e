"""The keys of a source of veRL by name, and the translation that the rules fill from them."""

import re
from dataclasses import dataclass, field
from typing import Any

from pipeline.bridges.source import Given
from pipeline.bridges.translation import Translation

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass
class Verl:
    """The keys of a source by name, and the translation that they fill. done: keys that are accounted for."""

    made: Translation
    values: dict[str, Given]
    done: set[str] = field(default_factory=set)
    algorithm_type: str = "ppo"
    interval: int | None = None  # optimizer steps of one of veRL's steps

    def value(self, key: str, default: Any = None) -> Any:
        return self.values[key].value if key in self.values else default

    def say(self, key: str, to: str, value: Any, note: str = "", default: bool = False) -> None:
        """Writes our key with a value that comes from veRL's; with default, also where the source is silent."""
        if key in self.values:
            self.done.add(key)
            given = self.values[key]
            said = "" if value == given.value or isinstance(given.value, (list, dict)) else f"={given.value}"
            self.made.rename(given, tuple(to.split(".")), value, f"{key}{said}{note}")
        elif default:
            self.made.choose(tuple(to.split(".")), value, f"veRL's default of {key}{note}")

    def fold(self, key: str, to: str) -> None:
        """Accounts for a key that another key's line already says."""
        if key in self.values:
            self.done.add(key)
            self.made.renamed.append((self.values[key], to))

    def leave(self, key: str, why: str) -> None:
        if key in self.values:
            self.done.add(key)
            self.made.leave(self.values[key], why)

    def choose(self, to: str, value: Any, comment: str) -> None:
        self.made.choose(tuple(to.split(".")), value, comment)

    def whole(self, key: str, default: int) -> int | None:
        """A whole number of the source; None when only the environment knows it."""
        value = self.value(key, default)
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e12:
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**12 else None
