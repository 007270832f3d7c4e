"""Expands the words of a shell script: variables, defaults, arrays, whole-number arithmetic. Commands are never run.

What cannot be known without running something is Unknown, and so is everything made of it; it is named, not guessed.
A variable that the script does not assign becomes `${oc.env:NAME}`, which is filled in when the recipe is composed.
"""

import fnmatch
import re
from dataclasses import dataclass, field
from typing import Any

from pipeline.bridges.arithmetic import NotArithmetic, evaluate
from pipeline.bridges.shell_words import Lexer, Piece, Word
from pipeline.secrets import is_secret

PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
DEFAULT = re.compile(r"(?P<colon>:?)(?P<sign>[-=+?])(?P<text>.*)", re.DOTALL)
CUT = re.compile(r"(?P<sign>##?|%%?)(?P<pattern>.*)", re.DOTALL)
SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
LONGEST_CUT = 4096  # characters of a value of which a part is cut off
LONGEST = 100_000  # characters of one expanded word: variables that double one another must end


class Unknown(Exception):
    """A value that only running the script would tell; the message says what it is made of."""


@dataclass(frozen=True)
class Argument:
    """An expanded word. problem: why its text is not known (text is then as written)."""

    text: str
    line: int
    problem: str | None = None


UNSET = object()  # what a variable holds that nothing assigned


@dataclass
class Values:
    """Variables of a script: text, a list of arguments (an array), or Unknown. remarks: (line, what was assumed).

    scopes: for every open construct what its variables held before they were assigned in it.
    """

    known: dict[str, str | list[Argument] | Unknown] = field(default_factory=dict)
    remarks: list[tuple[int, str]] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=list)
    line: int = 0

    def assign(self, name: str, value: str | list[Argument] | Unknown) -> None:
        for scope in self.scopes:
            scope.setdefault(name, self.known.get(name, UNSET))
        self.known[name] = value

    def arguments(self, word: Word) -> list[Argument]:
        """The arguments that a word becomes: one, none (`$@`), or several (an array, or a text that is split)."""
        self.line = word.line
        try:
            return self._split(word)
        except Unknown as unknown:
            return [Argument(word.raw, word.line, str(unknown))]
        except RecursionError:
            return [Argument(word.raw, word.line, "expansions nested too deeply")]

    def text(self, word: Word) -> str:
        """A word as one text, as the right side of an assignment is read. Raises Unknown."""
        self.line = word.line
        try:
            return self._bounded("".join(self._piece(piece) for piece in word.pieces))
        except RecursionError as error:
            raise Unknown("expansions nested too deeply") from error

    # ----------------------------------------------------------------------------------------------------------- words

    def _split(self, word: Word) -> list[Argument]:
        if len(word.pieces) == 1 + (word.pieces[:1] == (Piece("text", "", True),)):
            array = self._array(word.pieces[-1])
            if array is not None:
                return array
        fields: list[str] = []
        current: str | None = None
        for piece in word.pieces:
            text = self._piece(piece)
            if piece.quoted or piece.kind == "text" or self._is_quoted_default(piece):
                current = (current or "") + text
                continue
            parts = re.split(r"[ \t\n]+", text)  # an unquoted expansion is split at blanks
            for number, part in enumerate(parts):
                if number and current is not None:
                    fields.append(current)
                    current = None
                if part:
                    current = (current or "") + part
        fields += [] if current is None else [current]
        return [Argument(self._bounded(text), word.line) for text in fields]

    def _is_quoted_default(self, piece: Piece) -> bool:
        """Whether a piece is ${X:-"y z"} with X not set: what stands in quotes is not split."""
        match = PARAMETER.fullmatch(piece.text) if piece.kind == "variable" else None
        default = DEFAULT.fullmatch(match["rest"]) if match else None
        return bool(default and default["text"][:1] in ("'", '"') and not self.known.get(match["name"]))

    def _array(self, piece: Piece) -> list[Argument] | None:
        """The elements that a word of one expansion stands for: of an array, or of the script's own arguments."""
        if piece.kind != "variable":
            return None
        match = PARAMETER.fullmatch(piece.text)
        if match and match["name"] in ("@", "*"):
            return []
        if not match or match["rest"] or match["index"] not in ("@", "*"):
            return None
        value = self.known.get(match["name"], [])
        return value if isinstance(value, list) else None

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _piece(self, piece: Piece) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "command":
            raise Unknown(f"the output of a command, $({_short(piece.text)}), which is not run")
        if piece.kind == "arithmetic":
            return self._arithmetic(piece.text)
        return self._parameter(piece.text)

    def _arithmetic(self, expression: str) -> str:
        if "$(" in expression or "`" in expression:
            raise Unknown(f"the arithmetic $(({_short(expression)})), with the output of a command, which is not run")
        try:
            plain = re.sub(r"\$\{(\w+)\}", r"\1", expression)
            return str(evaluate(re.sub(r"\$\{([^{}]+)\}", lambda m: f"({self._parameter(m[1])})", plain), self._number))
        except NotArithmetic as error:
            raise Unknown(f"the arithmetic $(({_short(expression)})): {error}") from error

    def _number(self, name: str) -> int:
        text = self._plain(name)
        if not re.fullmatch(r"[-+]?\d{1,18}", text.strip()):
            raise Unknown(f"arithmetic with {name}, which is no whole number here: {_short(text)}")
        return int(text)

    def _parameter(self, inside: str) -> str:
        if inside.startswith("oc.env:"):  # what an expansion before this one left to the environment
            return f"${{{inside}}}"
        match = PARAMETER.fullmatch(inside)
        if not match:
            raise Unknown(f"the expansion ${{{_short(inside)}}}")
        name, index, rest = match["name"], match["index"], match["rest"]
        if not rest:
            return self._plain(name, index)
        if default := DEFAULT.fullmatch(rest):
            return self._with_default(match, default)
        if cut := CUT.fullmatch(rest):
            return self._cut(self._plain(name, index), cut["sign"], cut["pattern"])
        raise Unknown(f"the expansion ${{{_short(inside)}}}")

    def _plain(self, name: str, index: str | None = None) -> str:
        value = self.known.get(name)
        if isinstance(value, Unknown):
            raise value
        if isinstance(value, str) and index in (None, "0", "@", "*"):
            return self._of_environment(name) if value and is_secret(name.lower()) else value
        if isinstance(value, list):
            return self._element(name, value, index or "0")
        if name in ("@", "*"):
            return ""
        if not re.match(r"[A-Za-z_]", name):
            raise Unknown(f"${name}, which only a call of the script sets")
        if index is not None:
            raise Unknown(f"{name}[{index}], which the script does not assign")
        return f"${{oc.env:{name}}}"

    def _of_environment(self, name: str) -> str:
        """A variable that the script assigns and that is a secret by its name: what it holds stays in the script."""
        self.remarks.append((self.line, f"{name} is a secret by its name: set it where the run starts, too"))
        return f"${{oc.env:{name}}}"

    def _element(self, name: str, array: list[Argument], index: str) -> str:
        if index in ("@", "*"):
            chosen = array
        elif re.fullmatch(r"\d{1,6}", index) and int(index) < len(array):
            chosen = [array[int(index)]]
        else:
            raise Unknown(f"{name}[{index}], which the script does not assign")
        for argument in chosen:
            if argument.problem:
                raise Unknown(argument.problem)
        return " ".join(argument.text for argument in chosen)

    def _with_default(self, parameter: re.Match, default: re.Match) -> str:
        """${X:-y} and its kin. A variable of the environment may differ where the script runs: that is remarked."""
        name, index, sign, text = parameter["name"], parameter["index"], default["sign"], default["text"]
        value = self.known.get(name)
        if value or (value is not None and not default["colon"]):
            return self._word(text) if sign == "+" else self._plain(name, index)
        if sign == "+":
            return ""
        if sign == "?":
            return self._plain(name, index)
        chosen = self._word(text)
        if chosen and is_secret(name.lower()):
            return self._of_environment(name)
        if value is None:
            told = _short(chosen)
            which = f"{name} is not assigned in the script" if re.match(r"[A-Za-z_]", name) else f"${name} is not known"
            self.remarks.append((self.line, f"{which}; its default was taken: {told}"))
        if sign == "=":
            self.assign(name, chosen)
        return chosen

    def _word(self, text: str) -> str:
        """The text within ${X:-...}, expanded in its turn."""
        lexer, parts = Lexer(text, line=self.line), []
        while lexer.at < len(text):
            before, pieces = lexer.at, lexer.word().pieces
            parts.append("".join(self._piece(piece) for piece in pieces) if pieces else text[before:lexer.at])
        return "".join(parts)

    def _cut(self, value: str, sign: str, pattern: str) -> str:
        """${X##*/} and its kin: the shortest or longest prefix or suffix that a pattern matches is cut off."""
        if "${oc.env:" in value or len(value) > LONGEST_CUT:
            raise Unknown(f"a part of {_short(value)}")
        sizes = range(len(value) + 1) if len(sign) == 1 else range(len(value), -1, -1)
        wanted = re.compile(fnmatch.translate(self._word(pattern)))
        for size in sizes:
            part = value[:size] if sign[0] == "#" else value[len(value) - size:]
            if wanted.fullmatch(part):
                return value[size:] if sign[0] == "#" else value[:len(value) - size]
        return value

    @staticmethod
    def _bounded(text: str) -> str:
        if len(text) > LONGEST:
            raise Unknown(f"a text of more than {LONGEST} characters")
        return text


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def script_of(arguments: list[Argument]) -> Argument | None:
    """The script in `bash -c 'script'`, wherever in the command it stands."""
    for shell, option, script in zip(arguments, arguments[1:], arguments[2:], strict=False):
        if shell.text in SHELLS and option.text in ("-c", "-lc", "-ic", "-ec", "-xc") and not script.problem:
            return script
    return None
