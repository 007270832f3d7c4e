r"""Final answers of mathematics: where a text gives one, and whether two are equal.

Numbers, choices and words are read here, exactly; other formulas by math_verify (sympy), within the bounds below and in
processes with limits of their own (operators/formulas.py). An answer beyond either is equal only to the same text.
"""

import re
import unicodedata
from concurrent.futures import Future
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

from operators.formula_worker import DIFFERENT, EQUAL, LIMIT
from operators.formulas import WORKERS

LONGEST_ANSWER = 512  # characters that are compared
LARGEST_EXPONENT, SMALLEST_EXPONENT = 64, -5  # of a formula: math_verify rounds to 6 decimals
LARGEST_POWER = 2000  # magnitude of the exponent of a plain power, and of a scientific notation
LARGEST_FACTORIAL = 1000
LONGEST_INTEGER = 60  # digits in a formula
MOST_BRACKETS, DEEPEST_BRACKETS = 64, 12  # opened in a formula, and open at once: the time doubles with each

INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
DECIMAL = rf"(?:{INTEGER}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(rf"({DECIMAL})(?:e([-+]?\d{{1,5}})"
                   rf"|(?:\\times|\\cdot|[*x×])10(?:\^|\*\*)\{{?([-+]?\d{{1,5}})\}}?)?", re.I)
RATIO = re.compile(rf"({DECIMAL})/([-+]?{DECIMAL})|\\frac\{{([-+]?{DECIMAL})\}}\{{([-+]?{DECIMAL})\}}|\\frac(\d)(\d)")
MIXED = re.compile(r"(\d+) *(?: (\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\}|\\frac(\d)(\d))")
POWER = re.compile(r"(\d{1,6}|\(-\d{1,6}\))(?:\^|\*\*)(?:\{([-+]?\d{1,5})\}|([-+]?\d{1,5}))")
FACTORIAL = re.compile(r"(1/)?(\d{1,5})!")
WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*|[^\W\d_](?:[ '-]+[^\W\d_]{2,})+")
LETTERS = re.compile(r"[abckmnpqxyz]{2}|[a-zA-Z]")  # a product of variables, or one
UNIT = re.compile(r"(.*[\d}%]) *((?:[^\W\d_]{2,}|[mgslLh])(?: [^\W\d_]+)*)")
CHOICE = re.compile(r"\(?([A-Za-z])(?:\)?[.:]?|[).:]+ +\S.*)")
HEADINGS = {"answer", "solution", "conclusion", "result", "verification", "check", "summary", "explanation", "step",
            "final", "reasoning", "steps", "analysis", "calculation"}
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
WRAPPED = re.compile(r"\\(?:underline|text(?:bf|it|rm)?|math(?:bf|rm|it)|operatorname|boxed|fbox|mbox) ?\{([^{}]*)\}")
BOX = re.compile(r"\\(?:boxed|fbox) ?\{")
SPACES = r"\\[,!;: ]|~|\\q?quad"


def truth_answer(text: str) -> str:
    r"""The answer of a truth: behind its last `####`, else in its last \boxed{…}, else all of it. Empty where a box is
    empty or is not closed."""
    _, mark, rest = text.rpartition("####")
    if (mark and len(rest.strip().splitlines()) == 1) or (mark and not rest.strip()):
        return rest.strip()
    found = marked(text, "")
    return "" if found is None and BOX.search(text) else text.strip() if found is None else found


def marked(text: str, truth: str) -> str | None:
    r"""The marked answer of a response: the last line that begins with `####` and goes on with no heading, else the
    last closed \boxed{…}; None without a mark. A line of several words is a heading unless it is the truth."""
    for line in reversed(re.findall(r"^[ \t]*####(?!#)[ \t]*(\S.*)$", text, re.MULTILINE)):
        if not _is_heading(line, truth):
            return line.strip()
    opened, last = [], None  # one pass: a response may open any number of boxes
    for match in re.finditer(BOX.pattern + r"|\\[{}]|[{}]", text):
        if match[0] == "}" and opened:
            start, is_box = opened.pop()
            last = (start, match.start()) if is_box and (last is None or start > last[0]) else last
        elif match[0] not in ("}", "\\{", "\\}"):
            opened.append((match.end(), match[0] != "{"))
    return None if last is None else text[slice(*last)].strip()


def unmarked(text: str) -> str:
    """The last number or formula of a response without a mark, whole; empty without one. Part of a formula is none."""
    text = text.strip()[-4 * LONGEST_ANSWER:].replace("−", "-")
    found = list(FORMULA.finditer(text))
    if found and not re.search(r"[\d\\^_]", text[found[-1].end():]):
        return next(filter(None, found[-1].groups())).rpartition("=")[2]
    words = text.split()
    for position in range(len(words) - 1, -1, -1):
        word = words[position].strip("*:;!?,").rstrip(".").rpartition("=")[2]
        if re.search(r"[\d\\^_½¼¾⅓⅔]", word):
            before = words[position - 1] if position else ""
            return f"{before} {word}" if re.fullmatch(r"\d+/\d+", word) and re.fullmatch(r"-?\d+", before) else word
    return ""


def _is_heading(line: str, truth: str) -> bool:
    if len(line) > LONGEST_ANSWER:
        return True
    text = tidy(line)
    if text.endswith(":") or text.casefold() in HEADINGS or re.match(r"\d+[.)] +[^\W\d_]", text):
        return True
    unit = UNIT.fullmatch(text)
    if text == tidy(truth) or values(text) or (unit and values(unit[1])) or CHOICE.fullmatch(text):
        return False
    bare = re.sub(r"\\[A-Za-z]+", "", text)
    return " " in bare and bool(re.search(r"[^\W\d_]{3,}", bare))


@lru_cache(4096)
def tidy(text: str) -> str:
    """The text without marks that do not change a value: signs in ASCII, LaTeX's spaces, fonts and currencies."""
    text = re.sub("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]", lambda found: f" {unicodedata.normalize('NFKC', found[0])}", text)
    text = text.replace("−", "-").replace("⁄", "/").replace("{,}", ",").replace("\\%", "%").replace("\\$", "$")
    text = re.sub(r"\\[dtc]frac", r"\\frac", re.sub(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle", "", text))
    text = re.sub(SPACES, " ", re.sub(rf"(?<=\d)(?:{SPACES})+(?=\d{{3}}(?!\d))", "", text))
    while (bare := WRAPPED.sub(r"\1", text)) != text:
        text = bare
    text = re.sub(r"\^ ?\{?\\circ\}?|°", "", text).strip().strip("*$").strip()
    text = re.sub(r"^([-+]?) ?[$€£]", r"\1", text)
    return re.sub(r"\s+", " ", text).rstrip(".").strip()


@lru_cache(4096)
def values(text: str) -> tuple[Fraction, ...]:
    """The values that a plain number may have, exact: one, two of a percentage (50 and 1/2), none of other text."""
    percent, bare = text.endswith("%"), text.rstrip("%").strip()
    sign = -1 if bare.startswith("-") else 1
    value = _magnitude(bare[1:].strip() if bare[:1] in ("-", "+") else bare)
    return () if value is None else (sign * value, sign * value / 100) if percent else (sign * value,)


def _magnitude(bare: str) -> Fraction | None:
    if len(bare) > LONGEST_ANSWER:
        return None
    if match := MIXED.fullmatch(bare):
        whole, top, bottom = (int(part) for part in match.groups() if part)
        return whole + Fraction(top, bottom) if bottom else None
    bare = bare.replace(" ", "") if not re.search(r"\d \d", bare) else bare
    if match := PLAIN.fullmatch(bare):
        exponent = int(match[2] or match[3] or 0)
        return _decimal(match[1]) * Fraction(10) ** exponent if abs(exponent) <= LARGEST_POWER else None
    if match := RATIO.fullmatch(bare):
        top, bottom = (_decimal(part) for part in match.groups() if part)
        return top / bottom if bottom else None
    if match := POWER.fullmatch(bare):
        base, exponent = int(match[1].strip("()")), int(match[2] or match[3])
        return Fraction(base) ** exponent if abs(exponent) <= LARGEST_POWER and (base or exponent > 0) else None
    if (match := FACTORIAL.fullmatch(bare)) and int(match[2]) <= LARGEST_FACTORIAL:
        product = 1
        for factor in range(2, int(match[2]) + 1):
            product *= factor
        return Fraction(1, product) if match[1] else Fraction(product)
    return None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip(".") if text.endswith(".") else text.replace(",", ""))


def verdict(found: str, truth: str, seconds: float) -> str:
    """How two final answers compare: EQUAL, DIFFERENT, LIMIT beyond the bounds, UNREADABLE where the truth is none.

    seconds: CPU time of a pair of formulas.
    """
    begun = compared(found, truth, seconds)
    return begun if isinstance(begun, str) else begun.result()


def compared(found: str, truth: str, seconds: float) -> "str | Future[str]":
    """The verdict, or where math_verify is needed one that is to come."""
    if max(len(found), len(truth)) > LONGEST_ANSWER:
        return EQUAL if found.strip() == truth.strip() else LIMIT
    left, right = tidy(found), tidy(truth)
    if _letters(left) == _letters(right):
        return EQUAL if left else DIFFERENT
    if ("=" in left) != ("=" in right):  # x = 5 answers 5
        left, right = (re.sub(r"^[A-Za-z](?:_\w+)? ?= ?(?=[^=]+$)", "", side) for side in (left, right))
    plain = _is_plainly_equal(left, right)
    if plain is not None:
        return EQUAL if plain else DIFFERENT
    if not (_is_within_bounds(left) and _is_within_bounds(right)):
        return LIMIT
    return WORKERS.compare(left, right, seconds) if _is_closed(left) and _is_closed(right) else DIFFERENT


def _letters(text: str) -> str:
    """The text without spaces, except between digits (3 1/2 is not 31/2), and without braces of one character."""
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"(?<!\d) | (?!\d)", "", text))


def _is_plainly_equal(left: str, right: str) -> bool | None:
    """The judgement of numbers, units, choices and words; None of other formulas."""
    (left, unit), (right, other) = _unit(left), _unit(right)
    if unit and other and unit != other:
        return False
    one, two = values(left), values(right)
    if one and two:
        return one[0] == two[0] if len(one) == len(two) else bool(set(one) & set(two))
    if (choice := CHOICE.fullmatch(right)) and (chosen := CHOICE.fullmatch(left)):
        same = choice[1].casefold() == chosen[1].casefold() and choice[1].casefold() in "abcdefgh"
        return same or choice[1] == chosen[1]
    named = [bool(WORDS.fullmatch(side) and not LETTERS.fullmatch(side)) for side in (left, right)]
    if any(named):
        return all(named) and left.casefold() == right.casefold()
    return False if ":" in left + right else None  # times and ratios


def _unit(text: str) -> tuple[str, str]:
    match = UNIT.fullmatch(text)
    return (match[1].strip(), match[2].casefold()) if match and values(match[1].strip()) else (text, "")


def _is_within_bounds(text: str) -> bool:
    """Whether sympy can be trusted with a formula: no factorial, tower of powers, or number beyond the bounds."""
    if "!" in text or re.search(rf"\d{{{LONGEST_INTEGER + 1}}}|\d[eE][-+]?\d{{3}}", text):
        return False
    if len(re.findall(r"[(\[{]", text)) > MOST_BRACKETS or _depth(text) > DEEPEST_BRACKETS:
        return False
    powers = re.split(r"\^|\*\*", text.replace(" ", ""))[1:]
    for power in powers:
        exponent = power[1:].partition("}")[0] if power[:1] == "{" else power
        number = re.match(r"\(?([-+]?\d+)", exponent)
        if number and not SMALLEST_EXPONENT <= int(number[1]) <= LARGEST_EXPONENT:
            return False
    nested = re.search(r"(?:\^|\*\*)(?:\{[^{}]*|\([^()]*|\w+)(?:\^|\*\*|\{)", text.replace(" ", ""))
    numeric = re.search(r"[)}](?:\^|\*\*)\{?\d{2}", text.replace(" ", ""))
    return not nested and not numeric


def _depth(text: str) -> int:
    """The largest number of brackets that are open at once."""
    return max(accumulate(1 if one in "([{" else -1 for one in re.findall(r"[()\[\]{}]", text)), default=0)


def _is_closed(text: str) -> bool:
    return bool(text) and text.count("{") == text.count("}")
