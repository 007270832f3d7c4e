"""What the arguments of a function may be, read from its source: types from annotations, bounds from its checks.

A function of ours refuses wrong arguments by `check_number(f"{KEY}.epsilon", epsilon, above=0)` or `check_choice`
(operators/arguments.py), in its own lines or in those of a function that it uses. Read here, such a check is made
before a run begins, without the seconds that importing torch takes. Of a user's function only what cannot be meant
otherwise is read: the rest it says itself when it is called.
"""

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import create_model

from pipeline.check import syntax
from pipeline.settings import schema
from pipeline.settings.setting import Section
from pipeline.store.project_imports import OURS

UNKNOWN = object()  # a type, a default or a bound that cannot be told from the source
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict,
         "None": type(None)}
WIDER = {list: list[Any], dict: dict[str, Any]}  # as the schema calls them
ARGUMENTS = syntax.HOME / "operators" / "arguments.py"
PLACES = {"value": 1, "choices": 2, "least": 2, "most": 3, "above": 4}  # of the parameters of its checks


@dataclass(frozen=True)
class Limit:
    """A bound of a number, or the choices of any value. when: the parameter without which it does not hold.

    least, most, above: a number, or the name of another parameter; None without such a bound.
    """

    least: Any = None
    most: Any = None
    above: Any = None
    choices: tuple | None = None
    when: str | None = None

    def broken(self, key: str, value: Any, values: dict[str, Any]) -> list[str]:
        """The line for a value that it forbids. values: of all parameters."""
        if self.when and not values.get(self.when):
            return []
        told = f"{key} ({self.when}={_yaml(values[self.when])})" if self.when else key
        if value is None and self.when:
            return [f"{told}=null: needed a number{self._words(values)}."]
        if self.choices is not None:
            words = ", ".join(map(_yaml, self.choices))
            return [] if value in self.choices else [f"{told}={value}: needed one of {words}."]
        if value is None or (_is_number(value) and self._holds(value, values)):
            return []
        return [f"{told}={value}: needed a number{self._words(values)}."]

    def _holds(self, value: float, values: dict[str, Any]) -> bool:
        least, most, above = (_number(bound, values) for bound in (self.least, self.most, self.above))
        return ((least is None or value >= least) and (most is None or value <= most)
                and (above is None or value > above))

    def _words(self, values: dict[str, Any]) -> str:
        bounds = (("greater than", self.above), ("at least", self.least), ("at most", self.most))
        found = [f"{word} {number}" for word, bound in bounds if (number := _number(bound, values)) is not None]
        return f" {' and '.join(found)}" if found else ""


@dataclass(frozen=True)
class Parameter:
    """kind: a type as the schema knows them; UNKNOWN: any value passes. default: UNKNOWN without one."""

    kind: Any
    default: Any = UNKNOWN
    limits: tuple[Limit, ...] = ()


def problems(key: str, parameters: dict[str, Parameter], given: dict[str, Any]) -> list[str]:
    """What is wrong with the values of arguments, one line each. key: the setting that holds them."""
    values = {name: one.default for name, one in parameters.items() if one.default is not UNKNOWN} | given
    found: list[str] = []
    for name, one in parameters.items():
        if name not in values:
            continue
        wrong = _mistyped(f"{key}.{name}", values[name], one) if name in given else []
        found += wrong or [line for limit in one.limits for line in limit.broken(f"{key}.{name}", values[name], values)]
    return found


@cache
def read(path: Path, node: syntax.Function) -> dict[str, Parameter]:
    """The parameters of a function by name. path: of the file that has it."""
    limits: dict[str, list[Limit]] = {}
    for name, limit in _limits(path, node, set()) if _is_ours(path) else _checked(path, node):
        limits.setdefault(name, []).append(limit)
    defaults = _defaults(node.args)
    return {one.arg: Parameter(_kind(one.annotation), defaults.get(one.arg, UNKNOWN), tuple(limits.get(one.arg, ())))
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


@cache
def _holder(kind: Any) -> type[Section]:
    return create_model("Holder", __base__=Section, value=(kind, None))


def _mistyped(key: str, value: Any, one: Parameter) -> list[str]:
    if one.kind in (UNKNOWN, type(None)) or (type(value) is type(one.default) and value == one.default):
        return []
    wrong: list[str] = []
    made = schema.read({"value": value}, _holder(one.kind), "", wrong).get("value")
    wrong = [line.replace("'value'", f"'{key}'").replace("value=", f"{key}=") for line in wrong]
    if not wrong and type(made) is not type(value) and not isinstance(made, float):  # "5" for a text, 3.0 for a count
        wrong.append(schema.wrong(value, "a text" if isinstance(made, str) else "a whole number", key))
    if not wrong and isinstance(value, float) and not math.isfinite(value):
        return [f"{key}={value}: needed a finite number."]
    return wrong


def _number(bound: Any, values: dict[str, Any]) -> float | None:
    found = values.get(bound) if isinstance(bound, str) else bound
    return found if _is_number(found) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _yaml(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------------------------------------------- from source


def _kind(annotation: ast.expr | None) -> Any:
    """The type that an annotation names; UNKNOWN when it is none of TYPES, alone or with `|`."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        kinds = [_kind(annotation.left), _kind(annotation.right)]
        return UNKNOWN if UNKNOWN in kinds else kinds[0] | kinds[1]
    if isinstance(annotation, ast.Subscript):
        kind = _kind(annotation.value)
        return kind if kind in WIDER.values() else UNKNOWN
    found = TYPES.get(ast.unparse(annotation), UNKNOWN) if annotation else UNKNOWN
    return WIDER.get(found, found)


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(syntax.HOME) and path.relative_to(syntax.HOME).parts[0] in OURS


def _defaults(arguments: ast.arguments) -> dict[str, Any]:
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults):], arguments.defaults, strict=True),
             *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return {one.arg: _literal(default) for one, default in pairs if default is not None}


def _literal(node: ast.expr) -> Any:
    if ast.unparse(node) == "math.inf":
        return math.inf
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # an expression: what it comes to is known when it runs
        return UNKNOWN


def _limits(path: Path, node: ast.AST, seen: set) -> Iterator[tuple[str, Limit]]:
    """(name of the argument, its limit) of every check in a function and in those of ours that it uses."""
    if (path, node) in seen:
        return
    seen.add((path, node))
    yield from _within(path, node.body, {}, None, seen)


def _within(path: Path, nodes: list[ast.AST], loops: dict, when: str | None, seen: set) -> Iterator[tuple[str, Limit]]:
    """loops: variable of a loop -> the names that it stands for. when: the parameter of the enclosing `if`."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CHECKS:
            limit = CHECKS[node.func.id](node, when)
            yield from ((name, limit) for name in _blamed(node.args[0], loops))
        elif isinstance(node, ast.If):
            asked = node.test.id if isinstance(node.test, ast.Name) else when
            yield from _within(path, node.body, loops, asked, seen)
            yield from _within(path, [node.test, *node.orelse], loops, when, seen)
        elif isinstance(node, ast.For):
            yield from _within(path, [node.iter, *node.body], loops | _loop(node), when, seen)
        elif isinstance(node, ast.Name | ast.Attribute) and (used := syntax.resolve(path, node, syntax.ours)):
            yield from _limits(*used, seen)
        else:
            yield from _within(path, list(ast.iter_child_nodes(node)), loops, when, seen)


def _loop(node: ast.For) -> dict[str, list[str]]:
    """Of `for name, value in (("mu_peak", peak), ...)`: name -> mu_peak, ..."""
    if not (isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple)):
        return {}
    rows = [row.elts[0] for row in node.iter.elts if isinstance(row, ast.Tuple)]
    return {node.target.elts[0].id: [cell.value for cell in rows if isinstance(cell, ast.Constant)]}


def _blamed(label: ast.expr, loops: dict[str, list[str]]) -> list[str]:
    """The arguments that the first word of a check names: `f"{KEY}.epsilon"`, or `f"{KEY}.{name}"` in a loop."""
    last = label.values[-1] if isinstance(label, ast.JoinedStr) else label
    if isinstance(last, ast.FormattedValue):
        return loops.get(ast.unparse(last.value), [])
    return [last.value.rpartition(".")[2].partition(" ")[0]] if isinstance(last, ast.Constant) else []


def _checked(path: Path, node: syntax.Function) -> Iterator[tuple[str, Limit]]:
    """(parameter, its limit) of the checks that a user's function makes first, always, of a value as it is given."""
    changed = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    for line in node.body:
        if any(isinstance(one, ast.Return) for one in ast.walk(line)):  # what follows may not be reached
            return
        call = line.value if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call) else None
        found = syntax.resolve(path, call.func, syntax.ours) if call else None
        if not found or found[0] != ARGUMENTS or found[1].name not in CHECKS:
            continue
        value, limit = _given(call, "value"), CHECKS[found[1].name](call, None)
        names = {one.id for one in ast.walk(call) if isinstance(one, ast.Name)}
        if isinstance(value, ast.Name) and limit and not names & changed:
            yield value.id, limit


def _of_number(call: ast.Call, when: str | None) -> Limit:
    """The limit of `check_number(key, value, least=, most=, above=)`."""
    bounds = {name: _given(call, name) for name in ("least", "most", "above")}
    return Limit(**{name: node.id if isinstance(node, ast.Name) else _literal(node)
                    for name, node in bounds.items() if node}, when=when)


def _of_choice(call: ast.Call, when: str | None) -> Limit | None:
    """The limit of `check_choice(key, value, choices)`; None when the choices cannot be told."""
    node = _given(call, "choices")
    choices = _literal(node) if node else UNKNOWN
    return Limit(choices=tuple(choices), when=when) if isinstance(choices, tuple | list) else None


def _given(call: ast.Call, name: str) -> ast.expr | None:
    """What a call of a check gives its parameter of that name; None when nothing, or when that cannot be told."""
    places = [] if any(isinstance(one, ast.Starred) for one in call.args) else call.args
    return next((word.value for word in call.keywords if word.arg == name), next(iter(places[PLACES[name]:]), None))


CHECKS = {"check_number": _of_number, "check_choice": _of_choice}
