"""Parses shell scripts with shfmt; types for commands, words, and holes in texts.

A hole is a part of a text that is only known at run time: its source text, and why it is unknown. It has no blanks, so
that it survives being split into words and joined.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pipeline.store.errors import ConfigError

Node = dict[str, Any]
HOLE = re.compile("\ue000([^\ue000-\ue002\\s]*)\ue001([^\ue000-\ue002\\s]*)\ue002")  # private-use characters
COMMAND = re.compile(r"(?:\$\((?!\()|[<>]\(|`)\s*(?P<name>[\w./-]*)(?P<end>[)`])?")
PLACE = re.compile(r"(?:<standard input>:)?(\d+):(\d+): (.*)")


class Unknown(Exception):
    """A value only known at run time; the message says what it consists of."""


class Text(str):
    """A text and its source line."""

    line = 0


@dataclass(frozen=True)
class Argument:
    """A word of a command. problem: why a part of it is unknown; whole: its text with holes."""

    text: str
    line: int
    problem: str | None = None
    whole: str = ""


@dataclass(frozen=True)
class Construct:
    """A loop, conditional or function that may or may not run: it was read once."""

    word: str
    line: int
    last: int
    name: str = ""

    def __str__(self) -> str:
        return f"the {f'function {self.name}' if self.name else f'`{self.word}`'} of line {self.line}"


@dataclass(frozen=True)
class Command:
    """A simple command. inside: the enclosing constructs; times: how often it was read."""

    arguments: tuple[Argument, ...]
    line: int
    inside: tuple[Construct, ...] = ()
    times: int = 1

    def again(self, other: "Command") -> "Command":
        """Merges this command with another run of it: words that only one of them has are unknown."""
        ours, theirs = ({a.whole for a in command.arguments} for command in (self, other))
        keys = {a.text.partition("=")[0] for a in self.arguments}
        words = [*self.arguments, *(a for a in other.arguments if a.text.partition("=")[0] not in keys)]
        why = f"line {self.line} runs several times, and not always with this value"
        return Command(tuple(a if a.whole in ours & theirs else replace(a, problem=a.problem or why) for a in words),
                       self.line, min(self.inside, other.inside, key=len), self.times + 1)


@dataclass
class Script:
    """The result of reading. skipped: (line, what may matter and was not read); assumed: (line, assumption).

    found: the commands by their node; constructs: with the variables unknown after each; nested: (line, text) of
    heredocs and of `bash -c`, which are not read.
    """

    found: dict[int, Command] = field(default_factory=dict)
    constructs: list[tuple[Construct, tuple[str, ...]]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    assumed: list[tuple[int, str]] = field(default_factory=list)
    nested: list[tuple[int, str]] = field(default_factory=list)

    @property
    def commands(self) -> list[Command]:
        return list(self.found.values())

    def copy(self) -> "Script":
        return Script(**{name: held.copy() for name, held in vars(self).items()})


@lru_cache(maxsize=256)
def parse(text: str, name: str) -> list[Node]:
    """Returns the statements of a script; nodes have first and last `line`, words and expansions their `raw` text.

    Raises ConfigError when shfmt is not installed, or the text is not bash.
    """
    program = shutil.which("shfmt", path=str(Path(sys.executable).parent)) or shutil.which("shfmt")
    if program is None:
        raise ConfigError(f"{name} is read by means of shfmt, which is not installed: pip install "
                          "shfmt-py.")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\\").split("\n")
    source = "\n".join(line.rstrip("\\") if _ends_in_comment(line) else line for line in lines).encode()
    done = subprocess.run([program, "-ln", "bash", "--to-json"], input=source, capture_output=True, timeout=60)
    if done.returncode:
        said = PLACE.sub(r"line \1, column \2: \3", done.stderr.decode(errors="replace").partition("\n")[0])
        raise ConfigError(f"{name} is not valid bash: {said}.")

    def located(node: Node) -> Node:
        if isinstance(node.get("Op"), int):
            raise ConfigError(f"{program} is too old: pip install --upgrade shfmt-py.")
        if "End" in node:
            node["line"], node["last"] = node["Pos"]["Line"], node["End"]["Line"]
            node["raw"] = source[node["Pos"]["Offset"]:node["End"]["Offset"]].decode(errors="replace")
        return node

    return json.loads(done.stdout, object_hook=located).get("Stmts", [])


def _ends_in_comment(line: str) -> bool:
    """Returns whether a line ends in a comment; a backslash there continues the line for shfmt, but not for bash."""
    return line.endswith("\\") and any(line.count('"', 0, mark.start()) % 2 == line.count("'", 0, mark.start()) % 2 == 0
                                       for mark in re.finditer(r"(?:^|[ \t])#", line))


def hole(written: str, why: str) -> str:
    """Encodes a part of a text only known at run time. written: its source text."""
    return f"\ue000{quote(quiet(written), safe='')}\ue001{quote(why, safe='')}\ue002"


def shown(text: str) -> str:
    """Returns a text with its holes as source text."""
    return HOLE.sub(lambda match: unquote(match[1]), text)


def reason(text: str) -> str | None:
    """Returns why a text is not completely known; None when it is."""
    first = HOLE.search(text)
    return unquote(first[2]) if first else None


def solid(text: str) -> str:
    """Returns a text that is completely known before the script runs. Raises Unknown."""
    if why := reason(text) or ("${oc.env:" in text and f"a part of {short(text)}"):
        raise Unknown(why)
    return text


def short(text: str) -> str:
    """Shortens a text for a message: one line of at most 60 characters, without command arguments."""
    flat = " ".join(quiet(shown(text)).split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def quiet(text: str) -> str:
    """Returns a text for quoting, without command arguments, which may be secrets: `8 * $(curl ...)`."""
    long = next((command for command in COMMAND.finditer(text) if not command["end"]), None)
    return f"{text[:long.start()]}$({long['name']}{' ' * bool(long['name'])}...)" if long else text
