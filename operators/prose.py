"""Where a text without a mark gives its answer: what follows `the answer is`, in ten languages, or the last number."""

import json
import re
import unicodedata
from contextlib import suppress

from ouroboros.operators.numerals import (
    LONGEST_ANSWER,
    MULTIPLES,
    NO_UNIT,
    UNITS,
    WRAPPED,
    is_final,
    tidy,
    values,
    with_unit,
)

WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '-]+[^\W\d_]+)*|[^\W\d_](?:[ '-]+[^\W\d_]{2,})+|[\u3040-\u9fff]")
CHOICE = re.compile(r"(?:(?i:option|choice|answer|antwort|opción|opção|вариант)(?: +|(?=\())|选项 ?|選択肢 ?)?"
                    r"\(?([A-Za-z])(?:\)?[.:]?|[).:]+ +\S.*|\)? is (?:the )?(?:correct|right|best)(?: \w+)?[.!]?)")
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
OPERATOR = re.compile(r"[-+*/^<>×·≤≥≠]|[<>]=|\\(?:times|cdot|div|pm|leq?|geq?|lt|gt|neq?)|x|minus|negative")
FUNCTION = re.compile(r"\\?(?:sqrt|log|ln|sin|cos|tan|exp)(?:_\S+|\[\d\])?$|^choose$")
MATHS = re.compile(r"[\d\\^_½¼¾⅓⅔²³¹⁰⁴-⁹√π]")
SCRIPT = "\u0590-\u1cff\u2e80-\ua4cf\uac00-\ufaff"  # where no space need stand between a word and a number
STATED = re.compile(  # the answer follows
    r"(?:answer|option|choice|antwort|réponse|respuesta|resposta|risposta|ответ|答案|答え|정답|답)[\s*]*"
    r"(?:(?:is|ist|lautet|est|es|é|è|是|为|為|は|은)(?![a-zé])|:)[\s*:]*", re.I)
ASIDE = re.compile(r"\((?=[^()]*[^\W\d_]{3})[^()\\$]*\)|(?<=[\w.)]) ?\[\d+\]")  # (see step 3), and a reference: [1]
WORKED = re.compile(  # a number and what makes it, an equation's sides: 84 (34 + 50)
    rf"(\d[\w.,]*[%$*}}]*(?: +(?!{NO_UNIT.pattern})[^\W\d_]{{2,}})?) +[(\[]"
    r"(?:(?:i\.e\.,?|or|=) *|(?=\$?[^=]*(?:=|\d[ )}]*(?:[-+*/×·÷x^]|\\(?:times|cdot|div)) *[\d({])))"
    r"\$?((?:[-\d\s.,+*/×·÷x=^%{}]|\\(?:times|cdot|div)|\([-\d\s.+*/×·÷x^]*\))+)\$?[)\]]", re.I)
SENTENCE = re.compile(r"[.;!?](?:\s|$)|\n")
BEHIND = re.compile(  # what follows an answer: a reason, or what a number counts
    rf"{SENTENCE.pattern}|,(?=\s*[^\W\d_]{{2}})|\b(?:because|since)\b|"
    rf"(?<=\d)\s+(?!(?:plus|minus|times|percent|{'|'.join(MULTIPLES)})\b|(?:and|und|oder)\s+\W?\d)(?=[^\W\d_]{{3}})")
DENIED = re.compile(r"not|than|isn't|never|nicht|kein|pas|не|não|.*不是", re.I)
JOINED = {"or", "and", "oder", "und", "ou", "et", "o", "y", "e", "или", "и", "或", "和"}
RANGES = {"to", "through", "bis", "à", "до", "至", "到"}
CHANGED = re.compile(r"\badd(?!r)|\bsum|round|simplif|reduc|convert|chang|creas|gr[eo]w|r[io]s[ei]|f[ae]ll|drop", re.I)
MEASURES = {*UNITS, *(f"{one}s" for one in UNITS), *MULTIPLES, "percent"} - {"in", "is", "as"}  # behind a number


def unmarked(text: str, truth: str) -> str:
    """The answer of a response without a mark, empty without one: what follows the last `the answer is`, else the whole
    response where it is no prose, else the last number or formula, whole. Part of a formula is none."""
    text = _of_object(text)
    text = _readable(WRAPPED.sub(r"\1", text.strip()[-4 * LONGEST_ANSWER:]))
    stated = [text[found.end():] for found in STATED.finditer(text)][-1:]
    is_number = bool(values(with_unit(tidy(truth))[0]))
    if not is_number:
        for part in [*(BEHIND.split(one.strip())[0] for one in stated), text]:
            if _is_bare(tidy(part[:LONGEST_ANSWER])):
                return part
    if not stated or not MATHS.search(stated[0]):
        return _last(text)
    first, whole = (_last(end.split(stated[0].strip())[0]) for end in (BEHIND, SENTENCE))
    return whole if is_number and not is_final(with_unit(tidy(first))[0]) else first


def _of_object(text: str) -> str:
    """The answer that a JSON object gives; the text itself where it holds no such object."""
    with suppress(ValueError, RecursionError, AttributeError):
        given = json.loads(text[re.search(r'\{\s*"', text).start():text.rfind("}") + 1], parse_float=str, parse_int=str)
        answers = [value for key, value in given.items() if re.fullmatch("(?:final[ _]?)?answer", key, re.I)]
        return answers[-1] if answers and isinstance(answers[-1], str) else text
    return text


def _is_bare(text: str) -> bool:
    """Whether a text is one choice, words alone, or a formula without words."""
    if CHOICE.fullmatch(text):
        return len(set(re.findall(r"\b[A-H](?=[).:])", text))) < 2
    return bool(WORDS.fullmatch(text)) or not re.search(r"(?<![\\A-Za-z])[^\W\d_]{2}", text)


def _readable(text: str) -> str:
    """The text in ASCII digits and punctuation, with spaces around numbers, without quotation marks and asides."""
    text = re.sub(r"\d", lambda found: str(unicodedata.digit(found[0])), text.replace("−", "-"))
    text = re.sub("[\uff01-\uff5e]", lambda found: unicodedata.normalize("NFKC", found[0]), text)
    text = text.replace("。", ". ").replace("、", ", ").replace("।", ".")
    text = re.sub(rf"(?<=[{SCRIPT}])(?=[!-~])(?![.,:;!?])|(?<=[!-~])(?=[{SCRIPT}])", " ", text)
    text = re.sub(r"(?<![\w'\"])\"([^\"\n]*)\"", r"\1", re.sub("[`“”«»「」]", "", text))
    return WORKED.sub(r"\1 = \2", bare if MATHS.search(bare := ASIDE.sub("", text)) else text)


def _last(text: str) -> str:
    """The last number or formula, whole; empty where it is denied, or one of several."""
    formulas = list(FORMULA.finditer(text))
    if formulas and not re.search(r"[\d\\^_]", text[formulas[-1].end():]):
        return _side(next(filter(None, formulas[-1].groups())))
    for line in reversed(text.splitlines()):
        words = (line if line == text else re.sub(r"^\s*[-*] +", "", line)).split()  # without the mark of a list
        last = next((at for at in reversed(range(len(words))) if MATHS.search(words[at])), None)
        if last is not None:
            first = _first(words, last)
            before = words[first - 1] if first else ""
            joins = JOINED if CHANGED.search(" ".join(words[:first])) else JOINED | RANGES
            is_joined = before.casefold() in joins and MATHS.search("".join(words[:first - 1][-1:]))
            is_listed = first and all(re.fullmatch(r"\W*\d[\d.]*,", one) for one in words[:first])
            if DENIED.fullmatch(before) or is_joined or is_listed:
                return ""
            found = _bare(" ".join(words[first:last + 1]))
            if before == "=" and not is_final(tidy(found)):
                found = f"{_last(' '.join(words[:first - 1]))} = {found}"
            found = _side(found)
            unit = _bare(words[last + 1]) if last + 1 < len(words) and words[last][-1:].isdigit() else ""
            return re.sub("^(?:minus|negative) ", "-", f"{found} {unit}" if unit in MEASURES else found)
    return ""


def _side(equation: str) -> str:
    """The last side of an equation; all of it where that leaves an operation to carry out and another side does not."""
    *others, last = equation.split("=")
    is_whole = not is_final(tidy(last)) and any(is_final(with_unit(tidy(one))[0]) for one in others)
    return (equation if is_whole else last).strip()


def _bare(word: str) -> str:
    return word.strip("*:;!?,").rstrip(".") or word


def _first(words: list[str], last: int) -> int:
    """The first word of the number or formula that ends with word `last`."""
    first = last
    while first and not re.search(r"[=:;?!]$", words[first - 1]) and "=" not in words[first]:
        before, text = words[first - 1], _bare(" ".join(words[first:last + 1]))
        is_open = len(re.findall(r"[)\]}]", text)) > len(re.findall(r"[(\[{]", text))
        is_word = re.search(r"(?<![\\a-z])[^\W\d_]{3,}", before)
        is_operand = re.search(r"[\d\\^_)}]|^[a-z]$", before)
        if not ((is_open and not is_word) or OPERATOR.fullmatch(before) or FUNCTION.search(before)
                or (is_operand and OPERATOR.fullmatch(words[first])) or _goes_on(before, text)):
            break
        first -= 1
    return first


def _goes_on(number: str, text: str) -> bool:
    """Whether a number and the text behind it are one: a mixed number, thousands, a factor, a unit."""
    if not re.fullmatch(r"-?\d+(?:\.\d+)?", number):
        return False
    grouped = len(number.lstrip("-")) <= 3 and re.fullmatch(r"\d{3}(?: \d{3})*", text)
    return bool(grouped or re.fullmatch(r"\d+/\d+|[\\√π].*", text) or with_unit(tidy(f"{number} {text}"))[1])
