"""Evaluates known shell arithmetic, tests and expansions: `$((...))`, `[ ... ]`, `${X#a}`."""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.bridges.shell_syntax import Node, Unknown, reason, short, solid

INTEGER = re.compile(r"\s*([-+]?)(?:(0[xX][0-9a-fA-F]{1,15})|(0[0-7]{1,20})|(\d{1,18}))\s*")
NAME = re.compile(r"[A-Za-z_]\w*")
LARGEST = 2**63
CASES = {"^^": str.upper, ",,": str.lower, "^": lambda t: t[:1].upper() + t[1:], ",": lambda t: t[:1].lower() + t[1:]}
COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
           "-ge": operator.ge}
CALCULATED: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_,
    "^": operator.xor, ",": lambda a, b: b, "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1), "**": lambda a, b: a ** (b if b < 64 else 1 // 0),
    "<<": lambda a, b: a << (b if b < 64 else 1 // 0), ">>": operator.rshift}
UNARY: dict[str, Callable[[int], int]] = {"-": operator.neg, "+": operator.pos, "!": operator.not_, "~": operator.inv}


def calculate(node: Node, words: Any) -> int:
    """Returns the value of an expression and performs its assignments. Raises Unknown."""
    kind, op = node["Type"], node.get("Op", "")
    if kind == "Word":
        return number(words.known(node["raw"]) if NAME.fullmatch(node["raw"]) else words.text(node), node["raw"])
    if op == "?":
        return calculate(node["Y"]["X" if calculate(node["X"], words) else "Y"], words)
    if _assigns(op):
        return _assign(node, op, words)
    left = calculate(node["X"], words)
    if kind == "ParenArithm":
        return left
    if kind == "UnaryArithm":
        return int(UNARY[op](left))
    if op in ("&&", "||"):
        return int(op == "||") if bool(left) == (op == "||") else int(calculate(node["Y"], words) != 0)
    return _binary(op, left, calculate(node["Y"], words))


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
    after = (before + (1 if op == "++" else -1) if op in ("++", "--") else
             calculate(node["Y"], words) if op == "=" else _binary(op[:-1], before, calculate(node["Y"], words)))
    words.assign(name, str(after))
    return before if node.get("Post") else after


def _binary(op: str, left: int, right: int) -> int:
    try:
        found = int({**COMPARED, **CALCULATED}[op](left, right))
    except (KeyError, ArithmeticError, ValueError) as error:
        raise Unknown(f"the arithmetic {left} {op} {right}") from error
    if abs(found) >= LARGEST or (op == "**" and right < 0):
        raise Unknown(f"the arithmetic {left} {op} {right}")
    return found


def number(text: str, name: str) -> int:
    """Converts a variable's text to an integer as bash does; empty is 0. Raises Unknown."""
    found = INTEGER.fullmatch(solid(text))
    if not found and text.strip():
        raise Unknown(f"arithmetic with {short(name)}, which is no whole number here: {short(text)}")
    sign, hexadecimal, octal, decimal = found.groups() if found else ("", None, None, "0")
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    if decimal and len(decimal) > 1 and decimal[0] == "0":  # 08
        raise Unknown(f"arithmetic with {short(text)}")
    return -value if sign == "-" else value


def bracket(fields: list[str]) -> bool | None:
    """Returns whether `[ fields ]` holds; None where unknown or unsupported."""
    if fields[:1] == ["!"] and len(fields) > 1:
        verdict = bracket(fields[1:])
        return None if verdict is None else not verdict
    if any(reason(text) or "${oc.env:" in text for text in fields):
        return None
    if len(fields) < 2:
        return bool(fields and fields[0])
    if len(fields) == 2:
        return {"-z": not fields[1], "-n": bool(fields[1])}.get(fields[0])
    left, op, right = fields if len(fields) == 3 else ("", "", "")
    if op in ("=", "==", "!="):
        return (left == right) == (op != "!=")
    is_number = op in NUMBERS and all(re.fullmatch(r"-?\d{1,18}", text) for text in (left, right))
    return NUMBERS[op](int(left), int(right)) if is_number else None


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
        return bracket([op, words.text(node["X"])]) if op in ("-z", "-n") else None
    left = words.text(node["X"])
    if op in NUMBERS:
        return bracket([left, op, words.text(node["Y"])])
    same = fits(left, node["Y"], words) if op in ("==", "=", "!=") else None
    return None if same is None else same == (op != "!=")


def fits(text: str, word: Node, words: Any) -> bool | None:
    """Returns whether a text matches a whole pattern; None if either is unknown."""
    try:
        return word["raw"] == "*" or re.fullmatch(pattern(word, words), solid(text), re.DOTALL) is not None
    except Unknown:
        return None


def sliced(value: Any, part: Node, words: Any) -> Any:
    """Evaluates `${X:first:count}` of a text or a list."""
    given = part["Slice"]
    first, count = calculate(given["Offset"], words), calculate(given["Length"], words) if "Length" in given else None
    if isinstance(value, list) and (first < 0 or (count or 0) < 0):
        raise Unknown(f"the expansion {part['raw']}")
    start = first if first >= 0 else max(len(value) + first, 0) if -first <= len(value) else len(value)
    return value[start:None if count is None else max(start, start + count if count >= 0 else len(value) + count)]


def changed(text: str, part: Node, words: Any) -> str:
    """Evaluates `${X#a}`, `${X/a/b}`, `${X:1:2}` and `${X^^}` for a text. Raises Unknown."""
    op, word = part.get("Exp", {}).get("Op", ""), part.get("Exp", {}).get("Word")
    if not (op or part.get("Slice") or "Repl" in part):
        return text
    text = solid(text)
    if part.get("Slice"):
        return sliced(text, part, words)
    if "Repl" in part:
        wanted, by = pattern(part["Repl"].get("Orig"), words), solid(words.text(part["Repl"].get("With")))
        if not wanted or wanted[:1] in "#%" or wanted[:2] in (r"\#", r"\%"):
            raise Unknown(f"the expansion {short(part['raw'])}")
        return re.sub(wanted, lambda _: by, text, count=0 if part["Repl"].get("All") else 1, flags=re.DOTALL)
    if op in CASES and not word:
        return CASES[op](text)
    if op not in ("#", "##", "%", "%%"):
        raise Unknown(f"the expansion {short(part['raw'])}")
    wanted, sizes = re.compile(pattern(word, words), re.DOTALL), range(len(text) + 1)
    for size in sizes if len(op) == 1 else reversed(sizes):
        if op[0] == "#" and wanted.fullmatch(text[:size]):
            return text[size:]
        if op[0] == "%" and wanted.fullmatch(text[len(text) - size:]):
            return text[:len(text) - size]
    return text


def pattern(word: Node | None, words: Any) -> str:
    """Converts a bash pattern to a regular expression; quoted parts are literal. Raises Unknown."""
    found = ""
    for part in word.get("Parts", []) if word else []:
        (texts, quoted), = words.pieces([part], False)
        text = part["Value"] if part["Type"] == "Lit" else solid(" ".join(texts))
        is_open = part["Type"] == "Lit" or not quoted
        if is_open and re.search(r"[@?*+!]\(|\[", text):
            raise Unknown(f"the pattern {short(text)}")
        found += re.sub(r"\\(.)|(\*)|(\?)|.", lambda m: ".*" if m[2] else "." if m[3] else re.escape(m[1] or m[0]),
                        text, flags=re.DOTALL) if is_open else re.escape(text)
    return found
