"""Reads a shell script without running it: its commands with their variables filled in, and what was passed over.

Assignments, `export`, arrays, groups and `eval` are followed, and so is what a test decides whose values are known: the
branch of an `if` or `case`, what stands behind `&&` and `||`. Loops, other conditionals and functions are Constructs:
their commands are read once, from top to bottom, and marked with where they stand; what such a part assigns is known to
the end of the part (a branch, a round, a body) and Unknown behind it.
"""

from dataclasses import dataclass, field

from pipeline.bridges.arithmetic import assigned
from pipeline.bridges.shell_assignments import assign, hands_on, looped, note_integers, set_arguments
from pipeline.bridges.shell_branches import choice_at
from pipeline.bridges.shell_builtins import set_variables, settles
from pipeline.bridges.shell_cursor import written
from pipeline.bridges.shell_functions import REDIRECTIONS, Function, calls, function_at
from pipeline.bridges.shell_holes import Unknown
from pipeline.bridges.shell_lists import Link, Verdict, asks, group_end, verdict_of
from pipeline.bridges.shell_nesting import Nesting
from pipeline.bridges.shell_script import Command, Script, script_of
from pipeline.bridges.shell_values import Values
from pipeline.bridges.shell_variables import FURTHER, Argument
from pipeline.bridges.shell_words import NEWLINE, Array, Lexer, Operator, Word

OPENING = ("if", "for", "while", "until", "select", "case", "function")
CLOSING = ("fi", "done", "esac")
BETWEEN = ("then", "do", "else", "elif", "!", "time", "in")
DECLARING = ("export", "declare", "typeset", "local", "readonly")
MOVING = ("cd", "pushd", "popd")
NOT_READ = {"source": "the file that it reads is not read", ".": "the file that it reads is not read",
            "shift": "the script's own arguments are not known"}
CONDITIONS = ("&&", "||", "!")  # what makes of a group a construct: "&& {"
DEEPEST = 4  # scripts within `bash -c` within scripts


def read_script(text: str, values: Values | None = None, depth: int = 0) -> Script:
    """The commands of a script. Never fails: what is not understood is in `skipped`.

    values: the variables that it begins with; it changes them.
    """
    lexer = Lexer(text.replace("\r\n", "\n").replace("\r", "\n"))
    reader = _Reader(lexer.tokens(), values or Values(), depth=depth)
    reader.read()
    script = reader.script
    script.assumed += lexer.remarks + reader.values.remarks
    script.heredocs += lexer.heredocs
    for listed in (script.skipped, script.assumed):
        listed[:] = sorted(dict.fromkeys(listed), key=lambda remark: remark[0])
    return script


@dataclass
class _Reader(Nesting):
    """Follows the tokens. depth: of this script within others."""

    depth: int = 0
    functions: dict[str, Function] = field(default_factory=dict)  # those that wait for their one call

    def read(self) -> None:
        self._read_tokens()
        while self.functions:  # whose one call stands in a function that nobody calls
            self._uncalled(self.functions.popitem()[1])

    def _read_tokens(self) -> None:
        """Reads all tokens, and closes what they leave open."""
        outer = len(self.open)
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                self.at += 1
                self._operator(token)
            elif self.is_function:
                self.at += 3
                self._define(token.bare, token.line)
            elif isinstance(token, Word) and token.bare in (*OPENING, *CLOSING, *BETWEEN, "{", "}", "[["):
                self.at += 1
                self._reserved(token)
            else:
                self._command()
        while len(self.open) > outer:  # what the script does not close
            self.close(self.tokens[-1].line)

    # ------------------------------------------------------------------------------------------------------ functions

    def _define(self, name: str, line: int) -> None:
        """A function that the script calls once is read at its call; any other here, its arguments not known."""
        function = function_at(self.tokens, self.at, name, line)
        if function and calls(self.tokens, name) == 1:
            self.functions[name] = function
            self.at += function.size
        else:
            self.enter("function", line, name)
            self._hand_over(Unknown(f"the arguments of {self.open[-1]}"))

    def _hand_over(self, arguments: list[Argument] | Unknown, is_open: bool = False) -> None:
        self.open[-1].local.update(("@", FURTHER))
        self.values.set_arguments(arguments, is_open)

    def _call(self, function: Function, arguments: list[Argument], is_open: bool, conditional: bool) -> None:
        self.enter("function" if conditional else "call", function.line, function.name)
        self._body(function, arguments, is_open)

    def _uncalled(self, function: Function) -> None:
        self.enter("function", function.line, function.name)
        self._body(function, Unknown(f"the arguments of {self.open[-1]}"))

    def _body(self, function: Function, arguments: list[Argument] | Unknown, is_open: bool = False) -> None:
        """Reads the commands between the braces, and closes the construct that was opened for them."""
        self._hand_over(arguments, is_open)
        behind = self.tokens, self.at
        self.tokens, self.at = function.body[1:-1], 0
        self._read_tokens()
        self.tokens, self.at = behind
        self.close(function.body[-1].line)

    # ----------------------------------------------------------------------------------------------------- constructs

    def _operator(self, operator: Operator) -> None:
        if operator.text == "(":
            self._group(operator)
        elif operator.text == ")":
            self.leave(operator.line, "(", *(f"{joint} (" for joint in CONDITIONS))
        elif operator.text in (";;", ";&", ";;&") and self.next_branch("case"):
            self.skip_pattern()

    def _reserved(self, word: Word) -> None:
        if word.bare == "[[":
            here = self.link_here()
            test = [word, *self.skip_to("]]", NEWLINE)]
            self.ended = here.ended(verdict_of(False, test, self.values, self.is_read_once))
        elif word.bare == "{":
            self._group(word)
        elif word.bare == "}":
            self.leave(word.line, "{", *(f"{joint} {{" for joint in CONDITIONS))
        elif word.bare in ("else", "elif"):
            self.next_branch("if")
        elif word.bare in OPENING:
            self._open(word)
        elif word.bare in CLOSING:
            closes = {"fi": ("if",), "esac": ("case",), "done": ("for", "while", "until", "select")}
            self.leave(word.line, *closes[word.bare])

    def _group(self, opening: Word | Operator) -> None:
        """`{` and `(`: followed where it runs, passed over where it does not, else a construct."""
        here, bracket = self.link_here(), written(opening)
        end = group_end(self.tokens, self.at - 1) if here.runs is False else None
        if end is not None:
            self.at, self.ended = end, here.before
        elif here.runs and not here.negated:
            self.enter(bracket, opening.line)
        else:
            self.enter(f"{'!' if here.negated else here.joint} {bracket}", opening.line)

    def _open(self, word: Word) -> None:
        following = self.tokens[self.at] if self.at < len(self.tokens) else None
        name = following.bare if isinstance(following, Word) else ""
        if word.bare != "function" and self.link_here().runs and self._choose(word.bare, word.line):
            return
        if word.bare != "function":
            self.enter(word.bare, word.line)
        if word.bare in ("for", "select") and name:
            self.values.assign(name, looped(self.values, name, self.loop_words(), str(self.open[-1])))
        elif word.bare == "for" and isinstance(following, Word) and following.arithmetic is not None:
            self.at += 1
            for one in assigned(following.arithmetic):
                self.values.assign(one, Unknown(f"{one}, to which {self.open[-1]} gives one value after another"))
        elif word.bare == "function":
            self.at += 1
            if [self.operator_at(0), self.operator_at(1)] == ["(", ")"]:
                self.at += 2
            self._define(name, word.line)
        elif word.bare == "case":
            self.skip_to("in", NEWLINE)
            self.skip_pattern()

    def _choose(self, word: str, line: int) -> bool:
        """Of an `if` or `case`, leaves the branch that runs; whether it is certain, so that none is to be entered."""
        choice = choice_at(self.tokens, self.at, word, self.values) if self.is_read_once else None
        if choice is None:
            return False
        self.ended = Verdict(None if choice.tokens else True)
        self.tokens = [*self.tokens[:self.at], *choice.tokens, *self.tokens[choice.end:]]
        self.script.assumed += [(line, f"the `{word}`: {choice.told}")] if choice.told else []
        return bool(choice.told)

    # ------------------------------------------------------------------------------------------------------- commands

    def _command(self) -> None:
        """One simple command, up to the operator that ends it; redirections are left out."""
        line, parts = self.tokens[self.at].line, list[Word | Array]()
        self.at += 1
        here = self.link_here()
        self.at -= 1
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Operator):
                if token.text not in REDIRECTIONS:
                    break
                self.at += 1  # and the file behind it
            else:
                parts.append(token)
            self.at += 1
        if here.runs is not False:
            self._run(here, line, parts)

    def _run(self, here: Link, line: int, parts: list[Word | Array]) -> None:
        """A command at its place in a list. A call or `eval` within it reads lists of its own."""
        conditional = here.runs is None
        is_plain = not any(asks(part) for part in parts)
        while parts and assign(self.values, parts[0], conditional):
            parts.pop(0)
        verdict = verdict_of(is_plain and not parts, parts, self.values, self.is_read_once)
        if parts:
            self._simple(line, parts, conditional)
        self.link, self.ended = here, here.ended(verdict)

    def _simple(self, line: int, parts: list[Word | Array], conditional: bool) -> None:
        name = parts[0].bare if isinstance(parts[0], Word) else ""
        if name in DECLARING:
            note_integers(self.values, parts[1:])
            for part in parts[1:]:
                if name == "local":
                    self.make_local(part.name if isinstance(part, Array) else part.raw.partition("=")[0])
                assign(self.values, part, conditional)
            return
        if name in ("set", "shift") and set_arguments(self.values, parts, conditional):
            return
        if isinstance(parts[0], Word) and settles(parts[0]):
            words = [part for part in parts if isinstance(part, Word)]
            if unknown := set_variables(self.values, words, conditional):
                self.script.skipped.append((line, f"`{name or words[0].raw}`: sets {', '.join(unknown)}, not known"))
            return
        self.values.has_moved |= name in MOVING
        if name in NOT_READ:
            self.script.skipped.append((line, f"`{name}`: {NOT_READ[name]}"))
        arguments = [argument for part in parts if isinstance(part, Word) for argument in self.values.arguments(part)]
        nested = script_of(arguments)
        if name == "eval":
            self._evaluate(line, parts[1:], conditional)
        elif name in self.functions:
            is_open = hands_on(self.values, [part for part in parts[1:] if isinstance(part, Word)])
            self._call(self.functions.pop(name), arguments[1:], is_open, conditional)
        elif nested and self.depth < DEEPEST:
            within = Values(has_moved=self.values.has_moved)
            inner = read_script(nested.whole or nested.text, within, self.depth + 1)
            self.script.take_up(inner, nested.line - 1, self.inside)
        elif arguments:
            self.script.commands.append(Command(arguments, line, self.inside))

    def _evaluate(self, line: int, words: list[Word | Array], conditional: bool) -> None:
        """`eval text`: the text is a script of its own, with the variables of this one."""
        try:
            text = " ".join(self.values.text(word) for word in words if isinstance(word, Word))
        except Unknown as problem:
            self.script.skipped.append((line, f"`eval` was not read: its text holds {problem}"))
            return
        if self.depth >= DEEPEST:
            self.script.skipped.append((line, "`eval` was not read: its text holds more of the same"))
            return
        if conditional:
            self.enter("eval", line)
        within = Values(self.values.known, scopes=self.values.scopes, has_moved=self.values.has_moved)
        inner = read_script(text, within, self.depth + 1)
        self.values.has_moved = within.has_moved
        self.script.take_up(inner, line - 1, self.inside)
        if conditional:
            self.close(line)
