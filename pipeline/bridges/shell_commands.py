"""Effects of single shell commands: assignments, declarations, builtins, output; records the others."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from pipeline.bridges.shell_syntax import Argument, Command, Construct, Node, Unknown, hole, reason, short, shown
from pipeline.bridges.shell_values import bracket, calculate
from pipeline.bridges.shell_words import OWN, Value, Words

LIKELY = "likely"  # the status of a command that the script assumes to succeed
Status = bool | str | None  # None: unknown
QUIET = ("alias", "conda", "cp", "ln", "mkdir", "module", "mv", "rm", "shopt", "sleep", "touch", "trap", "ulimit")
ACTIVATES = re.compile(r"activate|conda|bashrc|profile|set_?env|setvars|nvm|cuda", re.IGNORECASE)


@dataclass
class Commands(Words):
    """Applies simple commands. inside: the enclosing constructs; ended: the command that ended the current part;
    locals: for each call, the outer values of its local variables."""

    inside: tuple[Construct, ...] = ()
    ended: str = ""
    locals: list[dict[str, Value]] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)

    def simple(self, node: Node) -> Status:
        words, assigns = node.get("Args", []), node.get("Assigns", [])
        if not words:
            for one in assigns:
                self.assignment(one)
            return None if any("$(" in one["raw"] or "`" in one["raw"] for one in assigns) else True
        with_own = [f for word in words for f in self.fields(word)]
        fields = [f for f in with_own if f != OWN] or [":"]
        if fields[0] in self.functions:
            return self.call(fields[0], with_own[1:])
        if fields[0] in BUILTINS:
            return BUILTINS[fields[0]](self, with_own if fields[0] == "set" else fields)
        self._record(node, fields)
        return LIKELY if fields[0] in QUIET else None

    def _record(self, node: Node, fields: list[str]) -> None:
        words = tuple(Argument(shown(f), getattr(f, "line", 0) or self.line, reason(f), str(f)) for f in fields)
        self.script.nested += [(script.line, script.text) for option, script in pairwise(words)
                               if re.fullmatch(r"-\w*c", option.text)]
        command, before = Command(words, node["line"], self.inside), self.script.found.get(id(node))
        self.script.found[id(node)] = before.again(command) if before else command

    def output(self, part: Node) -> str:
        """Returns the output of `pwd` and `basename`. Raises Unknown for any other command."""
        statement, *more = part.get("Stmts") or [{}]
        words = statement.get("Cmd", {}).get("Args", [])
        name = words[0]["raw"] if words and not more and not statement.get("Redirs") else ""
        self.called.add(name)
        if name == "pwd" and not words[1:]:
            return self.known("PWD")
        if name == "basename":
            path, *suffix = [f for word in words[1:] for f in self.fields(word) if f != OWN] or [""]
            last = path.rstrip("/").rpartition("/")[2]
            if last and not path.startswith("-") and "${oc.env:" not in last and not suffix[1:] and not any(
                    map(reason, [path, *suffix])):
                return last if [last] == suffix else last.removesuffix("".join(suffix))
        raise Unknown(f"the output of a command, {short(part['raw'])}, which is not run")

    def assignment(self, node: Node) -> None:
        name, before, more = node["Name"]["Value"], self.variables.get(node["Name"]["Value"]), node.get("Append")
        elements = node.get("Array", {}).get("Elems", [])
        if "Index" in node or any("Index" in one for one in elements):
            value: Value = hole(f"${{{name}}}", f"{name}, of which line {node['line']} sets elements")
        elif "Array" in node:
            old = before if isinstance(before, list) else [before] if before else []
            value = [*old * bool(more), *(f for e in elements if "Value" in e for f in self.fields(e["Value"]))]
        else:
            value, self.line = self.text(node.get("Value")), node["line"]
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
        except Unknown:
            return None

    def receive(self, fields: list[str]) -> Status:
        """Handles `read`, `mapfile`, `let` and similar, whose results are only known at run time."""
        names = re.findall(r"(?<![-\w])[A-Za-z_]\w*", " ".join(fields[1:])) or ["REPLY", "MAPFILE"]
        for name in names:
            self.assign(name, hole(f"${{{name}}}", f"{name}, which `{fields[0]}` of line {self.line} sets"))
        self.script.skipped.append((self.line, f"`{fields[0]}`: sets {', '.join(names)}, not known"))
        return None

    def _set(self, fields: list[str]) -> Status:
        if "--" in fields:
            self.variables["@"] = None
        return LIKELY

    def _shift(self, fields: list[str]) -> Status:
        if self.variables["@"] != [OWN]:
            self.variables["@"] = None
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
        text = shown(" ".join(fields[1:]))
        if not ACTIVATES.search(text):
            self.sourced = f"the `eval` of line {self.line}"
            self.script.skipped.append((self.line, f"`eval {short(text)}` was not read: what it sets is unknown"))
            self.script.nested.append((self.line, text))
            self.variables = {name: hole(f"${{{name}}}", f"{name}, which {self.sourced} may set")
                              for name in self.variables} | {"@": None}
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
