"""Lists the command blocks of README.md and docs/, each with the comment above it.

A block of `sh` is commands, one of `console` has them after `$ `, with what they print. The comment is one of

    <!-- not run: REASON -->             a word of REASONS
    <!-- run with `A` as `B`, ... -->    these texts replaced, so that a run is short or a name is one that is there
"""

import re
import shlex
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.store.files import HOME

PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (?P<comment>.*?) -->\n)?^```(?P<kind>sh|console)\n(?P<text>.*?)^```$", re.M | re.S)
NOT_RUN = re.compile(r"not run: ([\w ]+)")
AS = re.compile(r"`([^`]+)` as `([^`]+)`")
REASONS = ("gpu", "hub", "cluster", "two machines", "package", "over two minutes")
OWN = {"first-hour.md": "tests/toy/test_first_hour.py"}
"""Pages that another test runs from their first block to their last."""


class Block(NamedTuple):
    """A command block. line: where it begins. text: as written. reason: why it is not run, or None."""

    page: str
    line: int
    kind: str
    text: str
    reason: str | None
    replaced: tuple[tuple[str, str], ...]

    def commands(self) -> list[str]:
        """What a shell is given, with replacements: a console's commands one by one, else the whole block."""
        found = re.findall(r"^\$ (.*)$", self.text, re.M) if self.kind == "console" else [self.text]
        for old, new in self.replaced:
            found = [one.replace(old, new) for one in found]
        return found


def blocks(page: Path) -> list[Block]:
    """The command blocks of a page, in order."""
    text, found = page.read_text(encoding="utf-8"), []
    for match in BLOCK.finditer(text):
        comment = match["comment"] or ""
        reason = NOT_RUN.fullmatch(comment)
        found.append(Block(page.name, text.count("\n", 0, match.start("text")), match["kind"], match["text"],
                           reason and reason[1], tuple(AS.findall(comment))))
        assert all(old in match["text"] for old, _ in found[-1].replaced), f"{page.name}: {comment}"
        assert not comment or reason or found[-1].replaced, f"{page.name}: {comment}"
    return found


def left_out(page: Path) -> list[Block]:
    """The blocks of a page that are not run."""
    return [block for block in blocks(page) if block.reason]


def fenced(page: Path, kind: str) -> list[str]:
    """The texts of the blocks of another kind: python, yaml."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


def ouro(block: Block) -> list[list[str]]:
    """The words after `ouro` of every command of a block that begins with it."""
    text = re.sub(r"\\\n", " ", "\n".join(block.commands()))
    found = re.findall(r"^ouro ((?:\"[^\"]*\"|'[^']*'|[^\n\"'])*)", text, re.M)
    lines = [shlex.split(line, comments=True) for line in found]
    return [list(takewhile(lambda word: word not in ("|", "||", ">"), words)) for words in lines]


def parsed(words: list[str]) -> str:
    """The name of the command that a command line calls. Raises for an option or argument that it does not have."""
    import click

    from ouroboros.commands import cli

    words = cli.split_at_dashes(words)[0]
    command, context, names = cli.ouro, click.Context(cli.ouro), []
    while isinstance(command, click.Group):
        name, command, words = command.resolve_command(context, words)
        names.append(name)
    command.make_context(name, list(words))
    return " ".join(names)
