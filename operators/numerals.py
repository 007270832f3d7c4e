r"""Numbers and units as people and models write them: exact values, in several notations.

`tidy` brings LaTeX and Unicode to one form, `values` reads a plain number, `with_unit` takes a unit off it.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

LONGEST_ANSWER = 512  # characters that are compared
LARGEST_POWER = 2000  # magnitude of the exponent of a plain power, and of a scientific notation
LARGEST_FACTORIAL = 1000
MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
             "万": 10**4, "萬": 10**4, "만": 10**4, "亿": 10**8, "億": 10**8, "억": 10**8}

INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
DECIMAL = rf"(?:{INTEGER}(?:\.\d*)?|\.\d+)"
PLAIN = re.compile(rf"({DECIMAL})(?:e([-+]?\d{{1,5}})"
                   rf"|(?:\\times|\\cdot|[*x×])10(?:\^|\*\*)\{{?([-+]?\d{{1,5}})\}}?)?", re.I)
RATIO = re.compile(rf"({DECIMAL})/([-+]?{DECIMAL})|\\frac(\d)(\d)")
PART = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
FRACTION = re.compile(r"\\frac" + PART + PART)
MIXED = re.compile(r"(\d+) *(?: (\d+)/(\d+)|\\frac\{(\d+)\}\{(\d+)\}|\\frac(\d)(\d))")
POWER = re.compile(r"(\d{1,6}|\(-\d{1,6}\))(?:\^|\*\*)(?:\{([-+]?\d{1,5})\}|([-+]?\d{1,5}))")
FACTORIAL = re.compile(r"(1/)?(\d{1,5})!")
MULTIPLE = re.compile(rf"(.*\d) *({'|'.join(MULTIPLES)})s?", re.I)
# no comma of a list: several groups, or a decimal part behind other marks
GROUPED = [re.compile(r"\d{1,3}(?:[ ’']\d{3})+(?:\.\d+)?"), re.compile(r"\d{1,2}(?:,\d\d)+,\d{3}(?:\.\d+)?"),
           re.compile(r"\d+(?:_\d{3})+")]
DECIMAL_COMMA = [re.compile(r"\d{1,3}(?:\.\d{3})+,\d+"), re.compile(r"\d{1,3}(?:\.\d{3}){2,}"),
                 re.compile(r"\d{1,3}(?: \d{3})+,\d+")]

NAME = r"(?:[^\W\d_]{2,}|[mgslLh]|(?<= )[ACFJKNTVW])(?:\^\{?[23]\}?)?"
UNIT = re.compile(rf"(.*(?:[\d}}%]|\\pi)) *({NAME}(?:(?: ?/ ?| ?\\cdot | )(?:[^\W\d_]+(?:\^\{{?[23]\}}?)?))*)")
NO_UNIT = re.compile(
    r"(?:a?(?:rc)?(?:sin|cos|tan)h?|sec|csc|cot|pi|sqrt|ln|log|exp|mod|modulo|squared|cubed|factorial|or|and|to|if|for|when|"
    r"where|plus|minus|times|over|choose|point|[abcnpqxyz]{2,3})(?![^\W\d_])", re.I)
UNITS = {name: names.split()[0] for names in (
    "cm centimeter centimetre", "mm millimeter millimetre", "km kilometer kilometre", "m meter metre", "g gram gm",
    "kg kilogram kilo", "mg milligram", "h hour hr", "min minute", "s second sec", "ft foot feet", "in inch inches",
    "l liter litre", "ml milliliter millilitre", "lb pound", "oz ounce", "$ dollar usd", "€ euro eur", "yd yard",
    "mi mile", "d day", "degree deg", "unit units", "square sq") for name in names.split()}
WRAPPED = re.compile(r"\\(?:underline|text(?:bf|it|rm)?|math(?:bf|rm|it)|operatorname|boxed|fbox|mbox) ?\{([^{}]*)\}")
SPACES = r"(?<!\\)\\[,!;: ]|~|\\q?quad|[\u00a0\u2009\u202f]"
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
SIGNS = {"−": "-", "⁄": "/", "{,}": ",", "\\%": "%", "\\$": "$", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ",
         "≥": "\\ge ", "\\varnothing": "\\emptyset", "{:}": ":", "\\colon": ":", "·": "\\cdot ", "÷": "/"}


@lru_cache(4096)
def tidy(text: str) -> str:
    """The text without marks that do not change a value: signs in ASCII, LaTeX's spaces, fonts and currencies."""
    text = re.sub("[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞]", lambda found: f" {unicodedata.normalize('NFKC', found[0])}", text)
    text = re.sub(f"[{SUPERSCRIPTS}]+", _raised, re.sub(r"√ ?(?:\((\w+)\)|(\d+|\w))", r"\\sqrt{\1\2}", text))
    for sign, plain in SIGNS.items():
        text = text.replace(sign, plain)
    text = re.sub(r"\\[dtc]frac", r"\\frac", re.sub(r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle", "", text))
    text = re.sub(SPACES, " ", re.sub(rf"(?<=\d)(?:{SPACES})+(?=\d{{3}}(?!\d))", "", text))
    text = re.sub(r"\^\{([23])\}(?!\w)", r"^\1", text)
    while (bare := WRAPPED.sub(r"\1", text)) != text:
        text = bare
    text = re.sub(r"(?:\^ ?\{?\\circ\}?|°|\\degree) ?(?=[CF]\b)", " degree ", text)
    text = re.sub(r"\^ ?\{?\\circ\}?|°|\\degree", "", text).strip().strip("*$").strip()
    text = re.sub(r"^[‐‑‒–—－](?=\d)", "-", text)
    text = re.sub(r"^([-+]?) ?(?:[$€£¥₹]|(?:USD|EUR|GBP) ?(?=\d))", r"\1", text)
    return re.sub(r"\s+", " ", text).rstrip(".").strip()


def _raised(found: re.Match) -> str:
    return "^{" + "".join(str(SUPERSCRIPTS.index(one)) if one != "⁻" else "-" for one in found[0]) + "}"


@lru_cache(4096)
def values(text: str) -> tuple[Fraction, ...]:
    """The values that a plain number may have, exact: one, two of a percentage (50 and 1/2), none of other text."""
    text = re.sub(r" ?percent$", "%", text)
    percent, bare = text.endswith("%"), text.rstrip("%").strip()
    sign = -1 if bare.startswith("-") else 1
    value = _magnitude(bare[1:].strip() if bare[:1] in ("-", "+") else bare)
    return () if value is None else (sign * value, sign * value / 100) if percent else (sign * value,)


def is_final(text: str) -> bool:
    """Whether a text is a plain number that leaves nothing to carry out: a decimal, a power of ten, a percentage, or a
    fraction whose value is not whole. Other powers and quotients, factorials, dozens and products with ten are not."""
    bare = re.sub(r"^[-+] ?|(?:%| ?percent)$", "", text).strip()
    tight, mixed = bare.replace(" ", ""), MIXED.fullmatch(bare)
    if parts := mixed or RATIO.fullmatch(tight) or FRACTION.fullmatch(tight):
        top, bottom = [part.lstrip("-").replace(",", "") for part in parts.groups() if part][-2:]
        if not (top.isdecimal() and bottom.isdecimal() and int(bottom)) or (mixed and int(top) > int(bottom)):
            return False
        return int(top) % int(bottom) != 0
    power = POWER.fullmatch(tight)
    left = FACTORIAL.fullmatch(tight) or re.search(r"(?:\\times|\\cdot|[*x×])10$|dozens?$", tight)
    return bool(values(text)) and not left and (power is None or power[1] == "10")


def _magnitude(bare: str) -> Fraction | None:
    if len(bare) > LONGEST_ANSWER:
        return None
    if match := MULTIPLE.fullmatch(bare):
        value = _magnitude(match[1])
        return None if value is None else value * MULTIPLES[match[2].casefold()]
    if match := MIXED.fullmatch(bare):
        whole, top, bottom = (int(part) for part in match.groups() if part)
        return whole + Fraction(top, bottom) if bottom else None
    bare = _grouped(bare)
    bare = bare.replace(" ", "") if not re.search(r"\d \d", bare) else bare
    if match := PLAIN.fullmatch(bare):
        exponent = int(match[2] or match[3] or 0)
        return _decimal(match[1]) * Fraction(10) ** exponent if abs(exponent) <= LARGEST_POWER else None
    quotient = _quotient(bare)
    return _power(bare) if quotient is None else quotient


def _grouped(bare: str) -> str:
    """The number without the marks between thousands, with a point before its decimals."""
    if any(pattern.fullmatch(bare) for pattern in GROUPED):
        return re.sub(r"[ ’',_]", "", bare)
    if any(pattern.fullmatch(bare) for pattern in DECIMAL_COMMA):
        return re.sub(r"[ .]", "", bare).replace(",", ".")
    return bare


def _quotient(bare: str) -> Fraction | None:
    if match := RATIO.fullmatch(bare):
        top, bottom = (_decimal(part) for part in match.groups() if part)
        return top / bottom if bottom else None
    if (match := FRACTION.fullmatch(bare)) and all(parts := [values(part.strip()) for part in match.groups()]):
        return parts[0][0] / parts[1][0] if parts[1][0] and max(map(len, parts)) == 1 else None
    return None


def _power(bare: str) -> Fraction | None:
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


def with_unit(text: str) -> tuple[str, str]:
    """A number and its unit in one spelling; the text and nothing where it is no number with a unit.

    Behind a formula only the units below count: other letters are variables.
    """
    match = UNIT.fullmatch(text)
    if values(text) or not match or NO_UNIT.match(match[2]):
        return text, ""
    words = re.sub(r"[{} ]", lambda found: " " * (found[0] == " "), match[2]).casefold()
    unit = re.sub(r"[^\W\d_]+", lambda found: _unit(found[0]), words)
    number, first = match[1].strip(), re.match(r"[^\W\d_]+|", unit)[0]
    is_known = "\\" in number and len(match[2]) > 1 and first in {*UNITS.values(), "square", "cubic", "unit"}
    return (number, unit) if values(number) or is_known else (text, "")


def _unit(word: str) -> str:
    return UNITS.get(word) or UNITS.get(word.removesuffix("s")) or (word.removesuffix("s") if len(word) > 3 else word)
