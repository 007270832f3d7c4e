"""Functions handed over in Python, as a recipe names them: `module:function`.

A function that the processes of stages can import keeps its own name. Any other, of a script or a notebook, a lambda
too, is written by its source into a module in train_functions/ of the project, NAME_HASH, with the imports, constants
and functions that its free names mean. Nothing is pickled: the module is a user's file like any other, its digest
enters identities, and equal functions give the same file in every process.
"""

import ast
import builtins
import linecache
import os
import re
import subprocess
import symtable
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NoReturn

from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.pipeline.store.project_imports import is_installed
from ouroboros.pipeline.store.secret_names import SHORTEST, names_secret

DIRECTORY = "train_functions"  # of the project
HEADER = "# Written by ouroboros.train from the source of a function. Edit the function there, not here.\n"
FUTURE = "from __future__ import annotations\n"
FUTURE_FLAG = 0x1000000  # of code under it (CO_FUTURE_ANNOTATIONS)
PLAIN = (bool, int, range, str, bytes, type(None))
SECRET_NAME = re.compile(r"(secret|password|api_?key)$", re.I)  # whatever the value; EOS_TOKEN and ANSWER_KEY are
SECRET_VALUE = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.+/=:'-]{16,}")  # not secret unless they hold such a text
CHANGING = {*dir(list), *dir(dict), *dir(set)} - {*dir(tuple), *dir(frozenset), *dir(MappingProxyType)}


def name_of(given: str | Callable, key: str) -> str:
    """Returns the name of a function in a recipe; a text is one already.

    key: the argument that it was given as, which also names a lambda. Writes the function's module if it needs one.
    Raises ConfigError, with the name, for what has no source or depends on more than its module would hold.
    """
    if isinstance(given, str):
        return given
    if found := _importable(given):
        return ":".join(found)
    if not isinstance(given, FunctionType):
        _refuse(key, f"{given!r} is an instance of {type(given).__name__}, and no function")
    name = given.__name__ if given.__name__.isidentifier() else key.replace(" ", "_")
    module = _Module(key)
    module.add(name, given)
    text = FUTURE * module.has_future + "\n".join([*module.imports, *module.constants, *module.functions])
    for variable, value in os.environ.items():
        if names_secret(variable, is_variable=True) and len(value) >= SHORTEST and value in text:
            _refuse(key, f"{name} holds the value of {variable}, a secret; read os.environ inside the function")
    stem = f"{name}_{files.hash_text(text)[:8]}"
    write_if_new(Path(DIRECTORY) / f"{stem}.py", (HEADER + text).encode())
    return f"{DIRECTORY}.{stem}:{name}"


def write_if_new(path: Path, content: bytes) -> None:
    """Writes a file that is named after its content, also where somebody has changed it."""
    if not path.exists() or path.read_bytes() != content:
        files.write_atomic(path, lambda temporary: temporary.write_bytes(content))


def _refuse(key: str, why: str) -> NoReturn:
    raise ConfigError(f"{key}: {why}. Write it into a file of the project, such as my_code.py, with what it uses, and "
                      'give its name: "my_code:NAME".')


class _Module:
    """The source of a module. held: name -> value of what it defines. key: for messages."""

    def __init__(self, key: str):
        self.key, self.has_future = key, False
        self.held: dict[str, Any] = {}
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []

    def add(self, name: str, value: Any, user: str = "") -> None:
        """Defines a name, and all that its value depends on. user: the function that uses it."""
        if name in self.held:
            if self.held[name] is not value:
                _refuse(self.key, f"it uses two values of the name {name}")
            return
        self.held[name] = value
        if isinstance(value, ModuleType) and _is_seen(value.__name__):
            self.imports.append(f"import {value.__name__} as {name}" if value.__name__ != name else f"import {name}")
        elif found := _importable(value):
            self.imports.append(f"from {found[0]} import {found[1]}" + f" as {name}" * (found[1] != name))
        elif isinstance(value, FunctionType):
            self._function(name, value)
        elif isinstance(value, ModuleType):
            _refuse(self.key, f"{user} uses the module {value.__name__}, which stages cannot import")
        elif names_secret(name) and isinstance(value, str | bytes) and (SECRET_NAME.search(name)
                                                                        or SECRET_VALUE.fullmatch(str(value))):
            _refuse(self.key, f"{user} uses {name}, a secret by its name and value; read os.environ inside the "
                              "function, or rename what is none")
        else:
            self.constants.append(f"{name} = {self._literal(value, f'{user} uses {name}')}")

    def _function(self, name: str, function: FunctionType) -> None:
        node = self._node(function, name)
        source, scope, changed = ast.unparse(node), function.__globals__ | _closure(function), _changed(node)
        needed, read = self._free(source, name)
        noted: set[str] = set()  # names in annotations alone, which need not be defined
        if function.__code__.co_flags & FUTURE_FLAG:
            self.has_future, (later, _) = True, self._free(FUTURE + source, name)
            needed, read, noted = later, read | needed, needed - later - read
        for free in sorted(needed | read):
            if free in changed and type(scope.get(free)) in (list, dict, set):
                _refuse(self.key, f"{name} changes {free}, and each process would have another one")
            elif free in scope:
                try:
                    self.add(free, scope[free], name)
                except ConfigError:
                    if free not in noted:
                        raise
                    del self.held[free]
            elif free in needed and not hasattr(builtins, free):
                _refuse(self.key, f"{name} uses {free}, which is not defined")
        scope = {free: scope.get(free) for free in needed | read}
        modules = {_submodule(one, scope) for one in ast.walk(node) if isinstance(one, ast.Attribute)} - {None}
        self.imports += sorted(f"import {one.__name__}" for one in modules)
        self.functions.append(f"\n\n{source}\n")

    def _node(self, function: FunctionType, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
        """Returns the definition of a function under a name, with the values that its defaults have."""
        found = _definition(function.__code__, function.__globals__)
        if found is None:
            _refuse(self.key, f"{name} has no source that means the same: it was typed at a prompt, made by exec, or "
                              "its file has changed since it was loaded")
        node = found
        if isinstance(found, ast.Lambda):
            node = ast.parse(f"def {name}(): pass").body[0]
            node.args, node.body = found.args, [ast.Return(found.body)]
        node.name = name
        if node.decorator_list:
            _refuse(self.key, f"{name} has a decorator, {ast.unparse(node.decorator_list[0])}")

        def default(value: Any, argument: ast.arg) -> ast.expr:
            text = self._literal(value, f"the default of {name}'s parameter {argument.arg} is")
            return ast.parse(text, mode="eval").body

        arguments, given, keywords = node.args, function.__defaults__ or (), function.__kwdefaults__ or {}
        positional = [*arguments.posonlyargs, *arguments.args]
        arguments.defaults = [*map(default, given, positional[len(positional) - len(given):])]
        arguments.kw_defaults = [default(keywords[one.arg], one) if one.arg in keywords else None
                                 for one in arguments.kwonlyargs]
        return ast.fix_missing_locations(node)

    def _free(self, source: str, name: str) -> tuple[set[str], set[str]]:
        """Returns the names that a definition takes from its module, and those that it takes if they are defined."""
        try:
            tables = [symtable.symtable(source, name, "exec")]
        except SyntaxError as error:  # nonlocal
            _refuse(self.key, f"{name} changes a variable of the function around it ({error.msg})")
        needed, read = set(), set()
        for table in tables:
            tables += table.get_children()
            for one in table.get_symbols():
                if one.is_declared_global():
                    _refuse(self.key, f"{name} changes the global variable {one.get_name()}")
                if one.is_referenced() and one.is_assigned() and table.get_type() == "class":  # json = json
                    read.add(one.get_name())
                elif one.is_global() and one.is_referenced() and not one.is_assigned():
                    needed.add(one.get_name())
        return needed, read

    def _literal(self, value: Any, why: str) -> str:
        try:
            return literal(value)
        except (TypeError, RecursionError):
            _refuse(self.key, f"{why}, an instance of {type(value).__module__}.{type(value).__qualname__}; only "
                              "modules, constants and functions can be written with it")


def literal(value: Any) -> str:
    """Returns source that makes a constant: a number, a text, a container of these, a compiled pattern. Equal constants
    give equal text, in every process. Raises TypeError for any other value."""
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind is float:
        return repr(value) if abs(value) < float("inf") else f"float('{value}')"
    if kind is list:
        return f"[{', '.join(map(literal, value))}]"
    if kind is tuple:
        return f"({''.join(f'{literal(one)}, ' for one in value)})"
    if kind in (set, frozenset):
        return f"{kind.__name__}([{', '.join(sorted(map(literal, value)))}])"
    if kind is dict:
        return f"{{{', '.join(f'{literal(name)}: {literal(one)}' for name, one in value.items())}}}"
    if kind is re.Pattern:
        return f"__import__('re').compile({value.pattern!r}, {value.flags})"
    raise TypeError(kind)


def _closure(function: FunctionType) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}


def _changed(node: ast.AST) -> set[str]:
    """Returns the names whose values a definition changes: by a method such as append, or an assignment within."""
    found = set()
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute | ast.Subscript) and (
                not isinstance(one.ctx, ast.Load) or (isinstance(one, ast.Attribute) and one.attr in CHANGING)):
            while isinstance(one, ast.Attribute | ast.Subscript | ast.Call):
                one = one.func if isinstance(one, ast.Call) else one.value
            if isinstance(one, ast.Name):
                found.add(one.id)
    return found


def _submodule(node: ast.AST, scope: dict[str, Any]) -> ModuleType | None:
    """Returns the module that names joined by dots mean, whether it was imported before or not."""
    if isinstance(node, ast.Name):
        return found if isinstance(found := scope.get(node.id), ModuleType) else None
    package = _submodule(node.value, scope) if isinstance(node, ast.Attribute) else None
    if hasattr(package, "__path__") and isinstance(vars(package).get(node.attr, package), ModuleType):
        with suppress(ImportError):
            return import_module(f"{package.__name__}.{node.attr}")
    return None


def _definition(code: CodeType, names: dict[str, Any]) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    """Returns the syntax tree that code was compiled of: the next one whose code is the same."""
    linecache.checkcache(code.co_filename)
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename, names)))
        whole = compile(tree, code.co_filename, "exec", code.co_flags & FUTURE_FLAG | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
                        dont_inherit=True)
    except SyntaxError:  # the file has changed
        return None
    codes = [whole]
    for one in codes:
        codes += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    if not (same := [one for one in codes if _meaning(one) == _meaning(code)]):
        return None
    found = min(same, key=lambda one: abs(one.co_firstlineno - code.co_firstlineno))
    spans = [(one[0], one[2], one[1], one[3]) for one in found.co_positions() if one[2] != one[3]]  # of instructions
    lambdas = {}  # (instructions within, start) -> node: of lambdas within one another the innermost
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
            if min(one.lineno for one in [node, *node.decorator_list]) == found.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and node.lineno == found.co_firstlineno:
            start, end = (node.body.lineno, node.body.col_offset), (node.body.end_lineno, node.body.end_col_offset)
            lambdas[sum(start <= one[:2] and one[2:] <= end for one in spans), start] = node
    return lambdas[max(lambdas)] if spans and lambdas else None


def _meaning(code: CodeType) -> CodeType:
    """Returns code without its places in a file: equal for definitions that do the same."""
    constants = tuple(_meaning(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return code.replace(co_consts=constants, co_firstlineno=1, co_linetable=b"")


def _importable(value: Any) -> tuple[str, str] | None:
    """Returns the module and the name by which stages can import a function or class; None where they cannot."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value and _is_seen(module) else None


def _is_seen(module: str) -> bool:
    """Returns whether a process of a stage would import the same module: ours may have more directories on its path."""
    top = module.partition(".")[0]
    file = getattr(sys.modules.get(top), "__file__", None)
    if top in sys.stdlib_module_names or (file and is_installed(Path(file))):
        return top != "__main__"
    found = PathFinder.find_spec(top, _path_of_stages(launch.python_path()))
    return bool(file and found and found.origin and Path(found.origin).samefile(file))


@cache
def _path_of_stages(given: str) -> list[str]:
    command = [sys.executable, "-P", "-c", "import sys; print('\\n'.join(sys.path))"]
    environment = {**os.environ, "PYTHONPATH": given}
    return subprocess.run(command, text=True, check=True, capture_output=True, env=environment).stdout.splitlines()
