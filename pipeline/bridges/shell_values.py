"""Evaluates known shell arithmetic, tests and expansions: `$((...))`, `[ ... ]`, `${X#a}`. Raises Unknown."""

import glob
import operator
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any

from pipeline.bridges.shell_syntax import Node, Unknown, hole, reason, short, solid

NAME = re.compile(r"[A-Za-z_]\w*")
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = {f"-{compare.__name__}": compare for compare in COMPARED.values()}  # -eq, -ne, -lt ...
CALCULATED: dict[str, Callable[[int, int], int]] = {
    **COMPARED, "+": operator.add, "-": operator.sub, "*": operator.mul,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1)}
CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper, ",,": str.lower, "^": lambda t: t[:1].upper() + t[1:], ",": lambda t: t[:1].lower() + t[1:]}


def calculate(node: Node, words: Any) -> int:
    """Returns the value of an arithmetic expression without assignments; what one assigns is unknown afterwards."""
    try:
        return _number(node, words)
    except Unknown as unknown:
        for name in _assigned(node):
            words.assign(name, hole(f"${{{name}}}", str(unknown)))
        raise


def _number(node: Node, words: Any) -> int:
    kind, op = node["Type"], node.get("Op", "")
    if kind == "Word":
        text = solid(words.known(node["raw"]) if NAME.fullmatch(node["raw"]) else words.text(node)).strip() or "0"
        if not re.fullmatch(r"[-+]?(0|[1-9]\d{0,17})", text):
            raise Unknown(f"arithmetic with {short(node['raw'])}, which is no decimal number here: {short(text)}")
        return int(text)
    if kind == "ParenArithm":
        return _number(node["X"], words)
    numbers = [_number(node[side], words) for side in ("X", "Y") if side in node and op in CALCULATED]
    try:
        found = int(CALCULATED[op](*([0] * (len(numbers) == 1) + numbers)))
    except (KeyError, ArithmeticError):
        found = 2**63
    if abs(found) >= 2**63:
        raise Unknown(f"the arithmetic {short(node['raw'])}")
    return found


def _assigned(node: Node | None) -> Iterator[str]:
    """Returns the variables that an expression assigns."""
    if node:
        if (op := node.get("Op", "")) in ("++", "--") or (op.endswith("=") and op not in COMPARED):
            yield node["X"]["raw"].partition("[")[0]
        yield from _assigned(node.get("X"))
        yield from _assigned(node.get("Y"))


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
    """Evaluates `${X#a}`, `${X%a}` and `${X^^}` for a text."""
    op, word = part.get("Exp", {}).get("Op", ""), part.get("Exp", {}).get("Word")
    if not (op or "Repl" in part or "Slice" in part):
        return text
    text = solid(text)
    if op in CASES and not word:
        return CASES[op](text)
    if op not in ("#", "##", "%", "%%"):
        raise Unknown(f"the expansion {short(part['raw'])}")
    wanted, cuts = pattern(word, words), [(text[:at], text[at:]) for at in range(len(text) + 1)]
    if op in ("##", "%"):  # the longest beginning, the shortest end
        cuts.reverse()
    of_start = op[0] == "#"
    return next((end if of_start else start for start, end in cuts
                 if fnmatchcase(start if of_start else end, wanted)), text)
