"""The arithmetic of $((...)): whole numbers, + - * / % ** and parentheses, names for variables. Nothing else."""

import ast
from collections.abc import Callable

LONGEST = 400  # characters of an expression
LARGEST = 10**18
HIGHEST_POWER = 64


class NotArithmetic(ValueError):
    """The expression holds something else, or a number that a shell could not hold."""


def evaluate(expression: str, value_of: Callable[[str], int]) -> int:
    """The value of an expression as bash has it: division cuts towards zero.

    value_of: the whole number that a variable holds. Raises NotArithmetic.
    """
    if len(expression) > LONGEST:
        raise NotArithmetic(f"longer than {LONGEST} characters")
    try:
        return _value(ast.parse(expression.replace("$", "").strip(), mode="eval").body, value_of)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
        raise NotArithmetic(str(error)) from error


def _value(node: ast.expr, value_of: Callable[[str], int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        return _bounded(value_of(node.id))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, value_of)
        return value if isinstance(node.op, ast.UAdd) else -value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        return _bounded(OPERATIONS[type(node.op)](_value(node.left, value_of), _value(node.right, value_of)))
    raise NotArithmetic("holds something else than numbers, names, + - * / % ** and parentheses")


def _bounded(value: int) -> int:
    if abs(value) > LARGEST:
        raise NotArithmetic("a number too large")
    return value


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if not 0 <= b <= HIGHEST_POWER:
        raise NotArithmetic(f"an exponent outside 0 .. {HIGHEST_POWER}")
    return a**b


OPERATIONS: dict[type, Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: _divide,
    ast.Mod: lambda a, b: a - b * _divide(a, b),
    ast.Pow: _power,
}
