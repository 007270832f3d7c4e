"""The position of a reader among the tokens of a shell script."""

from dataclasses import dataclass, field

from pipeline.bridges.shell_words import NEWLINE, Operator, Token, Word

JOINTS = ("&&", "||", "|", "|&")
PREFIXES = ("!", "time")  # of a command


@dataclass
class Cursor:
    """Tokens, and which of them is the next to be read."""

    tokens: list[Token]
    at: int = field(default=0, init=False)

    def skip_to(self, *ends: str) -> list[Token]:
        """Goes behind one of some words or operators, or to the end; what it went over, with that one."""
        start = self.at
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if written(token) in ends:
                break
        return self.tokens[start:self.at]

    def skip_pattern(self) -> None:
        """Goes over the pattern of a branch of `case`, up to its parenthesis."""
        while self.operator_at(0) == NEWLINE:
            self.at += 1
        if self.at < len(self.tokens) and getattr(self.tokens[self.at], "bare", "") != "esac":
            self.skip_to(")")

    def loop_words(self) -> list[Word]:
        """The words behind the variable and `in` of a loop, up to the end of the line, which is next."""
        start = self.at
        while self.at < len(self.tokens) and self.operator_at(0) not in (";", NEWLINE):
            self.at += 1
        return [token for token in self.tokens[start + 2:self.at] if isinstance(token, Word)]

    def operator_at(self, offset: int) -> str:
        """The operator at a distance from here; nothing for a word, and beyond the tokens."""
        at = self.at + offset
        token = self.tokens[at] if 0 <= at < len(self.tokens) else None
        return token.text if isinstance(token, Operator) else ""

    def joint(self, at: int) -> tuple[str, bool]:
        """What joins the command at a position to the one before it (`&&`, `|`), and whether `!` negates it."""
        negations = 0
        while at > 0 and written(self.tokens[at - 1]) in PREFIXES:
            at -= 1
            negations += written(self.tokens[at]) == "!"
        while at > 0 and written(self.tokens[at - 1]) == NEWLINE:
            at -= 1
        text = written(self.tokens[at - 1]) if at > 0 else ""
        return text if text in JOINTS else "", negations % 2 == 1

    @property
    def is_function(self) -> bool:
        """Whether `name()` stands here."""
        return isinstance(self.tokens[self.at], Word) and [self.operator_at(1), self.operator_at(2)] == ["(", ")"]


def written(token: Token) -> str:
    """An operator, or a word without quotes."""
    return token.bare if isinstance(token, Word) else getattr(token, "text", "")
