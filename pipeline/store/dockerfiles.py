"""What a Dockerfile says before it is built: its instructions, its base images, and the owners of its files.

Only what decides about a task is read; buildah reads the file itself, rewritten by `rewritten`.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
ROOT = {"", "root", "0"}
REGISTRY = "docker.io/"  # of names without one
# options with a value, of the programs that give files to an owner
CHOWN = re.compile(r"(?:^|[;&|(\s])chown\s+((?:-\S+\s+)*)(\S+)|--chown=(\S+)")


@dataclass(frozen=True)
class Instruction:
    """name: in capitals. rest: of its line, continued lines joined. body: lines of here-documents, as written."""

    name: str
    rest: str
    body: str = ""


def instructions(text: str) -> Iterator[Instruction]:
    """Yields the instructions of a Dockerfile, without comments and blank lines."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        while line.rstrip().endswith("\\"):
            following = next((one for one in lines if one.strip() and not one.lstrip().startswith("#")), "")
            line = f"{line.rstrip()[:-1]} {following}"
        name, *rest = line.split(maxsplit=1)
        rest, name = "".join(rest).strip(), name.upper()
        ends = [end for _, end in HEREDOC.findall(rest)] if name in ("RUN", "COPY", "ADD") else []
        yield Instruction(name, rest, "".join(_until(lines, end) for end in ends))


def _until(lines: Iterator[str], end: str) -> str:
    """Returns the lines of a here-document, the last of which is its end."""
    found = []
    for line in lines:
        found.append(line)
        if line.strip() == end:
            break
    return "".join(f"{line}\n" for line in found)


def bases(text: str) -> list[str]:
    """Returns the images that FROM names, which are no stages of the same file, in their order."""
    return [name for name, _ in _froms(text) if name]


def _froms(text: str) -> Iterator[tuple[str | None, str]]:
    """Yields of every FROM the image that it names (None: a stage before it, or scratch), and the words behind it."""
    stages, known = {"scratch"}, {}
    for one in instructions(text):
        if one.name == "ARG":
            name, _, value = one.rest.partition("=")
            known.setdefault(name, value.strip("'\""))
        if one.name != "FROM":
            continue
        words = [word for word in one.rest.split() if not word.startswith("--")]
        name, *behind = [expanded(word, known) for word in words] or [""]
        yield (None if name.lower() in stages else name), " ".join([name, *behind])
        stages.update(word.lower() for word in behind[1:])


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces $NAME, ${NAME} and ${NAME:-default}."""
    return VARIABLE.sub(lambda found: known.get(found[1] or found[2]) or found[3] or "", text)


def owners(text: str) -> set[str]:
    """Returns the users that files are given to, and the one that commands run as, unless that is root."""
    found, user = set(), ""
    for one in instructions(text):
        if one.name == "USER":
            user = one.rest.partition(":")[0]
        elif one.name == "FROM":
            found, user = set(), ""
        elif one.name in ("RUN", "COPY", "ADD"):
            given = [(a or b).partition(":")[0].strip("'\"") for _, a, b in CHOWN.findall(f"{one.rest}\n{one.body}")]
            found.update(name for name in given if name not in ROOT)
    return found | ({user} - ROOT)


def rewritten(text: str, given: Mapping[str, str]) -> str:
    """Returns a Dockerfile for buildah. given: base image -> its name in the builder's store.

    Images have the name of their registry, and here-documents of RUN, which older versions of buildah do not read, are
    scripts in the JSON form.
    """
    froms, lines = _froms(text), []
    for one in instructions(text):
        if one.name == "FROM":
            name, words = next(froms)
            rest = words if name is None else words.replace(name, given.get(name) or qualified(name), 1)
            lines.append(f"FROM {rest}")
        elif one.name == "RUN" and one.body:
            lines.append("RUN " + json.dumps(["/bin/sh", "-c", _script(one)]))
        else:
            lines.append(f"{one.name} {one.rest}\n{one.body}".rstrip())
    return "\n".join(lines) + "\n"


def _script(run: Instruction) -> str:
    """Returns the script of a RUN with here-documents: alone one is the script itself, else a command reads it."""
    if HEREDOC.fullmatch(run.rest):
        return run.body.rsplit("\n", 2)[0]
    return f"{run.rest}\n{run.body}"


def qualified(name: str) -> str:
    """Returns an image's name with its registry: docker.io/library/ubuntu:24.04 for ubuntu:24.04."""
    first, slash, _ = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"{REGISTRY}{name}" if slash else f"{REGISTRY}library/{name}"


def words(rest: str) -> list[str]:
    """Returns the words of an instruction, in either form. Raises ValueError for unbalanced quotes or JSON."""
    return list(map(str, json.loads(rest))) if rest.startswith("[") else shlex.split(rest)
