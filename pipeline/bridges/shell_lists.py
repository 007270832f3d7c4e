"""Whether a command of a shell script runs, from how the commands before it in its list of `&&`, `||` and `|` ended."""

from dataclasses import dataclass

from pipeline.bridges.shell_cursor import written
from pipeline.bridges.shell_functions import begins
from pipeline.bridges.shell_tests import holds
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_words import Array, Token, Word

ALWAYS = {"true": True, ":": True, "false": False}
# commands that a script goes on behind as if they could not fail; how any other ended is not known
LIKELY = (".", "alias", "cd", "conda", "cp", "declare", "echo", "export", "ln", "local", "mkdir", "module", "mv",
          "popd", "printf", "pushd", "readonly", "rm", "set", "shopt", "source", "touch", "typeset", "ulimit", "unset")


@dataclass(frozen=True)
class Verdict:
    """How a command ended. held: whether well, None where that is not known; is_likely: it is taken to have."""

    held: bool | None = None
    is_likely: bool = False


@dataclass(frozen=True)
class Link:
    """A pipeline in its list. joint: what stands before it; runs: whether it does, None where that is not known.

    before: how the list to the left of it ended; negated: whether `!` stands before it.
    """

    joint: str = ""
    runs: bool | None = True
    before: Verdict = Verdict()
    negated: bool = False

    def ended(self, verdict: Verdict) -> Verdict:
        """How the list ended up to here. verdict: of the command of this link, if it ran."""
        if self.runs is False:
            return self.before
        if self.negated:
            verdict = Verdict(None if verdict.held is None else not verdict.held)
        if self.runs:
            return verdict
        decisive = self.joint == "||"  # left of it nothing is known: only what ends both ways alike is
        return Verdict(decisive if verdict.held is decisive else None)


def link(last: Link, ended: Verdict, joint: str, negated: bool) -> Link:
    """The link behind a joint (nothing for the first of a list). last, ended: the link before it, and its end."""
    if joint in ("|", "|&"):  # runs as the first command of its pipeline does
        return last
    runs: bool | None = True
    if joint == "&&":
        runs = True if ended.is_likely else ended.held
    elif joint == "||":
        runs = None if ended.held is None else not ended.held
    return Link(joint, runs, ended, negated)


def verdict_of(assigns: bool, parts: list[Word | Array] | list[Token], values: Values, is_read_once: bool) -> Verdict:
    """How a command ends. assigns: whether only that, of no output of a command; parts: else, its words."""
    first = parts[0] if parts and isinstance(parts[0], Word) else None
    if first is None:
        return Verdict(True if assigns else None)
    if first.bare in ALWAYS and (first.bare == ":" or not parts[1:]):
        return Verdict(ALWAYS[first.bare])
    if first.bare in ("[", "[[", "test") or first.arithmetic is not None:
        return Verdict(holds(list(parts), values) if is_read_once else None)
    return Verdict(is_likely=first.bare in LIKELY)


def asks(part: Word | Array) -> bool:
    """Whether a word holds the output of a command, which then decides how an assignment ends."""
    words = part.words if isinstance(part, Array) else (part,)
    return any(piece.kind == "command" or "$(" in piece.text or "`" in piece.text
               for word in words for piece in word.pieces)


def group_end(tokens: list[Token], at: int) -> int | None:
    """Where the tokens behind a group begin that opens at a position; None where that is not certain."""
    opening = written(tokens[at])
    closing, depth = {"{": "}", "(": ")"}[opening], 0
    for end in range(at, len(tokens)):
        text = written(tokens[end])
        if text == "case" and begins(tokens, end):  # its patterns close parentheses that nothing opens
            return None
        depth += (text == opening) - (text == closing)
        if depth == 0:
            return end + 1
    return None
