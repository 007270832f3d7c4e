"""Finds the user files that a module imports, from source: a function's behaviour depends on all of them.

Only modules below the same project directory count, the one from which the module is imported. For an installed package
every module counts: it changes as a whole, and is often too large to analyse. Our own code: pipeline/plan/code.py.
"""

import ast
import sysconfig
from functools import cache
from pathlib import Path

from pipeline.store import files
from pipeline.store.errors import ConfigError
from pipeline.store.files import CONF

OURS = ("operators", "pipeline", "stages", "workflows")
INSTALLED = ("site-packages", "dist-packages")  # and the standard library


def taken_in(source: Path, module: str) -> dict[str, Path]:
    """Maps dotted names to files of a module and everything it imports below its project directory.

    source: the file of `module`. Imports within functions count too. Of our own code there are none. Raises ConfigError
    for a file that is not Python.
    """
    parts = module.split(".")
    root = source.parents[len(parts) - (source.name != "__init__.py")]
    if root == CONF.parent and parts[0] in OURS:
        return {}
    if is_installed(source):
        return {module: source} | _whole(root, parts[0])
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = source if name == module else _file(root, name)
        if path is None or name in found or (root == CONF.parent and name.partition(".")[0] in OURS):
            continue
        found[name] = path
        waiting += [".".join(name.split(".")[:size]) for size in range(1, name.count(".") + 1)]  # packages run too
        waiting += _named(path, name) if path.suffix == ".py" else []
    return found


def is_installed(source: Path) -> bool:
    """Returns whether a file belongs to an installed package or the standard library."""
    return bool({*INSTALLED} & {*source.parts}) or source.is_relative_to(sysconfig.get_path("stdlib"))


@cache
def _whole(root: Path, package: str) -> dict[str, Path]:
    """Maps dotted names to files of every module of an installed package."""
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
            for path in sorted((root / package).rglob("*.py"))}


def _file(root: Path, name: str) -> Path | None:
    here = root.joinpath(*name.split("."))
    return next((p for p in (here / "__init__.py", here.with_name(f"{here.name}.py")) if p.is_file()), None)


@files.remembered
def _named(path: Path, module: str) -> list[str]:
    """Returns the dotted names a file imports, both modules and names in them."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{path}, line {getattr(error, 'lineno', 1)}: {getattr(error, 'msg', error)}") from error
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = base_of(node, path, module)
            names += [base, *(f"{base}.{alias.name}" if base else alias.name for alias in node.names)]
    return [name for name in names if all(part.isidentifier() for part in name.split("."))]


def base_of(node: ast.ImportFrom, path: Path, module: str) -> str:
    """Returns the dotted module of a `from ... import`; empty if it leads above the file's packages.

    module: the dotted name of the file.
    """
    package = module.split(".")[: None if path.name == "__init__.py" else -1]
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *filter(None, [node.module])])
