"""What the arguments of a function may be, read from its source: types from annotations, bounds from its checks.

A function of ours refuses wrong arguments by `check_number(f"{KEY}.epsilon", epsilon, above=0)` or `check_choice`
(operators/arguments.py), in its own lines or in those of a function that it uses. Read here, such a check is made
before a run begins, without the seconds that importing torch takes.
"""

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pipeline import schema, syntax

UNKNOWN = object()  # a type, a default or a bound that cannot be told from the source
TYPES = {"int": int, "float": float, "bool": bool, "str": str, "list": list, "dict": dict, "None": None}
WIDER = {list: list[Any], dict: dict[str, Any]}  # as the schema calls them


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
        least, most, above = (_number(bound, values) for bound in (self.least, self.most, self.above))
        if not _is_number(value) or ((least is None or value >= least) and (most is None or value <= most)
                             and (above is None or value > above)):
            return []
        return [f"{told}={value}: needed a number{self._words(values)}."]

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
    for name, limit in _limits(path, node, set()):
        limits.setdefault(name, []).append(limit)
    defaults = _defaults(node.args)
    return {one.arg: Parameter(_kind(one.annotation) or UNKNOWN, defaults.get(one.arg, UNKNOWN),
                               tuple(limits.get(one.arg, ())))
            for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}


def _mistyped(key: str, value: Any, one: Parameter) -> list[str]:
    if one.kind is UNKNOWN or (type(value) is type(one.default) and value == one.default):
        return []
    wrong: list[str] = []
    made = schema.read(value, one.kind, key, wrong)
    if not wrong and type(made) is not type(value) and not isinstance(made, float):  # "5" for a text, 3.0 for a count
        schema.wrong(value, "a text" if isinstance(made, str) else "a whole number", key, wrong)
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
        return UNKNOWN if UNKNOWN in kinds or kinds == [None, None] else kinds[0] | kinds[1]
    if isinstance(annotation, ast.Subscript):
        kind = _kind(annotation.value)
        return kind if kind in WIDER.values() else UNKNOWN
    found = TYPES.get(ast.unparse(annotation), UNKNOWN) if annotation else UNKNOWN
    return WIDER.get(found, found)


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
        check = _check(path, node)
        if check and node.args:
            limit = CHECKS[check](node, when)
            yield from ((name, limit) for name in _blamed(node.args[0], loops))
        elif isinstance(node, ast.If):
            yield from _within(path, [node.test], loops, when, seen)
            yield from _branches(path, node, loops, when, seen)
        elif isinstance(node, ast.For):
            yield from _within(path, [node.iter, *node.body], loops | _loop(node), when, seen)
        elif isinstance(node, ast.Name | ast.Attribute) and (used := syntax.resolve(path, node, syntax.ours)):
            yield from _limits(*used, seen)
        else:
            yield from _within(path, list(ast.iter_child_nodes(node)), loops, when, seen)


def _check(path: Path, node: ast.AST) -> str | None:
    """The check of operators/arguments.py that a node calls; the user may have a function of the same name."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
        return None
    used = syntax.resolve(path, node.func, syntax.ours)
    return used[1].name if used and used[0] == ARGUMENTS and used[1].name in CHECKS else None


def _branches(path: Path, node: ast.If, loops: dict, when: str | None, seen: set) -> Iterator[tuple[str, Limit]]:
    """Of `if parameter:` the checks hold with it, of `if x is not None:` always (null passes them); of any other, and
    of an `else`, it is not known when, so no number is refused for theirs."""
    test, named = node.test, isinstance(node.test, ast.Name)
    if named or (isinstance(test, ast.Compare) and ast.unparse(test).endswith(" is not None")):
        yield from _within(path, node.body, loops, test.id if named else when, seen)


def _loop(node: ast.For) -> dict[str, list[str]]:
    """Of `for name, value in (("mu_peak", peak), ...)`: name -> mu_peak, ..."""
    if not (isinstance(node.target, ast.Tuple) and isinstance(node.iter, ast.Tuple)
            and node.target.elts and isinstance(node.target.elts[0], ast.Name)):
        return {}
    rows = [row.elts[0] for row in node.iter.elts if isinstance(row, ast.Tuple) and row.elts]
    return {node.target.elts[0].id: [cell.value for cell in rows if _is_text(cell)]}


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _blamed(label: ast.expr, loops: dict[str, list[str]]) -> list[str]:
    """The arguments that the first word of a check names: `f"{KEY}.epsilon"`, or `f"{KEY}.{name}"` in a loop."""
    last = label.values[-1] if isinstance(label, ast.JoinedStr) and label.values else label
    if isinstance(last, ast.FormattedValue):
        return loops.get(ast.unparse(last.value), [])
    return [last.value.rpartition(".")[2].partition(" ")[0]] if _is_text(last) else []


def _of_number(call: ast.Call, when: str | None) -> Limit:
    """The limit of `check_number(key, value, least, most, above)`."""
    given = dict(zip(("least", "most", "above"), call.args[2:], strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg in ("least", "most", "above")}
    return Limit(**{name: node.id if isinstance(node, ast.Name) else _bound(node) for name, node in given.items()},
                 when=when)


def _bound(node: ast.expr) -> Any:
    found = _literal(node)
    return None if found is UNKNOWN else found


def _of_choice(call: ast.Call, when: str | None) -> Limit:
    """The limit of `check_choice(key, value, choices)`; none where the choices are not written out."""
    given = call.args[2:3] or [word.value for word in call.keywords if word.arg == "choices"]
    choices = _bound(given[0]) if given else None
    return Limit(choices=tuple(choices) if isinstance(choices, tuple | list | set) else None, when=when)


ARGUMENTS = syntax.HOME / "operators" / "arguments.py"
CHECKS = {"check_number": _of_number, "check_choice": _of_choice}
