"""Cuts a shell script into words and operators, as bash does; nothing is expanded, and nothing is executed.

Departs from bash where a script that was edited by hand plainly means something else: a comment between two continued
lines does not end the command, nor do blanks behind a continuing backslash. Each such place is remarked.
"""

import re
from dataclasses import dataclass, field

OPERATORS = (";;&", "<<<", "<<-", "&>>", ";;", ";&", "&&", "||", "|&", "&>", "<<", ">>", "<&", ">&", "<>", ">|",
             ";", "&", "|", "(", ")", "<", ">")
NEWLINE = "\n"
OVERRIDE = re.compile(r"""["']?[+~]{0,2}[A-Za-z_][\w@/-]*(\.[\w@/*-]+)+=""")
ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\(")
CONTINUED = re.compile(r"\\(?:[ \t]+#[^\n]*|[ \t]*)(?:\n|\Z)")
COMMENT_LINE = re.compile(r"[ \t]*#[^\n]*\n")
GOES_ON = re.compile(r"[ \t]*(?:#|[\"']?\$)")
PLAIN = re.compile(r"[^\s;&|()<>\\'\"$`]+")
VARIABLE = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")


COMMAND = re.compile(r"(?:\$\((?!\()|[<>]\(|`)\s*(?P<name>[\w./-]*)(?P<end>[)`])?")


def quiet(text: str) -> str:
    """A text to quote, up to the arguments of a command in it, which may be secrets: `8 * $(curl ...)`."""
    long = next((command for command in COMMAND.finditer(text) if not command["end"]), None)
    return f"{text[:long.start()]}$({long['name']}{' ' * bool(long['name'])}...)" if long else text


@dataclass(frozen=True)
class Piece:
    """A part of a word. kind: text, variable (inside of ${}), arithmetic (of $(())), command (of $() or backticks)."""

    kind: str
    text: str
    quoted: bool


@dataclass(frozen=True)
class Word:
    line: int
    pieces: tuple[Piece, ...]

    @property
    def raw(self) -> str:
        """As it is written, to be quoted."""
        marks = {"variable": "${{{}}}", "arithmetic": "$(({}))"}
        return "".join(p.text if p.kind == "text" else quiet(f"$({p.text})") if p.kind == "command" else
                       marks[p.kind].format(quiet(p.text)) for p in self.pieces)

    @property
    def bare(self) -> str:
        """The text of a word that is wholly unquoted text (such as `if`), else nothing."""
        plain = all(piece.kind == "text" and not piece.quoted for piece in self.pieces)
        return "".join(piece.text for piece in self.pieces) if plain else ""


@dataclass(frozen=True)
class Array:
    """`name=(words)`, or `name+=(words)` with more set."""

    line: int
    name: str
    more: bool
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Operator:
    line: int
    text: str


Token = Word | Array | Operator


@dataclass
class Lexer:
    """Position in a script. remarks: (line, what was found that bash would read otherwise, or not at all).

    heredocs: (line, text), which are no commands of the script.
    """

    text: str
    at: int = 0
    line: int = 1
    remarks: list[tuple[int, str]] = field(default_factory=list)
    heredocs: list[tuple[int, str]] = field(default_factory=list)
    bodies: list[tuple[str, bool]] = field(default_factory=list)  # heredocs whose bodies begin after this line

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while self._skip_blanks():
            token = self._next(found)
            if token is not None:
                found.append(token)
        return found

    def _next(self, found: list[Token]) -> Token | None:
        here, array = self.line, ARRAY.match(self.text, self.at)
        if self._peek() == NEWLINE:
            self._take(1)
            self._skip_bodies()
            return Operator(here, NEWLINE)
        if array:
            self._take(len(array[0]))
            return Array(here, array[1], bool(array[2]), tuple(self._elements()))
        if operator := next((o for o in OPERATORS if self.text.startswith(o, self.at)), None):
            if operator in ("<", ">") and self.text.startswith(operator + "(", self.at):
                return self.word()
            self._take(len(operator))
            if operator in ("<<", "<<-"):
                self._heredoc(operator == "<<-")
                return None
            return Operator(here, operator)
        word = self.word()
        descriptor = word.bare.isdigit() and self._peek() in ("<", ">")
        return None if descriptor else word

    def _elements(self) -> list[Word]:
        """Words up to the closing parenthesis of an array."""
        words: list[Word] = []
        while self._skip_blanks():
            if self._peek() == ")":
                self._take(1)
                return words
            if self._peek() in "\n;&|<>(":  # none but a line end belongs there
                self._take(1)
                continue
            words.append(self.word())
        self.remarks.append((self.line, "a parenthesis is not closed; read to the end"))
        return words

    # --------------------------------------------------------------------------------------------------------- blanks

    def _skip_blanks(self) -> bool:
        """Goes to the next token; False at the end."""
        while self.at < len(self.text):
            if self._peek() in " \t\r":
                self._take(1)
            elif continued := CONTINUED.match(self.text, self.at):
                if continued[0].rstrip("\n") != "\\":
                    self.remarks.append((self.line, "bash does not continue a line whose backslash something follows; "
                                                    "read as if it did"))
                self._take(len(continued[0]))
                self._skip_comments_between()
            elif self._peek() == "#":
                self._take(len(self._rest_of_line()))
            else:
                return True
        return False

    def _skip_comments_between(self) -> None:
        """After a continued line: comments, when the command plainly goes on behind them."""
        while comment := COMMENT_LINE.match(self.text, self.at):
            after = comment.end()
            goes_on = comment[0].rstrip().endswith("\\") or OVERRIDE.match(self.text[after:after + 200].lstrip(" \t"))
            if not (goes_on or GOES_ON.match(self.text, after)):
                return
            self.remarks.append((self.line, "bash ends the command at this comment; the lines behind it were read as "
                                            "part of the command"))
            self._take(len(comment[0]))

    def _heredoc(self, tabs: bool) -> None:
        if self._skip_blanks() and self._peek() != NEWLINE:
            self.bodies.append((self.word().raw, tabs))

    def _skip_bodies(self) -> None:
        for end, tabs in self.bodies:
            first, start = self.line, self.at
            while self.at < len(self.text):
                line = self._rest_of_line()
                self._take(len(line) + 1)
                if (line.lstrip("\t") if tabs else line) == end:
                    break
            self.heredocs.append((first, self.text[start:self.at]))
        self.bodies = []

    # ---------------------------------------------------------------------------------------------------------- words

    def word(self) -> Word:
        """One word, from here to the next blank or operator that is not quoted."""
        here, pieces = self.line, []
        while self.at < len(self.text):
            character = self._peek()
            if character in " \t\r\n;&|()" or (character in "<>" and self.text[self.at + 1:self.at + 2] != "("):
                break
            if character in "<>":
                self._take(1)
                pieces.append(Piece("command", self._inside("(", ")"), False))
            elif character == "\\":
                self._escape(pieces)
            elif character == "'":
                self._take(1)
                pieces.append(Piece("text", self._until("'"), True))
            elif character == '"':
                self._take(1)
                self._double_quoted(pieces)
            elif character in "$`":
                pieces.append(self._expansion(quoted=False))
            else:
                plain = PLAIN.match(self.text, self.at)
                pieces.append(Piece("text", plain[0] if plain else character, False))
                self._take(len(pieces[-1].text))
        if not pieces:  # an operator where a word was needed
            self._take(1)
        return Word(here, tuple(pieces))

    def _escape(self, pieces: list[Piece]) -> None:
        escaped = self.text[self.at + 1:self.at + 2]
        self._take(2)
        if escaped != NEWLINE:
            pieces.append(Piece("text", escaped or "\\", True))

    def _double_quoted(self, pieces: list[Piece]) -> None:
        pieces.append(Piece("text", "", True))  # an empty text is a word too
        while self.at < len(self.text) and self._peek() != '"':
            if self._peek() == "\\" and self.text[self.at + 1:self.at + 2] in ('"', "\\", "$", "`", NEWLINE):
                self._escape(pieces)
            elif self._peek() in "$`":
                pieces.append(self._expansion(quoted=True))
            else:
                pieces.append(Piece("text", self._peek(), True))
                self._take(1)
        if self.at >= len(self.text):
            self.remarks.append((self.line, "a quotation mark is not closed; read to the end"))
        self._take(1)

    def _expansion(self, quoted: bool) -> Piece:
        if self._peek() == "`":
            self._take(1)
            return Piece("command", self._until("`"), quoted)
        follows = self.text[self.at + 1:self.at + 3]
        if follows == "((" and "))" in self.text[self.at:]:
            self._take(2)
            inner = self._inside("(", ")")
            self._take(1 if self._peek() == ")" else 0)
            return Piece("arithmetic", inner, quoted)
        for opening, closing, kind in (("(", ")", "command"), ("{", "}", "variable")):
            if follows.startswith(opening):
                self._take(1)
                return Piece(kind, self._inside(opening, closing), quoted)
        if follows.startswith("'") and not quoted:
            self._take(2)
            return Piece("text", self._until("'"), True)
        name = VARIABLE.match(self.text, self.at + 1)
        self._take(1 + len(name[0]) if name else 1)
        return Piece("variable", name[0], quoted) if name else Piece("text", "$", quoted)

    def _inside(self, opening: str, closing: str) -> str:
        """The text between this opening bracket and its closing one, quotes respected."""
        start, depth = self.at + 1, 0
        while self.at < len(self.text):
            character = self._peek()
            if character == "\\":
                self._take(1)
            elif character == "'" and opening == "(":
                self._take(1)
                self._until("'")
                continue
            depth += (character == opening) - (character == closing)
            self._take(1)
            if depth == 0:
                return self.text[start:self.at - 1]
        self.remarks.append((self.line, f"'{opening}' is not closed; read to the end"))
        return self.text[start:]

    def _until(self, mark: str) -> str:
        end = self.text.find(mark, self.at)
        if end < 0:
            self.remarks.append((self.line, "a quotation mark is not closed; read to the end"))
            end = len(self.text)
        inner = self.text[self.at:end]
        self._take(len(inner) + 1)
        return inner

    def _peek(self) -> str:
        return self.text[self.at:self.at + 1]

    def _rest_of_line(self) -> str:
        end = self.text.find(NEWLINE, self.at)
        return self.text[self.at:end if end >= 0 else len(self.text)]

    def _take(self, count: int) -> None:
        self.line += self.text.count(NEWLINE, self.at, self.at + count)
        self.at += count
