"""Expands shell words as bash does: variables, defaults, arrays, braces, quotes. Runs nothing.

What is only known at run time is a hole. A variable that the script does not assign becomes `${oc.env:NAME}`, which is
resolved when the recipe is composed.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from pipeline.bridges.shell_syntax import HOLE, Node, Script, Text, Unknown, hole, reason, short, shown, solid
from pipeline.bridges.shell_values import calculate, changed, sliced
from pipeline.store.secret_names import names_secret

Value = str | list[str] | None  # None: not assigned by the script
UNSET = Text("")  # value of a variable unset by the script
WITHOUT = "a loop over the script's own arguments was read as started without any"
LONGEST = 100_000  # characters of one expanded word: limits exponential expansion
OF_BASH = re.compile(r"BASH\w*|RANDOM|SECONDS|LINENO|E?UID|PPID|HOST(NAME|TYPE)|OSTYPE|FUNCNAME|EPOCH\w+|SHLVL|_")
ALWAYS_SET = ("HOME", "PWD", "PATH", "USER")
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASS(WORD|WD)?|CREDENTIAL|AUTH)S?[_\d]*$", re.IGNORECASE)
GLOB = re.compile(r"[*?]|\[[^\]]+\]")
BRACES = re.compile(r"(?<!\\)\{[^{}]*(,|\.\.)[^{}]*\}")  # expand to several words


class Cut(list[str]):
    """Words that must not be split again."""


@dataclass
class State:
    """A script's variables at one place. arguments: of the current call, None where unknown.

    is_open: the script's own, unknown arguments follow; ended: how the current part ended; marks: (option, name) of
    `export` and `declare -i`.
    """

    variables: dict[str, Value] = field(default_factory=dict)
    functions: dict[str, Node] = field(default_factory=dict)
    arguments: list[str] | None = field(default_factory=list)
    is_open: bool = True
    has_moved: bool = False
    sourced: str = ""
    ended: str = ""
    marks: frozenset[tuple[str, str]] = frozenset()

    def copy(self) -> "State":
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))


@dataclass
class Words:
    """Expands the words of a script. line: of the current word; offset: of its tree within the script.

    starts_without: whether the script's own arguments are assumed empty, as after a loop over them; took_own: whether a
    word since the last check contained them; asked: X of `${X:+-}${X}`, which is empty within that word.
    """

    script: Script = field(default_factory=Script)
    state: State = field(default_factory=State)
    offset: int = 0
    line: int = 0
    starts_without: bool = False
    took_own: bool = False
    asked: set[str] = field(default_factory=set)

    def output(self, part: Node) -> str:
        """Returns the output of a command substitution; implemented by the reader of commands."""
        raise Unknown(f"the output of a command, {short(part['raw'])}, which is not run")

    def fields(self, word: Node) -> list[str]:
        """Returns the arguments that a word expands to, none or several, with holes; each has its line."""
        self.line, self.asked = word["line"] + self.offset, set()
        try:
            if BRACES.search("".join(part["Value"] if part["Type"] == "Lit" else "$" for part in word["Parts"])):
                raise Unknown(f"the braces of {short(word['raw'])}")
            found = self._split(word["Parts"])
            if len(found) == 1 and "=" not in found[0] and found[0] != "[" and any(
                    part["Type"] == "Lit" and GLOB.search(part["Value"]) for part in word["Parts"]):
                raise Unknown(f"the names of files that match {short(word['raw'])}")
        except Unknown as unknown:
            found = [hole(word["raw"], str(unknown))]
        return [self._at_line(_bounded(one)) for one in found]

    def _at_line(self, text: str) -> Text:
        if not isinstance(text, Text):
            text = Text(text)
        text.line = text.line or self.line
        return text

    def text(self, word: Node | None) -> str:
        """Returns a word as one text, like the right side of an assignment."""
        if not word:
            return ""
        self.line, self.asked = word["line"] + self.offset, set()
        try:
            if any(part["Type"] == "Lit" and ":~" in part["Value"] for part in word.get("Parts", [])):
                raise Unknown("a home directory in a list of paths")
            return _bounded("".join(" ".join(texts) for texts, _ in self.pieces(word.get("Parts", []), False)))
        except Unknown as unknown:
            return hole(word["raw"], str(unknown))

    def _split(self, parts: list[Node], is_default: bool = False) -> list[str]:
        """Splits some parts into words: an unquoted expansion at blanks, an array between its elements.

        is_default: the parts are those of `${X:-a b}`, where unquoted literal text is split, too.
        """
        found: list[str] = []
        current: str | None = None
        for part, (texts, is_whole) in zip(parts, self.pieces(parts, False), strict=True):
            is_whole = is_whole and not (is_default and part["Type"] == "Lit")
            for i, text in enumerate(texts):
                for j, piece in enumerate([text] if is_whole else self._blanks(text)):
                    if i + j and current is not None:
                        found.append(current)
                        current = None
                    if piece or is_whole:
                        current = piece if current is None else current + piece
        return found if current is None else [*found, current]

    def _blanks(self, text: str) -> list[str]:
        if self.state.variables.get("IFS", " \t\n") != " \t\n" and not re.fullmatch(r"[\w./-]*", text):
            raise Unknown(f"{short(text)}, split by another IFS")
        return re.split(r"[ \t\n]+", text) if re.search(r"[ \t\n]", text) else [text]

    def pieces(self, parts: list[Node], quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Yields the texts of every part, and whether they are exempt from splitting."""
        for at, part in enumerate(parts):
            kind, text = part["Type"], part.get("Value", "")
            if kind == "Lit" and quoted:
                yield [re.sub(r'\\(["\\$`])', r"\1", text)], True
            elif kind == "Lit":
                home = text if at else re.sub(r"^([A-Za-z_]\w*\+?=)?~(?=/|$)", r"\g<1>${oc.env:HOME}", text)
                yield [re.sub(r"\\(.)", r"\1", home, flags=re.DOTALL)], True
            elif kind == "SglQuoted":
                if (quoted and "$" in text) or (part.get("Dollar") and "\\" in text):
                    raise Unknown(f"the quotes in {short(part['raw'])}")
                text = re.sub(r"\$\{oc_env_(\w+)\}", r"${oc.env:\1}", text)
                yield [f"'{text}'" if quoted else text], True  # within "${X:-'y'}" these are not quotes
            elif kind == "DblQuoted":
                inner = part.get("Parts", [])
                yield _glued(texts for texts, _ in self.pieces(inner, True)) or [""] * (len(inner) != 1), True
            else:
                found = self._expansion(part, quoted)
                yield found, quoted or isinstance(found, Cut)

    def _expansion(self, part: Node, quoted: bool) -> list[str]:
        try:
            if part["Type"] == "ParamExp":
                return self._parameter(part, quoted)
            if part["Type"] == "ArithmExp":
                return [str(calculate(part["X"], self))]
            if part["Type"] == "CmdSubst":
                return [self.output(part)]
            raise Unknown("the output of a command" if part["Type"] == "ProcSubst" else "a pattern of files")
        except Unknown as unknown:
            return [hole(part["raw"], str(unknown))]

    # ------------------------------------------------------------------------------------------------------ parameters

    def assign(self, name: str, value: Value) -> None:
        if ("i", name) in self.state.marks and isinstance(value, str) and not re.fullmatch(r"-?\d+", value):
            value = hole(f"${{{name}}}", f"{name}, an integer that is set to {short(value)}")
        self.state.variables[name] = value

    def remark(self, text: str) -> None:
        self.script.assumed.append((self.line, text))

    def held(self, name: str) -> Value:
        """Returns the value of a variable or argument; None if the script does not set it. Raises Unknown."""
        arguments, is_open = self.state.arguments, self.state.is_open
        if not (name in ("@", "*", "#") or name.isdigit()):
            return self.state.variables.get(name)
        if name in ("@", "*"):
            self.took_own |= is_open
            return [hole("$@", "the arguments of a function")] if arguments is None else arguments
        if name.isdigit() and name != "0" and arguments is not None and int(name) <= len(arguments):
            return arguments[int(name) - 1]
        if arguments is None or name == "0" or (is_open and not self.starts_without):
            return None
        if is_open:
            self.remark(WITHOUT)
        return str(len(arguments)) if name == "#" else UNSET

    def known(self, name: str) -> str:
        """Returns the text of a variable, `${oc.env:NAME}` if the script does not assign it. Raises Unknown."""
        value = self.held(name)
        if isinstance(value, list):
            value = value[0] if value else UNSET
        if value is None and name.startswith("oc_env_"):  # see Reader.nested
            return f"${{oc.env:{name.removeprefix('oc_env_')}}}"
        if value is None and (not name.isidentifier() or OF_BASH.fullmatch(name)):
            raise Unknown(f"${name}, which only a call of the script sets")
        if value is None and self.state.has_moved and name in ("PWD", "OLDPWD"):
            raise Unknown(f"{name}, behind a change of the directory")
        if value is None:
            return "" if name in self.asked else f"${{oc.env:{name}}}"
        return self._of_environment(name) if value and _is_secret(name) else value

    def _of_environment(self, name: str) -> str:
        self.remark(f"{name} is a secret by its name: set it where the run starts, too")
        return f"${{oc.env:{name}}}"

    def _parameter(self, part: Node, quoted: bool) -> list[str]:
        name, index = part["Param"]["Value"], part.get("Index", {}).get("raw")
        op = part.get("Exp", {}).get("Op", "")
        if part.get("Excl"):
            raise Unknown(f"the expansion {short(part['raw'])}")
        is_list = name in ("@", "*") or index in ("@", "*")
        value = self._elements(name) if is_list else self._element(name, part["Index"]) if index else self.held(name)
        if op in (":-", "-", ":=", "=", ":+", "+", ":?", "?"):
            return self._with_default(part, name, value, op, quoted)
        if not is_list:
            text = value if index and isinstance(value, str) else self.known(name)
            return [str(len(solid(text))) if part.get("Length") else changed(text, part, self)]
        if part.get("Length") or "Slice" in part:
            if any(map(reason, value)) or (part.get("Length") and name in "@*" and self.state.is_open):
                raise Unknown(f"the expansion {part['raw']}")
            value = [str(len(value))] if part.get("Length") else sliced(["", *value][name not in "@*":], part, self)
        found = [changed(one, {**part, "Slice": None}, self) for one in value]
        if quoted and "*" in (name, index) and "IFS" in self.state.variables:
            raise Unknown(f"{part['raw']}, joined by another IFS")
        return [" ".join(found)] if quoted and "*" in (name, index) else found

    def _elements(self, name: str) -> list[str]:
        value = self.held(name)
        return value if isinstance(value, list) else [] if value is None else [value]

    def _element(self, name: str, index: Node) -> str:
        value, at = self.state.variables.get(name), calculate(index, self)
        array = [value] if isinstance(value, str) else value
        if array is None or at < 0 or any(map(reason, array[:at + 1])):
            raise Unknown(f"{name}[{at}], which is not known")
        return array[at] if at < len(array) else UNSET

    def _with_default(self, part: Node, name: str, value: Value, op: str, quoted: bool) -> list[str]:
        """Expands `${X:-y}` and similar. Notes that an environment variable may differ where the script runs."""
        word, found = part["Exp"].get("Word"), value if isinstance(value, list) else None
        text = " ".join(found) if found is not None else value
        is_outside = value is None or bool(re.fullmatch(r"\$\{oc\.env:\w+\}", text))
        if text and HOLE.fullmatch(text):
            return [hole(part["raw"], reason(text) or "")]
        if is_outside and name in ALWAYS_SET:
            is_outside, value = False, self.known(name)
        elif value is None and self.state.sourced:
            raise Unknown(f"{name}, which {self.state.sourced} may set")
        is_set = not is_outside and value is not UNSET and value != [] and bool(text or ":" not in op or found)
        if (is_set and op[-1] != "+") or op[-1] == "?":
            return found if found is not None else [value if "Index" in part else self.known(name)]
        if op[-1] == "+" and not is_set:
            if is_outside and name.isidentifier():
                self.remark(f"{name} is not assigned in the script; taken as not set")
                self.asked.add(name)
            return [""] if quoted and found is None else []
        parts = word.get("Parts", []) if word else []
        chosen = (_glued(texts for texts, _ in self.pieces(parts, True)) if quoted and found is None
                  else Cut(self._split(parts, True))) or [""] * quoted
        if op[-1] != "+" and _is_secret(name) and any(chosen):
            chosen = [self._of_environment(name)]
        elif op[-1] != "+" and is_outside:
            which = f"{name} is not assigned in the script" if name.isidentifier() else f"${name} is not known"
            self.remark(f"{which}; its default was taken: {short(' '.join(chosen))}")
        if op[-1] == "=":
            self.assign(name, " ".join(chosen))
        return chosen

def _is_secret(name: str) -> bool:
    return bool(SECRET.search(name)) and names_secret(name, is_variable=True)


def _glued(pieces: Iterable[list[str]]) -> list[str]:
    """Joins adjacent pieces: the last text of one and the first of the next become one."""
    found: list[str] = []
    for texts in pieces:
        found[-1:] = [found[-1] + texts[0], *texts[1:]] if found and texts else [*found[-1:], *texts]
    return found


def _bounded(text: str) -> str:
    return text if len(text) <= LONGEST else hole(shown(text)[:20] + "...", f"a text of more than {LONGEST} characters")
