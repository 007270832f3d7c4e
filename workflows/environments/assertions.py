"""Runs the tests of a program and counts their assertions; a program's names are functions that ask for it.

Imports the standard library alone, as its text is sent into sandboxes (workflows/environments/programs.py).
"""

import ast
import builtins
import random
from collections.abc import Callable
from typing import Any


class Weak(BaseException):
    """The tests need more of the program than functions of plain values."""


class Gone(BaseException):
    """The program's process ended."""


class Assertions(ast.NodeTransformer):
    """Every assertion is counted, and goes on to the next where it fails; those in a `try` are left to it."""

    WITH = ast.parse("with __assertion__:\n  pass").body[0]

    def visit_Try(self, node: ast.Try) -> ast.Try:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.With:
        return ast.copy_location(ast.With(self.WITH.items, [node]), node)


class Count:
    """How many assertions there were, how many of them held, and how often the program was called."""

    passed = total = called = 0

    def __enter__(self) -> None:
        self.total += 1

    def __exit__(self, kind: type | None, *error: Any) -> bool:
        self.passed += kind is None
        return kind is not None and issubclass(kind, Exception) and not issubclass(kind, ImportError)


def parses(text: str) -> bool:
    try:
        return bool(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return False


def verdict(about: dict, lookup: Callable[[str], Any], is_inside: bool = False) -> dict:
    """Runs tests. about: `tests` and `prompt`, texts of Python, and `entry`, the name of the function that a `check` of
    the tests is given. lookup: the function of the program that has a name. is_inside: in the program's process.

    Returns how many assertions held of how many, or a `problem` of the tests. Raises Weak where they must be inside.
    """
    count, space, entry = Count(), {"__name__": "tests"}, about["entry"]
    try:
        tree = ast.parse(about["tests"])
        if parses(about["prompt"]):  # helpers that tests use
            exec(compile(about["prompt"], "prompt", "exec"), space)
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    names, weak = called(tree, set(space) - {entry})
    if weak and not is_inside:
        raise Weak(weak)

    def program(name: str) -> Callable:
        def call(*given, **named):
            count.called += 1
            return lookup(name)(*given, **named)
        return call

    random.seed(0)
    try:
        with count:
            space |= {name: (lookup if is_inside else program)(name) for name in dict.fromkeys([*names, entry]) if name}
            space["__assertion__"] = count
            exec(compile(ast.fix_missing_locations(Assertions().visit(tree)), "tests", "exec"), space)
            if entry and callable(space.get("check")) and not count.called:
                space["check"](space[entry])
            count.total, count.passed = count.total - 1, count.passed - 1  # from here on assertions alone count
    except ImportError as error:
        return {"problem": str(error)}
    except Gone:
        pass
    if not (count.called or is_inside):
        return {"problem": "they never call the program"}
    return {"passed": count.passed if count.total else 1, "total": count.total or 1}


def called(tree: ast.Module, known: set[str]) -> tuple[list[str], str]:
    """Returns the names in tests that only the program can have, and the one that is more to them than a function which
    they call: a class whose objects they use, or a value; empty for none."""
    nodes = list(ast.walk(tree))
    stored = {one.id for one in nodes if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)} | known
    stored |= {one.name for one in nodes if isinstance(one, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler))}
    stored |= {one.arg for one in nodes if isinstance(one, ast.arg)} | set(dir(builtins))
    stored |= {(one.asname or one.name).partition(".")[0] for one in nodes if isinstance(one, ast.alias)}
    free = [one for one in nodes if isinstance(one, ast.Name) and one.id not in stored]
    plain = {id(each) for one in nodes if isinstance(one, ast.Call)
             for each in (one.func, *one.args, *(word.value for word in one.keywords))}
    made = {id(one.value.func) for one in nodes
            if isinstance(one, (ast.Attribute, ast.Assign)) and isinstance(one.value, ast.Call)}
    weak = [one.id for one in free if id(one) not in plain or (id(one) in made and one.id[0].isupper())]
    return list(dict.fromkeys(one.id for one in free)), (weak or [""])[0]
