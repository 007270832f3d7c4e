"""Metrics of code structure: rooms, layers, imports, cycles, lines, slowest tests; checks limits.

A room is a folder of modules, at any depth: `ouroboros.commands` is the command line, `stages.learner.engine` a room
inside `stages.learner`. Edges are imports, lazy or not (grimp reads the source). Floors are the longest chain of rooms;
an upward arrow points to a higher layer of the first import contract in pyproject.toml. LIMITS is the one place of
every number that says no: it is what the code measures, and is lowered with every move; a feature that needs more lines
than it was given deletes as many elsewhere (lines of product: 65,418, and of those given to real tasks 1,655, to steps
as content 936, to hands and eyes 2,260 without JavaScript, to images 688, to losses and importers 544, to corrected
rewards 440, to weights in 4 bits 293, to starts on GPUs 99; branches and times made the journeys longer too). The exit
code is 1 when a limit is exceeded, and where a test file has no test or a test asserts nothing.
"""

import ast
import builtins
import re
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Collection
from itertools import permutations
from pathlib import Path

import grimp
import networkx as nx
from tabulate import tabulate

from ouroboros.pipeline.store.files import HOME

LINKED = ("pipeline", "operators", "workflows", "stages")  # folders of the checkout that are packages of `ouroboros`
LIMITS = {"rooms": 30, "floors": 11, "arrows between rooms": 152, "upward arrows": 0, "circles of rooms": 0,
          "circles of files": 0, "lines of product": 75499, "lines of tests": 65940,
          "files that name an algorithm (sapo)": 2, "questions for an algorithm by name": 0,
          "stays of an override in composing": 87, "climbs of an override in composing": 9,
          "stays of an override in `ouro run`": 311, "climbs of an override in `ouro run`": 72}
GOALS = {"rooms": 22, "arrows between rooms": 95, "lines of product": 60000,
         "lines of tests": 46000, "files that name an algorithm (sapo)": 2, "stays of an override in composing": 70,
         "climbs of an override in composing": 12, "stays of an override in `ouro run`": 200,
         "climbs of an override in `ouro run`": 45}
# a comparison with names of algorithms, losses or advantages; what is asked instead is a fact that they declare
BY_NAME = re.compile(r"""\b(algorithm_type|advantage_fn|policy_loss_fn)["')]{0,2} (?:not in|in|==|!=) ["(A-Z]""")
EXAMPLE = "sapo"  # a loss, with its file of conf/algorithm
LONG_FUNCTION = 40  # lines
ASSERTING = ("raises", "warns", "fail")
FREE = {"math", "np", "torch", "pytest", *dir(builtins)}  # an assert of these names alone is of arithmetic


def room(module: str) -> str:
    """The room of a module: its folder, such as `ouroboros.pipeline.store`."""
    return module if HOME.joinpath("src", *module.split("."), "__init__.py").is_file() else module.rpartition(".")[0]


def module(path: str) -> str:
    """The module of a file of ours."""
    parts = Path(path).relative_to(HOME).with_suffix("").parts
    return ".".join(("ouroboros", *parts) if parts[0] in LINKED else parts[1:])


def place(module: str, names: Collection[str]) -> str:
    """The longest of the names that a module is, or is inside of."""
    return max((n for n in names if f"{module}.".startswith(f"{n}.")), key=len, default="ouroboros")


def layer(module: str, layer_of: dict[str, int]) -> int:
    """The layer of a module, 0 the highest."""
    return layer_of[place(module, layer_of)]


def import_graph(graph: grimp.ImportGraph | None = None) -> nx.DiGraph:
    """The graph of our modules, with an edge to every imported module of ours; without packages that none
    imports. graph: with others too; None: read."""
    graph = graph or grimp.build_graph("ouroboros", cache_dir=None)
    ours = {module for module in graph.modules if module.partition(".")[0] == "ouroboros"}
    files = nx.DiGraph((m, other) for m in ours for other in graph.find_modules_directly_imported_by(m) & ours)
    files.add_nodes_from(one for one in ours if room(one) != one)
    return files


def layers() -> dict[str, int]:
    """The layer of each package or module in the first import contract; 0 is the highest."""
    named = {name.strip(): at for at, line in enumerate(_floors()) for name in re.split("[|:]", line)}
    return {"ouroboros": 0} | named  # what is in no layer: the Python interface


def apart() -> set[tuple[str, str]]:
    """Pairs of names on one floor of which neither imports the other."""
    return {pair for line in _floors() for pair in permutations(map(str.strip, line.split("|")), 2)}


def _floors() -> list[str]:
    return tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]


def structure(files: nx.DiGraph, layer_of: dict[str, int],
              apart: Collection[tuple[str, str]] = ()) -> dict[str, list]:
    """Items for each of LIMITS: rooms, their longest chain, edges between them, edges that go upward or from one to
    another of two that are apart, cycles."""
    def between_rooms(edges) -> nx.DiGraph:
        graph = nx.DiGraph((room(a), room(b)) for a, b in edges if room(a) != room(b))
        graph.add_nodes_from(map(room, files))
        return graph

    def circles(graph: nx.DiGraph) -> list[list[str]]:
        return [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]

    rooms = between_rooms(files.edges)
    upward = sorted((a, b) for a, b in files.edges if layer(b, layer_of) < layer(a, layer_of)
                    or (place(a, layer_of), place(b, layer_of)) in apart)
    downwards = nx.condensation(between_rooms(set(files.edges).difference(upward)))
    return {"rooms": sorted(rooms), "floors": nx.dag_longest_path(downwards),
            "arrows between rooms": sorted(rooms.edges), "upward arrows": upward,
            "circles of rooms": circles(rooms), "circles of files": circles(files)}


def beyond(found: dict[str, list | int]) -> list[str]:
    """The names of the limits that are exceeded. found: items, or how many, by the names of LIMITS."""
    return [name for name, value in found.items() if number(value) > LIMITS[name]]


def number(value: list | int) -> int:
    return value if isinstance(value, int) else len(value)


def measured() -> dict[str, list | int]:
    """Items, or how many, for each of LIMITS. Half a minute: an override is followed through two commands."""
    from benchmarks import walk

    found, journeys = structure(import_graph(), layers(), apart()), walk.journeys()
    asking = [f"{path}:{at}" for path in product() if "bridges/" not in path for at, line in enumerate(
        (HOME / path).read_text(encoding="utf-8").splitlines(), 1) if BY_NAME.search(line)]
    naming = [path for path in product() if f'"{EXAMPLE}"' in (HOME / path).read_text(encoding="utf-8")]
    return found | {
        "lines of product": product().total(),
        "lines of tests": tracked("tests/*.py").total(),
        "questions for an algorithm by name": asking,
        f"files that name an algorithm ({EXAMPLE})": [*naming, *tracked(f"conf/algorithm/{EXAMPLE}.yaml")]} | {
        f"{what}s of an override in {name if name == 'composing' else f'`{name}`'}": getattr(journey, f"{what}s")
        for name, journey in journeys.items() for what in ("stay", "climb")}


def product() -> Counter:
    """Path -> lines of every Python file but tests, benchmarks and the examples of documents."""
    return Counter({path: n for path, n in tracked("*.py").items()
                    if not path.startswith(("tests/", "benchmarks/", "docs/"))})


def prose(paths: Collection[str]) -> int:
    """Lines of docstrings, and lines that are a comment."""
    found = 0
    for path in paths:
        text = (HOME / path).read_text(encoding="utf-8")
        said = [one.body[0] for one in ast.walk(ast.parse(text)) if isinstance(
            one, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(one)]
        found += sum(one.end_lineno - one.lineno + 1 for one in said)
        found += sum(line.lstrip().startswith("#") for line in text.splitlines())
    return found


def tracked(pattern: str) -> Counter:
    """Path -> number of lines of every tracked file that matches the pattern, templates excluded."""
    paths = subprocess.run(["git", "ls-files", pattern], cwd=HOME, capture_output=True, text=True, check=True).stdout
    return Counter({path: len((HOME / path).read_text(encoding="utf-8").splitlines())
                    for path in paths.split() if "templates/" not in path})


def long_functions(paths: list[str]) -> list[tuple[str, int]]:
    """(place, lines) of functions longer than LONG_FUNCTION."""
    found = Counter({f"{path}:{node.name}": node.end_lineno - node.lineno + 1 for path in paths
                     for node in ast.walk(ast.parse((HOME / path).read_text(encoding="utf-8")))
                     if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)})
    return [(place, lines) for place, lines in found.most_common() if lines > LONG_FUNCTION]


def idle_tests(sources: dict[str, str]) -> list[str]:
    """Test files (path -> source) without a test, and tests that cannot fail: without assert of more than numbers,
    raises, warns, fail, or a call of a function in these files that has one, directly or through others."""
    trees = {path: ast.parse(source) for path, source in sources.items()}
    functions = {path: [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
                 for path, tree in trees.items()}
    others = [f for found in functions.values() for f in found if not f.name.startswith("test_")]
    asserting, known = set(ASSERTING), 0
    while known < len(asserting):
        known = len(asserting)
        asserting |= {f.name for f in others if _asserts(f, asserting)}
    tests = {path: [f for f in found if f.name.startswith("test_")] for path, found in functions.items()}
    return [*(path for path, found in tests.items() if not found and path.rpartition("/")[2].startswith("test_")),
            *(f"{path}:{f.name}" for path, found in tests.items() for f in found if not _asserts(f, asserting))]


def _asserts(function: ast.FunctionDef | ast.AsyncFunctionDef, asserting: set[str]) -> bool:
    return any((isinstance(node, ast.Assert) and not _names(node) <= FREE) or (isinstance(node, ast.Call) and
               getattr(node.func, "id", getattr(node.func, "attr", None)) in asserting) for node in ast.walk(function))


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def test_seconds() -> tuple[Counter, Counter]:
    """Test -> seconds and file -> seconds, from the JUnit files of the last `make test`."""
    tests, files = Counter(), Counter()
    for report in (HOME / ".pytest_cache").glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            tests[f"{case.get('classname')}::{case.get('name')}"] += float(case.get("time"))
            files[case.get("classname")] += float(case.get("time"))
    return tests, files


def main() -> int:
    """Prints the metrics; returns 1 when a limit is exceeded or a test cannot fail."""
    found, per_room, python = measured(), Counter(), product()
    for path, count in python.items():
        per_room[room(module(HOME / path))] += count
    idle = idle_tests({path: (HOME / path).read_text(encoding="utf-8") for path in tracked("tests/*.py")})
    tests, files = test_seconds()
    others = {"YAML in bridges": "src/ouroboros/commands/bridges/*.yaml", "README": "README.md", "tests": "tests/*.py"}
    for headers, rows in (
        (["room", "lines"], [*per_room.most_common(), ("product", per_room.total())]),
        (["", "lines"], [("docstrings and comments of the product", prose(python)),
                         *((what, tracked(pattern).total()) for what, pattern in others.items())]),
        (["largest files", "lines"], python.most_common(10)),
        (["functions beyond 40 lines", "lines"], long_functions(list(python))),
        (["slowest files of the last make test", "seconds"], files.most_common(10)),
        (["slowest tests of the last make test", "seconds"], tests.most_common(10)),
        (["tests that cannot fail"], [(place,) for place in idle]),
        (["beyond a limit", ""], [(name, " -> ".join(one) if isinstance(one, tuple | list) else one)
                                  for name in beyond(found) if not isinstance(found[name], int)
                                  for one in found[name]]),
        (["", "found", "limit", "goal"],
         [(name, number(found[name]), limit, GOALS.get(name, limit)) for name, limit in LIMITS.items()]),
    ):
        print(tabulate(rows, headers), end="\n\n")
    return 1 if beyond(found) or idle else 0


if __name__ == "__main__":
    sys.exit(main())
