"""What a few commands print that only take a text apart: `basename`, `dirname`, `pwd`, `echo`. No other is known."""

import re
from collections.abc import Callable

from pipeline.bridges.shell_words import NEWLINE, Lexer, Operator, Word

ENVIRONMENT = "${oc.env:"
KNOWN = ("pwd", "echo", "basename", "dirname")
CHANGED = re.compile(r"[*?\[{~]")  # what bash may make something else of where it is not quoted


def printed(command: str, line: int, text: Callable[[Word], str], has_moved: bool) -> str | None:
    """The output of `$(command)`, where it is one of those here with arguments that are known; else None.

    text: the text of a word; of a command that is not known it is asked for none, since it may assign and remark.
    has_moved: whether the script has changed its directory before. Raises what `text` raises.
    """
    words = [token for token in Lexer(command, line=line).tokens() if token != Operator(token.line, NEWLINE)]
    if not words or not all(isinstance(word, Word) for word in words):
        return None
    first, *rest = [word for word in words if isinstance(word, Word)]
    name = first.bare
    if name not in KNOWN or any(_is_changed(word) for word in rest):
        return None
    arguments = [text(word) for word in rest]
    if name == "pwd":
        return None if arguments or has_moved else f"{ENVIRONMENT}PWD}}"
    if name == "echo":
        return None if any(argument.startswith("-") for argument in arguments) else " ".join(arguments)
    if not arguments or arguments[0].startswith("-"):
        return None
    path = arguments[0].rstrip("/")
    directory, slash, last = path.rpartition("/")
    if not path or ENVIRONMENT in last:
        return None
    if name == "dirname":
        return None if arguments[1:] else directory.rstrip("/") or ("/" if slash else ".")
    if arguments[2:]:
        return None
    suffix = arguments[1] if arguments[1:] else ""
    return last if last == suffix else last.removesuffix(suffix)


def _is_changed(word: Word) -> bool:
    """Whether bash puts names of files, or several texts, in the place of a word."""
    return any(piece.kind == "text" and not piece.quoted and CHANGED.search(piece.text) for piece in word.pieces)
