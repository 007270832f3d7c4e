"""Chores in a shell as tasks of Harbor: sum, count or sort the lines of a file, rename one, find the one with a line.

The truth is `{"files": {path: text}}`: the files of a task's directory, instruction.md, tests/test.sh and so on.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from operators.worlds.rows import Game, Turn, call, games
from pipeline.settings.arguments.worlds import Terminal as Arguments
from pipeline.store.harbor import WORKDIR, greeting
from pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen")
FILES, LINES = 3, (2, 4)  # of a task; of a file
TOML = 'version = "1.0"\n[agent]\ntimeout_sec = 60.0\n[verifier]\ntimeout_sec = 60.0\n'
TEST = """#!/bin/bash
if [ "$(cat {target})" = '{expected}' ] && [ {kept} {name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
FIND = "Write the name of the file with {line} to {target}."
CHORES = (  # question, command, and what it writes of the lines of a file
    ("Write the sum of {name} to {target}.", "echo $(($(paste -sd+ {name})))>{target}", sum),
    ("Write the number of lines of {name} to {target}.", "wc -l<{name}>{target}", len),
    ("Write the sorted lines of {name} to {target}.", "sort {name}>{target}", lambda lines: _text(sorted(lines))),
    ("Rename {name} to {target}.", "mv {name} {target}", lambda lines: _text(lines)),
    (FIND, "grep -l {line} *>{target}", None))

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
    question, command, result = source.choice(CHORES)
    given = {"name": name, "target": target, "line": source.choice(before[name])}
    solution = command.format(**given)
    turns = [(call("bash", command=solution), "")] if result else [
        (call("bash", command=f"grep -l {given['line']} *"), f"{name}\n"),
        (call("edit", path=target, new_text=name), f"wrote {WORKDIR}/{target}")]
    test = TEST.format(**given, expected=result(before[name]) if result else name,
                       kept="! -e" if command.startswith("mv") else "-e")
    return Chore(question.format(**given), solution, turns, test)


def _text(lines: list[int]) -> str:
    return "\n".join(map(str, lines))
