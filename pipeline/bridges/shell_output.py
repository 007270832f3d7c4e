"""What a few commands print that only take a text apart: `basename`, `dirname`, `pwd`, `echo`. No other is known."""

from collections.abc import Callable

from pipeline.bridges.shell_words import NEWLINE, Lexer, Operator, Word

ENVIRONMENT = "${oc.env:"


def printed(command: str, text: Callable[[Word], str]) -> str | None:
    """The output of `$(command)`, where it is one of those here with arguments that are known; else None.

    text: the text of a word. Raises what it raises.
    """
    words = [token for token in Lexer(command).tokens() if token != Operator(token.line, NEWLINE)]
    if not words or not all(isinstance(word, Word) for word in words):
        return None
    name, *arguments = [text(word) for word in words if isinstance(word, Word)]
    if name == "pwd":
        return None if arguments else f"{ENVIRONMENT}PWD}}"
    if name == "echo":
        return None if any(argument.startswith("-") for argument in arguments) else " ".join(arguments)
    if name not in ("basename", "dirname") or not arguments or arguments[0].startswith("-"):
        return None
    path = arguments[0].rstrip("/")
    directory, slash, last = path.rpartition("/")
    if not path or ENVIRONMENT in last:
        return None
    if name == "dirname":
        return None if arguments[1:] else directory or ("/" if slash else ".")
    if arguments[2:]:
        return None
    suffix = arguments[1] if arguments[1:] else ""
    return last if last == suffix else last.removesuffix(suffix)
