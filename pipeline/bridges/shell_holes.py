"""Texts of a shell script of which a part is not known: the part is a hole, which keeps how it is written and why.

A hole has no blanks and nothing that a shell reads, so it survives being split into words, joined, and read again.
"""

import re
from urllib.parse import quote, unquote

HOLE = re.compile("\ue000([^\ue000-\ue002\\s]*)\ue001([^\ue000-\ue002\\s]*)\ue002")  # characters for private use
COMMAND = re.compile(r"(?:\$\((?!\()|[<>]\(|`)\s*(?P<name>[\w./-]*)(?P<end>[)`])?")


class Unknown(Exception):
    """A value that only running the script would tell; the message says what it is made of."""


def hole(written: str, why: str) -> str:
    """A part that only running the script would tell. written: as the script has it; why: what it is made of."""
    return f"\ue000{quote(written, safe='')}\ue001{quote(why, safe='')}\ue002"


def shown(text: str) -> str:
    """A text with its holes as the script writes them."""
    return HOLE.sub(lambda match: unquote(match[1]), text)


def short(text: str) -> str:
    """A text for a message: one line of at most 60 characters, no arguments of commands."""
    flat = " ".join(quiet(text).split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def reason(text: str) -> str | None:
    """Why a text is not known as a whole; None when it is."""
    first = HOLE.search(text)
    return unquote(first[2]) if first else None


def doubtful(text: str, why: str) -> str:
    """A text each of whose words may stand there or not."""
    return re.sub(r"\S+", lambda word: word[0] + hole("", why), text)


def quiet(text: str) -> str:
    """A text to quote, up to the arguments of a command in it, which may be secrets: `8 * $(curl ...)`."""
    long = next((command for command in COMMAND.finditer(text) if not command["end"]), None)
    return f"{text[:long.start()]}$({long['name']}{' ' * bool(long['name'])}...)" if long else text
