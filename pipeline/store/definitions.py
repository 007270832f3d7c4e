"""Digests of functions and classes in our own packages, each with all definitions of ours that it uses.

A definition is what a module binds to a name at its top level (`operators.kl:k2`), a method (`Trainer.run`), or one
entry of a table (`operators.kl:KL_ESTIMATORS[k2]`); its module is named without the prefix `ouroboros.`. Comments,
layout, docstrings, log lines, messages of raised exceptions, bounds and meanings of arguments do not count. Uses are
read from the source, nothing is imported: every name, `module.attribute` and dotted text that may mean a definition
counts.
"""

import ast
import re
import sys
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ouroboros.pipeline.store import files, kept
from ouroboros.pipeline.store.project_imports import bare, base_of

PACKAGES = ("operators", "workflows", "stages")
DOTTED = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+")  # a text such as "workflows.engines.vllm_worker.WeightLoader"
NAME = re.compile(r"(\w*)(?:\.(\w+)|\[(.*)\])?", re.S)
LOG_LEVELS = ("debug", "info", "warning", "error")
NO_FIELDS = ("ctx", "kind", "type_comment")  # of syntax trees, without meaning for what is computed


class Definition(NamedTuple):
    """digest: of its own source. uses: dotted names (module.name) that it refers to."""

    digest: str
    uses: tuple[str, ...]


def digest_definitions(starts: Iterable[str], stops: Iterable[str], home: Path) -> str:
    """Hashes the definitions `starts` (`module:name`) and all that they use.

    stops: definitions or modules that are left out, with what only they use. home: the directory of the packages.
    """
    return _digest(frozenset(starts), frozenset(stops), home, tuple(kept.stamps(sources(home))))


@cache
def _digest(starts: frozenset[str], stops: frozenset[str], home: Path, stamps: tuple[tuple[str, int, int], ...]) -> str:
    known, key = _known(home, stamps), files.hash_text(str((sorted(starts), sorted(stops))))
    if key not in known:
        known[key] = files.hash_text(str(sorted(closure(starts, stops, home).items())))
        if home == files.HOME:
            kept.keep(__file__, _version(stamps), known)
    return known[key]


@cache
def _known(home: Path, stamps: tuple[tuple[str, int, int], ...]) -> dict[str, str]:
    """Returns the digests of our own packages that an earlier process computed from the same sources: parsing them
    takes a quarter of a second."""
    return kept.answers(__file__, _version(stamps)) if home == files.HOME else {}


def _version(stamps: tuple[tuple[str, int, int], ...]) -> str:
    """Returns a hash of all sources, and of this module, which makes the digests."""
    return files.hash_text(str((sys.version, kept.stamps([__file__]), stamps)))


def closure(starts: Iterable[str], stops: Collection[str], home: Path) -> dict[str, str]:
    """Maps definitions to digests; arguments as for `digest_definitions`."""
    found: dict[str, str] = {}
    waiting, stops = bare(list(starts)), bare(list(stops))
    while waiting:
        key = waiting.pop()
        module, _, name = key.partition(":")
        if key not in found and key not in stops and module not in stops:
            one = _definition(_file(home, module), module, name)
            found[key] = one.digest
            waiting += filter(None, (_split(home, dotted) for dotted in one.uses))
    return found


def uses_of_file(path: Path, module: str) -> list[str]:
    """Returns the definitions of ours, `module:name`, that a user's module refers to."""
    bodies, imports = _module(path, module)
    reader = _Reader(path, module, {}, imports)
    reader.text(list(bodies.values()))
    return [found for name in reader.uses if name.startswith("ouroboros.") and (found := _split(files.HOME, name))]


def start_of(name: str, home: Path) -> str | None:
    """Returns the definition of ours that `package.module:name` names; the whole module where its top level does not
    bind that name; None if it is not one of ours."""
    found = _split(home, name.replace(":", "."))
    module, _, own = (found or "").partition(":")
    if not found or any(own in bound for bound in _module(_file(home, module), module)):
        return found
    return f"{module}:"


@cache
def sources(home: Path) -> list[Path]:
    """Returns the files of the packages whose definitions have digests."""
    return [path for package in PACKAGES for path in sorted((home / package).rglob("*.py"))]


@cache
def _file(home: Path, module: str) -> Path | None:
    place = home.joinpath(*module.split("."))
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


@cache
def _split(home: Path, dotted: str) -> str | None:
    """Returns `module:name` of a dotted name, without attributes of what it names; None if it is not one of ours."""
    parts = bare(dotted).split(".")
    for end in range(len(parts), 0, -1) if parts[0] in PACKAGES else ():
        if _file(home, ".".join(parts[:end])):
            return f"{'.'.join(parts[:end])}:{''.join(parts[end:end + 1])}"
    return None


@files.remembered
def _module(path: Path, module: str) -> tuple[dict[str, list[ast.stmt]], dict[str, str]]:
    """Returns the statements that bind each top-level name of a module, and the dotted name of each import."""
    bodies: dict[str, list[ast.stmt]] = {}
    imports: dict[str, str] = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports |= _imports(node, path, module)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bodies[node.name] = [node]
        else:
            targets = getattr(node, "targets", None) or filter(None, [getattr(node, "target", None)])
            for name in {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}:
                bodies.setdefault(name, []).append(node)
    return bodies, imports


def _imports(node: ast.Import | ast.ImportFrom, path: Path, module: str) -> dict[str, str]:
    """Maps the names that an import binds to dotted names."""
    base = f"{base_of(node, path, module)}." if isinstance(node, ast.ImportFrom) else ""
    return {alias.asname or alias.name: f"{base}{alias.name}" for alias in node.names}


@files.remembered
def _definition(path: Path, module: str, name: str) -> Definition:
    """Returns a definition of a module; for an empty name one that uses all of them."""
    bodies, imports = _module(path, module)
    if not name:
        return Definition("", tuple(f"{module}.{one}" for one in bodies))
    if name in imports:
        return Definition("", (imports[name],))
    reader = _Reader(path, module, bodies, imports)
    return Definition(files.hash_text(reader.text(_nodes(bodies, name))), tuple(reader.uses))


def _nodes(bodies: dict[str, list[ast.stmt]], name: str) -> list[Any]:
    """Returns the syntax trees of `name`, `Class.method` or `TABLE[key]`; none for a key that a table lacks."""
    top, method, key = NAME.fullmatch(name).groups()
    assert top in bodies, f"no definition {name}"
    if method:
        found = [one for node in bodies[top] for one in node.body if getattr(one, "name", "") == method]
        assert found, f"no method {name}"
        return found
    if key:
        tables = [one for node in bodies[top] for one in ast.walk(node) if isinstance(one, ast.Dict)]
        return [value for table in tables for one, value in zip(table.keys, table.values, strict=True)
                if getattr(one, "value", None) == key]
    return bodies[top]


class _Reader:
    """Formats syntax trees of a module as text, and collects the dotted names that they refer to in `uses`.

    The text has no positions and no empty fields, which differ between versions of Python.
    """

    def __init__(self, path: Path, module: str, bodies: dict[str, list[ast.stmt]], imports: dict[str, str]):
        self.path, self.module, self.bodies, self.imports = path, module, bodies, dict(imports)
        self.uses: dict[str, None] = {}

    def text(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{','.join([self.text(one) for one in value if not _is_silent(one)])}]"
        if not isinstance(value, ast.AST):
            return repr(bare(value))
        if isinstance(value, ast.Raise):  # without its message
            return f"Raise({self.text(value.exc.func if isinstance(value.exc, ast.Call) else value.exc)})"
        if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.value.id in self.imports:
            self.uses[f"{self.imports[value.value.id]}.{value.attr}"] = None
            return f"{value.value.id}.{value.attr}"
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Field":  # its default alone
            return f"Field({self.text(value.args)})"
        self._collect(value)
        fields = [f"{name}={self.text(field)}" for name in value._fields if name not in NO_FIELDS
                  if (field := getattr(value, name, None)) is not None and field != []]
        return f"{type(value).__name__}({','.join(fields)})"

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):  # inside a function
            self.imports |= _imports(node, self.path, self.module)
        elif isinstance(node, ast.Name) and (node.id in self.imports or node.id in self.bodies):
            self.uses[self.imports.get(node.id, f"{self.module}.{node.id}")] = None
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(bare(node.value)):
            self.uses[node.value] = None


def _is_silent(node: Any) -> bool:
    """Returns whether a statement is a docstring or a log line."""
    if not isinstance(node, ast.Expr):
        return False
    function = node.value.func if isinstance(node.value, ast.Call) else None
    if isinstance(function, ast.Attribute) and function.attr in LOG_LEVELS:
        function = function.value
    return isinstance(node.value, ast.Constant) or "log" in (getattr(function, "attr", ""), getattr(function, "id", ""))
