"""Plants single wrong edits in the core, drawn by a fixed seed, and counts those that a test finds.

    python -m benchmarks.mutants [--only FILE] [--nearest] [--seconds N]

A mutant is one changed comparison, operator, number, condition or argument of a function; texts are left as they are.
Each runs in a fork of a process that has loaded the libraries and nothing of ours: its module is compiled from the
changed tree when a test first imports it. Other processes that a test starts read the file, so they never see it. First
run the test file of the module's name, or where there is none all that import it, then the test files of its folders
that have its name or its folder's in their text; the first failing test ends a run, and five times the time of the
unchanged module kills it, by the clock and by the processor. Results are kept in .mutants/, by the digest of the
mutant, its file and its tests, so that a run goes on where it was stopped.
"""

import argparse
import ast
import contextlib
import copy
import hashlib
import importlib.abc
import importlib.util
import json
import math
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from benchmarks.house import module
from ouroboros.pipeline.store.files import HOME

SEED, COUNT = 20, 300
CORE = {  # subject -> files, and the folders of tests that are its own
    "packing": (["stages/learner/engine/packing.py", "stages/learner/engine/sharing.py"], ["learner"]),
    "prefixes": (["stages/learner/engine/prefixes.py"], ["learner"]),
    "schedule": (["pipeline/job/schedule.py", "pipeline/job/syncs.py"], ["pipeline/job", "pipeline/check"]),
    "losses": (["operators/losses/*.py", "operators/aggregation.py", "operators/kl.py"], ["operators"]),
    "advantages": (["operators/advantages/*.py"], ["operators"]),
    "resume": (["pipeline/store/checkpoints.py", "stages/learner/saving.py"], ["pipeline/store", "learner"]),
    "deltas": (["pipeline/store/versions.py"], ["pipeline/store", "learner"]),
    "endpoint": (["workflows/endpoint/merging.py", "workflows/endpoint/speaker.py",
                  "workflows/endpoint/conversation.py"], ["workflows"]),
    "views": (["pipeline/results/view.py"], ["pipeline/results", "commands/web"]),
    "identities": (["pipeline/plan/identity.py"], ["pipeline/plan"]),
    "memory": (["pipeline/check/memory.py"], ["pipeline/check"]),
    "objective": (["operators/algorithm.py", "operators/terms.py", "stages/learner/objective.py"],
                  ["learner", "operators"]),
}
KEPT = HOME / ".mutants"
SLOW = "pytestmark = pytest.mark.slow"  # in a test file that only `pytest -m slow` runs
LIBRARIES = ("torch", "numpy", "pandas", "pyarrow.parquet", "duckdb", "pydantic", "omegaconf", "hydra", "pytest",
             "hypothesis", "transformers")
SWAPS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
         ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Lt: ast.LtE,
         ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn,
         ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And}


@dataclass(frozen=True)
class Mutant:
    """The `index`-th edit of a file. where: of which function; line; before, after: source of the expression."""

    path: str
    index: int
    where: str
    line: int
    before: str
    after: str

    @property
    def draw(self) -> str:
        """Its place in the draw, which edits of other functions leave as it is."""
        return _digest(SEED, self.path, self.where, self.before, self.after)


def _digest(*parts) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def edits(tree: ast.Module) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(function, node, what takes its place) of every edit; the nodes are those of the tree."""
    def visit(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, ast.AST]]:
        if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            where = f"{where}.{node.name}".lstrip(".")
        yield from ((where, node, other) for other in _others(node))
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in ("annotation", "returns", "decorator_list"):
                    yield from visit(child, where)

    return visit(tree, "")


def _others(node: ast.AST) -> Iterator[ast.AST]:
    """What may take the place of an expression."""
    def changed(**fields) -> ast.AST:
        made = copy.copy(node)
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield changed(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield changed(value=node.value + 1)
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS and not _is_text(node):
        yield changed(op=SWAPS[type(node.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield changed(ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield changed(test=ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test))
    elif isinstance(node, ast.Call) and node.keywords and isinstance(node.func, ast.Name | ast.Attribute):
        yield changed(keywords=node.keywords[:-1])
    elif isinstance(node, ast.Call) and len(node.args) == 2 and isinstance(node.func, ast.Name | ast.Attribute):
        yield changed(args=node.args[::-1])


def _is_text(node: ast.AST) -> bool:
    return any(isinstance(one, ast.JoinedStr) or (isinstance(one, ast.Constant) and isinstance(one.value, str))
               for one in ast.walk(node))


def mutants(path: str) -> list[Mutant]:
    """Every mutant of a file."""
    def text(node: ast.AST) -> str:
        shown = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
        return ast.unparse(ast.fix_missing_locations(shown))

    found = edits(ast.parse((HOME / path).read_text(encoding="utf-8")))
    every = [Mutant(path, i, where, node.lineno, text(node), text(other))
             for i, (where, node, other) in enumerate(found)]
    return [one for one in every if one.before != one.after]


def drawn() -> dict[str, list[Mutant]]:
    """Subject -> its mutants: equally many of each."""
    def some(patterns: list[str]) -> list[Mutant]:
        paths = sorted(str(p.relative_to(HOME)) for one in patterns for p in HOME.glob(one))
        return sorted((m for path in paths for m in mutants(path)), key=lambda m: m.draw)[: COUNT // len(CORE)]

    return {subject: some(patterns) for subject, (patterns, _) in CORE.items()}


def mutated(mutant: Mutant) -> ast.Module:
    """The tree of the file with the edit in it."""
    tree = ast.parse((HOME / mutant.path).read_text(encoding="utf-8"))
    _, node, other = next(one for i, one in enumerate(edits(tree)) if i == mutant.index)

    class Replace(ast.NodeTransformer):
        def visit(self, one):
            return ast.copy_location(other, node) if one is node else super().visit(one)

    return ast.fix_missing_locations(Replace().visit(tree))


class Planted(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a tree; every other one as ever."""

    def __init__(self, path: str, tree: ast.Module):
        self.name, self.path, self.tree = module(str(HOME / path)), str(HOME / path), tree

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


def tests_of(path: str, folders: list[str]) -> list[list[str]]:
    """The test file that has a module's name, else all that import it; and those of its folders that may use it."""
    name = re.escape(module(str(HOME / path)))
    parent, _, last = name.rpartition("\\.")
    direct = re.compile(rf"^\s*(from {name} import|from {parent} import .*\b{last}\b|import {name}\b)", re.M)
    used = re.compile(rf"\b({last}|{parent.rpartition('.')[2]})\b")
    texts = {str(p.relative_to(HOME)): p.read_text(encoding="utf-8") for p in sorted(HOME.glob("tests/**/test_*.py"))}
    near = [one for one, text in texts.items() if direct.search(text)]
    near = [one for one in near if one.endswith(f"/test_{Path(path).stem}.py")] or near
    far = [one for one, text in texts.items() if one.startswith(tuple(f"tests/{f}/" for f in folders))
           and one not in near and used.search(text)]
    return [near, far]


def run(tests: list[str], planted: Planted | None, limit: float, computes: float = math.inf
        ) -> tuple[str, float, float]:
    """What became of the tests in a fork (passed, failed or time), after how many seconds, and how many it computed.

    limit: seconds after which it is killed; computes: seconds of a processor, which other programs do not prolong."""
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.setsid()
        if computes < math.inf:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(computes),) * 2)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        if planted:
            sys.meta_path.insert(0, planted)
        import pytest

        slow = all(SLOW in (HOME / one).read_text(encoding="utf-8") for one in tests)  # else none would be selected
        os._exit(int(pytest.main(["-x", "-n", "0", "-p", "no:cacheprovider", *(["-m", "slow"] * slow), *tests])))
    while True:
        done, status, used = os.wait4(child, os.WNOHANG)
        seconds = time.monotonic() - began
        if done:
            what = "passed" if os.waitstatus_to_exitcode(status) == 0 else "failed"
            return what, seconds, used.ru_utime + used.ru_stime
        if seconds > limit:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "time", seconds, computes
        time.sleep(0.02)


class Measured:
    """Results by mutant, kept in a file, and the time that tests take with nothing planted."""

    def __init__(self, nearest: bool, place: Path = KEPT):
        """nearest: without the tests of the folders."""
        self.nearest, self.place = nearest, place
        place.mkdir(exist_ok=True)
        self.found: dict[str, dict] = {one.stem: json.loads(one.read_text()) for one in place.glob("*.json")}

    def of(self, mutant: Mutant, folders: list[str]) -> dict:
        """{"found": by which tests, or null, "tests": digest}; read where it is known."""
        stages = tests_of(mutant.path, folders)[: 1 if self.nearest else 2]
        key = self.key(mutant)
        contents = _digest(*(p.read_bytes() for tests in stages for p in map(HOME.joinpath, tests)))
        known = self.found.get(key, {})
        if known.get("found") or known.get("tests") == contents:
            return known
        result = {"found": None, "tests": contents, "first": known.get("first", "unknown")}
        for name, tests in zip(("nearest", "folder"), stages, strict=False):
            limits = [5 * seconds + 5 for seconds in self.normal(tests)] if tests else []
            if tests and run(tests, Planted(mutant.path, mutated(mutant)), *limits)[0] != "passed":
                result["found"] = name
                break
        result["first"] = result["found"] if result["first"] == "unknown" else result["first"]
        self._keep(key, result)
        return result

    def key(self, mutant: Mutant) -> str:
        return _digest(mutant.draw, mutant.index, (HOME / mutant.path).read_bytes())

    def normal(self, tests: list[str]) -> tuple[float, float]:
        """Seconds of tests with nothing planted, and those computed; raises RuntimeError where they fail so."""
        key = _digest("normal time", *tests)
        if key not in self.found:
            result, seconds, computed = run(tests, None, 900)
            if result != "passed":
                raise RuntimeError(f"{' '.join(tests)}: {result} with nothing planted.")
            self._keep(key, {"seconds": seconds, "computed": computed})
        return self.found[key]["seconds"], self.found[key]["computed"]

    def _keep(self, key: str, result: dict) -> None:
        self.found[key] = result
        new = self.place / f"{key}.new"
        new.write_text(json.dumps(result))
        new.replace(self.place / f"{key}.json")


def main() -> None:
    """Runs the mutants of the draw, and prints a table and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="a file, such as pipeline/job/schedule.py")
    parser.add_argument("--nearest", action="store_true", help="leaves out the tests of the folders")
    parser.add_argument("--seconds", type=float, default=3600, help="after which no other mutant is begun")
    asked = parser.parse_args()
    for name in LIBRARIES:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    for name in [one for one in sys.modules if one.partition(".")[0] in ("ouroboros", "benchmarks")]:
        del sys.modules[name]  # a test imports them anew, one of them from the changed tree
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    measured, until, rows, survivors = Measured(asked.nearest), time.monotonic() + asked.seconds, [], []
    for subject, some in drawn().items():
        done = []
        for mutant in some:
            if asked.only in (None, mutant.path) and time.monotonic() < until:
                result = measured.of(mutant, CORE[subject][1])
                done.append(result)
                if not result["found"]:
                    survivors.append((f"{mutant.path}:{mutant.line} {mutant.where}", mutant.before, mutant.after))
                    print(*survivors[-1], sep=" | ", flush=True)
        rows.append((subject, len(some), len(done), sum(bool(one["first"]) for one in done),
                     sum(one["found"] == "nearest" for one in done), sum(bool(one["found"]) for one in done)))
    print(tabulate([*rows, ("all", *(sum(row[i] for row in rows) for i in range(1, 6)))],
                   ["subject", "drawn", "run", "found at first", "by the nearest tests", "found now"], "github"))
    print("\n" + tabulate(survivors, ["survivor", "before", "after"], "github"))


if __name__ == "__main__":
    main()
