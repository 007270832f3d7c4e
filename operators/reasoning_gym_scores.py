"""Scores answers by the scorers of reasoning-gym: reads rows of answer, truth, metadata, prints a number for each.

It runs in a sandbox and needs nothing of ours: workflows/attempts/packaged_rewards.py passes it as text. Several
scorers give an answer to Python's `eval` or to sympy's parse_expr, which is eval: they get one that is plain values, or
an expression without attributes and texts, and each answer has its own process.
"""

import ast
import contextlib
import functools
import importlib
import json
import os
import re
import resource
import sys

CPU_SECONDS, MEMORY = 5, 2 << 30  # of one answer
EVALUATED = ("algorithmic.string_insertion", "algorithmic.spiral_matrix", "algorithmic.binary_matrix",
             "games.n_queens")  # modules that call eval with the answer
AS_FORMULA = {"simple_integration", "intermediate_integration", "polynomial_multiplication", "puzzle24", "countdown"}
FORMULA = re.compile(r"(?!.*(?:__|\.\s*[^\W\d]))[\w\s+\-*/^().,=]*", re.DOTALL)
WITH_TUPLES = {"arc_agi", "rearc"}  # whose scorers compare rows of boards, which JSON made lists


@functools.cache
def dataset(generator, arguments):
    """The generator whose scorer is asked, as it made the tasks."""
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_dataset

    given = json.loads(arguments)
    if "datasets" in given:
        given["datasets"] = [DatasetSpec(**one) for one in given["datasets"]]
    return create_dataset(generator, seed=0, size=1, **given)


def score(answer, truth, metadata):
    """The package's score of an answer, from 0 to 1."""
    source = metadata.get("source_dataset", metadata["generator"])
    if source in AS_FORMULA and not FORMULA.fullmatch(answer):
        return 0.0
    metadata = tuples(metadata) if source in WITH_TUPLES else metadata
    made = dataset(metadata["generator"], json.dumps(metadata["arguments"]))
    return float(made.score_answer(answer, {"answer": truth, "metadata": metadata}))


def tuples(value):
    """The same with tuples for lists."""
    if isinstance(value, dict):
        return {key: tuples(one) for key, one in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def apart(*row):
    """`score` in its own process; None where that was ended at a limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        found = 0.0  # of an answer that a scorer fails on
        with contextlib.suppress(BaseException):
            found = score(*row)
        os.write(writer, repr(found).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as found:
        text = found.read()
    os.waitpid(child, 0)
    return round(float(text), 4) if text else None


def main():
    """Answers with the scores as JSON, in the order of the rows."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some scorers print
    importlib.import_module("reasoning_gym")
    for name in EVALUATED:
        importlib.import_module(f"reasoning_gym.{name}").eval = ast.literal_eval
    rows = json.load(sys.stdin)
    os.write(out, json.dumps([apart(*row) for row in rows]).encode())


if __name__ == "__main__":
    main()
