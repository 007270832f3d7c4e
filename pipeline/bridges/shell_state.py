"""Effects of shell commands: assignments, builtins, SLURM variables, and merging of alternative states."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.bridges.shell_syntax import Construct, Node, Unknown, hole, reason
from pipeline.bridges.shell_values import assigned, bracket, calculate
from pipeline.bridges.shell_words import UNSET, WITHOUT, State, Value, Words

LIKELY = "likely"  # the status of a command that the script assumes to succeed
Status = bool | str | None
ACTIVATES = re.compile(r"activate|conda|bashrc|profile|set_?env|setvars|nvm|cuda", re.IGNORECASE)
DIRECTIVE = re.compile(r"^#SBATCH[ \t]+(--[a-z-]+|-[A-Za-z])(?:=|[ \t]*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s#]+)", re.MULTILINE)
OF_JOBS = {  # option of sbatch -> the variables that hold its value
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"), "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",), "--job-name": ("SLURM_JOB_NAME",), "--gres": ("SLURM_GPUS_ON_NODE",)}
SHORT = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-J": "--job-name"}
AT_START = ("JOB_ID", "JOBID", "JOB_NODELIST", "NODELIST", "PROCID", "NODEID", "LOCALID", "ARRAY_JOB_ID",
            "ARRAY_TASK_ID", "SUBMIT_DIR")


def job_variables(text: str) -> dict[str, Value]:
    """Returns the variables SLURM sets for a batch script; empty without `#SBATCH` lines before the first command."""
    head = re.match(r"(?:[ \t]*(?:#[^\n]*)?(?:\n|\Z))*", text.replace("\r", ""))[0]
    names = [f"SLURM_{name}" for name in (AT_START if "\n#SBATCH" in f"\n{head}" else ())]
    found: dict[str, Value] = {n: hole(f"${n}", f"{n}, which SLURM sets when the job starts") for n in names}
    for option, value in DIRECTIVE.findall(head):
        option, value = SHORT.get(option, option), value.strip("\"'")
        value = re.sub(r"^gpu:(?:[\w.-]+:)?", "", value) if option == "--gres" else value
        found |= dict.fromkeys(OF_JOBS.get(option, ()), value) if value.isdigit() or option == "--job-name" else {}
    return found


def merged(before: State, ends: list[State], construct: Construct) -> tuple[State, tuple[str, ...]]:
    """Merges alternative states of which an unknown one applies; returns the state and its unknown variables."""
    state = ends[0].copy()
    for end in ends[1:]:
        state.arguments = end.arguments if end.arguments == state.arguments else None
        state.has_moved |= end.has_moved
        state.is_open |= end.is_open
        state.sourced = state.sourced or end.sourced
        state.marks |= end.marks
        state.functions |= end.functions
    values = {name: [end.variables.get(name) for end in ends] for end in ends for name in end.variables}
    changed = [name for name, held in values.items() if any(value != held[0] for value in held)]
    for name in changed:
        state.variables[name] = doubted(name, before.variables.get(name), values[name], construct)
    return state, tuple(changed)


def doubted(name: str, before: Value, values: list[Value], construct: Construct) -> Value:
    """Returns a variable after a construct: its old value, plus unknown words for what only some ends add."""
    why, old = f"what only {construct} adds", before or []
    if all(isinstance(value, list) and value[:len(old)] == old for value in [old, *values]):
        added = [value[len(old):] for value in values]
        every = [one for one in added[0] if all(one in more for more in added)]
        doubtful = dict.fromkeys(one for more in added for one in more if one not in every)
        return [*old, *every, *(one if reason(one) else one + hole("", why) for one in doubtful)]
    if isinstance(before, str) and before and all(
            isinstance(v, str) and v.startswith(before) and not v[len(before):][:1].strip() for v in values):
        return before + re.sub(r"\S+", lambda word: word[0] + hole("", why), "".join(v[len(before):] for v in values))
    return hole(f"${{{name}}}", f"{name}, which {construct} sets")


@dataclass
class Setter(Words, ABC):
    """Applies simple commands. printed: output of a command substitution so far; locals: of each call."""

    printed: list[str] | None = None
    locals: list[dict[str, Value]] = field(default_factory=list)

    @abstractmethod
    def nested(self, text: str, line: int) -> Status:
        """Reads a nested script."""

    def print(self, text: str | None) -> None:
        """Records a command's output; None where only running it would tell."""
        if self.printed is not None:
            self.printed.append(hole("", "") if text is None else text)

    # ---------------------------------------------------------------------------------------------------- assignments

    def _assign(self, node: Node) -> None:
        name, before, more = node["Name"]["Value"], self.state.variables.get(node["Name"]["Value"]), node.get("Append")
        if "Index" in node or any("Index" in one for one in node.get("Array", {}).get("Elems", ())):
            value: Value = hole(f"${{{name}}}", f"{name}, of which line {node['line'] + self.offset} sets elements")
        elif "Array" in node:
            elements = [f for e in node["Array"].get("Elems", ()) if "Value" in e for f in self.fields(e["Value"])]
            value = [*(before if isinstance(before, list) else [before] if before else []) * bool(more), *elements]
        else:
            value, self.line = self.text(node.get("Value")), node["line"] + self.offset
            if more and before is None:
                self.remark(f"{name} is not assigned in the script; taken as not set")
            if isinstance(before, list):
                value = [(before[0] if more and before else "") + value, *before[1:]]
            elif more:
                value = (before or "") + (value if ("i", name) not in self.state.marks else f" + {value}")
        self.assign(name, value)

    def _declare(self, node: Node) -> Status:
        word, options = node["Variant"]["Value"], ""
        for one in node.get("Args", []):
            text = self.text(one.get("Value"))
            name, sign, value = (one["Name"]["Value"], "", "") if "Name" in one else text.partition("=")
            if "Name" not in one and text.startswith(("-", "+")):
                options += text
                continue
            if self.locals and word != "export" and "g" not in options:
                self.locals[-1].setdefault(name, self.state.variables.get(name))
                self.assign(name, UNSET)
            self.state.marks |= {(o, name) for o in "ix" if o in options or (o == "x" and word == "export")}
            if sign:
                self.assign(name, value)
            elif not one.get("Naked"):
                self._assign(one)
            if "n" in options or "A" in options:
                self.assign(name, hole(f"${{{name}}}", f"{name}, declared by {options}"))
        return LIKELY

    def _arithmetic(self, node: Node | None) -> Status:
        try:
            return node is None or calculate(node, self) != 0
        except Unknown as unknown:
            for name in assigned(node):
                self.assign(name, hole(f"${{{name}}}", str(unknown)))
            return None

    def _let(self, node: Node) -> Status:
        self.line = node["line"] + self.offset
        if any(one["Type"] == "Word" for one in node["Exprs"]):  # quoted text, which shfmt does not parse
            return self._read(["let", *(one["raw"].strip("\"'") for one in node["Exprs"])])
        return [self._arithmetic(one) for one in node["Exprs"]][-1]

    def _define(self, node: Node) -> Status:
        self.state.functions[node["Name"]["Value"]] = node
        return True

    # ------------------------------------------------------------------------------------------------------- builtins

    def _set(self, fields: list[str]) -> Status:
        if "--" in fields:
            self.state.arguments, self.state.is_open = fields[fields.index("--") + 1:], self.took_own
        return LIKELY

    def _shift(self, fields: list[str]) -> Status:
        count = fields[1] if fields[1:] else "1"
        if self.state.arguments is not None:
            self.state.arguments = self.state.arguments[int(count):] if count.isdigit() else None
        return LIKELY

    def _move(self, fields: list[str]) -> Status:
        self.state.has_moved = True
        return LIKELY

    def _source(self, fields: list[str]) -> Status:
        self.script.skipped.append((self.line, f"`{fields[0]}`: the file that it reads is not read"))
        if not ACTIVATES.search("".join(fields[1:2])):
            self.state.sourced = f"the file that line {self.line} reads"
        return LIKELY

    def _read(self, fields: list[str]) -> Status:
        """Handles `read`, `mapfile`, `let` and similar, whose results are only known at run time."""
        names = re.findall(r"(?<=[\s\"'])([A-Za-z_]\w*)(?=\s*[-+*/%]?=|\s|$)", " ".join(fields)) or ["REPLY", "MAPFILE"]
        for name in names:
            self.assign(name, hole(f"${{{name}}}", f"{name}, which `{fields[0]}` of line {self.line} sets"))
        self.script.skipped.append((self.line, f"`{fields[0]}`: sets {', '.join(names)}, not known"))
        return None

    def _printf(self, fields: list[str]) -> Status:
        return self._read([fields[0], *fields[2:3]]) if fields[1:2] == ["-v"] else self.print(None)

    def _getopts(self, fields: list[str]) -> Status:
        if not self.starts_without or self.state.arguments:
            return self._read(["getopts", *fields[2:3], "OPTARG", "OPTIND"])
        self.remark(WITHOUT)
        self.state.variables |= dict.fromkeys(fields[2:3], "?")
        return False

    def _unset(self, fields: list[str]) -> Status:
        self.state.variables |= dict.fromkeys(fields[1:], UNSET)
        return LIKELY

    def _otherwise(self, node: Node) -> None:
        """Handles a failing test that would end the script: the user sets the tested variable, so reading continues."""
        line = node["line"] + self.offset
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", "".join(one["raw"] for one in node.get("Cond", ()))):
            self.assign(name, hole(f"${{{name}}}", f"{name}, with whose value here line {line} ends the script"))

    def _eval(self, fields: list[str]) -> Status:
        text = " ".join(fields[1:])
        if not reason(text.split(" ")[0]):
            return self.nested(text, self.line)
        self.script.skipped.append((self.line, f"`eval` was not read: its text holds {reason(text)}"))
        return None

    def _end(self, fields: list[str]) -> Status:
        self.state.ended = fields[0]
        return {(): None, ("0",): True}.get(tuple(fields[1:]), False if "".join(fields[1:]).isdigit() else None)

    def _echo(self, fields: list[str]) -> Status:
        self.print(None if fields[1:2] and fields[1].startswith("-") else " ".join(fields[1:]) + "\n")
        return LIKELY

    def _test(self, fields: list[str]) -> Status:
        return bracket(fields[1:-1] if fields[0] == "[" else fields[1:])

    def _printed(self, name: str, words: list[Node], statement: Node) -> str | None:
        """Returns the output of a few commands that only manipulate text; None for any other."""
        document = next((r["Hdoc"] for r in statement.get("Redirs", []) if "Hdoc" in r), None)
        if name == "cat" and document and not words:
            return self.text(document)
        if name == "pwd" and not words:
            return self.known("PWD")
        if name not in ("basename", "dirname"):
            return None
        path, *rest = [f for word in words for f in self.fields(word)] or [""]
        directory, slash, last = path.rstrip("/").rpartition("/")
        if not path.strip("/") or path.startswith("-") or "${oc.env:" in last or any(map(reason, [path, *rest])):
            return None
        if name == "dirname":
            return None if rest else directory.rstrip("/") or ("/" if slash else ".")
        return None if rest[1:] else last if [last] == rest else last.removesuffix("".join(rest))


BUILTINS: dict[str, Callable[[Setter, list[str]], Status]] = {
    "set": Setter._set, "shift": Setter._shift, "cd": Setter._move, "pushd": Setter._move, "popd": Setter._move,
    "source": Setter._source, ".": Setter._source, "read": Setter._read, "mapfile": Setter._read,
    "readarray": Setter._read, "printf": Setter._printf, "getopts": Setter._getopts, "unset": Setter._unset,
    "exit": Setter._end, "return": Setter._end, "break": Setter._end, "continue": Setter._end,
    "eval": Setter._eval,
    "echo": Setter._echo, "[": Setter._test, "test": Setter._test, "true": lambda *_: True, ":": lambda *_: True,
    "false": lambda *_: False}
