"""The functions of a shell script: where the body of each stands, and how often the script calls it by its name."""

from dataclasses import dataclass

from pipeline.bridges.shell_words import NEWLINE, Operator, Token, Word

BEFORE_COMMANDS = ("then", "do", "else", "elif", "if", "while", "until", "!", "time", "{", "}")
REDIRECTIONS = ("<", ">", ">>", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>")


@dataclass(frozen=True)
class Function:
    """line: of its name. body: its tokens from `{` to `}`; size: how many stand from its first line end on."""

    name: str
    line: int
    body: list[Token]
    size: int


def function_at(tokens: list[Token], at: int, name: str, line: int) -> Function | None:
    """The function whose body begins at a position, behind line ends; None when that is no group in braces."""
    start = at
    while at < len(tokens) and _text(tokens[at]) == NEWLINE:
        at += 1
    depth = 0
    for end in range(at, len(tokens)):
        depth += (_bare(tokens[end]) == "{") - (_bare(tokens[end]) == "}")
        if depth == 0:
            return Function(name, line, tokens[at:end + 1], end + 1 - start) if end > at else None
    return None


def calls(tokens: list[Token], name: str) -> int:
    """How often a name stands where a command begins; its definition does not count."""
    return sum(_bare(token) == name and begins(tokens, at) and [_text(t) for t in tokens[at + 1:at + 3]] != ["(", ")"]
               for at, token in enumerate(tokens))


def begins(tokens: list[Token], at: int) -> bool:
    """Whether a command begins at a position."""
    before = tokens[at - 1] if at else None
    if isinstance(before, Operator):
        return before.text not in REDIRECTIONS
    is_keyword = before is not None and _bare(before) in BEFORE_COMMANDS
    return before is None or (is_keyword and (_bare(before) in ("{", "}") or begins(tokens, at - 1)))


def _bare(token: Token) -> str:
    return token.bare if isinstance(token, Word) else ""


def _text(token: Token) -> str:
    return token.text if isinstance(token, Operator) else ""
