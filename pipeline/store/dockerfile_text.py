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

ESCAPE = "\\"  # without a directive
DIRECTIVE = re.compile(r"#\s*([A-Za-z]\w*)\s*=\s*(.+?)\s*$")
# words of a line, in which quotes and escapes remain
WORD = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")
HEREDOC = re.compile(r"\d*<<(-?)([^<]+)")  # such a word
OPTIONS = re.compile(r"""(?:--(?=\S)(?:[^\s'"]|'[^']*'|"[^"]*")+(?:\s+|$))*""")  # at the begin of what follows a name
WITH_TEXTS = ("RUN", "COPY", "ADD")


@dataclass(frozen=True)
class Document:
    """A here-document. name: of the line that ends it. text: its lines. indented: it began with `<<-`."""

    name: str
    text: str
    indented: bool

    @property
    def plain(self) -> str:
        """Returns its text as a program reads it: without leading tabs, where it is indented."""
        return re.sub(r"^\t+", "", self.text, flags=re.M) if self.indented else self.text


@dataclass(frozen=True)
class Instruction:
    """name: in capitals. rest: what follows it, continued lines joined. source: all of its lines, as written, without
    its here-documents."""

    name: str
    rest: str
    documents: tuple[Document, ...] = ()
    source: str = ""

    @property
    def options(self) -> list[str]:
        return [found[0] for found in WORD.finditer(OPTIONS.match(self.rest)[0])]

    @property
    def arguments(self) -> str:
        """Returns what follows the options."""
        return self.rest[OPTIONS.match(self.rest).end():]

    @property
    def is_script(self) -> bool:
        """Returns whether a here-document is all that it has: then that is a script itself, else a command reads it."""
        return bool(self.documents) and all(one.fullmatch(self.arguments) for one in (WORD, HEREDOC))


def escape_of(text: str) -> str:
    """Returns the escape character, which a directive in the first lines may name."""
    for line in text.removeprefix("\ufeff").split("\n"):
        if not (found := DIRECTIVE.match(line.strip())):
            break
        if found[1].lower() == "escape":
            return found[2]
    return ESCAPE


@cache
def instructions(text: str) -> tuple[Instruction, ...]:
    """Returns the instructions of a Dockerfile, without comments and blank lines."""
    return tuple(_instructions(text))


def _instructions(text: str) -> Iterator[Instruction]:
    lines, escape, place = text.removeprefix("\ufeff").split("\n"), re.escape(escape_of(text)), 0
    goes_on = re.compile(rf"(^|(?!{escape}).){escape}[ \t]*$")  # two of them at the end of a line do not join
    while place < len(lines):
        begin = place
        joined, place = _joined(lines, place, goes_on)
        if joined:
            name, *rest = joined.split(maxsplit=1)
            name, rest, source = name.upper(), "".join(rest).strip(), "\n".join(lines[begin:place])
            documents, place = _documents(lines, place, _begun(name, rest))
            yield Instruction(name, rest, documents, source)


def _joined(lines: list[str], place: int, goes_on: re.Pattern) -> tuple[str, int]:
    """Returns the joined line that begins at a place, and the place behind it; an empty one for blanks and comments."""
    joined, more = lines[place].strip("\r").lstrip(), 1
    if not joined or joined.startswith("#"):
        return "", place + 1
    joined, more = goes_on.subn(r"\1", joined)
    while more and (place := place + 1) < len(lines):
        line = lines[place].rstrip("\r")
        if line.strip() and not line.lstrip().startswith("#"):
            line, more = goes_on.subn(r"\1", line)
            joined += line
    return joined.strip(), place + 1


def _begun(name: str, rest: str) -> list[tuple[bool, str]]:
    """Returns of the here-documents that a line begins: whether they are indented, and their names."""
    if name == "ONBUILD":
        name, _, rest = rest.partition(" ")
    if name.upper() not in WITH_TEXTS or "<<" not in rest or is_json(rest) or WORD.sub("", rest).strip():
        return []
    found = (HEREDOC.fullmatch(word) for word in WORD.findall(rest))
    return [(bool(one[1]), "".join(shlex.split(one[2]))) for one in found if one]


def _documents(lines: list[str], place: int, begun: list[tuple[bool, str]]) -> tuple[tuple[Document, ...], int]:
    """Returns the here-documents at a place, and the place behind them: none, if one has no end."""
    found, behind = [], place
    for indented, name in begun:
        bare = (line.rstrip("\r").lstrip("\t") if indented else line.rstrip("\r") for line in lines[behind:])
        end = next((behind + number for number, line in enumerate(bare) if line == name), None)
        if end is None:
            return (), place
        found.append(Document(name, "".join(f"{line}\n" for line in lines[behind:end]), indented))
        behind = end + 1
    return tuple(found), behind


def is_json(rest: str) -> bool:
    """Returns whether an instruction has the JSON form: a list of strings."""
    try:
        found = json.loads(OPTIONS.sub("", rest, count=1))
    except ValueError:
        return False
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def words(rest: str) -> list[str]:
    """Returns the words of an instruction, in either form. Raises ValueError for unbalanced quotes."""
    return json.loads(rest) if is_json(rest) else shlex.split(rest)
