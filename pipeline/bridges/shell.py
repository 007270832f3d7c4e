"""Reads a shell script without running it: its commands with their variables filled in, and what was passed over.

Assignments, `export`, arrays and groups are followed. Loops, conditionals and functions are not: they are named with
their line, what they assign is Unknown afterwards, and the commands in them are marked.
"""

from dataclasses import dataclass, field

from pipeline.bridges.shell_values import Argument, Unknown, Values
from pipeline.bridges.shell_words import NEWLINE, Array, Lexer, Operator, Token, Word

OPENING = ("if", "for", "while", "until", "select", "case", "function")
CLOSING = ("fi", "done", "esac")
BETWEEN = ("then", "do", "else", "elif", "!", "time", "in")
DECLARING = ("export", "declare", "typeset", "local", "readonly")
NOT_READ = {"source": "the file that it reads is not read", ".": "the file that it reads is not read",
            "eval": "is not run", "shift": "the script's own arguments are not known", "read": "is not run"}
SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
DEEPEST = 4  # scripts within `bash -c` within scripts
REDIRECTIONS = ("<", ">", ">>", "<<<", "<&", ">&", "<>", ">|", "&>", "&>>")


@dataclass(frozen=True)
class Command:
    """A simple command. inside: the construct that it stands in and that is not followed, with its line."""

    arguments: list[Argument]
    line: int
    inside: str | None


@dataclass
class Script:
    """commands in order, and (line, what was passed over or assumed) in order."""

    commands: list[Command] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)


def read_script(text: str, depth: int = 0) -> Script:
    """The commands of a script. Never fails: what is not understood is in `skipped`."""
    lexer = Lexer(text.replace("\r\n", "\n").replace("\r", "\n"))
    reader = _Reader(lexer.tokens(), depth)
    reader.read()
    reader.script.skipped += lexer.remarks + reader.values.remarks
    reader.script.skipped = sorted(dict.fromkeys(reader.script.skipped), key=lambda remark: remark[0])
    return reader.script


@dataclass
class _Reader:
    """Position among the tokens, the variables so far, and the constructs that are open: (word, line)."""

    tokens: list[Token]
    depth: int
    at: int = 0
    values: Values = field(default_factory=Values)
    script: Script = field(default_factory=Script)
    open: list[tuple[str, int]] = field(default_factory=list)
    tested: bool = False  # whether the last command was a test

    def read(self) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                self.at += 1
                self._operator(token)
            elif self._is_function(token):
                self._enter("function", token.line)
                self.at += 3
            elif isinstance(token, Word) and token.bare in (*OPENING, *CLOSING, *BETWEEN, "{", "}", "[["):
                self.at += 1
                self._reserved(token)
            else:
                self._command()

    # ----------------------------------------------------------------------------------------------------- constructs

    @property
    def _inside(self) -> str | None:
        followed = next(((word, line) for word, line in self.open if word not in ("{", "(")), None)
        return f"`{followed[0]}` of line {followed[1]}" if followed else None

    def _enter(self, word: str, line: int) -> None:
        self.open.append((word, line))
        if word not in ("{", "("):
            self.script.skipped.append((line, f"`{word}` is not followed"))

    def _leave(self, *words: str) -> None:
        if self.open and self.open[-1][0] in words:
            self.open.pop()
            if self.open and self.open[-1][0] == "function" and words == ("{",):
                self.open.pop()

    def _operator(self, operator: Operator) -> None:
        if operator.text == "(":
            self._enter("(", operator.line)
        elif operator.text == ")":
            self._leave("(")  # one behind a pattern of `case` closes nothing

    def _is_function(self, token: Token) -> bool:
        after = self.tokens[self.at + 1:self.at + 3]
        return isinstance(token, Word) and [getattr(t, "text", "") for t in after] == ["(", ")"]

    def _reserved(self, word: Word) -> None:
        if word.bare == "[[":
            self._skip_to("]]")
            self.tested = True
        elif word.bare == "{":
            self._enter("{", word.line)
        elif word.bare == "}":
            self._leave("{")
        elif word.bare in OPENING:
            self._enter(word.bare, word.line)
            if word.bare in ("for", "select"):
                self._loop_variable()
            elif word.bare == "function":
                self.at += 1
        elif word.bare in CLOSING:
            closes = {"fi": ("if",), "esac": ("case",), "done": ("for", "while", "until", "select")}
            self._leave(*closes[word.bare])

    def _loop_variable(self) -> None:
        """`for X in ...` up to the end of its line: X is Unknown."""
        if self.at < len(self.tokens) and isinstance(self.tokens[self.at], Word):
            self.values.known[self.tokens[self.at].bare] = Unknown(f"a variable of the {self._inside}")
        while self.at < len(self.tokens) and getattr(self.tokens[self.at], "text", "") not in (";", NEWLINE):
            self.at += 1

    def _skip_to(self, end: str) -> None:
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if (isinstance(token, Word) and token.bare == end) or getattr(token, "text", "") == NEWLINE:
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
        doubt = Unknown(f"a variable set inside the {self._inside}") if self._inside else None
        if isinstance(part, Array):
            elements = [argument for word in part.words for argument in self.values.arguments(word)]
            before = self.values.known.get(part.name, [])
            self.values.known[part.name] = doubt or ([*(before if isinstance(before, list) and part.more else []),
                                                      *elements])
            return True
        first = part.pieces[0] if part.pieces else None
        name, sign, rest = first.text.partition("=") if first and first.kind == "text" else ("", "", "")
        more = name.endswith("+")
        name = name.removesuffix("+")
        if not sign or first.quoted or not (name.isidentifier() and name.isascii()):
            return False
        value = Word(part.line, (type(first)("text", rest, False), *part.pieces[1:]))
        self.values.known[name] = doubt or self._assigned(name, value, more, conditional)
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
            return
        if name in NOT_READ:
            self.script.skipped.append((line, f"`{name}`: {NOT_READ[name]}"))
        arguments = [argument for part in parts if isinstance(part, Word) for argument in self.values.arguments(part)]
        nested = _script_of(arguments)
        if nested and self.depth < DEEPEST:
            inner = read_script(nested.text, self.depth + 1)
            offset = nested.line - 1
            self.script.skipped += [(at + offset, text) for at, text in inner.skipped]
            self.script.commands += [_moved(command, offset, self._inside) for command in inner.commands]
        elif arguments:
            self.script.commands.append(Command(arguments, line, self._inside))


def _script_of(arguments: list[Argument]) -> Argument | None:
    """The script in `bash -c 'script'`, wherever in the command it stands."""
    for shell, option, script in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if shell.text in SHELLS and option.text in ("-c", "-lc", "-ic", "-ec", "-xc") and not script.problem:
            return script
    return None


def _moved(command: Command, offset: int, inside: str | None) -> Command:
    arguments = [Argument(a.text, a.line + offset, a.problem) for a in command.arguments]
    return Command(arguments, command.line + offset, command.inside or inside)
