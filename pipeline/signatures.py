"""Which arguments a named function takes, read from its source without running it.

The house's tables of names are literal dicts at the foot of a file, so a table and the signatures behind it can be
read where importing them would cost seconds (torch), or is not allowed (pipeline knows no operators), or would run the
user's code.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import nearest
from pipeline.external import module_file
from pipeline.files import CONF

HOME = CONF.parent  # of the repository


@dataclass(frozen=True)
class Signature:
    """required, optional: names of the parameters without and with a default, in order. anything: takes **others."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    anything: bool

    def problems(self, given: dict[str, Any], passed: int | None) -> list[str]:
        """What is wrong with the arguments `given` by the user: `has no argument 'x'. ...`, one for each.

        passed: how many parameters, from the first, the caller gives itself; None: all without a default.
        """
        names = (*self.required, *self.optional)
        free = self.optional if passed is None else names[passed:]
        problems = [f"has no argument '{name}'.{nearest(name, free)} It has: {', '.join(free) or 'none'}."
                    for name in given if name not in free and not self.anything]
        missing = [] if passed is None else [n for n in self.required[passed:] if n not in given]
        return problems + [f"needs the argument '{name}'." for name in missing]


    def after(self, passed: int) -> "Signature":
        """Without the first parameters, so many as the caller gives itself."""
        required = len(self.required)
        return Signature(self.required[passed:], self.optional[max(passed - required, 0):], self.anything)

    def without(self, given: str) -> "Signature":
        """Without the parameter of that name, which the caller gives itself."""
        return Signature(tuple(name for name in self.required if name != given),
                         tuple(name for name in self.optional if name != given), self.anything)


def together(found: Sequence[Signature | None]) -> Signature | None:
    """What functions take that are called with the same arguments, each with those it knows; None if one is unknown."""
    known = [signature for signature in found if signature]
    if len(known) < len(found):
        return None
    required = dict.fromkeys(name for signature in known for name in signature.required)
    optional = dict.fromkeys(name for signature in known for name in signature.optional if name not in required)
    return Signature(tuple(required), tuple(optional), any(signature.anything for signature in known))


def table(file: str, name: str) -> dict[str, Signature]:
    """The functions that the table `name` at the foot of `file` (below the repository) lists, by their names."""
    path = HOME / file
    for node in _parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return dict(_entries(path, node.value))
    raise AssertionError(f"{file} has no table {name}")


def dotted(path: str) -> Signature | None:
    """The signature behind the user's `package.module:function`; None when it cannot be read from a source file."""
    module, _, name = path.partition(":")
    source = _source(module)
    return _function(source, name) if source else None


def _entries(path: Path, node: ast.Dict) -> Iterator[tuple[str, Signature]]:
    for key, value in zip(node.keys, node.values, strict=True):
        found = _resolve(path, value)
        assert isinstance(key, ast.Constant), f"{path}: a table entry without a name"
        assert found, f"{path}: the entry '{key.value}' names no function that can be read"
        yield key.value, found


def _resolve(path: Path, value: ast.expr) -> Signature | None:
    """The function that `name` or `module.name` stands for in a file."""
    if isinstance(value, ast.Name):
        return _function(path, value.id)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        module = _imported(path).get(value.value.id)
        source = _source(".".join(filter(None, module))) if module else None
        return _function(source, value.attr) if source else None
    return None


def _function(path: Path, name: str) -> Signature | None:
    """A function that a file defines, or imports from another file."""
    for node in _parse(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return _signature(node.args)
    module, original = _imported(path).get(name, (None, None))
    source = _source(module) if module and original else None
    return _function(source, original) if source else None


def _signature(arguments: ast.arguments) -> Signature:
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    first = len(names) - len(arguments.defaults)
    keywords = [(a.arg, default is not None)
                for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    required = (*names[:first], *(name for name, has in keywords if not has))
    optional = (*names[first:], *(name for name, has in keywords if has))
    return Signature(required, optional, arguments.kwarg is not None)


def _imported(path: Path) -> dict[str, tuple[str, str | None]]:
    """Name in a file -> (module, name there; None for a whole module)."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in _parse(path).body:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {a.asname or a.name: (node.module, a.name) for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.asname: (a.name, None) for a in node.names if a.asname}
    return found


def _source(module: str) -> Path | None:
    """The file of a module of ours or of the user's; None when it has none."""
    own = HOME / (module.replace(".", "/") + ".py")
    if own.is_file():
        return own
    found = module_file(module)
    return found if found and found.suffix == ".py" else None


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())
