"""Which arguments a named function takes and what it says of itself, read from its source without running it.

The house's tables of names are literal dicts at the foot of a file, so a table and the signatures behind it can be
read where importing them would cost seconds (torch), or is not allowed (pipeline knows no operators), or would run the
user's code.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.check import parameters, syntax
from pipeline.check.parameters import Parameter
from pipeline.store.errors import nearest


@dataclass(frozen=True)
class Signature:
    """required, optional: names of the parameters without and with a default, in order. anything: takes **others.

    parameters: what each may be, as far as the source says.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    anything: bool
    parameters: dict[str, Parameter] = field(default_factory=dict, compare=False)

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

    def wrong_values(self, key: str, given: dict[str, Any]) -> list[str]:
        """What is wrong with the values of arguments that it has, one line each. key: the setting that holds them."""
        known = {name: self.parameters[name] for name in (*self.required, *self.optional) if name in self.parameters}
        return parameters.problems(key, known, given)

    def after(self, passed: int) -> "Signature":
        """Without the first parameters, so many as the caller gives itself."""
        required = len(self.required)
        return replace(self, required=self.required[passed:], optional=self.optional[max(passed - required, 0):])

    def without(self, given: str) -> "Signature":
        """Without the parameter of that name, which the caller gives itself."""
        return replace(self, required=tuple(name for name in self.required if name != given),
                       optional=tuple(name for name in self.optional if name != given))


@dataclass(frozen=True)
class Definition:
    """A function as its source has it. defaults: parameter -> its default as written. doc: its docstring."""

    signature: Signature
    defaults: dict[str, str]
    doc: str
    file: Path
    line: int


def together(found: Sequence[Signature | None]) -> Signature | None:
    """What functions take that are called with the same arguments, each with those it knows; None if one is unknown."""
    known = [signature for signature in found if signature]
    if len(known) < len(found):
        return None
    required = dict.fromkeys(name for signature in known for name in signature.required)
    optional = dict.fromkeys(name for signature in known for name in signature.optional if name not in required)
    every = {name: one for signature in known for name, one in signature.parameters.items()}
    return Signature(tuple(required), tuple(optional), any(signature.anything for signature in known), every)


def table(file: str, name: str) -> dict[str, Signature]:
    """The signatures behind the table `name` at the foot of `file` (below the repository), by their names."""
    return {key: found.signature for key, found in definitions(file, name).items()}


def definitions(file: str, name: str) -> dict[str, Definition]:
    """The functions that the table `name` at the foot of `file` (below the repository) lists, by their names."""
    return _definitions(syntax.HOME / file, name)


@cache
def _definitions(path: Path, name: str) -> dict[str, Definition]:
    for node in syntax.parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return dict(_entries(path, node.value))
    raise AssertionError(f"{path} has no table {name}")


def dotted(path: str) -> Signature | None:
    """The signature behind the user's `package.module:function`; None when it cannot be read from a source file."""
    found = dotted_definition(path)
    return found and found.signature


def dotted_definition(path: str) -> Definition | None:
    """The user's `package.module:function`; None when it cannot be read from a source file."""
    module, _, name = path.partition(":")
    source = syntax.source_of(module)
    found = syntax.function(source, name) if source else None
    return found and _definition(*found)


def _entries(path: Path, node: ast.Dict) -> Iterator[tuple[str, Definition]]:
    for key, value in zip(node.keys, node.values, strict=True):
        found = syntax.resolve(path, value)
        assert isinstance(key, ast.Constant), f"{path}: a table entry without a name"
        assert found, f"{path}: the entry '{key.value}' names no function that can be read"
        yield key.value, _definition(*found)


def _definition(path: Path, node: syntax.Function) -> Definition:
    return Definition(_signature(path, node), _defaults(node.args), ast.get_docstring(node) or "", path, node.lineno)


def _signature(path: Path, node: syntax.Function) -> Signature:
    arguments = node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    first = len(names) - len(arguments.defaults)
    keywords = [(a.arg, default is not None)
                for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    required = (*names[:first], *(name for name, has in keywords if not has))
    rest = [f"*{arguments.vararg.arg}"] if arguments.vararg else []  # a name that no setting has
    optional = (*names[first:], *rest, *(name for name, has in keywords if has))
    return Signature(required, optional, arguments.kwarg is not None, parameters.read(path, node))


def _defaults(arguments: ast.arguments) -> dict[str, str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
             *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return {parameter.arg: ast.unparse(default) for parameter, default in pairs if default is not None}
