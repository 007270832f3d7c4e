"""Expands the words of a shell script: variables, defaults, arrays, whole-number arithmetic. Commands are never run.

What cannot be known without running something is Unknown, and so is everything made of it; it is named, not guessed.
A variable that the script does not assign becomes `${oc.env:NAME}`, which is filled in when the recipe is composed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pipeline.bridges import shell_expansions
from pipeline.bridges.arithmetic import NotArithmetic, evaluate
from pipeline.bridges.shell_holes import Unknown, hole, reason, short, shown
from pipeline.bridges.shell_output import printed
from pipeline.bridges.shell_variables import Argument, Variables
from pipeline.bridges.shell_words import Lexer, Piece, Word
from pipeline.store.secret_names import names_secret

PARAMETER = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.DOTALL)
DEFAULT = re.compile(r"(?P<colon>:?)(?P<sign>[-=+?])(?P<text>.*)", re.DOTALL)
LONGEST = 100_000  # characters of one expanded word: variables that double one another must end


NOTHING = Piece("text", "", True)  # what stands before the first piece in quotes


@dataclass
class Values(Variables):
    """What words of a script become. remarks: (line, what was assumed); line: of the word that is read."""

    remarks: list[tuple[int, str]] = field(default_factory=list)
    line: int = 0
    has_moved: bool = False  # whether the script has changed its directory

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
        """A word as one text, as the right side of an assignment is read. Raises Unknown, of one expansion alone."""
        self.line = word.line
        try:
            return self._bounded("".join(self._texts(word)))
        except RecursionError as error:
            raise Unknown("expansions nested too deeply") from error

    # ----------------------------------------------------------------------------------------------------------- words

    def _texts(self, word: Word) -> Iterator[str]:
        """The text of every piece: of one that is not known a hole, when others stand beside it. Raises Unknown."""
        alone = sum(piece != NOTHING for piece in word.pieces) == 1
        asked = ""  # the variable of `${X:+-}` before: `$X` beside it is nothing too where X is not set
        for piece in word.pieces:
            is_nothing = piece.kind == "variable" and piece.text == asked
            asked = asked if piece == NOTHING else self.asked(piece)
            try:
                yield "" if is_nothing else self._piece(piece)
            except Unknown as unknown:
                if alone:
                    raise
                yield hole(Word(word.line, (piece,)).raw, str(unknown))

    def asked(self, piece: Piece) -> str:
        """X of a piece `${X:+y}`, where nothing assigns X."""
        name, found, _ = piece.text.partition(":+" if ":+" in piece.text else "+")
        return name if piece.kind == "variable" and found and name.isidentifier() and self.held(name) is None else ""

    def _split(self, word: Word) -> list[Argument]:
        if len(word.pieces) == 1 + (word.pieces[:1] == (NOTHING,)):
            array = self._array(word.pieces[-1])
            if array is not None:
                return array
        fields: list[str] = []
        current: str | None = None
        for piece, text in zip(word.pieces, self._texts(word), strict=True):
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
        return [self.argument(self._bounded(text), word.line) for text in fields]

    @staticmethod
    def argument(text: str, line: int) -> Argument:
        """An argument of a text, which may have holes."""
        why = reason(text)
        return Argument(shown(text), line, why, text) if why else Argument(text, line)

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
            return self.positional(match["rest"])
        if not match or match["rest"] or match["index"] not in ("@", "*"):
            return None
        value = self.known.get(match["name"], [])
        return value if isinstance(value, list) else None

    # ---------------------------------------------------------------------------------------------------------- pieces

    def _piece(self, piece: Piece) -> str:
        if piece.kind == "text":
            return piece.text
        if piece.kind == "command":
            known = printed(piece.text, self.line, lambda word: _solid(self.text(word)), self.has_moved)
            if known is not None:
                return known
            raise Unknown(f"the output of a command, {short(f'$({piece.text})')}, which is not run")
        if piece.kind == "arithmetic":
            return self.arithmetic(piece.text)
        return self._parameter(piece.text)

    def arithmetic(self, expression: str, assign: Callable[[str, int], None] | None = None) -> str:
        """The value of an expression. assign: takes what it sets; without it nothing is set. Raises Unknown."""
        if "$(" in expression or "`" in expression:
            raise Unknown(f"the arithmetic $(({short(expression)})), with the output of a command, which is not run")
        try:
            plain = re.sub(r"\$\{([A-Za-z_]\w*)\}", r"\1", expression)
            filled = re.sub(r"\$\{([^{}]+)\}", lambda m: f"({_solid(self._parameter(m[1]))})", plain)
            return str(evaluate(filled, self._number, assign))
        except NotArithmetic as error:
            raise Unknown(f"the arithmetic $(({short(expression)})): {error}") from error

    def _number(self, name: str) -> int:
        text = _solid(self._plain(name))
        if not re.fullmatch(r"[-+]?\d{1,18}", text.strip()):
            raise Unknown(f"arithmetic with {name}, which is no whole number here: {short(text)}")
        return int(text)

    def _parameter(self, inside: str) -> str:
        if inside.startswith("oc.env:"):  # what an expansion before this one left to the environment
            return f"${{{inside}}}"
        if inside[:1] == "#" and (counted := PARAMETER.fullmatch(inside[1:])) and not counted["rest"]:
            return self._size(counted["name"], counted["index"])
        match = PARAMETER.fullmatch(inside)
        if not match:
            raise Unknown(f"the expansion ${{{short(inside)}}}")
        name, index, rest = match["name"], match["index"], match["rest"]
        if not rest:
            return self._plain(name, index)
        if default := DEFAULT.fullmatch(rest):
            return self._with_default(match, default)
        if shell_expansions.is_known(rest):
            return shell_expansions.expand(self._whole(self._plain(name, index)), rest, self._word)
        raise Unknown(f"the expansion ${{{short(inside)}}}")

    def _size(self, name: str, index: str | None) -> str:
        """${#X}: the characters of a text; the elements of an array, or of `$@`."""
        if name in ("@", "*") or index in ("@", "*"):
            counted = self.positional("") if name in ("@", "*") else self.known.get(name)
            if not isinstance(counted, list) or any(argument.problem for argument in counted):
                raise Unknown(f"the expansion ${{#{name}[{index}]}}" if index else f"${{#{name}}}")
            return str(len(counted))
        return str(len(self._whole(self._plain(name, index))))

    @staticmethod
    def _whole(value: str) -> str:
        """A value of which every character is known. Raises Unknown."""
        if "${oc.env:" in _solid(value) or len(value) > shell_expansions.LONGEST:
            raise Unknown(f"a part of {short(value)}")
        return value

    def _plain(self, name: str, index: str | None = None) -> str:
        value = self.held(name)
        if isinstance(value, Unknown):
            raise value
        if isinstance(value, str) and index in (None, "0", "@", "*"):
            return self._of_environment(name) if value and names_secret(name, is_variable=True) else value
        if isinstance(value, list):
            return self.element(name, value, index or "0")
        if name in ("@", "*"):
            return " ".join(_solid(argument.whole or argument.text) for argument in self.positional("") or [])
        if self.has_moved and name in ("PWD", "OLDPWD"):
            raise Unknown(f"{name}, behind a change of the directory")
        if not re.match(r"[A-Za-z_]", name):
            raise Unknown(f"${name}, which only a call of the script sets")
        if index is not None:
            raise Unknown(f"{name}[{index}], which the script does not assign")
        return f"${{oc.env:{name}}}"

    def _of_environment(self, name: str) -> str:
        """A variable that the script assigns and that is a secret by its name: what it holds stays in the script."""
        self.remarks.append((self.line, f"{name} is a secret by its name: set it where the run starts, too"))
        return f"${{oc.env:{name}}}"

    def _with_default(self, parameter: re.Match, default: re.Match) -> str:
        """${X:-y} and its kin. A variable of the environment may differ where the script runs: that is remarked."""
        name, index, sign, text = parameter["name"], parameter["index"], default["sign"], default["text"]
        value = self.held(name)
        if value or (value is not None and not default["colon"]):
            return self._word(text) if sign == "+" else self._plain(name, index)
        if sign == "+":
            if value is None and name.isidentifier():
                self.remarks.append((self.line, f"{name} is not assigned in the script; taken as not set"))
            return ""
        if sign == "?":
            return self._plain(name, index)
        chosen = self._word(text)
        if chosen and names_secret(name, is_variable=True):
            return self._of_environment(name)
        if value is None:
            told = short(shown(chosen))
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

    @staticmethod
    def _bounded(text: str) -> str:
        if len(text) > LONGEST:
            raise Unknown(f"a text of more than {LONGEST} characters")
        return text


def _solid(text: str) -> str:
    """A text of which every part is known. Raises Unknown."""
    if why := reason(text):
        raise Unknown(why)
    return text
