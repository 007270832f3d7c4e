"""What a Dockerfile says before it is built: stages, base images, owners, what is refused; and its text for buildah.

buildah gets each instruction in one line. Rewritten are names of images and stages, and here-documents of RUN, which
versions of buildah before 1.33 do not read. `--build-context NAME=container-image://…` would replace names of images
alone: it takes precedence over a stage of that name, and buildah finds a stage in the letters of its AS only.
"""

import json
import os
import platform
import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ouroboros.pipeline.store.dockerfile_text import SOURCE, Instruction, escape_of, instructions, is_json

VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
SPECIAL = re.compile(r"[$*?\[\\'\"`]|://|^git@")  # in a name of COPY or ADD that is no file next to the Dockerfile
ROOT = {"", "root", "0"}
REGISTRY = "docker.io/"  # of names without one
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the machine's name -> Docker's
CHOWN = re.compile(r"(?<!\S)--chown=(\S+)")
QUOTES = dict.fromkeys(map(ord, "'\"\\"))  # characters that quote others
PRINTED = str.maketrans({"\\": "\\\\", "'": "\\0047", "<": "\\0074", "\n": "\\n"})  # for printf %b, in single quotes
# a script that names its interpreter (#!) is a file, as in Docker
SCRIPT = ('d=$(mktemp -d) && printf %b {} > "$d/script" && chmod 700 "$d/script" || exit 1; "$d/script"; s=$?; '
          'rm -rf "$d"; exit $s')
LONGEST = 2**16  # bytes of a line from which buildah leaves out the rest of the file, without an error


@dataclass(eq=False)
class Stage:
    """A stage, and what its last instruction leaves, of which the next stage begins with what is not its own.

    image: what FROM names. behind: words behind it. parent: the stage of that name, if it is one. platforms: options of
    FROM. outer: variables of ARG before the first stage. owners: of commands, and to whom COPY and ADD give files.
    """

    image: str
    behind: list[str]
    parent: "Stage | None"
    platforms: list[str]
    outer: Mapping[str, str]
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    owners: frozenset[str] = frozenset()
    user: str = ""
    workdir: str = ""

    def __post_init__(self) -> None:
        if parent := self.parent:
            self.environment, self.owners = dict(parent.environment), parent.owners
            self.user, self.workdir = parent.user, parent.workdir

    @property
    def name(self) -> str:
        """Returns what follows AS, or an empty text."""
        return "".join(self.behind[1:2])

    @property
    def base(self) -> str | None:
        """Returns the image that it begins with; None: scratch."""
        return self.parent.base if self.parent else self.image if self.image.lower() != "scratch" else None

    def take(self, one: Instruction) -> None:
        known = self.arguments | self.environment
        if one.name == "ARG":
            self.arguments |= assigned(one, known, self.outer)
        elif one.name == "ENV":
            self.environment |= assigned(one, known, {})
        elif one.name == "WORKDIR":
            self.workdir = os.path.join(self.workdir, one.rest)
        elif one.name == "USER":
            self.user = _user(one.rest, known)
        elif one.name == "RUN":
            self.owners |= {self.user}
        elif one.name in ("COPY", "ADD"):
            self.owners |= {_user(owner, known) for owner in CHOWN.findall(one.options)}


def stages(text: str) -> list[Stage]:
    """Returns the stages of a Dockerfile, in their order."""
    found: list[Stage] = []
    outer = _platforms()
    for one in instructions(text):
        if one.name == "FROM":
            image, *behind = [expanded(word, outer) for word in one.arguments.split()] or [""]
            platforms = [expanded(option, outer) for option in one.options.split()]
            found.append(Stage(image, behind, _stage(image, found), platforms, outer))
        elif found:
            found[-1].take(one)
        elif one.name == "ARG":
            outer |= assigned(one, outer, {})
    return found


def _stage(name: str, among: list[Stage]) -> Stage | None:
    """Returns the last stage of a name, in capitals or not."""
    return next((one for one in reversed(among) if one.name and one.name.lower() == name.lower()), None)


def _platforms() -> dict[str, str]:
    """Returns the variables that Docker gives to FROM, for this machine."""
    values = {"PLATFORM": f"linux/{_architecture()}", "OS": "linux", "ARCH": _architecture(), "VARIANT": ""}
    return {f"{side}{name}": value for side in ("BUILD", "TARGET") for name, value in values.items()}


def _architecture() -> str:
    return ARCHITECTURES.get(platform.machine(), platform.machine())


def _is_of_this_machine(option: str) -> bool:
    """Returns whether an option of FROM names its platform: linux/amd64, amd64 or linux; linux/arm64, also with /v8."""
    option, _, named = option.partition("=")
    name = named.strip("\"'").lower().removeprefix("linux/").replace("arm64/v8", "arm64")
    return option == "--platform" and ARCHITECTURES.get(name, name) in ("linux", _architecture())


def assigned(one: Instruction, known: Mapping[str, str], outer: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of ARG or ENV that have a value. Those of one ARG may use those before them.

    outer: values of names that ARG has without one.
    """
    try:
        found = shlex.split(one.rest)
    except ValueError:  # buildah tells that it is malformed
        return {}
    if one.name == "ENV" and found and "=" not in found[0]:
        return {found[0]: expanded(" ".join(found[1:]), known)}
    made: dict[str, str] = {}
    for name, sign, value in (word.partition("=") for word in found):
        if sign:
            made[name] = expanded(value, {**known, **made} if one.name == "ARG" else known)
        elif name in outer:
            made[name] = outer[name]
    return made


def expanded(text: str, known: Mapping[str, str]) -> str:
    """Replaces $NAME, ${NAME}, ${NAME:-default}, ${NAME:+other} and both without the colon."""
    def value(found: re.Match) -> str:
        given, operator, other = known.get(found[1] or found[2]), found[3] or "", found[4]
        has = bool(given) if ":" in operator else given is not None
        return other if operator and has == operator.endswith("+") else (given or "") * has
    return VARIABLE.sub(value, text)


def _user(owner: str, known: Mapping[str, str]) -> str:
    """Returns the user of USER:GROUP; empty where only the build knows it."""
    names = {found[1] or found[2] for found in VARIABLE.finditer(owner) if not found[3]}
    value = expanded(owner, known).translate(QUOTES)
    return "" if names - {*known} or "$" in value else value.partition(":")[0]


def owners(text: str) -> set[str]:
    """Returns the users that instructions give files to or run commands as, without root. What commands do is read
    from the layers that they make (stages/image_builder.py)."""
    last = stages(text)[-1]
    return {*last.owners, last.user} - ROOT


def several(owners: Collection[str]) -> str | None:
    """Returns why an image cannot have files of these owners, without root, or None."""
    if len(owners) > 1:
        return f"files and commands of {' and '.join(sorted(owners))}: in an attempt one user owns all files"
    return None


def bases(text: str) -> list[str]:
    """Returns the images that FROM and the options `from` of COPY and RUN name, without stages of the same file."""
    found = stages(text)
    return [one.image for one in found if one.base and not one.parent] + [
        name for one in instructions(text) for name in one.sources if not _is_stage(name, found)]


def given_bases(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns those base images that are given, as the Dockerfile names them, with registry and tag or without.

    given: base image -> file or directory.
    """
    known = {qualified(name): path for name, path in given.items()}
    return {name: known[qualified(name)] for name in bases(text) if qualified(name) in known}


def copied(text: str) -> list[str]:
    """Returns the files next to the Dockerfile that COPY and ADD name, without patterns, variables and quotes."""
    found = (one for one in instructions(text) if one.name in ("COPY", "ADD") and "--from" not in one.options)
    named = (json.loads(one.arguments) if is_json(one.arguments) else one.arguments.split() for one in found)
    return [name for names in named for name in names[:-1] if not SPECIAL.search(name)]


def _is_stage(name: str, among: list[Stage]) -> bool:
    return _stage(name, among) is not None or (name.isdigit() and int(name) < len(among)) or name.lower() == "scratch"


def refusal(text: str) -> str | None:
    """Returns why an image cannot be built as Docker builds it, or None."""
    found, double = stages(text), escape_of(text) * 2
    if not found:
        return "has no FROM"
    for stage in found:
        if other := [one for one in stage.platforms if not _is_of_this_machine(one)]:
            return f"FROM {other[0]} {stage.image}: needed none or --platform=linux/{_architecture()} (this machine)"
        if "$" in stage.image:
            return f"FROM {stage.image}: needed $NAME, ${{NAME}}, ${{NAME:-word}} or ${{NAME:+word}}"
    for one in instructions(text):
        shown = f"{one.name} {one.rest[:80]}"
        if one.documents and one.name != "RUN":
            return f"{shown}: texts in place of files"
        if one.rest.endswith(double):
            return (f"{one.name} …{one.rest[-80:]}: ends in {double}, where Docker ends a line, and buildah joins it "
                    "with the next one")
        if any("$" in name for name in one.sources):
            return f"{shown}: neither Docker nor buildah replaces a variable in the option `from`"
    if reason := several(owners(text)):
        return reason
    long = next((line for line in rewritten(text, {}).split("\n") if len(line.encode()) >= LONGEST), None)
    return long and (f"{long[:80]}…: {len(long.encode())} bytes in an instruction, which buildah gets in one line; it "
                     f"reads {LONGEST - 1}")


def rewritten(text: str, given: Mapping[str, str]) -> str:
    """Returns a Dockerfile for buildah. given: base image -> its name in the builder's store.

    Images have the name of their registry, and stages the one that AS gave them, in its letters.
    """
    found, lines = stages(text), [f"# escape={escape_of(text)}"]

    def local(name: str) -> str:
        known = _stage(name, found)
        return known.name if known else name if _is_stage(name, found) else local_name(name, given)

    begun = iter(found)
    for one in instructions(text):
        if one.name == "FROM":
            stage = next(begun)
            image = stage.parent.name if stage.parent else local_name(stage.image, given) if stage.base else "scratch"
            lines.append(" ".join(["FROM", image, *stage.behind]))
        else:
            options = SOURCE.sub(lambda part: part[1] + local(part[2]), one.options) if one.sources else one.options
            lines.append(f"{one.name} {options}{_command(one) if one.documents else one.arguments}")
    return "\n".join(lines) + "\n"


def _command(run: Instruction) -> str:
    """Returns the command of a RUN with here-documents in one line, for the shell of its stage."""
    text = run.script or f"{run.arguments}\n{run.documents}"
    printed = f"'{text.translate(PRINTED)}'"
    return SCRIPT.format(printed) if run.script.startswith("#!") else f'eval "$(printf %b {printed})"'


def local_name(name: str, given: Mapping[str, str]) -> str:
    """Returns the name of an image in the builder's store."""
    return given.get(name) or qualified(name)


def qualified(name: str) -> str:
    """Returns an image's name with its registry and tag: docker.io/library/ubuntu:latest for ubuntu."""
    first, slash, _ = name.partition("/")
    name += ":latest" * (":" not in name.rpartition("/")[2] and "@" not in name)
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"{REGISTRY}{name}" if slash else f"{REGISTRY}library/{name}"
