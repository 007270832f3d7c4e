"""Evaluates known shell arithmetic, tests and expansions: `$((...))`, `[ ... ]`, `${X#a}`. Raises Unknown."""

import glob
import operator
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from pipeline.bridges.shell_syntax import Node, Unknown, reason, short, solid

NAME = re.compile(r"[A-Za-z_]\w*")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = {f"-{compare.__name__}": compare for compare in COMPARED.values()}  # -eq, -ne, -lt ...
CALCULATED: dict[str, Callable[[int, int], int]] = {
    **COMPARED, "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "**": lambda a, b: a ** b if 0 <= b < 64 else 1 // 0}
UNARY: dict[str, Callable[[int], int]] = {"-": operator.neg, "+": operator.pos, "!": operator.not_}
CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper, ",,": str.lower, "^": lambda t: t[:1].upper() + t[1:], ",": lambda t: t[:1].lower() + t[1:]}


def calculate(node: Node, words: Any) -> int:
    """Returns the value of an arithmetic expression and performs its assignments."""
    kind, op = node["Type"], node.get("Op", "")
    if kind == "Word":
        text = solid(words.known(node["raw"]) if NAME.fullmatch(node["raw"]) else words.text(node)).strip() or "0"
        if not re.fullmatch(r"[-+]?(0|[1-9]\d{0,17})", text):
            raise Unknown(f"arithmetic with {short(node['raw'])}, which is no decimal number here: {short(text)}")
        return int(text)
    if _assigns(op):
        return _assign(node, op, words)
    left = calculate(node["X"], words)
    if op == "?":
        return calculate(node["Y"]["X" if left else "Y"], words)
    if kind == "ParenArithm":
        return left
    if op in ("&&", "||"):
        return int(op == "||" if bool(left) == (op == "||") else calculate(node["Y"], words) != 0)
    return _applied(op, left) if kind == "UnaryArithm" else _applied(op, left, calculate(node["Y"], words))


def _applied(op: str, *numbers: int) -> int:
    try:
        found = int((UNARY if len(numbers) == 1 else CALCULATED)[op](*numbers))
    except (KeyError, ArithmeticError):
        found = 2**63
    if abs(found) >= 2**63:
        raise Unknown(f"the arithmetic {f' {op} '.join(map(str, numbers))}")
    return found


def assigned(node: Node | None) -> Iterator[str]:
    """Returns the variables that an expression assigns."""
    if node:
        if _assigns(node.get("Op", "")):
            yield node["X"]["raw"]
        yield from assigned(node.get("X"))
        yield from assigned(node.get("Y"))


def _assigns(op: str) -> bool:
    return op in ("++", "--") or (op.endswith("=") and op not in COMPARED)


def _assign(node: Node, op: str, words: Any) -> int:
    name = node["X"]["raw"]
    if not NAME.fullmatch(name):
        raise Unknown(f"an assignment to {short(name)} within arithmetic")
    before = 0 if op == "=" else calculate(node["X"], words)
    by = 1 if op in ("++", "--") else calculate(node["Y"], words)
    after = by if op == "=" else _applied(op[:-1], before, by)
    words.assign(name, str(after))
    return before if node.get("Post") else after


def bracket(fields: list[str]) -> bool | None:
    """Returns whether `[ fields ]` holds; None where unknown or unsupported."""
    if any(reason(text) or "${oc.env:" in text for text in fields):
        return None
    match fields:
        case ["!", *rest] if rest:
            verdict = bracket(rest)
            return None if verdict is None else not verdict
        case ["-z", text]:
            return not text
        case ["-n", text] | [text]:
            return bool(text)
        case [left, "=" | "==", right]:
            return left == right
        case [left, "!=", right]:
            return left != right
        case [left, op, right] if op in NUMBERS and re.fullmatch(r"-?\d{1,18} -?\d{1,18}", f"{left} {right}"):
            return NUMBERS[op](int(left), int(right))
    return None


def clause(node: Node, words: Any) -> bool | None:
    """Returns whether the expression of `[[ ... ]]` holds; None where unknown or unsupported."""
    kind, op = node["Type"], node.get("Op", "")
    if op in ("&&", "||"):
        verdicts = [clause(node["X"], words), clause(node["Y"], words)]
        return op == "||" if (op == "||") in verdicts else None if None in verdicts else op == "&&"
    if kind == "ParenTest" or op == "!":
        verdict = clause(node["X"], words)
        return verdict if verdict is None or op != "!" else not verdict
    if kind == "Word":
        return bracket(["-n", words.text(node)])
    if kind == "UnaryTest":
        return bracket([op, words.text(node["X"])])
    if op in NUMBERS:
        return bracket([words.text(node["X"]), op, words.text(node["Y"])])
    same = fits(words.text(node["X"]), node["Y"], words) if op in ("==", "=", "!=") else None
    return None if same is None else same == (op != "!=")


def fits(text: str, word: Node, words: Any) -> bool | None:
    """Returns whether a text matches a whole pattern; None if either is unknown."""
    try:
        return word["raw"] == "*" or fnmatchcase(solid(text), pattern(word, words))
    except Unknown:
        return None


def pattern(word: Node | None, words: Any) -> str:
    """Returns a bash pattern with its quoted parts escaped."""
    found = ""
    for part in word.get("Parts", []) if word else []:
        text = part["Value"] if part["Type"] == "Lit" else solid(words.text(part | {"Parts": [part]}))
        if part["Type"] in ("SglQuoted", "DblQuoted"):
            found += glob.escape(text)
        elif re.search(r"[@?*+!]\(|\[", text):
            raise Unknown(f"the pattern {short(text)}")
        else:
            found += re.sub(r"\\(.)", lambda escaped: glob.escape(escaped[1]), text)
    return found


def changed(text: str, part: Node, words: Any) -> str:
    """Evaluates `${X#a}`, `${X/a/b}`, `${X:1:2}` and `${X^^}` for a text."""
    op, word, replaced = part.get("Exp", {}).get("Op", ""), part.get("Exp", {}).get("Word"), part.get("Repl")
    if not (op or replaced or "Slice" in part):
        return text
    text = solid(text)
    if "Slice" in part:
        return sliced(text, part, words)
    if replaced:
        wanted, by = pattern(replaced.get("Orig"), words), solid(words.text(replaced.get("With")))
        if wanted and not re.search(r"^[#%]|[*?\[]", wanted):
            return text.replace(wanted, by, -1 if replaced.get("All") else 1)
    elif op in CASES and not word:
        return CASES[op](text)
    elif op in ("#", "##", "%", "%%"):
        wanted, places = pattern(word, words), range(len(text) + 1)
        if op in ("##", "%"):  # the longest beginning, the shortest end
            places = reversed(places)
        if op[0] == "#":
            return next((text[at:] for at in places if fnmatchcase(text[:at], wanted)), text)
        return next((text[:at] for at in places if fnmatchcase(text[at:], wanted)), text)
    raise Unknown(f"the expansion {short(part['raw'])}")


def sliced(value: Any, part: Node, words: Any) -> Any:
    """Evaluates `${X:first:count}` of a text or a list."""
    first, count = (calculate(part["Slice"][end], words) if end in part["Slice"] else None
                    for end in ("Offset", "Length"))
    if first is None or first < 0 or (count or 0) < 0:
        raise Unknown(f"the expansion {short(part['raw'])}")
    return value[first:None if count is None else first + count]
