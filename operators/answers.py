r"""Final answers of mathematics: where a text gives one, and whether two are equal.

Numbers, choices and words are read here and in operators/numerals.py, exactly; other formulas by math_verify (sympy),
within the bounds below and in processes with their own limits (operators/formulas.py). An answer beyond either is
equal only to the same text.
"""

import re
from concurrent.futures import Future
from fractions import Fraction
from itertools import accumulate

from ouroboros.operators.formula_worker import DIFFERENT, EQUAL, LIMIT
from ouroboros.operators.formulas import WORKERS
from ouroboros.operators.numerals import LONGEST_ANSWER, is_final, tidy, values, with_unit
from ouroboros.operators.prose import CHOICE, WORDS, WORKED

LARGEST_EXPONENT, SMALLEST_EXPONENT = 64, -5  # of a formula: math_verify rounds to 6 decimals
LONGEST_INTEGER = 60  # digits in a formula
MOST_BRACKETS, DEEPEST_BRACKETS = 64, 12  # opened in a formula, and open at once: the time doubles with each

LETTERS = re.compile(r"[abckmnpqxyz]{2}|[a-zA-Z]")  # a product of variables, or one
LIST = re.compile(r"([(\[]|\\\{).*,.*(?:[)\]]|\\\})")
DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d{1,2}/\d{1,2}/\d{4}|\d{4}/\d\d?/\d\d?")
BASED = re.compile(r"[0-9A-F]+_\{?(\d+)\}?")
ASSIGNED = r"([A-Za-z]) ?= ?([^=,]+)"
ATOMS = r"[A-Z][a-z]?(?:_?\{?\d+\}?)?"
MOLECULE = re.compile(rf"(?=.*\d){ATOMS}(?:{ATOMS})+")
HARMLESS = re.compile(  # within an exponent: a fraction, and a low power of a variable
    r"\\frac(?:\{-?\d\d?\}\{\d\d?\}|\d\d)|(?<![\w}])[a-z]\^(?:[2-4]|\{[2-4]\})(?!\d)")
HEADINGS = {"answer", "solution", "conclusion", "result", "verification", "check", "summary", "explanation", "step",
            "final", "reasoning", "steps", "analysis", "calculation", "approach", "method", "proof", "setup", "given",
            "therefore", "thus", "hence", "so", "note", "problem", "question", "derivation", "simplification"}
LACKING = re.compile(r"\\(?:sqrt|[dt]?frac|cdot|times|div|pm|log|ln|exp|sin|cos|tan)(?![a-z]) *(?:\{ *\}|$)|"
                     r"(?<![a-z\\])(?:sqrt|log|ln|exp|sin|cos|tan) *$")  # functions and operators without an operand
THOUGHT = r"(?:think|thinking|thought|reasoning)>"
EQUALS = re.compile(r"(?<![<>!])=(?![^{}]*\})")  # outside indices and limits
COMMAND = re.compile(r"\\[A-Za-z]+")
BOX = re.compile(r"\\(?:boxed|fbox) ?\{")


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


def spoken(text: str) -> str:
    """What a response says after its thoughts, in its last <answer>; empty where it ends within a thought."""
    text = re.split(f"</{THOUGHT}", text, flags=re.I)[-1]
    _, *answers = re.split("<answer>", text, flags=re.I)
    if re.search(f"<{THOUGHT}", text, re.I):
        return ""
    return re.split("</answer>", answers[-1], flags=re.I)[0] if answers else text


def _is_heading(line: str, truth: str) -> bool:
    if len(line) > LONGEST_ANSWER:
        return True
    text = tidy(line)
    if text.endswith(":") or text.casefold() in HEADINGS or re.match(r"\d+[.)] +[^\W\d_]", text):
        return True
    if text == tidy(truth) or values(text) or with_unit(text)[1] or CHOICE.fullmatch(text):
        return False
    if WORDS.fullmatch(text) and re.search(r"\d", truth):  # a word answers no question whose truth is a number
        return True
    bare = COMMAND.sub("", text)
    return " " in bare and bool(re.search(r"[^\W\d_]{3,}", bare))


def verdict(found: str, truth: str, seconds: float, evaluates: bool = False) -> str:
    """How two final answers compare: EQUAL, DIFFERENT, LIMIT beyond the bounds, UNREADABLE where the truth is none.

    seconds: CPU time of a pair of formulas. evaluates: whether an answer may leave an operation to carry out.
    """
    begun = compared(found, truth, seconds, evaluates)
    return begun if isinstance(begun, str) else begun.result()


def compared(found: str, truth: str, seconds: float, evaluates: bool = False) -> "str | Future[str]":
    """The verdict, or where math_verify is needed one that is to come."""
    if max(len(found), len(truth)) > LONGEST_ANSWER:
        return EQUAL if found.strip() == truth.strip() else LIMIT
    left, right = tidy(found), tidy(truth)
    if _letters(left) == _letters(right):
        return EQUAL if left else DIFFERENT
    is_number = is_final(with_unit(right)[0])
    left = WORKED.sub(r"\1 = \2", left) if is_number else left
    if any(value.denominator > 1 for value in values(with_unit(right)[0])):  # 2,5 is 2.5; three digits are thousands
        left = re.sub(r"^([-+]?\d+),(?!\d{3}(?!\d))(\d+)(?![\d,])", r"\1.\2", left)
    if (is_number or not re.search("[A-Za-z,]", COMMAND.sub("", right))) and EQUALS.search(left) and "=" not in right:
        return _chained(left, truth, seconds, evaluates)
    if ("=" in left) != ("=" in right):  # x = 5 answers 5
        left, right = (_assigned(re.sub(r"^[A-Za-z](?:_\w+)? ?= ?(?=[^=]+$)", "", side)) for side in (left, right))
    left, right = (_half_open(_exact_powers(side)) for side in _with_unit_i(left, right))
    (left, unit), (right, other) = with_unit(left), with_unit(right)
    if unit and other and unit != other:
        return DIFFERENT
    left = re.sub(r"^\(([^()]*)\)$", r"\1", left) if is_number else left
    plain = _is_plainly_equal(left, right)
    if plain is not None:
        return EQUAL if plain and (evaluates or not is_number or is_final(left)) else DIFFERENT
    if not (_is_within_bounds(left) and _is_within_bounds(right)):
        return LIMIT
    if (is_number and not evaluates) or not (_is_closed(left) and _is_closed(right)):
        return DIFFERENT
    return WORKERS.compare(left, right, seconds, evaluates)


def _chained(text: str, truth: str, seconds: float, evaluates: bool) -> "str | Future[str]":
    """The verdict on an equation whose truth is a number: one side is the answer, and no other may contradict."""
    sides = [side for side in map(str.strip, EQUALS.split(text))
             if values(with_unit(side)[0]) or not re.search("[A-Za-z]", COMMAND.sub("", side))]
    judged = ((at, verdict(sides[at], truth, seconds, evaluates)) for at in reversed(range(len(sides))))
    answer, how = next((one for one in judged if one[1] in (EQUAL, LIMIT)), (0, DIFFERENT))
    if how != EQUAL:
        return how
    del sides[answer]
    wrong = (how for side in sides[:-1] if (how := verdict(side, truth, seconds, True)) != EQUAL)
    return next(wrong, None) or (compared(sides[-1], truth, seconds, True) if sides else EQUAL)


def _assigned(text: str) -> str:
    """The tuple of several assignments, by the names of their variables: y=3, x=2 is (2,3)."""
    parts = re.fullmatch(ASSIGNED + rf"(?:, ?{ASSIGNED})+", text) and re.findall(ASSIGNED, text)
    if not parts or len({name for name, _ in parts}) < len(parts):
        return text
    return f"({','.join(value for _, value in sorted(parts))})"


def _with_unit_i(left: str, right: str) -> tuple[str, str]:
    """Both with i as the root of -1, which math_verify takes for a variable, unless one has indices or equations."""
    if re.search(r"[_=]|\\(?:sum|prod|int)", left + right):
        return left, right
    return tuple(re.sub(r"(?<![A-Za-z\\])i(?![A-Za-z])", r"\\sqrt{-1}", side) for side in (left, right))


def _half_open(text: str) -> str:
    """An interval whose open ends are brackets turned outwards, with parentheses: ]0,1[ is (0,1)."""
    if not re.fullmatch(r"[\[\]][^\[\]]*,[^\[\]]*[\[\]]", text):
        return text
    return text[0].replace("]", "(") + text[1:-1] + text[-1].replace("[", ")")


def _exact_powers(text: str) -> str:
    """Decimal exponents as fractions, which math_verify compares exactly: 2^{0.5} is the root of 2."""
    def fraction(found: re.Match) -> str:
        value = Fraction(found[1] or found[2])
        return f"^{{\\frac{{{value.numerator}}}{{{value.denominator}}}}}"

    return re.sub(r"\^(?:\{(\d?\.\d\d?)\}|(\d?\.\d\d?)(?![\d.]))", fraction, text)


def _letters(text: str) -> str:
    """The text without spaces, except between digits (3 1/2 is not 31/2), and without braces of one character."""
    text = MOLECULE.sub(lambda found: found[0].replace("_", ""), text) if MOLECULE.fullmatch(text) else text
    return re.sub(r"\{(\w)\}", r"\1", re.sub(r"(?<!\d) | (?!\d)", "", text))


def _is_plainly_equal(left: str, right: str) -> bool | None:
    """The judgement of numbers, choices, words and other texts; None of other formulas."""
    one, two = values(left), values(right)
    if one and two:
        return one[0] == two[0] if len(one) == len(two) else bool(set(one) & set(two))
    if (choice := CHOICE.fullmatch(right)) and (chosen := CHOICE.fullmatch(left)):
        same = choice[1].casefold() == chosen[1].casefold() and choice[1].casefold() in "abcdefgh"
        return same or choice[1] == chosen[1]
    if re.fullmatch("[A-Z]", left) or re.fullmatch("[A-Z]", right):  # a choice or a name: sympy's E is e
        return False
    named = [bool(WORDS.fullmatch(side) and not LETTERS.fullmatch(side)) for side in (left, right)]
    if any(named):
        return all(named) and left.casefold() == right.casefold()
    if ":" in left + right:
        return _clock(left) == _clock(right)
    return False if _is_text(left) or _is_text(right) or _differ_in_kind(left, right) else None


def _clock(text: str) -> str:
    """A time or a ratio in one spelling."""
    return re.sub(r"^0(?=\d)|[ .]", "", text.casefold())


def _is_text(text: str) -> bool:
    """Whether sympy would calculate with what is no formula: a date, a molecule, feet and inches."""
    return bool(DATE.fullmatch(text) or MOLECULE.fullmatch(text) or re.search(r"\d['\"]", text))


def _differ_in_kind(left: str, right: str) -> bool:
    """Whether one is a set and the other a list with an order, or whether their bases differ."""
    lists = [LIST.fullmatch(side) for side in (left, right)]
    based = [BASED.fullmatch(side) for side in (left, right)]
    return (all(lists) and ("{" in lists[0][1]) != ("{" in lists[1][1])) or (all(based) and based[0][1] != based[1][1])


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
    flat = HARMLESS.sub("x", text.replace(" ", ""))
    nested = re.search(r"(?:\^|\*\*)(?:\{[^{}]*|\([^()]*|\w+)(?:\^|\*\*|\{)", flat)
    numeric = re.search(r"[)}](?:\^|\*\*)\{?\d{2}", text.replace(" ", ""))
    return not nested and not numeric


def _depth(text: str) -> int:
    """The largest number of brackets that are open at once."""
    return max(accumulate(1 if one in "([{" else -1 for one in re.findall(r"[()\[\]{}]", text)), default=0)


def _is_closed(text: str) -> bool:
    """Whether no bracket, operand or number is missing: math_verify would drop what is around the gap."""
    gap = re.search(r"[-+*/^=<>]$|^(?:[*/^=<>]|\\(?:le|ge|lt|gt|ne)q?(?![a-z]))|%.*[\w\\]", text)
    return bool(text) and not gap and not LACKING.search(text) and text.count("{") == text.count("}")
