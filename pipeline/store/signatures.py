"""Parameters of a user's function, read from its source: nothing is imported."""

import ast
from pathlib import Path

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.digests import module_file
from ouroboros.pipeline.store.project_imports import base_of


def parameters_of(dotted: str) -> set[str]:
    """Returns the names of the parameters of `package.module:function`; of one that a module imports, those of its
    definition. Empty where the source cannot be read as Python, or defines the name in another way than by `def`."""
    module, _, name = dotted.partition(":")
    source = module_file(module)
    if source is None or source.suffix != ".py":
        return set()
    try:
        found = _definition(source, module, name)
    except (SyntaxError, ValueError):  # `ouro config check` says it
        return set()
    if isinstance(found, str):
        return set() if found == dotted else parameters_of(found)
    return found


@files.remembered
def _definition(source: Path, module: str, name: str) -> set[str] | str:
    """Returns the parameters of a function, or from where a module imports it."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            given = node.args
            return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name:
                    return f"{base_of(node, source, module)}:{one.name}"
    return set()
