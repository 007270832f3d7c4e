"""A loop, conditional or function of a script that is read and not run, and what becomes of its variables."""

from dataclasses import dataclass, field
from typing import Any

from pipeline.bridges.shell_values import UNSET, Argument, Unknown


@dataclass(eq=False)
class Construct:
    """word: `for`, `if`, `function` ...; `{` and `(` group commands and are followed. Lines from 1 on.

    changed: the variables assigned in it so far, with what they held before it; local: those of a function alone.
    """

    word: str
    line: int
    name: str = ""
    last: int = 0
    changed: dict[str, Any] = field(default_factory=dict)
    local: set[str] = field(default_factory=set)

    @property
    def is_group(self) -> bool:
        return self.word in ("{", "(")

    def __str__(self) -> str:
        called = f"the function {self.name}" if self.name else f"the `{self.word}`"
        return f"{called} of line {self.line}"

    def begin_again(self, known: dict[str, Any]) -> None:
        """Another branch begins: variables hold what they held before the construct."""
        for name, before in self.changed.items():
            known.pop(name, None)
            if before is not UNSET:
                known[name] = before

    def end(self, known: dict[str, Any]) -> None:
        """Behind it nobody knows whether it ran. What an array had before it, it has still."""
        now = {name: known.get(name) for name in self.changed if name not in self.local}
        self.begin_again(known)
        for name, value in now.items():
            before = self.changed[name]
            if isinstance(value, list) and isinstance(before, list) and value[:len(before)] == before:
                added = value[len(before):]
                known[name] = [*before, *(a if a.problem else Argument(a.text, a.line, f"what only {self} adds")
                                          for a in added)]
            else:
                known[name] = Unknown(f"{name}, which {self} sets")
