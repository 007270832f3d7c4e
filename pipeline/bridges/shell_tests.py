"""Whether a test of a shell script holds: `[ ... ]`, `[[ ... ]]`, `test`, `((...))`, `true`, of known values."""

import fnmatch
import operator
import re
from collections.abc import Callable

from pipeline.bridges.arithmetic import assigned
from pipeline.bridges.shell_holes import Unknown, reason
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_words import NEWLINE, Operator, Token, Word

NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt,
    "-ge": operator.ge}
SPLITS = re.compile(r"[\s*?\[]")
MEANS_MORE = re.compile(r"[*?\[]")
OTHERWISE = re.compile(r"\[[\^:]|\\|\[[^\]]*\Z")  # in a pattern: what bash and fnmatch do not read alike
EQUAL = {"=": True, "==": True, "!=": False}


def holds(tokens: list[Token], values: Values) -> bool | None:
    """Whether tests joined by `&&` or by `||` hold; None where one is no test, or a value of it is not known."""
    joints = [at for at, token in enumerate(tokens) if _text(token) in ("&&", "||")]
    kinds = {_text(tokens[at]) for at in joints}
    if len(kinds) > 1:  # their order differs within [[ ]] and outside
        return None
    starts, ends = [0, *(at + 1 for at in joints)], [*joints, len(tokens)]
    verdicts = [_single(tokens[start:end], values) for start, end in zip(starts, ends, strict=True)]
    decisive = kinds == {"||"}  # one that holds decides ||, one that does not decides &&
    if decisive in verdicts:
        return decisive
    return None if None in verdicts else not decisive


def _single(tokens: list[Token], values: Values) -> bool | None:
    """One test; of several within `[[ ]]` each has one bracket or none."""
    tokens = [token for token in tokens if _text(token) not in (NEWLINE, ";")]
    words = [token for token in tokens if isinstance(token, Word)]
    if not words or len(words) < len(tokens):
        return None
    negated = words[0].bare == "!"
    words = words[negated:]
    opening, closing = (words[0].bare, words[-1].bare) if words else ("", "")
    is_test = opening in ("[", "[[", "test") or closing == "]]"
    words = words[opening in ("[", "[[", "test"):len(words) - (is_test and closing in ("]", "]]"))]
    verdict = (_compared(words, values, is_pattern=opening == "[[" or closing == "]]") if is_test
               else _command(words, values))
    return verdict if verdict is None else verdict != negated


def _text(token: Token) -> str:
    return token.text if isinstance(token, Operator) else ""


def _command(words: list[Word], values: Values) -> bool | None:
    """`true`, `false`, a variable that holds one of them, or ((...))."""
    if len(words) != 1:
        return None
    if words[0].arithmetic is not None:
        return _arithmetic(words[0].arithmetic, values)
    return {"true": True, ":": True, "false": False}.get(known(words[0], values) or "")


def _arithmetic(expression: str, values: Values) -> bool | None:
    if assigned(expression):
        return None
    try:
        return int(values.arithmetic(expression)) != 0
    except Unknown:
        return None


def _compared(words: list[Word], values: Values, is_pattern: bool) -> bool | None:
    """What stands between the brackets. is_pattern: whether the right side of = may hold `*`, as in `[[ ]]`."""
    if words and words[0].bare == "!":
        verdict = _compared(words[1:], values, is_pattern)
        return verdict if verdict is None else not verdict
    texts = [known(word, values) for word in words]
    if not is_pattern and any(_may_split(word, text or "") for word, text in zip(words, texts, strict=True)):
        return None
    if len(words) == 1:
        return None if texts[0] is None else texts[0] != ""
    if len(words) == 2 and words[0].bare in ("-z", "-n"):
        return None if texts[1] is None else (texts[1] == "") == (words[0].bare == "-z")
    if len(words) != 3 or texts[0] is None or texts[2] is None:
        return None
    left, sign, right = texts[0], words[1].bare, texts[2]
    if sign in EQUAL:
        same = matches(left, words[2], values) if is_pattern else left == right
        return None if same is None else same == EQUAL[sign]
    is_number = all(re.fullmatch(r"[-+]?\d{1,18}", text) for text in (left, right))
    return NUMBERS[sign](int(left), int(right)) if sign in NUMBERS and is_number else None


def _may_split(word: Word, text: str) -> bool:
    """Whether a word within `[ ]` is perhaps none, or several: an expansion without quotes, of nothing or of blanks."""
    is_open = any(piece.kind != "text" and not piece.quoted for piece in word.pieces)
    return is_open and (not text or SPLITS.search(text) is not None)


def matches(text: str, word: Word, values: Values) -> bool | None:
    """Whether a text fits a pattern, whose quoted parts stand for themselves; None where that is not known."""
    if known(word, values) is None:
        return None
    parts = [known(Word(word.line, (piece,)), values) or "" for piece in word.pieces]
    pattern = "".join(MEANS_MORE.sub(r"[\g<0>]", part) if piece.quoted else part
                      for piece, part in zip(word.pieces, parts, strict=True))
    is_open = any(not piece.quoted and OTHERWISE.search(part) for piece, part in zip(word.pieces, parts, strict=True))
    return None if is_open else fnmatch.fnmatchcase(text, pattern)


def known(word: Word, values: Values) -> str | None:
    """The text of a word; None where a part of it, or of what the environment holds, is not known."""
    if any(values.asked(piece) for piece in word.pieces):
        return None
    try:
        text = values.text(word)
    except Unknown:
        return None
    return None if reason(text) or "${oc.env:" in text else text
