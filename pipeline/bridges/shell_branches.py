"""The branches of an `if` and of a `case`, and which of them runs where that is known."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.bridges.shell_functions import begins
from pipeline.bridges.shell_tests import holds, known, matches
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_words import NEWLINE, Operator, Piece, Token, Word

Test = Callable[[list[Token]], bool | None]


@dataclass(frozen=True)
class Branch:
    """A part of an `if`: its keyword (`if`, `elif`, `else`), the tests between it and `then`, and its commands."""

    keyword: Token
    tests: list[Token]
    body: list[Token]

    @property
    def written(self) -> list[Token]:
        then = [] if _bare(self.keyword) == "else" else [*self.tests, _word(self.keyword.line, "then")]
        return [self.keyword, *then, *self.body]


@dataclass(frozen=True)
class Choice:
    """What is to be read in place of the tokens up to `end`. told: which branch that is, if it is certain."""

    tokens: list[Token]
    end: int
    told: str = ""


def choice_at(tokens: list[Token], at: int, word: str, values: Values) -> Choice | None:
    """What is left of the `if` or `case` whose own word stands before a position; None where all may run."""
    if word == "if":
        return _chosen_if(tokens, at, lambda tests: holds(tests, values))
    return _chosen_case(tokens, at, values) if word == "case" else None


def _chosen_if(tokens: list[Token], at: int, test: Test) -> Choice | None:
    """The `if` whose first test begins at a position, without the branches that do not run; None if all may run.

    test: whether a list of tests holds, None where that is not known.
    """
    read = _branches(tokens, at)
    if read is None:
        return None
    branches, end = read
    left: list[Branch] = []
    for branch in branches:
        is_else = _bare(branch.keyword) == "else"
        verdict = True if is_else else test(branch.tests)
        if verdict is None:
            left.append(branch)
        elif verdict:
            left.append(replace(branch, keyword=_word(branch.keyword.line, "else")))
            break
    if left == branches:
        return None
    if not left:
        return Choice([], end, "its test does not hold, so it was passed over")
    if _bare(left[0].keyword) == "else":
        return Choice(left[0].body, end, f"the branch of line {left[0].keyword.line} runs, and was read alone")
    first = replace(left[0], keyword=_word(left[0].keyword.line, "if"))
    rest = [token for branch in (first, *left[1:]) for token in branch.written]
    return Choice([*rest[1:], *tokens[end - 1:end]], end)


def _chosen_case(tokens: list[Token], at: int, values: Values) -> Choice | None:
    """The `case` whose word stands at a position, as the one branch that runs; None where that is not known."""
    subject = known(tokens[at], values) if at < len(tokens) and isinstance(tokens[at], Word) else None
    if subject is None or _bare(_at(tokens, at + 1)) != "in":
        return None
    at += 2
    body: list[Token] | None = None
    line = tokens[at - 2].line
    while _bare(_at(tokens, at := _beyond_lines(tokens, at))) != "esac":
        patterns, at = _until(tokens, at, (")",), nested=False)
        fits = [matches(subject, token, values) for token in patterns if isinstance(token, Word)]
        if at > len(tokens) or None in fits:
            return None
        start = at
        commands, at = _until(tokens, at, (";;", ";&", ";;&", "esac"))
        if at > len(tokens) or _text(tokens[at - 1]) in (";&", ";;&"):
            return None
        if body is None and any(fits):
            body, line = commands, tokens[start - 1].line
        at -= _bare(tokens[at - 1]) == "esac"
    told = "its branch of line {} runs, and was read alone" if body is not None else "no branch of it runs"
    return Choice(body or [], at + 1, told.format(line))


def _branches(tokens: list[Token], at: int) -> tuple[list[Branch], int] | None:
    """The branches of an `if`, and where the tokens behind its `fi` begin; None for one that is not closed."""
    keyword: Token = tokens[at - 1]
    branches: list[Branch] = []
    while True:
        tests: list[Token] = []
        if _bare(keyword) != "else":
            tests, at = _until(tokens, at, ("then",))
        body, at = _until(tokens, at, ("elif", "else", "fi"))
        if at > len(tokens):
            return None
        branches.append(Branch(keyword, tests, body))
        keyword = tokens[at - 1]
        if _bare(keyword) == "fi":
            return branches, at


def _until(tokens: list[Token], at: int, ends: tuple[str, ...], nested: bool = True) -> tuple[list[Token], int]:
    """The tokens up to one of some words or operators, and the position behind it: beyond the end if there is none."""
    start, depth = at, 0
    while at < len(tokens):
        word = _bare(tokens[at]) if begins(tokens, at) else ""
        if depth == 0 and (word in ends or _text(tokens[at]) in ends):
            return tokens[start:at], at + 1
        if nested:
            depth += (word in ("if", "case")) - (word in ("fi", "esac"))
        at += 1
    return tokens[start:], at + 1


def _beyond_lines(tokens: list[Token], at: int) -> int:
    while at < len(tokens) and _text(tokens[at]) in (NEWLINE, "("):
        at += 1
    return at


def _at(tokens: list[Token], at: int) -> Token:
    return tokens[at] if at < len(tokens) else _word(0, "esac")


def _word(line: int, text: str) -> Word:
    return Word(line, (Piece("text", text, False),))


def _bare(token: Token) -> str:
    return token.bare if isinstance(token, Word) else ""


def _text(token: Token) -> str:
    return token.text if isinstance(token, Operator) else ""
