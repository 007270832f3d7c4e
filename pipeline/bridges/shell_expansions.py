"""What bash makes of a known text by `${X...}`: a part of it, a prefix cut off, a pattern replaced, its case."""

import fnmatch
import re
from collections.abc import Callable

LONGEST = 4096  # characters of a value that is searched for a pattern
CUT = re.compile(r"(?P<sign>##?|%%?)(?P<pattern>.*)", re.DOTALL)
SLICE = re.compile(r":\s*(?P<first>-?\d{1,6})(?::\s*(?P<count>-?\d{1,6}))?")
REPLACE = re.compile(r"/(?P<where>[/#%]?)(?P<pattern>(?:\\.|[^\\/])+)(?:/(?P<by>.*))?", re.DOTALL)
CASES: dict[str, Callable[[str], str]] = {
    ",,": str.lower, "^^": str.upper, ",": lambda text: text[:1].lower() + text[1:],
    "^": lambda text: text[:1].upper() + text[1:]}


def is_known(rest: str) -> bool:
    """Whether what follows the name within `${}` is one of the expansions here."""
    return rest in CASES or any(form.fullmatch(rest) for form in (CUT, SLICE, REPLACE))


def expand(value: str, rest: str, word: Callable[[str], str]) -> str:
    """A value of at most LONGEST characters, as `rest` has it. word: expands the text of a pattern."""
    if rest in CASES:
        return CASES[rest](value)
    if cut := CUT.fullmatch(rest):
        return _cut(value, cut["sign"], re.compile(fnmatch.translate(word(cut["pattern"]))))
    if part := SLICE.fullmatch(rest):
        return _slice(value, int(part["first"]), None if part["count"] is None else int(part["count"]))
    found = REPLACE.fullmatch(rest)
    assert found, rest
    return _replaced(value, found["where"], word(found["pattern"]), word(found["by"] or ""))


def _cut(value: str, sign: str, wanted: re.Pattern) -> str:
    """${X##*/} and its kin: the shortest or longest prefix or suffix that a pattern matches is cut off."""
    sizes = range(len(value) + 1) if len(sign) == 1 else range(len(value), -1, -1)
    for size in sizes:
        part = value[:size] if sign[0] == "#" else value[len(value) - size:]
        if wanted.fullmatch(part):
            return value[size:] if sign[0] == "#" else value[:len(value) - size]
    return value


def _slice(value: str, first: int, count: int | None) -> str:
    """${X:first:count}: from the end for a negative `first`; a negative `count` is the place where it ends."""
    start = first if first >= 0 else len(value) + first
    if start < 0:
        return ""
    end = len(value) if count is None else start + count if count >= 0 else len(value) + count
    return value[start:max(end, start)]


def _replaced(value: str, where: str, pattern: str, by: str) -> str:
    """${X/a/b}, the first match; `//` all, `/#` and `/%` only at the beginning or the end."""
    glob = re.sub(r"\\[zZ]$", "", fnmatch.translate(pattern))
    anchored = {"#": rf"\A{glob}", "%": rf"{glob}\Z"}.get(where, glob)
    return re.sub(anchored, lambda _: by, value, count=0 if where == "/" else 1)
