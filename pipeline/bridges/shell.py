"""Reads a launch script without running it: its commands, with words expanded as in bash.

Only what is certain is followed: assignments, branches with known tests, loops over known words, calls, `eval` and
`bash -c`. Commands in anything else are read once as a Construct, and what it assigns is unknown afterwards. For a
command that runs several times, words are known if they are the same each time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pipeline.bridges.shell_state import BUILTINS, LIKELY, Setter, Status, doubted, job_variables, merged
from pipeline.bridges.shell_syntax import Argument, Command, Construct, Node, Script, hole, parse, reason, shown
from pipeline.bridges.shell_values import clause, fits
from pipeline.bridges.shell_words import WITHOUT, State
from pipeline.store.errors import ConfigError

SHELL = re.compile(r"(?:/usr)?(?:/bin/)?(?:ba|z|da)?sh")
QUIET = ("alias", "conda", "cp", "ln", "mkdir", "module", "mv", "rm", "shopt", "sleep", "touch", "trap", "ulimit")
ROUNDS, DEEPEST = 3000, 12


def read_script(text: str, name: str = "the script") -> Script:
    """Returns the commands of a script and its unread parts. Raises ConfigError if it is not bash."""
    reader = Reader(state=State(variables=job_variables(text)))
    try:
        reader.statements(parse(text, name))
        reader.uncalled()
    except RecursionError as error:
        raise ConfigError(f"{name}: its commands or expansions nest too deeply.") from error
    for listed in (reader.script.skipped, reader.script.assumed):
        listed[:] = sorted(dict.fromkeys(listed), key=lambda remark: remark[0])
    return reader.script


@dataclass
class Reader(Setter):
    """Follows the statements of a script. inside: the enclosing constructs; is_exact: whether a loop iteration is
    followed, which may end early."""

    inside: tuple[Construct, ...] = ()
    is_exact: bool = False
    called: set[int] = field(default_factory=set)
    returned: list[State] = field(default_factory=list)
    depth: int = 0
    rounds: int = 0

    def statements(self, nodes: Iterable[Node]) -> Status:
        status: Status = True
        for node in nodes:
            if self.state.ended == "exit":
                self.script.skipped.append((node["line"] + self.offset, "behind an `exit`: was not read"))
            if self.state.ended:
                break
            status = self.statement(node)
        return status

    def statement(self, node: Node) -> Status:
        command, outer = node.get("Cmd", {"Type": ""}), self.printed
        for redirect in node.get("Redirs", []):
            if "Hdoc" in redirect:
                self.script.heredocs.append((redirect["Hdoc"]["line"] + self.offset, redirect["Hdoc"]["raw"]))
            if redirect["Op"][0] in ">&" and outer is not None and redirect.get("N", {}).get("Value", "1") == "1":
                self.printed = []
        if command["Type"] == "CallExpr":
            read = partial(self._simple, command, node)
        elif command["Type"] in COMMANDS:
            read = partial(COMMANDS[command["Type"]], self, command)
        else:
            read = partial(self.print, None)
        status = self._apart(read) if node.get("Background") else read()
        self.printed = outer
        return (not status if isinstance(status, bool) else None) if node.get("Negated") else status

    def _apart(self, read: Callable[[], Status]) -> Status:
        """Reads a subshell: its assignments end with it."""
        outer, self.state, exact, self.is_exact = self.state, self.state.copy(), self.is_exact, False
        status = read()
        self.state, self.is_exact = outer, exact
        return status

    def output(self, part: Node) -> str:
        outer, self.printed = self.printed, []
        self._apart(lambda: self.statements(part.get("Stmts", [])))
        text, self.printed = "".join(self.printed).rstrip("\n"), outer
        return super().output(part) if reason(text) == "" else text

    def _may(self, word: str, node: Node, bodies: list[Callable[[], Any]], name: str = "") -> None:
        """Reads alternative bodies of which an unknown one runs: variables on which they differ are unknown."""
        construct = Construct(word, node["line"] + self.offset, node["last"] + self.offset, name)
        before, outer, printed, ends = self.state, self.inside, len(self.printed or ()), list[State]()
        self.inside = (*outer, construct)
        for body in bodies:
            self.state = before.copy()
            body()
            ends.append(self.state)
        self.inside = outer
        if len(self.printed or ()) > printed:
            self.print(None)
        for end in ends:
            if end.ended in ("break", "continue"):
                if self.is_exact:
                    raise _Uncertain
                end.ended = ""
        self.returned += [end for end in ends if end.ended == "return"]
        going = [end for end in ends if not end.ended] or [self.returned[-1] if self.returned else ends[0]]
        self.state, changed = merged(before, going, construct)
        if word not in ("&&", "||"):
            self.script.constructs.append((construct, changed))

    def _if(self, node: Node) -> Status:
        status, other = self.statements(node.get("Cond", ())), node.get("Else")
        yes, no = partial(self.statements, node["Then"]), partial(self._if, other) if other else partial(bool, True)
        if not isinstance(status, bool):
            return self._may("if", node, [yes, no])
        before, script = self.state.copy(), self.script.copy()
        status = yes() if status else no()
        if self.state.ended == "exit" and len(self.script.found) == len(script.found):
            self.state, self.script, status = before, script, None
            self._otherwise(node)
        return status

    def _case(self, node: Node) -> Status:
        subject, left, is_certain = self.text(node["Word"]), list[Node](), False
        for item in node.get("Items", []):
            verdicts = [fits(subject, one, self) for one in item["Patterns"]]
            left += [item] if True in verdicts or None in verdicts else []
            is_certain = True in verdicts
            if is_certain:
                break
        if any(item["Op"] != ";;" for item in node.get("Items", [])):
            left, is_certain = node["Items"], False
        bodies = [partial(self.statements, item.get("Stmts", [])) for item in left]
        if len(bodies) == 1 and is_certain:
            return bodies[0]()
        return self._may("case", node, bodies if is_certain else [*bodies, partial(bool, True)]) if bodies else True

    def _both(self, node: Node) -> Status:
        """Reads `a && b`, `a || b`; in a pipeline each command has its own subshell."""
        op, right = node["Op"], partial(self.statement, node["Y"])
        if op in ("|", "|&"):
            outer, self.printed = self.printed, None if self.printed is None else []
            self._apart(partial(self.statement, node["X"]))
            self.printed = outer
            self._apart(right)
            return self.print(None)
        left = self.statement(node["X"])
        if self.state.ended:
            return left
        if left is None or (left == LIKELY and op == "||"):
            return self._may(op, node, [right, partial(bool, True)])
        return right() if bool(left) == (op == "&&") else left

    def _for(self, node: Node) -> Status:
        """Follows iterations over known words; any other loop has an unknown number of iterations."""
        loop, body, self.took_own = node["Loop"], partial(self.statements, node.get("Do", [])), False
        if loop["Type"] == "CStyleLoop":
            parts = [loop.get(part) for part in ("Init", "Cond", "Post")]
            return self._repeated("for", node, lambda: [*map(self._arithmetic, parts), body()])
        name = loop["Name"]["Value"]
        words = [f for w in loop["Items"] for f in self.fields(w)] if "Items" in loop else self.held("@")
        if self.took_own and not words:
            self.remark(WITHOUT)
        if "Select" not in node and not any(reason(w) or re.fullmatch(r"\$\{oc\.env:\w+\}", w) for w in words):
            before, script, outer = self.state.copy(), self.script.copy(), (self.inside, self.depth, self.is_exact)
            try:
                return self._rounds(name, words, body)
            except _Uncertain:
                self.state, self.script, (self.inside, self.depth, self.is_exact) = before, script, outer
        told = f"one value after another ({', '.join(map(shown, words[:4]))}{', ...' if words[4:] else ''})"
        value = hole(f"${{{name}}}", f"{name}, to which the `for` of line {node['line'] + self.offset} gives {told}")
        return self._repeated("for", node, lambda: [self.assign(name, value), body()])

    def _rounds(self, name: str, words: list[str], body: Callable[[], Any]) -> Status:
        exact, self.is_exact = self.is_exact, True
        for word in words:
            self.rounds += 1
            if self.rounds > ROUNDS:
                raise _Uncertain
            self.assign(name, str(word))
            body()
            ended = self.state.ended
            self.state.ended = "" if ended in ("break", "continue") else ended
            if ended not in ("", "continue"):
                break
        self.is_exact = exact
        return None

    def _while(self, node: Node) -> Status:
        """Skips a loop that certainly does not start (one over the script's own arguments), else reads it once."""
        before, outer, self.starts_without = self.state.copy(), self.starts_without, True
        holds, self.starts_without = self.statements(node["Cond"]), outer
        if holds is bool(node.get("Until")):
            return None
        self.state = before
        return self._repeated("while", node, lambda: [self.statements(node.get(part, ())) for part in ("Cond", "Do")])

    def _repeated(self, word: str, node: Node, once: Callable[[], Any]) -> Status:
        """Reads a body with an unknown number of iterations: what it changes is unknown at its start, too."""
        construct = Construct(word, node["line"] + self.offset, node["last"] + self.offset)
        before, script, exact, self.is_exact = self.state.copy(), self.script.copy(), self.is_exact, False
        once()
        first, self.state, self.script = self.state, before.copy(), script
        changed = [name for name, value in first.variables.items() if value != before.variables.get(name)]
        for name in changed:
            self.assign(name, hole(f"${{{name}}}", f"{name}, which {construct} sets"))
        self._may(word, node, [once, partial(bool, True)])
        for name in changed:
            held = before.variables.get(name)
            self.state.variables[name] = doubted(name, held, [held, first.variables[name]], construct)
        self.is_exact = exact

    def _simple(self, node: Node, statement: Node) -> Status:
        words, assigns = node.get("Args", []), node.get("Assigns", [])
        if not words:
            for one in assigns:
                self._assign(one)
            return None if any("$(" in one["raw"] or "`" in one["raw"] for one in assigns) else True
        name, self.took_own = words[0]["raw"], False
        if self.printed is not None and name not in BUILTINS and name not in self.state.functions:
            return self.print(self._printed(name, words[1:], statement)) if name not in QUIET else LIKELY
        fields = [f for word in words for f in self.fields(word)]
        name = fields[0] if fields else ":"
        if name in self.state.functions:
            saved = {one["Name"]["Value"]: self.state.variables.get(one["Name"]["Value"]) for one in assigns}
            for one in assigns:
                self._assign(one)
            status = self._call(self.state.functions[name], fields[1:], self.took_own)
            self.state.variables |= saved
            return status
        if name in BUILTINS:
            return BUILTINS[name](self, fields)
        self._record(node, fields)
        return LIKELY if name in QUIET else None

    def _record(self, node: Node, fields: list[str]) -> None:
        words = tuple(Argument(shown(f), getattr(f, "line", 0) or self.line, reason(f), str(f)) for f in fields)
        nested = next((script for shell, option, script in zip(words, words[1:], words[2:], strict=False)
                       if SHELL.fullmatch(shell.text) and re.fullmatch(r"-\w*c", option.text)), None)
        command, before = Command(words, node["line"] + self.offset, self.inside), self.script.found.get(id(node))
        if nested:
            exported = {n: v for n, v in self.state.variables.items() if ("x", n) in self.state.marks}
            outer, self.state = self.state, State(exported, is_open=False, has_moved=self.state.has_moved)
            self.nested(nested.whole, nested.line)
            self.state = outer
        else:
            self.script.found[id(node)] = before.again(command) if before else command

    def nested(self, text: str, line: int) -> Status:
        if self.depth >= DEEPEST:
            return self.print(None)
        outer, self.offset, self.depth = self.offset, line - 1, self.depth + 1
        text = re.sub(r"\$\{oc\.env:(\w+)\}", r"${oc_env_\1}", text)  # which bash could not parse
        status = self.statements(parse(text, f"the script within line {line}"))
        self.offset, self.depth = outer, self.depth - 1
        return status

    def _call(self, node: Node, arguments: list[str] | None, is_open: bool) -> Status:
        self.called.add(id(node))
        if self.depth >= DEEPEST:
            self.script.skipped.append((self.line, f"{node['Name']['Value']}: its calls nest too deeply"))
            return None
        outer, returned, before = (self.state.arguments, self.state.is_open), self.returned, self.state.copy()
        self.state.arguments, self.state.is_open, self.returned = arguments, is_open, []
        self.locals.append({})
        self.depth += 1
        status = self.statement(node["Body"])
        self.depth -= 1
        self.state.ended = self.state.ended.replace("return", "")
        if self.returned:
            place = Construct("function", node["line"] + self.offset, node["last"] + self.offset, node["Name"]["Value"])
            ends = [*([] if self.state.ended else [self.state]), *(replace(end, ended="") for end in self.returned)]
            (self.state, _), status = merged(before, ends, place), None
        self.state.variables |= self.locals.pop()
        (self.state.arguments, self.state.is_open), self.returned = outer, returned
        return status

    def uncalled(self) -> None:
        """Reads functions that are never called: their commands are known, their arguments are not."""
        self.state.ended = ""
        for name, node in list(self.state.functions.items()):
            if id(node) not in self.called:
                self._may("function", node, [partial(self._call, node, None, False), partial(bool, True)], name)


class _Uncertain(Exception):
    """A loop with an unknown number of iterations, or an unknown end of an iteration."""


COMMANDS: dict[str, Callable[[Reader, Node], Status]] = {
    "IfClause": Reader._if, "CaseClause": Reader._case, "BinaryCmd": Reader._both, "ForClause": Reader._for,
    "WhileClause": Reader._while, "DeclClause": Reader._declare, "LetClause": Reader._let, "FuncDecl": Reader._define,
    "Block": lambda reader, node: reader.statements(node["Stmts"]),
    "Subshell": lambda reader, node: reader._apart(partial(reader.statements, node["Stmts"])),
    "TestClause": lambda reader, node: clause(node["X"], reader),
    "ArithmCmd": lambda reader, node: reader._arithmetic(node["X"]),
    "TimeClause": lambda reader, node: reader.statement(node["Stmt"])}
