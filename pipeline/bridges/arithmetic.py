"""The arithmetic of $((...)), ((...)) and `let`: whole numbers with the operators of C, names for variables.

A grammar by precedence (Pratt 1973): every part becomes a function without arguments, so that of `a ? b : c` only the
half that is asked for is calculated.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

LONGEST = 400  # characters of an expression
LARGEST = 10**18
HIGHEST_POWER = 64
HIGHEST_SHIFT = 62
TOKEN = re.compile(r"\s*(?P<token>0[xX][0-9a-fA-F]+|\d+|\$[\d#]|\$?[A-Za-z_]\w*"
                   r"|<<=|>>=|\*\*|[-+*/%&|^]=|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&^|?:=(),])")
NAME = re.compile(r"\$?[A-Za-z_]\w*|\$[\d#]")
ASSIGNED = re.compile(r"([A-Za-z_]\w*)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)|(?:\+\+|--)\s*([A-Za-z_]\w*)")
Term = Callable[[], int]


class NotArithmetic(ValueError):
    """The expression holds something else, or a number that a shell could not hold."""


def evaluate(expression: str, value_of: Callable[[str], int], assign: Callable[[str, int], None] | None = None) -> int:
    """The value of an expression as bash has it: division cuts towards zero.

    value_of: the whole number that a variable holds. assign: takes what the expression sets; without it setting is
    refused. Raises NotArithmetic.
    """
    if len(expression) > LONGEST:
        raise NotArithmetic(f"longer than {LONGEST} characters")
    try:
        return _Reader(_tokens(expression), value_of, assign or _refuse).whole()()
    except ZeroDivisionError as error:
        raise NotArithmetic("a division by 0") from error
    except RecursionError as error:
        raise NotArithmetic("nested too deeply") from error


def assigned(expression: str) -> list[str]:
    """The variables that an expression may set, whether or not it is understood."""
    return list(dict.fromkeys(before or after for before, after in ASSIGNED.findall(expression)))


def _tokens(expression: str) -> list[str]:
    found, at, text = [], 0, expression.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise NotArithmetic(f"'{text[at:].strip()[:20]}' is none")
        found.append(match["token"])
        at = match.end()
    return found


@dataclass
class _Reader:
    """Position among the tokens of an expression."""

    tokens: list[str]
    value_of: Callable[[str], int]
    assign: Callable[[str, int], None]
    at: int = 0

    def whole(self) -> Term:
        term = self._expression(0)
        if self._next():
            raise NotArithmetic(f"'{self._next()}' is not understood there")
        return term

    def _expression(self, least: int) -> Term:
        """An operand, and behind it every operator that binds at least so tightly."""
        left = self._operand()
        while (sign := self._next()) in PRECEDENCE and PRECEDENCE[sign] >= least:
            self.at += 1
            left = self._joined(left, sign)
        return left

    def _joined(self, left: Term, sign: str) -> Term:
        if sign == "?":
            chosen = self._expression(PRECEDENCE[","])
            self._take(":")
            other = self._expression(PRECEDENCE["?"])
            return lambda: chosen() if left() else other()
        right = self._expression(PRECEDENCE[sign] + (sign != "**"))
        if sign == "&&":
            return lambda: int(bool(left() and right()))
        if sign == "||":
            return lambda: int(bool(left() or right()))
        return lambda: _bounded(OPERATIONS[sign](left(), right()))

    def _operand(self) -> Term:
        token = self._next()
        self.at += 1
        if token == "(":
            inner = self._expression(0)
            self._take(")")
            return inner
        if token in UNARY:
            operand = self._operand()
            return lambda: UNARY[token](operand())
        if token in ("++", "--"):
            return self._set(self._take(None), "1", token[0])
        if token and token[0].isdigit():
            number = _number(token)
            return lambda: number
        if token and NAME.fullmatch(token):
            return self._variable(token.removeprefix("$"))
        raise NotArithmetic(f"'{token}' is not understood there" if token else "it ends too early")

    def _variable(self, name: str) -> Term:
        """A variable, and what sets it: `x = 1`, `x += 1`, `x++`."""
        sign = self._next()
        if sign in ("++", "--"):
            self.at += 1
            changed, back = self._set(name, "1", sign[0]), OPERATIONS["-" if sign == "++" else "+"]
            return lambda: back(changed(), 1)
        if sign in ASSIGNING:
            self.at += 1
            return self._set(name, self._expression(PRECEDENCE["?"]), sign.removesuffix("="))
        return lambda: _bounded(self.value_of(name))

    def _set(self, name: str, by: Term | str, sign: str) -> Term:
        def changed() -> int:
            amount = int(by) if isinstance(by, str) else by()
            value = _bounded(OPERATIONS[sign](self.value_of(name), amount) if sign else amount)
            self.assign(name, value)
            return value
        return changed

    def _next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, wanted: str | None) -> str:
        """The next token: the one that is wanted, or a name."""
        token = self._next()
        if token != wanted and not (wanted is None and NAME.fullmatch(token)):
            raise NotArithmetic(f"needed {wanted or 'a name'}, found '{token}'")
        self.at += 1
        return token.removeprefix("$")


def _refuse(name: str, value: int) -> None:
    raise NotArithmetic(f"it sets {name}")


def _number(token: str) -> int:
    try:
        return _bounded(int(token, 16 if token[:2] in ("0x", "0X") else 8 if token[0] == "0" else 10))
    except ValueError as error:
        raise NotArithmetic(f"'{token}' is no number") from error


def _bounded(value: int) -> int:
    if abs(value) > LARGEST:
        raise NotArithmetic("a number too large")
    return int(value)


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _power(a: int, b: int) -> int:
    if not 0 <= b <= HIGHEST_POWER:
        raise NotArithmetic(f"an exponent outside 0 .. {HIGHEST_POWER}")
    return a**b


def _shift(a: int, b: int) -> int:
    """a << b; to the right for b < 0."""
    if abs(b) > HIGHEST_SHIFT:
        raise NotArithmetic(f"a shift by more than {HIGHEST_SHIFT}")
    return a << b if b >= 0 else a >> -b


PRECEDENCE = {",": 1, "?": 2, "||": 3, "&&": 4, "|": 5, "^": 6, "&": 7, **dict.fromkeys(("==", "!="), 8),
              **dict.fromkeys(("<", "<=", ">", ">="), 9), **dict.fromkeys(("<<", ">>"), 10),
              **dict.fromkeys(("+", "-"), 11), **dict.fromkeys(("*", "/", "%"), 12), "**": 13}
UNARY: dict[str, Callable[[int], int]] = {"-": lambda a: -a, "+": lambda a: a, "!": lambda a: int(not a),
                                          "~": lambda a: ~a}
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    ",": lambda a, b: b, "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": _divide,
    "%": lambda a, b: a - b * _divide(a, b), "**": _power, "<<": _shift, ">>": lambda a, b: _shift(a, -b),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ASSIGNING = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=")
