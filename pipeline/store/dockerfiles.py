"""What a Dockerfile says before it is built: stages, base images, what is refused; and its text for buildah.

buildah gets instructions as they are written. Rewritten are names of images, RUN below SHELL, which buildah does not
keep in images of OCI, and here-documents of RUN, which versions of buildah before 1.33 do not read.
"""

import json
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

from ouroboros.pipeline.store.dockerfile_text import ESCAPE, Instruction, escape_of, instructions, is_json, words

VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^}]*))?\})")
SPECIAL = re.compile(r"[$*?\[\\'\"`]|://|^git@")  # in a name of COPY or ADD that is no file beside the Dockerfile
ROOT = {"", "root", "0"}
REGISTRY = "docker.io/"  # of names without one
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the machine's name -> Docker's
SOURCE = re.compile(r"(--from=[\"']?|--mount=(?:.*,)?[\"']?from=[\"']?)([^,\"']+)")  # an option that names an image
SHELL = ("/bin/sh", "-c")
# a script with an interpreter of its own is a file ($0 is its text), as Docker makes it one
SCRIPT = ('d=$(mktemp -d) && printf %s "$0" > "$d/script" && chmod 700 "$d/script" || exit 1; "$d/script"; s=$?; '
          'rm -rf "$d"; exit $s')
LONGEST = 2**16  # bytes of a line from which buildah leaves out the rest of the file, without an error


@dataclass(eq=False)
class Stage:
    """name: behind AS, or empty. image: what FROM names. parent: the stage of that name, if it is one. behind:
    words behind the image. outer: variables of ARG before the first stage. shell: of RUN, at its end."""

    name: str
    image: str
    parent: "Stage | None"
    options: list[str]
    behind: list[str]
    outer: Mapping[str, str]
    shell: tuple[str, ...]
    instructions: list[Instruction] = field(default_factory=list)

    @property
    def is_on_an_image(self) -> bool:
        return self.parent is None and self.image.lower() != "scratch"


def stages(text: str) -> list[Stage]:
    """Returns the stages of a Dockerfile, in their order."""
    found: list[Stage] = []
    known = _platforms()
    for one in instructions(text):
        if one.name == "FROM":
            found.append(_begun(one, found, known))
        elif found:
            found[-1].instructions.append(one)
            if one.name == "SHELL" and is_json(one.rest):
                found[-1].shell = tuple(words(one.rest))
        elif one.name == "ARG":
            known |= assigned(one, known, {})
    return found


def _begun(one: Instruction, before: list[Stage], known: Mapping[str, str]) -> Stage:
    image, *behind = [expanded(word, known) for word in one.arguments.split()] or [""]
    parent = _stage(image, before)
    return Stage("".join(behind[1:2]), image, parent, [expanded(option, known) for option in one.options], behind,
                 known, parent.shell if parent else SHELL)


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
        found = words(one.rest)
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


def bases(text: str) -> list[str]:
    """Returns the images that FROM and the options `from` of COPY and RUN name, without stages of the same file."""
    found = stages(text)
    named = [one.image for one in found if one.is_on_an_image]
    return named + [name for stage in found for one in stage.instructions for _, name in _sources(one)
                    if not _is_stage(name, found)]


def given_bases(text: str, given: Mapping[str, str]) -> dict[str, str]:
    """Returns those base images that are given, as the Dockerfile names them, with registry and tag or without.

    given: base image -> file or directory.
    """
    known = {qualified(name): path for name, path in given.items()}
    return {name: known[qualified(name)] for name in bases(text) if qualified(name) in known}


def copied(text: str) -> list[str]:
    """Returns the files beside the Dockerfile that COPY and ADD name, without patterns, variables and quotes."""
    found = (one for one in instructions(text) if one.name in ("COPY", "ADD")
             and not any(option.startswith("--from") for option in one.options))
    named = (json.loads(one.arguments) if is_json(one.arguments) else one.arguments.split() for one in found)
    return [name for names in named for name in names[:-1] if not SPECIAL.search(name)]


def _sources(one: Instruction) -> Iterator[tuple[str, str]]:
    """Yields of the options that name an image or a stage: the option, and the name."""
    for option in one.options if one.name in ("COPY", "RUN") else ():
        if found := SOURCE.match(option):
            yield option, found[2]


def _is_stage(name: str, among: list[Stage]) -> bool:
    return _stage(name, among) is not None or (name.isdigit() and int(name) < len(among)) or name.lower() == "scratch"


def refusal(text: str) -> str | None:
    """Returns why an image cannot be built as Docker builds it, or None."""
    found = stages(text)
    if not found:
        return "has no FROM"
    for stage in found:
        if other := [one for one in stage.options if not _is_of_this_machine(one)]:
            return f"FROM {other[0]} {stage.image}: needed none or --platform=linux/{_architecture()} (this machine)"
        if stage.parent and any(one.name == "ONBUILD" for one in stage.parent.instructions):
            return f"FROM {stage.image}: ONBUILD of that stage, which an image of OCI does not keep"
        if "$" in stage.image:
            return f"FROM {stage.image}: needed $NAME, ${{NAME}}, ${{NAME:-word}} or ${{NAME:+word}}"
    escape = escape_of(text)
    if reason := next(filter(None, (_refusal(one, escape) for one in instructions(text))), None):
        return reason
    for line in rewritten(text, {}).split("\n"):
        if (size := len(line.encode())) >= LONGEST:
            return (f"{line[:80]}…: {size} bytes in a line, or in a here-document, of which buildah gets one; it reads "
                    f"{LONGEST - 1}")
    return None


def _refusal(one: Instruction, escape: str) -> str | None:
    shown = f"{one.name} {one.rest[:80]}"
    if one.documents and one.name != "RUN":
        return f"{shown}: texts in place of files"
    if one.rest.endswith(escape * 2):
        return (f"{one.name} …{one.rest[-80:]}: ends in {escape * 2}, where Docker ends a line, and buildah joins it "
                "with the next one")
    if any("$" in name for _, name in _sources(one)):
        return f"{shown}: neither Docker nor buildah replaces a variable in the option `from`"
    return None


def rewritten(text: str, given: Mapping[str, str]) -> str:
    """Returns a Dockerfile for buildah. given: base image -> its name in the builder's store.

    Images have the name of their registry, and stages the one that AS gave them, in its letters.
    """
    found, escape = stages(text), escape_of(text)
    lines = [f"# escape={escape}"] if escape != ESCAPE else []
    lines += [one.source for one in takewhile(lambda one: one.name != "FROM", instructions(text))]
    for stage in found:
        image = stage.parent.name if stage.parent else stage.image
        image = _local(image, given) if stage.is_on_an_image else image
        lines.append(" ".join(["FROM", image, *stage.behind]))
        shell = stage.parent.shell if stage.parent else SHELL
        for one in stage.instructions:
            shell = tuple(words(one.rest)) if one.name == "SHELL" and is_json(one.rest) else shell
            lines.append(_rewritten(one, found, given, shell))
    return "\n".join(lines) + "\n"


def _rewritten(one: Instruction, among: list[Stage], given: Mapping[str, str], shell: tuple[str, ...]) -> str:
    """Returns an instruction as it is written, but for names of images and here-documents."""
    replaced = {}
    for option, name in _sources(one):
        known = _stage(name, among)
        local = known.name if known else name if _is_stage(name, among) else _local(name, given)
        replaced[option] = SOURCE.sub(lambda found, local=local: found[1] + local, option, count=1)
    in_words = one.documents or (one.name == "RUN" and shell != SHELL and not is_json(one.arguments))
    if not in_words and all(old == new for old, new in replaced.items()):
        return one.source
    arguments = json.dumps(_command(one, shell)) if in_words else one.arguments
    return " ".join([one.name, *(replaced.get(option, option) for option in one.options), arguments])


def _command(run: Instruction, shell: tuple[str, ...]) -> list[str]:
    """Returns the command of a RUN in words: with here-documents, or for another shell than that of buildah."""
    if not run.is_script:
        return [*shell, run.arguments + "".join(f"\n{one.text}{one.name}" for one in run.documents)]
    text = run.documents[0].plain
    return [*SHELL, SCRIPT, text] if text.startswith("#!") else [*shell, text]


def _local(name: str, given: Mapping[str, str]) -> str:
    return given.get(name) or qualified(name)


def qualified(name: str) -> str:
    """Returns an image's name with its registry and tag: docker.io/library/ubuntu:latest for ubuntu."""
    first, slash, _ = name.partition("/")
    name += ":latest" * (":" not in name.rpartition("/")[2] and "@" not in name)
    if slash and ("." in first or ":" in first or first == "localhost"):
        return name
    return f"{REGISTRY}{name}" if slash else f"{REGISTRY}library/{name}"
