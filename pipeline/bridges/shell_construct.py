"""A loop, conditional or function of a script that is read and not run, and what becomes of its variables."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.bridges.shell_holes import Unknown, doubtful
from pipeline.bridges.shell_variables import FURTHER, UNSET, Argument


@dataclass(eq=False)
class Construct:
    """word: `for`, `if`, `function` ...; `{` and `(` group commands and are followed, as is `call`. Lines from 1 on.

    changed: the variables assigned in it so far, with what they held before it; local: those of a function alone;
    branches: what each branch left in them.
    """

    word: str
    line: int
    name: str = ""
    last: int = 0
    changed: dict[str, Any] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)
    branches: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_group(self) -> bool:
        return self.word in ("{", "(")

    @property
    def sets(self) -> list[str]:
        """The variables whose values are not known behind it."""
        return [] if self.word == "call" else [name for name in self.changed
                                                if name not in (*self.local, FURTHER)]

    def __str__(self) -> str:
        called = f"the function {self.name}" if self.name else f"the `{self.word}`"
        return f"{called} of line {self.line}"

    def next_branch(self, known: dict[str, Any]) -> None:
        """Another branch begins: variables hold what they held before the construct."""
        self.branches.append({name: known.get(name) for name in self.changed})
        self._restore(known, list(self.changed))

    def end(self, known: dict[str, Any]) -> None:
        """Behind it nobody knows whether it ran, or which branch. What a text or an array had before it, it has still.

        A call ran, and only what is the function's own is as before.
        """
        if self.word == "call":
            self._restore(known, list(self.local & self.changed.keys()))
            return
        self.next_branch(known)
        for name in self.sets:
            before = self.changed[name]
            ends = [branch.get(name, before) for branch in self.branches]
            added = _added(before, ends)
            why = f"what only {self} adds"
            if added is None:
                known[name] = Unknown(f"{name}, which {self} sets")
            elif isinstance(before, list):
                known[name] = [*before, *(a if a.problem else Argument(a.text, a.line, why)
                                          for end in added for a in end)]
            else:
                known[name] = before + doubtful("".join(added), why)

    def _restore(self, known: dict[str, Any], names: list[str]) -> None:
        for name in names:
            known.pop(name, None)
            if self.changed[name] is not UNSET:
                known[name] = self.changed[name]


def _added(before: Any, ends: list) -> list | None:
    """What every branch adds to an array, or as further words to a text; None where one does something else to it."""
    if not isinstance(before, (list, str)) or not all(
            isinstance(end, type(before)) and end[:len(before)] == before for end in ends):
        return None
    added = [end[len(before):] for end in ends]
    if isinstance(before, str) and not all(before and (not more or more[0].isspace()) for more in added):
        return None
    return added
