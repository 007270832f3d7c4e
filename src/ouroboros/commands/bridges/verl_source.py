"""A veRL source's keys by name, and the translation that the rules fill from them."""

import re
from dataclasses import dataclass, field
from typing import Any

from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import WITHOUT_EFFECT, find
from ouroboros.commands.bridges.translation import Translation, Unread, off
from ouroboros.commands.bridges.verl_entry import Entry
from ouroboros.pipeline.settings.key_tables import Refused, Renamed

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LARGEST = 10**12  # limit of an integer
OFF = ("false", "no", "off", "0", "none", "null")
UNKNOWN = "unknown"  # algorithm_type if only known at run time


@dataclass
class Verl:
    """A source's keys by name, and the translation. done: keys that are accounted for.

    unknown: key -> (its source text, why its value is unknown). Such a key gets no default either.
    """

    made: Translation
    values: dict[str, Given]
    unknown: dict[str, tuple[Given, str]] = field(default_factory=dict)
    entry: Entry | None = None
    done: set[str] = field(default_factory=set)
    algorithm_type: str = "ppo"
    interval: int | None = None  # optimizer steps per veRL step

    def value(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key; the default if the source does not have it, None if it is unknown."""
        return self.values[key].value if key in self.values else None if key in self.unknown else default

    def is_on(self, key: str, default: bool = False) -> bool:
        """Returns whether a switch is on, by Python's truth value; the default if it is unknown.

        A word for off (`"False"`, `no`) counts as false, although Python would treat the text as true.
        """
        value = self.value(key, default)
        return default if value is None else bool(value) and str(value).strip().lower() not in OFF

    def say(self, key: str, to: str, value: Any, note: str = "", default: bool = False) -> None:
        """Writes our key with a value from veRL's; with default, also if the source does not set it."""
        if key in self.unknown:
            self._unread(key, to)
        elif key in self.values:
            self.done.add(key)
            given = self.values[key]
            said = "" if value == given.value or isinstance(given.value, (list, dict)) else f"={given.value}"
            self.made.rename(given, tuple(to.split(".")), value, f"{key}{said}{note}")
        elif default:
            self.made.choose(tuple(to.split(".")), value, f"veRL's default of {key}{note}{self.made.doubt}")

    def fold(self, key: str, to: str) -> None:
        """Accounts for a key covered by another key's line."""
        if key in self.unknown:
            self._unread(key, to)
        elif key in self.values:
            self.done.add(key)
            self.made.renamed.append((self.values[key], to))

    def leave(self, key: str, why: str, idle: bool = False, loses: str = "") -> None:
        """Accounts for a key without a line. idle: it needs no equivalent here. loses: the part of the task lost."""
        if key in self.values or key in self.unknown:
            self.done.add(key)
            given = self.values[key] if key in self.values else self.unknown[key][0]
            if idle:
                self.made.idle.append((given, why))
            else:
                self.made.leave(given, why, loses)

    def choose(self, to: str, value: Any, comment: str, of: tuple[str, ...] = ()) -> None:
        """Adds a line that the source does not have. of: veRL keys it derives from, else their defaults."""
        by_default = any(key not in self.values for key in of)
        self.made.choose(tuple(to.split(".")), value, comment + self.made.doubt * by_default)

    def by_itself(self, key: str, keys: dict[str, Renamed | Refused]) -> None:
        """Translates a key with its own equivalent, or without any. keys: the table of this kind of source."""
        entry, found = find(key, keys) or (key, None)
        if key.startswith("critic.") and self.algorithm_type != "ppo":
            self.leave(key, self.no_critic(), idle=self.algorithm_type != UNKNOWN)
        elif found is None:
            self.leave(key, "no counterpart known.")
        elif isinstance(found, Renamed):
            self._renamed(key, found)
        else:
            said = off(self.value(key)) if key in self.values and not found.why.startswith("always so") else ""
            self.leave(key, said + found.why, loses=found.loses,
                       idle=bool(said) or found.why in WITHOUT_EFFECT or self._is_idle(key, entry, found))

    def no_critic(self) -> str:
        """Explains why settings of a critic have no equivalent."""
        if self.algorithm_type == UNKNOWN:
            return "only ppo has a critic, and algorithm.adv_estimator is not known."
        return f"there is no critic in {self.algorithm_type}."

    def _is_idle(self, key: str, entry: str, fate: Refused) -> bool:
        """Returns whether a key, or the switch of its family, has a value that disables it there too; null: absent."""
        switches = dict(item for item in fate.idle if isinstance(item, tuple))
        is_off = any((key in self.values or (value is None and key not in self.unknown)) and self.value(key) == value
                     for key, value in ((f"{entry}.{name}", value) for name, value in switches.items()))
        is_same = bool(fate.equals) and key in self.values and self.value(fate.equals) == self.value(key)
        return is_off or is_same or (key in self.values and self.value(key) in fate.idle)

    def _renamed(self, key: str, fate: Renamed) -> None:
        value = self.value(key)
        if key in self.unknown:
            self._unread(key, fate.to)
        elif fate.values and (isinstance(value, (list, dict)) or value not in fate.values):
            self.leave(key, f"needed {', '.join(map(str, fate.values))}; {fate.to} was left at its default.")
        else:
            self.say(key, fate.to, fate.values[value] if fate.values else value)

    def _unread(self, key: str, to: str) -> None:
        if key not in self.done:
            self.done.add(key)
            self.made.unknown.append(Unread(*self.unknown[key]))
        unread = next(u for u in self.made.unknown if u.given.key == key)
        unread.to += [to] * (to not in unread.to)

    def whole(self, key: str, default: int | None) -> int | None:
        """Returns a positive integer of the source; None for anything else, described by `doubt`."""
        value = self.value(key, default)
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < LARGEST:
            value = int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST else None

    def doubt(self, key: str) -> str:
        """Explains why `whole` has no number for a key, for the end of a sentence."""
        if key in self.unknown:
            return f"{key} is not known: {self.unknown[key][1]}"
        value = self.value(key)
        if isinstance(value, str) and "${oc." in value:
            return f"{key} is known only where the run starts ({value})"
        return f"{key}={value} is no whole number above 0"
