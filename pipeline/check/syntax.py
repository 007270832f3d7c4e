"""Finds functions in source files, ours and the user's, without running them."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pipeline.store.digests import module_file
from pipeline.store.files import HOME

Function = ast.FunctionDef | ast.AsyncFunctionDef
Find = Callable[[str], Path | None]


@cache
def parse(path: Path) -> ast.Module:
    """The file as a tree. Raises SyntaxError."""
    return ast.parse(path.read_bytes())


def function(path: Path, name: str, find: Find | None = None, asked: tuple = ()) -> tuple[Path, Function] | None:
    """A function that a file defines, or imports from another file: the file that has it, and its tree.

    find: gives the file of a module; default: `source_of`. asked: (file, name) of those that led here: modules may
    import from each other.
    """
    for node in parse(path).body:
        if isinstance(node, Function) and node.name == name:
            return path, node
    module, original = imported(path).get(name, (None, None))
    source = (find or source_of)(module) if module and original else None
    once_more = (source, original) in asked
    return function(source, original, find, (*asked, (source, original))) if source and not once_more else None


def resolve(path: Path, value: ast.expr, find: Find | None = None) -> tuple[Path, Function] | None:
    """The function that `name` or `module.name` stands for in a file. find: as for `function`."""
    if isinstance(value, ast.Name):
        return function(path, value.id, find)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        module = imported(path).get(value.value.id)
        source = (find or source_of)(".".join(filter(None, module))) if module else None
        return function(source, value.attr, find) if source else None
    return None


@cache
def imported(path: Path) -> dict[str, tuple[str, str | None]]:
    """Name in a file -> (module, name there; None for a whole module)."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in parse(path).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname: (a.name, None) for a in node.names if a.asname}
    return found


def ours(module: str) -> Path | None:
    """The file of a module of this repository; None for any other module."""
    own = HOME / (module.replace(".", "/") + ".py")
    return own if own.is_file() else None


def source_of(module: str) -> Path | None:
    """The file of a module of ours or of the user's; None when it has none. Imports its parent packages."""
    if own := ours(module):
        return own
    found = module_file(module)
    return found if found and found.suffix == ".py" else None
