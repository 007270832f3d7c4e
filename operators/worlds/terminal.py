"""20 kinds of chores in a shell, as tasks of Harbor: sum the lines of a file, sort them, find the file with a line, ….

The truth is `{"files": {path: text}}`: the files of a task's directory, instruction.md, tests/test.sh and so on.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from ouroboros.operators.worlds.rows import Game, Turn, call, games
from ouroboros.pipeline.settings.arguments.worlds import Terminal as Arguments
from ouroboros.pipeline.store.harbor import WORKDIR, greeting
from ouroboros.pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")  # single letters are too hard to find
FILES, LINES = 3, (2, 4)  # of a task; of a file
TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n'
TEST = """#!/bin/bash
if [ "$(cat {target})" = '{expected}' ] && [ {kept} {name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FIND = "Write the name of the file with {line} to {target}."
WRITTEN = {  # what of a file is written to another -> command, and what it prints of the lines
    "sum": ("echo $(($(paste -sd+ {name})))", sum),
    "number of lines": ("wc -l<{name}", len),
    "number of bytes": ("wc -c<{name}", lambda lines: 3 * len(lines)),
    "sorted lines": ("sort {name}", sorted),
    "lines from large to small": ("sort -r {name}", lambda lines: sorted(lines, reverse=True)),
    "lines from the last to the first": ("tac {name}", lambda lines: lines[::-1]),
    "first line": ("head -1 {name}", lambda lines: lines[0]),
    "last line": ("tail -1 {name}", lambda lines: lines[-1]),
    "second line": ("sed -n 2p {name}", lambda lines: lines[1]),
    "smallest line": ("sort {name}|head -1", min),
    "largest line": ("sort {name}|tail -1", max),
    "first two lines": ("head -2 {name}", lambda lines: lines[:2]),
    "last two lines": ("tail -2 {name}", lambda lines: lines[-2:]),
    "lines but the first": ("sed 1d {name}", lambda lines: lines[1:]),
    "lines but the last": ("head -n -1 {name}", lambda lines: lines[:-1]),
    "lines joined by commas": ("paste -sd, {name}", lambda lines: ",".join(map(str, lines))),
    "lines joined by pluses": ("paste -sd+ {name}", lambda lines: "+".join(map(str, lines)))}
CHORES = {  # question -> command, and what the target has in the end
    **{f"Write the {what} of {{name}} to {{target}}.": (f"{command}>{{target}}", result)
       for what, (command, result) in WRITTEN.items()},
    "Copy {name} to {target}.": ("cp {name} {target}", list),
    "Rename {name} to {target}.": ("mv {name} {target}", list),
    FIND: ("grep -l {line} *>{target}", None)}
LOOKS = ("first", "last", "second", "smallest", "largest")  # demonstrations print this line before they write it

Lines = dict[str, list[int]]  # file -> its lines


@dataclass(frozen=True)
class Chore:
    """solution: a command. turns: how a player does it. test: tests/test.sh."""

    question: str
    solution: str
    turns: list[Turn]
    test: str


def terminal(seed: int, tasks: int, demonstrations: int, guesses=DEFAULTS.guesses) -> Iterator[RawTask]:
    """Chores with three files of numbers, and demonstrations; a share `guesses` of them does a chore at random."""
    def draw(source: random.Random) -> Game:
        names = source.sample(NAMES, FILES)
        lines = iter(source.sample(range(10, 100), FILES * LINES[1]))
        before = {name: [next(lines) for _ in range(source.randint(*LINES))] for name in names}
        asked = _drawn(source, before)
        turns = (_drawn(source, before) if source.random() < guesses else asked).turns
        files = {"instruction.md": asked.question, "task.toml": TOML, "tests/test.sh": asked.test,
                 "solution/solve.sh": asked.solution}
        files |= {f"environment/{name}": f"{_text(given)}\n" for name, given in before.items()}
        return Game(asked.question, json.dumps({"files": files}), turns, greeting(WORKDIR))

    return games("terminal", seed, tasks, demonstrations, draw)


def _drawn(source: random.Random, before: Lines) -> Chore:
    name, target = source.choice(list(before)), source.choice([one for one in NAMES if one not in before])
    question = source.choice(list(CHORES))
    command, result = CHORES[question]
    given = {"name": name, "target": target, "line": source.choice(before[name])}
    expected = _text(result(before[name])) if result else name
    solution = command.format(**given)
    turns = [(call("bash", command=solution), "")]
    if not result or question.removeprefix("Write the ").startswith(tuple(f"{one} line " for one in LOOKS)):
        turns = [(call("bash", command=solution.partition(">")[0]), f"{expected}\n"),
                 (call("edit", path=target, new_text=expected), f"wrote {WORKDIR}/{target}")]
    test = TEST.format(**given, expected=expected, kept="! -e" if command.startswith("mv") else "-e")
    return Chore(question.format(**given), solution, turns, test)


def _text(found: list[int] | int | str) -> str:
    return "\n".join(map(str, found)) if isinstance(found, list) else str(found)
