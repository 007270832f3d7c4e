"""Expands shell words as bash does: variables, defaults, arrays, quotes. Runs nothing.

What is only known at run time is a hole. A variable that the script does not assign becomes `${oc.env:NAME}`, which is
resolved when the recipe is composed.
"""

import re
from dataclasses import dataclass, field
from itertools import takewhile

from pipeline.bridges.shell_syntax import HOLE, Node, Script, Text, Unknown, hole, reason, short
from pipeline.bridges.shell_values import calculate, changed
from pipeline.store.secret_names import names_secret

Value = str | list[str] | None  # None: not assigned by the script; []: unset by it
EMPTY = "\ue003"  # a quoted text without characters, which is a word all the same
OWN = "\ue004"  # among arguments: any number of unknown arguments of the script itself
WITHOUT = "a loop over the script's own arguments was read as started without any"
LONGEST = 100_000  # characters of one expanded word: limits exponential expansion
OF_BASH = re.compile(r"BASH\w*|RANDOM|SECONDS|LINENO|E?UID|PPID|HOST(NAME|TYPE)|OSTYPE|FUNCNAME|EPOCH\w+|SHLVL|OLDPWD"
                     r"|SLURM_\w+|_|\W|\d+")
ALWAYS_SET = ("HOME", "PWD", "PATH", "USER")
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASS(WORD|WD)?|CREDENTIAL|AUTH)S?[_\d]*$", re.IGNORECASE)
ENVIRONMENT = re.compile(r"\$\{oc\.env:\w+\}")
GLOB = re.compile(r"[*?]|\[[^\]]+\]")
BRACES = re.compile(r"(?<!\\)\{[^{}]*(,|\.\.)[^{}]*\}")  # expand to several words


@dataclass
class Words:
    """Expands the words of a script. variables: at this place; `@` holds the arguments of the script or of a call.

    line: of the current word; starts_without: whether OWN is taken as nothing; sourced: what may set any variable;
    opaque: variables whose assignments are not followed, such as integers; asked: X of `${X:+-}${X}`, which is empty
    within that word; called: functions that were read.
    """

    variables: dict[str, Value]
    script: Script = field(default_factory=Script)
    line: int = 0
    starts_without: bool = False
    sourced: str = ""
    opaque: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    called: set[str] = field(default_factory=set)

    def fields(self, word: Node) -> list[str]:
        """Returns the arguments that a word expands to, none or several, with holes; each has its line."""
        self.line, self.asked = word["line"], set()
        try:
            literal = [part["Value"] if part["Type"] == "Lit" else "$" for part in word["Parts"]]
            if BRACES.search("".join(literal)):
                raise Unknown(f"the braces of {short(word['raw'])}")
            found = [_finished(text) for text in self.expand(word["Parts"], splits=True) if text]
            if any(map(GLOB.search, literal)) and not any("=" in text for text in found) and found != ["["]:
                raise Unknown(f"the names of files that match {short(word['raw'])}")
        except Unknown as unknown:
            found = [hole(word["raw"], str(unknown))]
        return [_at(text, self.line) for text in found]

    def text(self, word: Node | None) -> str:
        """Returns a word as one text, like the right side of an assignment."""
        if not word:
            return ""
        self.line, self.asked = word["line"], set()
        try:
            if any(part["Type"] == "Lit" and ":~" in part["Value"] for part in word.get("Parts", [])):
                raise Unknown("a home directory in a list of paths")
            return _finished(" ".join(one for one in self.expand(word.get("Parts", [])) if one != OWN))
        except Unknown as unknown:
            return hole(word["raw"], str(unknown))

    def expand(self, parts: list[Node], quoted: bool = False, splits: bool = False) -> list[str]:
        """Returns the texts of a word: the last text of a part and the first of the next are joined."""
        found: list[str] = []
        for at, part in enumerate(parts):
            if at == 0 and part["Type"] == "Lit" and not quoted:
                part = part | {"Value": re.sub(r"^([A-Za-z_]\w*\+?=)?~(?=/|$)", r"\g<1>${oc.env:HOME}", part["Value"])}
            texts = self.part(part, quoted, splits)
            last = found.pop() if found and texts else ""
            found += [last + texts[0] if last else texts[0], *texts[1:]] if texts else []
        return found

    def part(self, part: Node, quoted: bool, splits: bool) -> list[str]:
        """Returns the texts of one part of a word. splits: an unquoted expansion is split at blanks."""
        kind, text = part["Type"], part.get("Value", "")
        if kind == "Lit" and quoted:
            return [re.sub(r'\\(?:\n|(["\\$`]))', r"\1", text)]
        if kind == "Lit":
            texts = re.split(r"(?<!\\)[ \t\n]+", text) if splits else [text]
            return [re.sub(r"\\(.)", r"\1", one, flags=re.DOTALL) for one in texts]
        if kind == "SglQuoted":
            if (quoted and "$" in text) or (part.get("Dollar") and "\\" in text):
                raise Unknown(f"the quotes in {short(part['raw'])}")
            return [f"'{text}'" if quoted else text or EMPTY]  # within "${X:-'y'}" these are not quotes
        if kind == "DblQuoted":
            inner = part.get("Parts", [])
            return [one or EMPTY for one in self.expand(inner, True) or [""] * (len(inner) != 1)]
        try:
            if kind == "ParamExp" and part.get("Exp", {}).get("Op", " ")[-1] in "-=+?":
                if (chosen := self._default(part, quoted, splits)) is not None:
                    return chosen
                part = part | {"Exp": {}}
            if kind == "ParamExp":
                texts = self._parameter(part, quoted)
            elif kind == "ArithmExp":
                texts = [str(calculate(part["X"], self))]
            elif kind == "CmdSubst":
                texts = [self.output(part)]
            else:
                raise Unknown("the output of a command" if kind == "ProcSubst" else "the names of files")
        except Unknown as unknown:
            texts = [hole(part["raw"], str(unknown))]
        return texts if quoted or not splits else [word for one in texts for word in self._blanks(one)]

    def _blanks(self, text: str) -> list[str]:
        if self.variables.get("IFS", " \t\n") != " \t\n" and not re.fullmatch(r"[\w./-]*", text):
            return [hole(text, f"{short(text)}, split by another IFS")]
        return re.split(r"[ \t\n]+", text) if re.search(r"[ \t\n]", text) else [text]

    def assign(self, name: str, value: Value) -> None:
        self.variables[name] = (
            hole(f"${{{name}}}", f"{name}, declared with an option") if name in self.opaque else value)

    def remark(self, text: str) -> None:
        self.script.assumed.append((self.line, text))

    def held(self, name: str) -> Value:
        """Returns the value of a variable or argument; None if the script does not set it."""
        if name not in ("@", "*", "#") and not re.fullmatch(r"[1-9]\d*", name):
            return self.variables.get(name)
        arguments = self.variables["@"]
        if name in ("@", "*"):
            return [hole("$@", "the arguments of a function"), OWN] if arguments is None else arguments
        known = list(takewhile(lambda argument: argument != OWN, arguments or []))
        if name != "#" and int(name) <= len(known):
            return known[int(name) - 1]
        if arguments == [OWN] and self.starts_without:
            self.remark(WITHOUT)
        elif arguments != known:
            return None
        return str(len(known)) if name == "#" else []

    def known(self, name: str) -> str:
        """Returns the text of a variable, `${oc.env:NAME}` if the script does not assign it. Raises Unknown."""
        value = self.held(name)
        if isinstance(value, list):
            value = _finished(value[0]).replace(OWN, "") if value else ""
        if value is None and OF_BASH.fullmatch(name):
            raise Unknown(f"${name}, which only a call of the script sets")
        if value is None:
            return "" if name in self.asked else f"${{oc.env:{name}}}"
        return self._secret(name) if value and _is_secret(name) else value

    def _secret(self, name: str) -> str:
        self.remark(f"{name} is a secret by its name: set it where the run starts, too")
        return f"${{oc.env:{name}}}"

    def _parameter(self, part: Node, quoted: bool) -> list[str]:
        name, index = part["Param"]["Value"], part.get("Index", {}).get("raw")
        is_all = name in ("@", "*") or index in ("@", "*")
        if part.get("Excl") or (part.get("Length") and not is_all):
            raise Unknown(f"the expansion {short(part['raw'])}")
        if not is_all:
            if index:
                raise Unknown(f"{name}[{index}], which is not known")
            return [changed(self.known(name), part, self)]
        value = self.held(name)
        texts = value if isinstance(value, list) else [] if value is None else [value]
        own = [OWN] if OWN in texts else []
        texts = [one for one in texts if one != OWN]
        if part.get("Length"):
            if own or any(map(reason, texts)):
                raise Unknown(f"the expansion {short(part['raw'])}")
            texts = [str(len(texts))]
        elif "Slice" in part:
            first = re.fullmatch(r"\$\{@:([1-9])\}", part["raw"])
            if not first or (own and texts) or any(map(reason, texts)):
                raise Unknown(f"the expansion {short(part['raw'])}")
            texts = texts[int(first[1]) - 1:]
        else:
            texts = [changed(one, part, self) for one in texts]
        if quoted and "*" in (name, index):
            if "IFS" in self.variables:
                raise Unknown(f"{part['raw']}, joined by another IFS")
            return [" ".join(texts)]
        return texts + own

    def _default(self, part: Node, quoted: bool, splits: bool) -> list[str] | None:
        """Expands y of `${X:-y}` and similar; None where X itself counts. Notes what the environment may change."""
        name, op = part["Param"]["Value"], part["Exp"]["Op"]
        index = part.get("Index", {}).get("raw", name)
        if index not in (name, "@", "*"):
            raise Unknown(f"{name}[{index}], which is not known")
        value = self.held(name)
        text = " ".join(value) if isinstance(value, list) else value
        if text and HOLE.fullmatch(text):
            raise Unknown(reason(text))
        is_outside = name not in ALWAYS_SET and (value is None or bool(ENVIRONMENT.fullmatch(text)))
        if value is None and self.sourced and name not in ALWAYS_SET:
            raise Unknown(f"{name}, which {self.sourced} may set")
        is_set = not is_outside and value != [] and bool(text or ":" not in op or name in ALWAYS_SET)
        if op[-1] == "?" or (is_set and op[-1] != "+"):
            return None
        if op[-1] == "+" and not is_set:
            if is_outside and name.isidentifier():
                self.remark(f"{name} is not assigned in the script; taken as not set")
                self.asked.add(name)
            return [EMPTY] if quoted and index not in ("@", "*") else []
        word = part["Exp"].get("Word", {})
        chosen = self.expand(word.get("Parts", []), quoted, splits) or [EMPTY] * quoted
        text = " ".join(map(_finished, chosen))
        if op[-1] != "+" and text and _is_secret(name):
            chosen = [self._secret(name)]
        elif op[-1] != "+" and is_outside:
            which = f"{name} is not assigned in the script" if name.isidentifier() else f"${name} is not known"
            self.remark(f"{which}; its default was taken: {short(text)}")
        if op[-1] == "=":
            self.assign(name, text)
        return chosen


def _is_secret(name: str) -> bool:
    return bool(SECRET.search(name)) and names_secret(name, is_variable=True)


def _finished(text: str) -> str:
    """Returns a text without marks of empty parts. Raises Unknown if it is too long."""
    if len(text) > LONGEST:
        raise Unknown(f"a text of more than {LONGEST} characters")
    return text if text == OWN or not (EMPTY in text or OWN in text) else re.sub(f"[{EMPTY}{OWN}]", "", text)


def _at(text: str, line: int) -> Text:
    found = text if isinstance(text, Text) else Text(text)
    found.line = found.line or line
    return found
