"""Writes tasks of a package that is on the path: `python -m ouroboros.operators.task_packages REQUEST FILE` (jsonl).

Each task has a question and an answer, and what its scorer needs. Of equal questions the first counts, and which split
one is in follows from its text alone: sets of two splits share none, whatever their seeds (the generators of
reasoning-gym make task i from seed + i, so that two seeds have almost the same tasks). A wrong name or argument ends
the process with a sentence and exit code 2.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

HELD_OUT = 10  # one question in so many is in the split test
MOST_DRAWS = 30  # for each task that is asked for, of a generator that repeats itself
SPLITS = ("train", "test", "all")


class Mistake(ValueError):
    """Of whoever asks for the tasks."""


def tasks(package: str, name: str, split: str, size: int | None = None, **arguments: Any) -> Iterator[dict[str, Any]]:
    """The tasks of a set, of different questions, those of a split: the first `size` of them, None: all. Raises
    Mistake."""
    if split not in SPLITS:
        raise Mistake(f"split={split}: needed one of {', '.join(SPLITS)}")
    if size is not None and (type(size) is not int or size < 1):
        raise Mistake(f"size={size}: needed a whole number, at least 1")
    yield from islice(_different(PACKAGES[package](name, size, **arguments), split), size)


def _different(found: Iterator[dict[str, Any]], split: str) -> Iterator[dict[str, Any]]:
    seen: set[str] = set()
    for task in found:
        key = hashlib.sha256(json.dumps(task["question"]).encode()).hexdigest()
        if key not in seen and split in ("all", "train" if int(key, 16) % HELD_OUT else "test"):
            yield task
        seen.add(key)


def reasoning_gym(name: str, size: int | None, seed: int = 0, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Tasks of a generator, each with the metadata that `score_answer` reads, and the package's system prompt."""
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import SYSTEM_PROMPTS

    if name not in DATASETS:
        raise Mistake(f"no generator is called '{name}'; known: {', '.join(sorted(DATASETS))}")
    if size is None:
        raise Mistake("size is missing, and a generator has no end: needed how many tasks to make")
    known = [one.name for one in fields(DATASETS[name][1]) if one.name not in ("size", "seed")]
    if wrong := [one for one in arguments if one not in known]:
        raise Mistake(f"{name} has no argument {', '.join(wrong)}; it has {', '.join(known) or 'none'}")
    made = dict(arguments)
    if name == "composite":
        made["datasets"] = [DatasetSpec(**one) for one in made.get("datasets", ())]
    draws = size * MOST_DRAWS
    try:
        generator = create_dataset(name, seed=seed, size=draws, **made)
    except (AssertionError, TypeError, ValueError) as error:
        raise Mistake(f"{name} refuses its arguments: {error}") from error
    for place in range(draws):
        task = generator[place]
        entry = {"answer": task["answer"] or "",
                 "metadata": task["metadata"] | {"generator": name, "arguments": arguments}}
        yield {"question": task["question"], **entry, "entry": entry, "system_prompt": SYSTEM_PROMPTS["default"]}


PACKAGES = {"reasoning-gym": reasoning_gym}


def main(request: str, file: str) -> int:
    """Writes the tasks that a request, an object as JSON, asks for."""
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(f"{json.dumps(task)}\n" for task in tasks(**json.loads(request)))
    except Mistake as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
