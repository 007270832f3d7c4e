"""The constructs of a shell script that are open where a reader stands, and the list of commands that it stands in."""

from dataclasses import dataclass, field

from pipeline.bridges.shell_construct import Construct
from pipeline.bridges.shell_cursor import Cursor
from pipeline.bridges.shell_lists import Link, Verdict, link
from pipeline.bridges.shell_script import Script
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_variables import UNSET

REPEATED = ("for", "while", "until", "select", "function")  # within them a variable has more than the one value


@dataclass
class Nesting(Cursor):
    """Position among the tokens, the variables so far, and what is open, the innermost last.

    link: the place of the command that is read in its list; ended: how that list did up to here.
    """

    values: Values
    script: Script = field(default_factory=Script)
    open: list[Construct] = field(default_factory=list)
    link: Link = Link()
    ended: Verdict = Verdict()

    @property
    def inside(self) -> tuple[Construct, ...]:
        return tuple(construct for construct in self.open
                     if not construct.is_group and construct.word != "call")

    def enter(self, word: str, line: int, name: str = "") -> None:
        construct = Construct(word, line, name)
        self.open.append(construct)
        if not construct.is_group:
            self.script.constructs += [construct] * (word != "call")
            self.values.scopes.append(construct.changed)

    def close(self, line: int) -> None:
        construct = self.open.pop()
        if not construct.is_group:
            construct.last = line
            self.values.scopes.pop()
            construct.end(self.values.known)
            self.ended = Verdict()

    def leave(self, line: int, *words: str) -> None:
        if self.open and self.open[-1].word in words:
            self.close(line)
            if self.open and self.open[-1].word == "function" and "{" in words:
                self.close(line)

    def next_branch(self, *words: str) -> bool:
        """`else`, `;;`: what the branch before it assigned does not hold. Whether such a construct is open."""
        found = bool(self.open) and self.open[-1].word in words
        if found:
            self.open[-1].next_branch(self.values.known)
        return found

    @property
    def is_read_once(self) -> bool:
        """Whether variables have here the one value that they have so far: not so in loops, and in most functions."""
        return not any(construct.word in REPEATED for construct in self.open)

    def make_local(self, name: str) -> None:
        """`local X`: behind the function X is what it was here."""
        function = next((c for c in reversed(self.open) if c.word in ("function", "call")), None)
        if function and name not in function.local:
            function.local.add(name)
            function.changed[name] = self.values.known.get(name, UNSET)

    def link_here(self) -> Link:
        """The place in its list of the command whose first word was just read."""
        joint, negated = self.joint(self.at - 1)
        self.link = link(self.link, self.ended, joint, negated)
        return self.link
