"""The user's data for `ouro init`: a sample of it, and its rows as files of the project where stages cannot read it."""

import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from ouroboros.commands.init import foreign
from ouroboros.commands.init.columns import ALLOWED, Guess
from ouroboros.commands.init.rewriting import as_json, file_names
from ouroboros.pipeline.check.reading import MOST_NAMED, SEED, Part, Row, Sample, sample
from ouroboros.pipeline.store.data_files import READERS, SPLITS, is_saved_dataset, open_files
from ouroboros.pipeline.store.digests import missing
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.files import hash_text, require_plain

CONVERTED, HELD_OUT = "data/train.jsonl", "data/test.jsonl"
ROWS = 200  # sampled


@dataclass
class Data:
    """drawn: a sample. held_out: the split to evaluate on, if names identify one. unused: files of a directory that
    belong to neither it nor `train`. is_foreign: whether stages cannot read the file."""

    path: Path
    held_out: str | None
    drawn: Sample
    unused: list[str]
    is_foreign: bool = False

    @property
    def total(self) -> int:
        """Returns the approximate number of rows."""
        return self.drawn.total

    def records(self, split: str) -> Iterator[tuple[str, Row]]:
        """Yields all rows of a split, each with its number, from 1."""
        files = ([(str(self.path), foreign.rows_of(self.path))] if self.is_foreign else
                 open_files(str(self.path), None, split, "--from"))
        for file, rows in files:
            where = f" of {Path(file).name}" if self.path.is_dir() and Path(file) != self.path else ""
            for number, row in enumerate(rows, 1):
                yield f"{number}{where}", row


def read(name: str) -> Data:
    """Reads the user's data. Raises DataError if there are no rows, or the files are of another kind."""
    path = Path(os.path.abspath(os.path.expanduser(name)))
    if not os.path.lexists(path):
        raise missing(Path(name), "--from", name)
    path = require_plain(path, f"--from {name}").resolve()
    is_foreign = foreign.is_foreign(path)
    drawn = _of_foreign(path) if is_foreign else _drawn(path)
    if not drawn.rows:
        raise DataError(f"{path} holds no rows; needed one JSON object a line, or rows of Parquet.")
    words = _words(path)
    told = set().union(*words.values())
    held_out = next((split for split in SPLITS[1:] if split in told), None)
    unused = sorted(name for name, of in words.items() if told & {*SPLITS} and not of & {"train", held_out})
    return Data(path, held_out, drawn, unused, is_foreign)


def _drawn(path: Path) -> Sample:
    columns = dict.fromkeys(column for part in sample(path, "train", 1, ()).parts for column in part.columns)
    return sample(path, "train", ROWS, columns)


def _of_foreign(path: Path) -> Sample:
    rows = list(foreign.rows_of(path))
    at = random.Random(SEED).sample(range(len(rows)), min(ROWS, len(rows)))
    return Sample([rows[one] for one in at], [Part(path, len(rows), [])], [(path, one + 1) for one in at])


def left_out(guess: Guess, data: Data) -> list[str]:
    """Returns files next to the training rows that the recipe does not read: demonstrations, pairs and texts have no
    evaluation, and of a single file those in its directory that are named as another split."""
    if data.path.is_dir():
        held = [name for name, words in _words(data.path).items() if data.held_out in words]
        return [*data.unused, *(sorted(held) if guess.reward is None else [])]
    others = {str(f): words for f in sorted(data.path.parent.iterdir())
              if f.suffix in {*READERS, *foreign.READERS, ".gz"} and f != data.path
              for words in [set(re.split(r"[^a-z0-9]+", f.name.lower()))]}
    return [name for name, words in others.items() if words & {*SPLITS[1:]}]


def _words(path: Path) -> dict[str, set[str]]:
    """Returns the words in the name of each file of a directory, which may name a split; of a save_to_disk dataset each
    split."""
    if (listed := path / "dataset_dict.json").exists():
        return {split: {split} for split in json.loads(listed.read_text(encoding="utf-8"))["splits"]}
    found = [] if path.is_file() or is_saved_dataset(path) else [f for f in path.rglob("*") if f.suffix in READERS]
    return {name: set(re.split(r"[^a-z0-9]+", name.lower())) for name in (str(f.relative_to(path)) for f in found)}


def is_rewritten(guess: Guess, data: Data) -> bool:
    return guess.convert is not None or data.is_foreign


def written(guess: Guess, data: Data) -> dict[str, str]:
    """Returns the data files of the project, if it needs any: file name -> text."""
    if not (is_rewritten(guess, data) or is_parted(guess, data)):
        return {}
    rows = kept(guess, data, "train")
    if is_parted(guess, data):
        parts = _parted(guess, data, rows)
    else:
        held = data.held_out if guess.reward else None  # others have no evaluation
        parts = {CONVERTED: rows} | ({HELD_OUT: kept(guess, data, held)} if held else {})
    if named := next((name for part in parts.values() for row in part
                      for name in file_names(row.get(guess.format.get("image_key")))), None):
        raise DataError(f"--from {data.path}: its images are files, such as {named}, and its rows are written again in "
                        "the project, where the names lead elsewhere. Write the rows as messages in a .jsonl next to "
                        "the images (turns of from and value will do), or the images as data URIs.")
    return {name: "".join(json.dumps(row, ensure_ascii=False, default=as_json) + "\n" for row in part)
            for name, part in parts.items()}


def kept(guess: Guess, data: Data, split: str) -> list[Row]:
    """Returns the rows of a split as the project has them, without those that cannot be written so.

    Raises DataError where these are more than a set may lose.
    """
    able, lost = [], []
    for number, row in data.records(split):
        try:
            able.append(guess.convert(row) if guess.convert else row)
        except KeyError as error:
            lost.append((number, f"it has no {error}"))
        except (TypeError, ValueError) as error:
            lost.append((number, str(error)))
    if not lost:
        return able
    every, more = len(able) + len(lost), f" and {len(lost) - MOST_NAMED} more" * (len(lost) > MOST_NAMED)
    said = (f"{len(lost)} of {every} rows ({', '.join(number for number, _ in lost[:MOST_NAMED])}{more}); the first: "
            f"{lost[0][1]}")
    if len(lost) > ALLOWED * every:
        raise DataError(f"--from {data.path}: {said}. Allowed {ALLOWED:.0%}; correct them, or write `messages`.")
    guess.notes.append(f"left out: {said}")
    return able


def is_parted(guess: Guess, data: Data) -> bool:
    """Returns whether held-out rows get their own file: otherwise the warmup would imitate their solutions."""
    return bool(guess.warmup) and not data.held_out


def _parted(guess: Guess, data: Data, rows: list[Row]) -> dict[str, list[Row]]:
    """Splits the rows into two files; equal prompts go to the same one, and a share, chosen by hash, is held out."""
    asked = [json.dumps(_value(row, guess.format["prompt_key"]), default=str) for row in rows]
    order = sorted(set(asked), key=hash_text)
    held = set(order[:max(round(len(order) * held_share(data)), 1)])
    return {name: [row for prompt, row in zip(asked, rows, strict=True) if (prompt in held) == is_held]
            for name, is_held in ((CONVERTED, False), (HELD_OUT, True))}


def _value(row: Row, key: str) -> Any:
    """Returns the value of a row's column, which may be within structs."""
    return row.get(key) if key in row else reduce(lambda value, part: (value or {}).get(part), key.split("."), row)


def held_share(data: Data) -> float:
    return 0.1 if data.total >= ROWS else 0.2
