"""Parameters of a user's function, read from its source: nothing is imported."""

import ast
from pathlib import Path
from typing import NamedTuple

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.digests import module_file
from ouroboros.pipeline.store.project_imports import base_of


class Parameters(NamedTuple):
    """Names of parameters without and with a default, those that can be given by position, and whether there is a
    **parameter."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    positional: tuple[str, ...] = ()
    takes_anything: bool = False

    def names(self) -> tuple[str, ...]:
        return (*self.required, *self.optional)


def parameters_of(dotted: str) -> Parameters:
    """Returns the parameters of `package.module:function`; of one that a module imports, those of its definition. None
    of them where the source cannot be read as Python, or defines the name in another way than by `def`."""
    module, _, name = dotted.partition(":")
    source = module_file(module)
    if source is None or source.suffix != ".py":
        return Parameters()
    try:
        found = _definition(source, module, name)
        if isinstance(found, str):
            return Parameters() if found == dotted else parameters_of(found)
    except (SyntaxError, ValueError, OSError, RecursionError):  # `ouro config check` says it
        return Parameters()
    return found


@files.remembered
def _definition(source: Path, module: str, name: str) -> Parameters | str:
    """Returns the parameters of a function, or from where a module imports it."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return _parameters(node.args)
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return f"{base_of(node, source, module)}:{one.name}"
    return Parameters()


def _parameters(given: ast.arguments) -> Parameters:
    by_position = [one.arg for one in (*given.posonlyargs, *given.args)]
    without = len(by_position) - len(given.defaults)
    by_name = [(one.arg, default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return Parameters((*by_position[:without], *(name for name, default in by_name if default is None)),
                      (*by_position[without:], *(name for name, default in by_name if default is not None)),
                      tuple(by_position), given.kwarg is not None)
