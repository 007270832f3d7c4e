"""The instructions of a Dockerfile, as Docker's own parser separates them (BuildKit, frontend/dockerfile/parser).

Lines go on behind an escape character at their end, and nothing comes between them. A here-document begins with a word
of RUN, COPY or ADD outside of quotes, and has a line that ends it.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

# the escape character that a directive in the first lines names
ESCAPE = re.compile(r"\ufeff?(?:[ \t]*#[ \t]*[a-z]\w*[ \t]*=.*\n)*?[ \t]*#[ \t]*escape[ \t]*=[ \t]*(\S)", re.I)
# words of a line, in which quotes and escapes remain
WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")
HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")  # such a word
OPTIONS = re.compile(r"""(?:--(?=\S)(?:[^\s'"]|'[^']*'|"[^"]*")+(?:\s+|$))*""")  # at the begin of what follows a name
# in options: what is before an image or a stage, and its name
SOURCE = re.compile(r"(?<!\S)(--from=[\"']?|--mount=(?:\S*,)?[\"']?from=[\"']?)([^,\"'\s]+)")
WITH_TEXTS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True)
class Instruction:
    """name: in capitals. rest: what follows it, continued lines joined. documents: its here-documents, with the lines
    that end them."""

    name: str
    rest: str
    documents: str = ""

    @property
    def options(self) -> str:
        return OPTIONS.match(self.rest)[0]

    @property
    def arguments(self) -> str:
        """Returns what follows the options."""
        return self.rest[len(self.options):]

    @property
    def sources(self) -> list[str]:
        """Returns the images and stages that its options name."""
        return [name for _, name in SOURCE.findall(self.options)] if self.name in ("COPY", "RUN") else []

    @property
    def script(self) -> str:
        """Returns a here-document that is all it has, which is a script; else empty, and a command reads them."""
        if not self.documents or not (begun := HEREDOC.fullmatch(self.arguments)) or not WORD.fullmatch(begun[0]):
            return ""
        text = self.documents.rpartition("\n")[0] + "\n"
        return re.sub(r"^\t+", "", text, flags=re.M) if begun[1] else text


def escape_of(text: str) -> str:
    return found[1] if (found := ESCAPE.match(text)) else "\\"


@cache
def instructions(text: str) -> tuple[Instruction, ...]:
    """Returns the instructions of a Dockerfile, without comments and blank lines."""
    return tuple(_instructions(text))


def _instructions(text: str) -> Iterator[Instruction]:
    lines, escape, place = text.removeprefix("\ufeff").split("\n"), re.escape(escape_of(text)), 0
    goes_on = re.compile(rf"(^|(?!{escape}).){escape}[ \t]*$")  # two of them at the end of a line do not join
    while place < len(lines):
        joined, more = "", 1
        while more and place < len(lines):
            line, place = lines[place].rstrip("\r"), place + 1
            if line.strip() and not line.lstrip().startswith("#"):
                line, more = goes_on.subn(r"\1", line)
                joined += line
        if joined.strip():
            name, *rest = joined.split(maxsplit=1)
            name, rest = name.upper(), "".join(rest).strip()
            documents = _documents(lines[place:], _begun(name, rest))
            place += len(documents)
            yield Instruction(name, rest, "\n".join(documents))


def _begun(name: str, rest: str) -> list[tuple[bool, str]]:
    """Returns of the here-documents that a line begins: whether they are indented, and their names."""
    if name == "ONBUILD":
        name, _, rest = rest.partition(" ")
    if name.upper() not in WITH_TEXTS or "<<" not in rest or is_json(rest) or WORD.sub("", rest).strip():
        return []
    found = (HEREDOC.fullmatch(word) for word in WORD.findall(rest))
    return [(bool(one[1]), "".join(shlex.split(one[2]))) for one in found if one]


def _documents(lines: list[str], begun: list[tuple[bool, str]]) -> list[str]:
    """Returns the lines of here-documents that begin with the first one; none, if one has no end."""
    found: list[str] = []
    for indented, name in begun:
        bare = [line.rstrip("\r").lstrip("\t" * indented) for line in lines[len(found):]]
        if name not in bare:
            return []
        found += [*lines[len(found):][:bare.index(name)], name]
    return found


def is_json(rest: str) -> bool:
    """Returns whether an instruction has the JSON form: a list of strings."""
    try:
        found = json.loads(OPTIONS.sub("", rest, count=1))
    except ValueError:
        return False
    return isinstance(found, list) and all(isinstance(one, str) for one in found)
