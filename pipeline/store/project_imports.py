"""Finds the user files that a module imports, from source: a function's behaviour depends on all of them.

Only modules below the same project directory count, the one from which the module is imported. For an installed package
every module counts: it changes as a whole, and is often too large to analyse. Our own code: pipeline/plan/code.py.
"""

import ast
import re
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.files import HOME

OURS = ("operators", "pipeline", "stages", "workflows")
MOVED = ("errors", "search")  # out of `pipeline`; all other names got a prefix alone
PREFIX = re.compile(rf"(?<![\w.])ouroboros\.(?=(?:({'|'.join(MOVED)})|{'|'.join(OURS)})\b)")
INSTALLED = ("site-packages", "dist-packages")  # and the standard library


def taken_in(source: Path, module: str) -> dict[str, Path]:
    """Maps dotted names to files of a module and everything it imports below its project directory.

    source: the file of `module`. Imports within functions count too. Of our own code there are none. Raises ConfigError
    for a file that is not Python.
    """
    parts = module.split(".")
    root = source.parents[len(parts) - (source.name != "__init__.py")]
    if parts[0] == "ouroboros":
        return {}
    if is_installed(source):
        return {module: source} | _whole(root, parts[0])
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = source if name == module else _file(root, name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += [".".join(name.split(".")[:size]) for size in range(1, name.count(".") + 1)]  # packages run too
        for used in _named(path, name) if path.suffix == ".py" else []:
            if new := new_name(used, root):
                raise ConfigError(f"{path} imports {used}, which is now called {new}. Write that name there; stages "
                                  "that are complete stay so.")
            waiting.append(used)
    return found


def bare(value: Any) -> Any:
    """Returns a text, or the texts in a structure, with our modules' names as identities have them: of before."""
    if isinstance(value, dict):
        return {bare(key): bare(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [bare(one) for one in value]
    return PREFIX.sub(lambda found: "pipeline." if found[1] else "", value) if type(value) is str else value


def new_name(name: str, root: Path) -> str | None:
    """Returns the name of a module of ours, or of what is in it, that is called by its name of before; None for others.

    root: the directory of the project, whose own packages may have the names that ours had.
    """
    parts = name.split(".")
    if not all(parts) or parts[0] not in OURS:
        return None
    if root.resolve() != HOME and (_file(root, parts[0]) or (root / parts[0]).is_dir()):
        return None
    if parts[0] == "pipeline" and parts[1:2] and parts[1] in MOVED:
        return ".".join(["ouroboros", *parts[1:]])
    ours = any(_file(HOME, ".".join(parts[:size])) for size in range(2, len(parts) + 1))
    return f"ouroboros.{name}" if ours else None


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
