"""Figures of how many places a fact has, with their values at d2d563f, now, and the goals; `make house` prints them.

A figure is counted in the sources as they are: files, syntax trees, declared settings. The exit code is 1 while a goal
is not met and no reason is given.
"""

import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from tabulate import tabulate

from benchmarks import house
from ouroboros.pipeline.settings import config
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.store.files import HOME

# kinds of stages whose name is no other word; `tasks`, `model`, `train` and `report` have further meanings
KINDS = ("rft", "rollout", "scored", "offline", "curate", "evaluate", "bench", "recorded", "server")
# how a meaning begins that has no subject of its own, or that begins with one of the values
FRAGMENT = re.compile(r"(of|that|for|as|by|null|true|false|passed|handed|added|the same|its?) |1 = off|[a-z][\w=.-]*: ")
SENTENCE = 4  # words; asserting a text of as many or more asserts wording
GOLDEN = ("refuses", "wording")  # they keep a message on the golden page, and assert words of it
COMPARING = ("startswith", "endswith", "count", "search", "match", "fullmatch", "any", "all")
MODELS = "pipeline/settings/arguments/"
PRODUCT = ("pipeline", "operators", "workflows", "stages")


# why a goal is not met, by the figure's name
REASONS = {
    "product files that name an explorer option (over_rollout)": "one of them is the importer's table",
    "product files that name a loss (sapo)": "one of them is the importer's special case",
    "lines of bridges": "tables of 164 more keys, whose values are translated",
}


class Figure(NamedTuple):
    """A figure. before: at d2d563f. reason: why the goal is not met, or what was counted in another way."""

    what: str
    before: int
    now: int
    goal: int
    reason: str = ""


@cache
def trees(*folders: str) -> dict[str, ast.Module]:
    """Path -> syntax tree of every Python file below these folders, templates excluded."""
    return {str(path.relative_to(HOME)): ast.parse(path.read_text(encoding="utf-8")) for folder in folders
            for path in sorted((HOME / folder).rglob("*.py")) if "templates" not in path.parts}


def _texts(tree: ast.AST) -> Iterator[ast.Constant]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))


def naming(words: tuple[str, ...], but: tuple[str, ...] = ()) -> dict[str, int]:
    """Product file -> how often it has one of these words as a text, an attribute or the name of a setting.

    but: beginnings of paths that may have them.
    """
    found = {path: sum(name in words for node in ast.walk(tree) for name in (
        node.value if isinstance(node, ast.Constant) else getattr(node, "attr", None),
        node.target.id if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else None))
        for path, tree in trees(*PRODUCT).items()}
    return {path: count for path, count in found.items() if count and not path.startswith(but)}


def rules() -> dict[str, int]:
    """Product file -> how many functions of it are called `problems`."""
    found = {path: sum(isinstance(node, ast.FunctionDef) and node.name == "problems" for node in ast.walk(tree))
             for path, tree in trees(*PRODUCT).items()}
    return {path: count for path, count in found.items() if count}


def name_lists() -> list[str]:
    """Places of lists that consist of names of algorithms and functions, outside the models of their arguments."""
    names = {path.stem for path in (HOME / "conf/algorithm").glob("*.yaml")}.union(*TABLES.values())
    return [f"{path}:{node.lineno}" for path, tree in trees(*PRODUCT).items()
            if not path.startswith((MODELS, "src/ouroboros/commands/bridges/")) for node in ast.walk(tree)
            if isinstance(node, ast.List | ast.Set | ast.Tuple) and node.elts
            and all(isinstance(one, ast.Constant) and one.value in names - {"none", "default"} for one in node.elts)]


def fragments() -> list[str]:
    """Settings, and arguments of functions, whose meaning does not stand alone."""
    arguments = {f"{name}.{key}": field for table in TABLES.values() for name, model in table.items()
                 for key, field in model.model_fields.items()}
    declared = dict(config.walk()) | arguments
    return [key for key, field in declared.items() if FRAGMENT.match(field.description or "null ")]


def wordings() -> int:
    """How many assertions of tests depend on wording: `match=`, and texts of SENTENCE words or more that an assert, or
    one of tests/golden/messages.py, compares. What a function under test is called with is no wording."""
    count = 0
    for tree in trees("tests").values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and _called(node) in GOLDEN):
                asked = node.test if isinstance(node, ast.Assert) else ast.Tuple(node.args)
                count += any(len(text.value.split()) >= SENTENCE for text in _compared(asked))
            count += isinstance(node, ast.keyword) and node.arg == "match"
    return count


def _compared(node: ast.AST) -> Iterator[ast.Constant]:
    """Every text of an expression but the arguments of calls that do not compare texts."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node
    calls = isinstance(node, ast.Call) and _called(node) not in COMPARING
    for child in (node.func,) if calls else ast.iter_child_nodes(node):
        yield from _compared(child)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def flat_tests() -> list[str]:
    return [path.name for path in (HOME / "tests/pipeline").glob("test_*.py")]


def test_minutes() -> int:
    """Minutes of the two parts of the last `make test`, rounded up; 0 without its reports."""
    suites = (one for report in (HOME / ".pytest_cache").glob("*.xml")
              for one in ElementTree.parse(report).iter("testsuite"))
    return -int(-sum(float(one.get("time")) for one in suites) // 60)


def figures() -> list[Figure]:
    """Every figure, counted now."""
    minutes, kinds, table = test_minutes(), naming(KINDS), ("pipeline/settings/kinds.py",)
    return [
        Figure("product files that name a kind of stages (scored)", 15, len(naming(("scored",))), 2),
        Figure("product files that name an explorer option (over_rollout)", 7, len(naming(("over_rollout",))), 6),
        Figure("product files that name a loss (sapo)", 3, len(naming(("sapo",))), 2),
        Figure("mentions of stage kinds", 270, sum(kinds.values()), 61),
        Figure("product files with mentions of stage kinds, the table apart", 47, len(naming(KINDS, table)), 14),
        Figure("functions called `problems`", 13, sum(rules().values()), 1),
        Figure("lists of names of algorithms outside their models", 13, len(name_lists()), 0),
        Figure("meanings that do not stand alone, of settings and arguments", 107, len(fragments()), 0),
        Figure("assertions on wording: match=, texts of four words", 847, wordings(), 60),
        Figure("test files flat in tests/pipeline", 98, len(flat_tests()), 0),
        Figure("lines of bridges", 3856, house.tracked("src/ouroboros/commands/bridges/*.py").total(), 3000),
        Figure("minutes of make test, two cores", 15, minutes, 9, "" if minutes else "no report of a make test here"),
    ]


def main() -> int:
    """Prints the table; returns 1 while a goal is not met and has no reason."""
    rows = [(*one[:4], one.reason or ("met" if one.now <= one.goal else REASONS.get(one.what, "not met")))
            for one in figures()]
    print(tabulate(rows, ["one place per fact", "at d2d563f", "now", "goal", ""]))
    return 1 if any(row[-1] == "not met" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
