"""Reads a shell script without running it: its commands with their variables filled in, and what was passed over.

Assignments, `export`, arrays, groups and `eval` are followed. Loops, conditionals and functions are Constructs: their
commands are read once, from top to bottom, and marked with where they stand; what such a part assigns is known to the
end of the part (a branch, a round, a body) and Unknown behind it.
"""

import re
from dataclasses import dataclass, field

from pipeline.bridges.shell_construct import Construct
from pipeline.bridges.shell_values import Argument, Unknown, Values, script_of
from pipeline.bridges.shell_words import NEWLINE, Array, Lexer, Operator, Token, Word

OPENING = ("if", "for", "while", "until", "select", "case", "function")
CLOSING = ("fi", "done", "esac")
BETWEEN = ("then", "do", "else", "elif", "!", "time", "in")
DECLARING = ("export", "declare", "typeset", "local", "readonly")
NOT_READ = {"source": "the file that it reads is not read", ".": "the file that it reads is not read",
            "shift": "the script's own arguments are not known", "read": "is not run"}
DEEPEST = 4  # scripts within `bash -c` within scripts
REDIRECTIONS = ("<", ">", ">>", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>")


@dataclass(frozen=True)
class Command:
    """A simple command. inside: the constructs that it stands in, the outermost first."""

    arguments: list[Argument]
    line: int
    inside: tuple[Construct, ...] = ()


@dataclass
class Script:
    """What was read, each in the order of the lines.

    skipped: (line, what may matter and was not read); assumed: (line, what was taken for granted); heredocs: (line,
    text), which are not read.
    """

    commands: list[Command] = field(default_factory=list)
    constructs: list[Construct] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    assumed: list[tuple[int, str]] = field(default_factory=list)
    heredocs: list[tuple[int, str]] = field(default_factory=list)


def read_script(text: str, values: Values | None = None, depth: int = 0) -> Script:
    """The commands of a script. Never fails: what is not understood is in `skipped`.

    values: the variables that it begins with; it changes them.
    """
    lexer = Lexer(text.replace("\r\n", "\n").replace("\r", "\n"))
    reader = _Reader(lexer.tokens(), depth, values or Values())
    reader.read()
    script = reader.script
    script.assumed += lexer.remarks + reader.values.remarks
    script.heredocs += lexer.heredocs
    for listed in (script.skipped, script.assumed):
        listed[:] = sorted(dict.fromkeys(listed), key=lambda remark: remark[0])
    return script


@dataclass
class _Reader:
    """Position among the tokens, the variables so far, and what is open: a construct, or the line of a bracket."""

    tokens: list[Token]
    depth: int
    values: Values
    at: int = 0
    script: Script = field(default_factory=Script)
    open: list[Construct] = field(default_factory=list)
    tested: bool = False  # whether the last command was a test

    def read(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                self.at += 1
                self._operator(token)
            elif self._is_function(token):
                self._enter("function", token.line, token.bare)
                self.at += 3
            elif isinstance(token, Word) and token.bare in (*OPENING, *CLOSING, *BETWEEN, "{", "}", "[["):
                self.at += 1
                self._reserved(token)
            else:
                self._command()
        while self.open:  # what the script does not close
            self._close(self.tokens[-1].line)

    # ----------------------------------------------------------------------------------------------------- constructs

    @property
    def _inside(self) -> tuple[Construct, ...]:
        return tuple(construct for construct in self.open if not construct.is_group)

    def _enter(self, word: str, line: int, name: str = "") -> None:
        construct = Construct(word, line, name)
        self.open.append(construct)
        if not construct.is_group:
            self.script.constructs.append(construct)
            self.values.scopes.append(construct.changed)

    def _close(self, line: int) -> None:
        construct = self.open.pop()
        if not construct.is_group:
            construct.last = line
            self.values.scopes.pop()
            construct.end(self.values.known)

    def _leave(self, line: int, *words: str) -> None:
        if self.open and self.open[-1].word in words:
            self._close(line)
            if self.open and self.open[-1].word == "function" and words == ("{",):
                self._close(line)

    def _next_branch(self, *words: str) -> bool:
        """`else`, `;;`: what the branch before it assigned does not hold. Whether such a construct is open."""
        found = bool(self.open) and self.open[-1].word in words
        if found:
            self.open[-1].begin_again(self.values.known)
        return found

    def _operator(self, operator: Operator) -> None:
        if operator.text == "(":
            self._enter("(", operator.line)
        elif operator.text == ")":
            self._leave(operator.line, "(")
        elif operator.text in (";;", ";&", ";;&") and self._next_branch("case"):
            self._pattern()

    def _pattern(self) -> None:
        """The pattern of a branch of `case`, up to its parenthesis."""
        while self.at < len(self.tokens) and getattr(self.tokens[self.at], "text", "") == NEWLINE:
            self.at += 1
        if self.at < len(self.tokens) and getattr(self.tokens[self.at], "bare", "") != "esac":
            self._skip_to(")")

    def _is_function(self, token: Token) -> bool:
        after = self.tokens[self.at + 1:self.at + 3]
        return isinstance(token, Word) and [getattr(t, "text", "") for t in after] == ["(", ")"]

    def _reserved(self, word: Word) -> None:
        if word.bare == "[[":
            self._skip_to("]]", NEWLINE)
            self.tested = True
        elif word.bare == "{":
            self._enter("{", word.line)
        elif word.bare == "}":
            self._leave(word.line, "{")
        elif word.bare in ("else", "elif"):
            self._next_branch("if")
        elif word.bare in OPENING:
            self._open(word)
        elif word.bare in CLOSING:
            closes = {"fi": ("if",), "esac": ("case",), "done": ("for", "while", "until", "select")}
            self._leave(word.line, *closes[word.bare])

    def _open(self, word: Word) -> None:
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        name = following.bare if isinstance(following, Word) else ""
        self._enter(word.bare, word.line, name if word.bare == "function" else "")
        if word.bare in ("for", "select") and name:
            self._loop_variable(name)
        elif word.bare == "function":
            self.at += 1
            if [getattr(t, "text", "") for t in self.tokens[self.at:self.at + 2]] == ["(", ")"]:
                self.at += 2
        elif word.bare == "case":
            self._skip_to("in", NEWLINE)
            self._pattern()

    def _loop_variable(self, name: str) -> None:
        """`for X in a b`: X is Unknown, unless there is one value."""
        start = self.at
        while self.at < len(self.tokens) and getattr(self.tokens[self.at], "text", "") not in (";", NEWLINE):
            self.at += 1
        values = [t for t in self.tokens[start + 2:self.at] if isinstance(t, Word)]
        arguments = [a for word in values for a in self.values.arguments(word)]
        single = len(arguments) == 1 and not arguments[0].problem and not re.search(r"[*?{]", arguments[0].text)
        told = f" ({', '.join(a.text for a in arguments[:4])}{', ...' if arguments[4:] else ''})" if arguments else ""
        self.values.assign(name, arguments[0].text if single else
                           Unknown(f"{name}, to which {self.open[-1]} gives one value after another{told}"))

    def _skip_to(self, *ends: str) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if (token.bare if isinstance(token, Word) else getattr(token, "text", "")) in ends:
                return

    # ------------------------------------------------------------------------------------------------------- commands

    def _command(self) -> None:
        """One simple command, up to the operator that ends it; redirections are left out."""
        line, conditional = self.tokens[self.at].line, self._is_conditional()
        parts: list[Word | Array] = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if token.text not in REDIRECTIONS:
                    break
                self.at += 1  # and the file behind it
            else:
                parts.append(token)
            self.at += 1
        while parts and self._assign(parts[0], conditional):
            parts.pop(0)
        self.tested = bool(parts) and isinstance(parts[0], Word) and parts[0].bare in ("[", "test")
        if parts:
            self._simple(line, parts, conditional)

    def _is_conditional(self) -> bool:
        """Whether the command runs only when a test before it, or the failure of a command, lets it."""
        before = self.tokens[self.at - 1] if self.at else None
        return isinstance(before, Operator) and (before.text == "||" or (before.text == "&&" and self.tested))

    def _assign(self, part: Word | Array, conditional: bool) -> bool:
        """Takes up `name=value`; False for a word that is none."""
        if isinstance(part, Array):
            elements = [argument for word in part.words for argument in self.values.arguments(word)]
            before = self.values.known.get(part.name, [])
            if conditional:
                why = f"what line {part.line} adds to {part.name} on a condition"
                elements = [Argument(a.text, a.line, a.problem or why) for a in elements]
            if part.more and isinstance(before, Unknown):
                elements = [Argument("", part.line, str(before)), *elements]
            self.values.assign(part.name, [*(before if isinstance(before, list) and part.more else []), *elements])
            return True
        first = part.pieces[0] if part.pieces else None
        name, sign, rest = first.text.partition("=") if first and first.kind == "text" else ("", "", "")
        more = name.endswith("+")
        name = name.removesuffix("+")
        if not sign or first.quoted or not (name.isidentifier() and name.isascii()):
            return False
        value = Word(part.line, (type(first)("text", rest, False), *part.pieces[1:]))
        self.values.assign(name, self._assigned(name, value, more, conditional))
        return True

    def _assigned(self, name: str, value: Word, more: bool, conditional: bool) -> str | Unknown:
        before = self.values.known.get(name)
        if conditional:  # `[ -z "$X" ] && X=1`
            return Unknown(f"{name}, which line {value.line} sets on a condition")
        try:
            text = self.values.text(value)
        except Unknown as unknown:
            return unknown
        if not more:
            return text
        return before if isinstance(before, Unknown) else (before if isinstance(before, str) else "") + text

    def _simple(self, line: int, parts: list[Word | Array], conditional: bool) -> None:
        name = parts[0].bare if isinstance(parts[0], Word) else ""
        if name in DECLARING:
            for part in parts[1:]:
                self._assign(part, conditional)
                if name == "local" and self._inside:
                    self._inside[-1].local.add(part.name if isinstance(part, Array) else part.raw.partition("=")[0])
            return
        if name in NOT_READ:
            self.script.skipped.append((line, f"`{name}`: {NOT_READ[name]}"))
        arguments = [argument for part in parts if isinstance(part, Word) for argument in self.values.arguments(part)]
        nested = script_of(arguments)
        if name == "eval":
            self._evaluate(line, arguments[1:])
        elif nested and self.depth < DEEPEST:
            self._take_up(read_script(nested.text, depth=self.depth + 1), nested.line - 1)
        elif arguments:
            self.script.commands.append(Command(arguments, line, self._inside))

    def _evaluate(self, line: int, arguments: list[Argument]) -> None:
        """`eval text`: the text is a script of its own, with the variables of this one."""
        problem = next((a.problem for a in arguments if a.problem), None)
        if problem or self.depth >= DEEPEST:
            self.script.skipped.append((line, f"`eval` was not read: its text holds {problem or 'more of the same'}"))
            return
        text = " ".join(argument.text for argument in arguments)
        self._take_up(read_script(text, Values(self.values.known, scopes=self.values.scopes), self.depth + 1), line - 1)

    def _take_up(self, inner: Script, offset: int) -> None:
        """What a script within this one says, at the lines of this one."""
        for ours, theirs in ((self.script.skipped, inner.skipped), (self.script.assumed, inner.assumed),
                             (self.script.heredocs, inner.heredocs)):
            ours += [(line + offset, text) for line, text in theirs]
        for construct in inner.constructs:
            construct.line, construct.last = construct.line + offset, construct.last + offset
        self.script.constructs += inner.constructs
        self.script.commands += [
            Command([Argument(a.text, a.line + offset, a.problem) for a in command.arguments], command.line + offset,
                    (*self._inside, *command.inside)) for command in inner.commands]
