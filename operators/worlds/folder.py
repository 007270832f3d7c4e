"""Chores with the files of a directory: move a file, write one, copy the text of one into another.

The truth is `{"files": {path: text}, "goal": {path: text}}`: the directory before and after.
"""

import json
import random
from collections.abc import Iterator

from ouroboros.operators.worlds.rows import Game, Turn, call, games
from ouroboros.pipeline.settings.arguments.worlds import Folder as Arguments
from ouroboros.pipeline.store.records import RawTask

DEFAULTS = Arguments.model_construct()
FOLDERS = ("a", "b", "c", "d")
NAMES = ("bill", "book", "data", "file", "list", "mail", "memo", "note", "page", "plan", "poem", "text", "todo", "work")
WORDS = ("able", "blue", "calm", "deep", "easy", "fine", "glad", "high", "kind", "late", "mild", "neat", "open", "pure")

Files = dict[str, str]  # path -> text


def folder(seed: int, tasks: int, demonstrations: int, files=DEFAULTS.files, guesses=DEFAULTS.guesses
           ) -> Iterator[RawTask]:
    """Chores, and demonstrations that find each file; a share `guesses` of them does a chore at random.

    files: of the directory, each in one of four folders.
    """
    def draw(source: random.Random) -> Game:
        names, words = source.sample(NAMES, files), source.sample(WORDS, files)
        before = {f"{source.choice(FOLDERS)}/{name}": word for name, word in zip(names, words, strict=True)}
        question, after, turns = source.choice(CHORES)(source, before)
        if source.random() < guesses:
            turns = source.choice(CHORES)(source, before)[2]
        return Game(question, json.dumps({"files": before, "goal": after}, sort_keys=True), turns)

    return games("folder", seed, tasks, demonstrations, draw)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _found(path: str) -> Turn:
    return call("find", name=_name(path)), path


def _move(source: random.Random, before: Files) -> tuple[str, Files, list[Turn]]:
    path = source.choice(list(before))
    name = _name(path)
    target = f"{source.choice([one for one in FOLDERS if not path.startswith(one)])}/{name}"
    after = {target if one == path else one: text for one, text in before.items()}
    return f"Move {name} to {target[0]}.", after, [_found(path), (call("move", source=path, target=target), "moved")]


def _write(source: random.Random, before: Files) -> tuple[str, Files, list[Turn]]:
    path, word = source.choice(list(before)), source.choice([one for one in WORDS if one not in before.values()])
    return (f"Write {word} into {_name(path)}.", before | {path: word},
            [_found(path), (call("write", path=path, text=word), "written")])


def _copy(source: random.Random, before: Files) -> tuple[str, Files, list[Turn]]:
    path, target = source.sample(list(before), 2)
    return (f"Copy the text of {_name(path)} into {_name(target)}.",
            before | {target: before[path]},
            [_found(path), (call("read", path=path), before[path]),
             _found(target), (call("write", path=target, text=before[path]), "written")])


CHORES = (_move, _write, _copy)
