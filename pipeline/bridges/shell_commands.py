"""Effects of single shell commands: assignments, declarations, builtins, output; records the others."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pipeline.bridges.shell_syntax import Argument, Command, Construct, Node, Unknown, hole, reason, short, shown
from pipeline.bridges.shell_values import assigned, bracket, calculate
from pipeline.bridges.shell_words import OWN, Value, Words

LIKELY = "likely"  # the status of a command that the script assumes to succeed
Status = bool | str | None  # None: unknown
SHELL = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|z|da)?sh")
QUIET = ("alias", "conda", "cp", "ln", "mkdir", "module", "mv", "rm", "shopt", "sleep", "touch", "trap", "ulimit")
ACTIVATES = re.compile(r"activate|conda|bashrc|profile|set_?env|setvars|nvm|cuda", re.IGNORECASE)


@dataclass
class Commands(Words, ABC):
    """Applies simple commands. inside: the enclosing constructs; ended: the command that ended the current part;
    locals: for each call, the outer values of its local variables; exported: names that other programs see; called:
    functions that were read."""

    inside: tuple[Construct, ...] = ()
    ended: str = ""
    depth: int = 0
    locals: list[dict[str, Value]] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    called: set[int] = field(default_factory=set)

    @abstractmethod
    def nested(self, text: str, line: int) -> Status:
        """Reads a nested script."""

    @abstractmethod
    def call(self, node: Node, arguments: Value, assigns: Iterable[Node] = ()) -> Status:
        """Reads the body of a function."""

    def simple(self, node: Node) -> Status:
        words, assigns = node.get("Args", []), node.get("Assigns", [])
        if not words:
            for one in assigns:
                self.assignment(one)
            return None if any("$(" in one["raw"] or "`" in one["raw"] for one in assigns) else True
        with_own = [f for word in words for f in self.fields(word)]
        fields = [f for f in with_own if f != OWN] or [":"]
        if fields[0] in self.functions:
            return self.call(self.functions[fields[0]], with_own[1:], assigns)
        if fields[0] in BUILTINS:
            return BUILTINS[fields[0]](self, with_own if fields[0] == "set" else fields)
        self._record(node, fields)
        return LIKELY if fields[0] in QUIET else None

    def _record(self, node: Node, fields: list[str]) -> None:
        words = tuple(Argument(shown(f), getattr(f, "line", 0) or self.line, reason(f), str(f)) for f in fields)
        for shell, option, script in zip(words, words[1:], words[2:], strict=False):
            if SHELL.fullmatch(shell.text) and re.fullmatch(r"-\w*c", option.text):
                outer = self.variables
                self.variables = {n: v for n, v in outer.items() if n in {*self.exported, "PWD"}} | {"@": []}
                self.nested(script.whole, script.line)
                self.variables = outer
                return
        command, before = Command(words, node["line"] + self.offset, self.inside), self.script.found.get(id(node))
        self.script.found[id(node)] = before.again(command) if before else command

    def output(self, part: Node) -> str:
        """Returns the output of one command that only manipulates text. Raises Unknown for any other."""
        statement, *more = part.get("Stmts") or [{}]
        words, redirects = statement.get("Cmd", {}).get("Args", []), statement.get("Redirs", [])
        documents = [r["Hdoc"] for r in redirects if "Hdoc" in r and not re.search(r"['\"\\]", r["Word"]["raw"])]
        name, found = words[0]["raw"] if words else "", None
        if name in self.functions:
            self.called.add(id(self.functions[name]))
        elif not more and len(redirects) == len(documents) and name in ("cat", "pwd", "echo", "basename", "dirname"):
            outer, self.variables = self.variables, dict(self.variables)
            fields = [f for word in words[1:] for f in self.fields(word) if f != OWN]
            found = self._printed(name, fields, documents[0] if documents else None)
            self.variables = outer
        if found is None:
            raise Unknown(f"the output of a command, {short(part['raw'])}, which is not run")
        return found.rstrip("\n")

    def _printed(self, name: str, fields: list[str], document: Node | None) -> str | None:
        if name == "echo":
            return " ".join(fields) if not "".join(fields[:1]).startswith("-") else None
        if name == "pwd":
            return self.known("PWD") if not fields else None
        if name == "cat":
            if fields or document is None or r'\"' in document["raw"]:
                return None
            return self.text(document | {"Parts": [{"Type": "DblQuoted", "Parts": document.get("Parts", [])}]})
        path, *rest = fields or [""]
        directory, slash, last = path.rstrip("/").rpartition("/")
        if not last or path.startswith("-") or "${oc.env:" in last or any(map(reason, fields)) or rest[1:]:
            return None
        if name == "dirname":
            return None if rest else directory.rstrip("/") or ("/" if slash else ".")
        return last if [last] == rest else last.removesuffix("".join(rest))

    def assignment(self, node: Node) -> None:
        name, before, more = node["Name"]["Value"], self.variables.get(node["Name"]["Value"]), node.get("Append")
        elements = node.get("Array", {}).get("Elems", [])
        if "Index" in node or any("Index" in one for one in elements):
            value: Value = hole(f"${{{name}}}", f"{name}, of which line {node['line'] + self.offset} sets elements")
        elif "Array" in node:
            old = before if isinstance(before, list) else [before] if before else []
            value = [*old * bool(more), *(f for e in elements if "Value" in e for f in self.fields(e["Value"]))]
        else:
            value, self.line = self.text(node.get("Value")), node["line"] + self.offset
            if more and before is None:
                self.remark(f"{name} is not assigned in the script; taken as not set")
            if before and isinstance(before, list):
                value = [before[0] + value if more else value, *before[1:]]
            elif more:
                value = (before or "") + value
        self.assign(name, value)

    def declaration(self, node: Node) -> Status:
        """Reads `export`, `local`, `declare` and similar."""
        word, options = node["Variant"]["Value"], ""
        for one in node.get("Args", []):
            text = self.text(one.get("Value"))
            if "Name" not in one and text.startswith(("-", "+")):
                options += text
                continue
            name = one["Name"]["Value"] if "Name" in one else text.partition("=")[0]
            if self.locals and word in ("local", "declare", "typeset") and "g" not in options:
                self.locals[-1].setdefault(name, self.variables.get(name))
                self.assign(name, [])
            self.exported |= {name} if word == "export" or "x" in options else set()
            self.opaque |= {name} if set(options) & set("Ailnu") else set()
            if "Name" not in one:
                self.assign(*text.split("=", 1)) if "=" in text else None
            elif name in self.opaque:
                self.assign(name, "")
            elif not one.get("Naked"):
                self.assignment(one)
        return LIKELY

    def arithmetic(self, node: Node | None) -> Status:
        try:
            return node is None or calculate(node, self) != 0
        except Unknown as unknown:
            for name in assigned(node):
                self.assign(name, hole(f"${{{name}}}", str(unknown)))
            return None

    def let(self, node: Node) -> Status:
        self.line = node["line"] + self.offset
        return self.receive(["let", *(one["raw"].strip("\"'") for one in node["Exprs"])])

    def definition(self, node: Node) -> Status:
        self.functions[node["Name"]["Value"]] = node
        return True

    def receive(self, fields: list[str]) -> Status:
        """Handles `read`, `mapfile`, `let` and similar, whose results are only known at run time."""
        names = re.findall(r"(?<![-\w])[A-Za-z_]\w*", " ".join(fields[1:])) or ["REPLY", "MAPFILE"]
        for name in names:
            self.assign(name, hole(f"${{{name}}}", f"{name}, which `{fields[0]}` of line {self.line} sets"))
        self.script.skipped.append((self.line, f"`{fields[0]}`: sets {', '.join(names)}, not known"))
        return None

    def _set(self, fields: list[str]) -> Status:
        if "--" in fields:
            self.variables["@"] = fields[fields.index("--") + 1:]
        return LIKELY

    def _shift(self, fields: list[str]) -> Status:
        arguments, count = self.variables["@"], "".join(fields[1:]) or "1"
        if not isinstance(arguments, list) or not count.isdigit():
            self.variables["@"] = None
        elif OWN in arguments[:int(count)]:
            self.variables["@"] = [OWN] if arguments[-1] == OWN else None
        else:
            self.variables["@"] = arguments[int(count):]
        return LIKELY

    def _move(self, fields: list[str]) -> Status:
        self.assign("PWD", hole("$PWD", "PWD, behind a change of the directory"))
        return LIKELY

    def _source(self, fields: list[str]) -> Status:
        self.script.skipped.append((self.line, f"`{fields[0]}`: the file that it reads is not read"))
        if not ACTIVATES.search("".join(fields[1:2])):
            self.sourced = f"the file that line {self.line} reads"
        return LIKELY

    def _unset(self, fields: list[str]) -> Status:
        self.variables |= {name: [] for name in fields[1:]}
        return LIKELY

    def _eval(self, fields: list[str]) -> Status:
        text = " ".join(fields[1:])
        why = reason(text.split(" ")[0])
        if why is None:
            return self.nested(text, self.line)
        if not ACTIVATES.search(why):
            self.script.skipped.append((self.line, f"`eval` was not read: its text holds {why}"))
        return None

    def _end(self, fields: list[str]) -> Status:
        self.ended = fields[0]
        return None if not "".join(fields[1:]).isdigit() else fields[1] == "0"

    def _test(self, fields: list[str]) -> Status:
        return bracket(fields[1:-1] if fields[0] == "[" else fields[1:])


BUILTINS: dict[str, Callable[[Commands, list[str]], Status]] = {
    "set": Commands._set, "shift": Commands._shift, "unset": Commands._unset, "eval": Commands._eval,
    **dict.fromkeys(("cd", "pushd", "popd"), Commands._move), **dict.fromkeys(("source", "."), Commands._source),
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), Commands.receive),
    **dict.fromkeys(("exit", "return", "break", "continue"), Commands._end),
    **dict.fromkeys(("[", "test"), Commands._test), **dict.fromkeys(("true", ":"), lambda *_: True),
    "false": lambda *_: False, "echo": lambda *_: LIKELY,
    "printf": lambda reader, fields: reader.receive(["printf", *fields[2:3]]) if fields[1:2] == ["-v"] else LIKELY}
