"""To whom the files of a Dockerfile's image belong, as far as its instructions say: in an attempt one user owns all.

Seen are USER before a RUN, `--chown`, and chown and install as programs of RUN. Owners that the base image has, or that
other programs give (useradd -m, su, tar), and names that a shell computes are not.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ouroboros.pipeline.store.dockerfile_text import Instruction, is_json, words
from ouroboros.pipeline.store.dockerfiles import ROOT, VARIABLE, Stage, assigned, expanded, stages

SEPARATORS = re.compile(r"[;|&\n()`]")  # between commands of a shell
BEFORE = re.compile(r"^\s*(?:(?:sudo|exec|time|then|do|else|if|!|{|\w+=\S*)\s+)*")  # a command that is one nevertheless
QUOTES = dict.fromkeys(map(ord, "'\"\\"))  # characters that quote others
PRINTS = ("echo", "printf", "#")
INSTALL = re.compile(r"-[bcCdDpsTv]*o(.*)|--owner(?:=(.*))?")  # its option with an owner, here or in the next word


@dataclass(frozen=True)
class Owned:
    """owners: of files. user: of the next command. environment: variables of ENV, which a stage leaves to the next."""

    owners: frozenset[str]
    user: str
    environment: dict[str, str]


def owners(text: str) -> set[str]:
    """Returns the users that files are given to, and those that commands run as, without root."""
    last, known = None, {None: Owned(frozenset(), "", {})}
    for last in stages(text):
        known[last] = _of_stage(last, known[last.parent])
    return {*known[last].owners, known[last].user} - ROOT


def _of_stage(stage: Stage, begin: Owned) -> Owned:
    """Returns what the end of a stage has. begin: what it begins with."""
    found, user, environment, arguments = set(begin.owners), begin.user, dict(begin.environment), {}
    for one in stage.instructions:
        known = arguments | environment
        if one.name == "USER":
            user = _name(one.rest, known)
        elif one.name == "ARG":
            arguments |= assigned(one, known, stage.outer)
        elif one.name == "ENV":
            environment |= assigned(one, known, {})
        elif one.name == "RUN":
            found |= {user} | {_name(owner, known) for owner in _in_run(one)}
        elif one.name in ("COPY", "ADD"):
            found |= {_name(option.partition("=")[2], known) for option in one.options if option.startswith("--chown=")}
    return Owned(frozenset(found), user, environment)


def _name(owner: str, known: Mapping[str, str]) -> str:
    """Returns the user of USER:GROUP; empty where only a shell knows it."""
    names = [found[1] or found[2] for found in VARIABLE.finditer(owner) if not found[3]]
    value = expanded(owner, known).translate(QUOTES)
    return "" if set(names) - set(known) or "$" in value else value.partition(":")[0]


def _in_run(run: Instruction) -> Iterator[str]:
    """Yields the owners that programs of a RUN name."""
    if is_json(run.arguments):
        command = words(run.arguments)
        yield from _in_command(command)
        texts = [word for word in command if " " in word]  # of a shell
    else:
        texts = [run.arguments]
    read = run.is_script or run.arguments.split(maxsplit=1)[:1] in (["sh"], ["bash"], ["/bin/sh"], ["/bin/bash"])
    for text in texts + [document.plain for document in run.documents if read]:
        for part in SEPARATORS.split(text.translate(QUOTES)):
            yield from _in_command(BEFORE.sub("", part, count=1).split())


def _in_command(command: list[str]) -> Iterator[str]:
    """Yields the owners that one command names, in words. chown may be the command of another one (find, xargs)."""
    programs = [word.rpartition("/")[2] for word in command]
    if programs[:1] == ["install"]:
        for word, after in zip(command, [*command[1:], ""], strict=True):
            if found := INSTALL.fullmatch(word):
                yield found[1] or found[2] or after
    elif "chown" in programs and programs[0] not in PRINTS:
        behind = command[programs.index("chown") + 1:]
        if not any(word.startswith("--reference") for word in behind):
            yield from [word for word in behind if not word.startswith("-")][:1]
