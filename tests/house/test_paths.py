"""What documents and docstrings say of the tree: the table of rooms in ARCHITECTURE.md, and every path of ours."""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch

import pytest

from benchmarks import house
from ouroboros.pipeline.store.files import HOME

ROOMS = re.compile(r"^\| (\d+) \| `([\w/]+)` \|", re.M)
PATH = re.compile(r"(?<![\w/.}~<-])((?:pipeline|operators|workflows|stages|benchmarks|docs)/[\w./*-]*\w"
                  r"|(?:\w+/)+\w+\.py)\b")
# in another package or project
OTHERS = ("mine/parts.py", "src/prime_rl/", "v1/attention/", "trinity/algorithm/", "benchmarks/baselines")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=HOME, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in listed if (HOME / path).exists()]


def wrong(text: str, files: list[str]) -> list[str]:
    """The paths in a text that no file or folder has; their ends are enough, and an attribute may follow a module."""
    def exists(path: str) -> bool:
        ends = tuple(f"/{end}" for end in (path, f"{path.rpartition('.')[0]}.py", f"{path}.py"))
        return any(f"/{file}".endswith(ends) or f"/{path}/" in f"/{file}" or fnmatch(file, path) for file in files)

    return [path for path in PATH.findall(text) if not path.startswith(OTHERS) and not exists(path)]


def prose(path: str, files: list[str]) -> Iterator[str]:
    """A document, or the docstrings and comments of a module, where it names a path that is not there."""
    source = (HOME / path).read_text(encoding="utf-8")
    if path.endswith(".md") or not wrong(source, files):
        yield source
        return
    yield from (token.string for token in tokenize.generate_tokens(io.StringIO(source).readline)
                if token.type == tokenize.COMMENT)
    yield from (ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize(("text", "found"), [
    ("see pipeline/store/files.py and store/files.py", []), ("pipeline/check", []), ("docs/*.md", []),
    ("stages/learner/engine/zero.optimizer", []), ("check/no_rules.py", ["check/no_rules.py"]),
    ("pipeline/no_room", ["pipeline/no_room"]), ("docs/none.md", ["docs/none.md"])])
def test_a_path_that_nothing_has_is_found(text, found):
    assert wrong(text, tracked()) == found


def test_every_path_in_documents_docstrings_and_comments_exists():
    files = tracked()
    written = [path for path in files if path.endswith((".md", ".py")) and "templates/" not in path
               and path not in ("CHANGELOG.md", "tests/golden/messages.md", "tests/house/test_paths.py")]
    assert [(path, one) for path in written for text in prose(path, files) for one in wrong(text, files)] == []


def test_the_table_of_rooms_is_the_tree_and_its_floors_the_imports():
    floors = {f"ouroboros.{room.replace('/', '.')}".removesuffix(".ouroboros"): int(floor) for floor, room in
              ROOMS.findall((HOME / "ARCHITECTURE.md").read_text(encoding="utf-8"))}
    files = house.import_graph()
    assert set(floors) == {house.room(module) for module in files}
    assert [(a, b) for a, b in files.edges if floors[house.room(a)] < floors[house.room(b)]] == []


def test_the_architecture_is_read_in_one_sitting():
    assert len((HOME / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 300
