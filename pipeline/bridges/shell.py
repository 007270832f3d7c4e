"""Reads a launch script without running it: its commands, with words expanded as in bash.

Only what is certain is followed: assignments, branches with known tests, loops over known words, calls. Commands in
anything else are read once as a Construct, and what it assigns is unknown afterwards. For a
command that runs several times, words are known if they are the same each time.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.bridges.shell_commands import LIKELY, Commands, Status
from pipeline.bridges.shell_state import doubted, job_variables, merged
from pipeline.bridges.shell_syntax import Construct, Node, Script, hole, parse, reason, shown
from pipeline.bridges.shell_values import clause, fits
from pipeline.bridges.shell_words import ENVIRONMENT, OWN, WITHOUT, Value
from pipeline.store.errors import ConfigError

ROUNDS, DEEPEST = 3000, 12  # iterations of all loops; nested calls
ENDS = re.compile(r"\b(break|continue|return)\b")


def read_script(text: str, name: str = "the script") -> Script:
    """Returns the commands of a script and its unread parts. Raises ConfigError if it is not bash."""
    reader = Reader({"@": [OWN], **job_variables(text)})
    try:
        reader.statements(parse(text, name))
        reader.uncalled()
    except RecursionError as error:
        raise ConfigError(f"{name}: its commands or expansions nest too deeply.") from error
    for listed in (reader.script.skipped, reader.script.assumed):
        listed[:] = sorted(dict.fromkeys(listed), key=lambda remark: remark[0])
    return reader.script


@dataclass
class Reader(Commands):
    """Follows the statements of a script. returned: variables at each `return` of a call that may not be reached."""

    returned: list[dict[str, Value]] = field(default_factory=list)
    rounds: int = 0

    def statements(self, nodes: Iterable[Node]) -> Status:
        status: Status = True
        for node in nodes:
            if self.ended == "exit":
                self.script.skipped.append((node["line"], "behind an `exit`: was not read"))
            if self.ended:
                break
            status = self.statement(node)
        return status

    def statement(self, node: Node) -> Status:
        for redirect in node.get("Redirs", []):
            if "Hdoc" in redirect:
                self.script.nested.append((redirect["Hdoc"]["line"], redirect["Hdoc"]["raw"]))
        read = partial(READ.get(node.get("Cmd", {}).get("Type"), lambda *_: None), self, node.get("Cmd"))
        status = self._apart(read) if node.get("Background") else read()
        return (not status if isinstance(status, bool) else None) if node.get("Negated") else status

    def _apart(self, read: Callable[[], Status]) -> Status:
        """Reads a subshell: its assignments end with it."""
        outer, self.variables = self.variables, dict(self.variables)
        status = read()
        self.variables, self.ended = outer, ""
        return status

    def _may(self, word: str, node: Node, bodies: list[Callable[[], Any]], name: str = "") -> None:
        """Reads alternative bodies of which an unknown one runs: variables on which they differ are unknown."""
        construct = Construct(word, node["line"], node["last"], name)
        before, outer, ends = self.variables, self.inside, []
        self.inside = (*outer, construct)
        for body in bodies:
            self.variables, self.ended = dict(before), ""
            body()
            ends.append((self.ended, self.variables))
        self.inside = outer
        self.returned += [end for ended, end in ends if ended == "return"]
        going = [end for ended, end in ends if ended not in ("exit", "return")]
        self.ended = "" if going else "return" if "return" in dict(ends) else "exit"
        self.variables, changed = merged(before, going or [end for _, end in ends], construct)
        if word not in ("&&", "||"):
            self.script.constructs.append((construct, tuple(name for name in changed if name not in ("@", "PWD"))))

    def _if(self, node: Node) -> Status:
        status, other = self.statements(node.get("Cond", ())), node.get("Else")
        yes, no = partial(self.statements, node["Then"]), partial(self._if, other) if other else partial(bool, True)
        if not isinstance(status, bool):
            return self._may("if", node, [yes, no])
        before, script = dict(self.variables), self.script.copy()
        status = yes() if status else no()
        if self.ended == "exit" and len(self.script.found) == len(script.found):
            self.variables, self.script, self.ended, status = before, script, "", None
            self._tested(node)
        return status

    def _tested(self, node: Node) -> None:
        """Handles a failing test that would end the script: the user sets the tested variable, so reading continues."""
        line = node["line"]
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", "".join(one["raw"] for one in node.get("Cond", ()))):
            self.assign(name, hole(f"${{{name}}}", f"{name}, with whose value here line {line} ends the script"))

    def _case(self, node: Node) -> Status:
        subject, bodies, is_certain = self.text(node["Word"]), [], False
        for item in node.get("Items", []):
            verdicts = [fits(subject, one, self) for one in item["Patterns"]]
            if is_certain or not (True in verdicts or None in verdicts):
                continue
            bodies.append(partial(self.statements, item.get("Stmts", [])))
            is_certain = True in verdicts and item["Op"] == ";;"
        if len(bodies) == 1 and is_certain:
            return bodies[0]()
        return self._may("case", node, bodies if is_certain else [*bodies, partial(bool, True)]) if bodies else True

    def _both(self, node: Node) -> Status:
        """Reads `a && b`, `a || b`; in a pipeline each command has its own subshell."""
        op, left, right = node["Op"], partial(self.statement, node["X"]), partial(self.statement, node["Y"])
        if op in ("|", "|&"):
            self._apart(left)
            self._apart(right)
            return None
        status = left()
        if self.ended:
            return status
        if status is None or (status == LIKELY and op == "||"):
            return self._may(op, node, [right, partial(bool, True)])
        return right() if bool(status) == (op == "&&") else status

    def _for(self, node: Node) -> Status:
        """Follows iterations over known words; any other loop has an unknown number of iterations."""
        loop, body = node["Loop"], partial(self.statements, node.get("Do", []))
        if loop["Type"] == "CStyleLoop":
            parts = [loop.get(part) for part in ("Init", "Cond", "Post")]
            return self._repeated("for", node, lambda: [*map(self.arithmetic, parts), body()])
        name = loop["Name"]["Value"]
        words = [f for w in loop["Items"] for f in self.fields(w)] if "Items" in loop else list(self.held("@"))
        if words == [OWN]:
            self.remark(WITHOUT)
        words = [word for word in words if word != OWN]
        self.rounds += len(words)
        if (not any(reason(word) or ENVIRONMENT.fullmatch(word) for word in words) and self.rounds <= ROUNDS
                and "Select" not in node and not any(ENDS.search(one["raw"]) for one in node.get("Do", []))):
            for word in words:
                self.assign(name, str(word))
                body()
            return None
        told = f"one value after another ({', '.join(map(shown, words[:4]))}{', ...' if words[4:] else ''})"
        value = hole(f"${{{name}}}", f"{name}, to which the `for` of line {node['line']} gives {told}")
        return self._repeated("for", node, lambda: [self.assign(name, value), body()])

    def _while(self, node: Node) -> Status:
        """Skips a loop that certainly does not start (one over the script's own arguments), else reads it once."""
        before, outer, self.starts_without = dict(self.variables), self.starts_without, True
        holds, self.starts_without = self.statements(node["Cond"]), outer
        if holds is bool(node.get("Until")):
            return None
        self.variables = before
        return self._repeated("while", node, lambda: [self.statements(node.get(part, ())) for part in ("Cond", "Do")])

    def _repeated(self, word: str, node: Node, once: Callable[[], Any]) -> None:
        """Reads a body with an unknown number of iterations: what it changes is unknown at its start, too."""
        construct = Construct(word, node["line"], node["last"])
        before, script = dict(self.variables), self.script.copy()
        once()
        first, self.variables, self.script, self.ended = self.variables, dict(before), script, ""
        changed = [name for name, value in first.items() if value != before.get(name)]
        for name in changed:
            self.assign(name, hole(f"${{{name}}}", f"{name}, which {construct} sets"))
        self._may(word, node, [once, partial(bool, True)])
        for name in changed:
            self.assign(name, doubted(name, before.get(name), [before.get(name), first[name]], construct))

    def call(self, name: str, arguments: Value) -> Status:
        """Reads the body of a function."""
        node = self.functions[name]
        self.called.add(name)
        if len(self.locals) >= DEEPEST:
            self.script.skipped.append((self.line, f"{name}: its calls nest too deeply"))
            return None
        before, outer, self.returned = dict(self.variables), self.returned, []
        self.locals.append({"@": before["@"]})
        self.variables["@"] = arguments
        status = self.statement(node["Body"])
        self.ended = self.ended.replace("return", "")
        if self.returned:
            place = Construct("function", node["line"], node["last"], name)
            self.variables, _ = merged(before, [*[self.variables] * (not self.ended), *self.returned], place)
            self.ended, status = "", None
        self.variables |= self.locals.pop()
        self.returned = outer
        return status

    def define(self, node: Node) -> Status:
        self.functions[node["Name"]["Value"]] = node
        return True

    def uncalled(self) -> None:
        """Reads functions that are never called by name: their commands are known, their arguments are not."""
        self.ended = ""
        for name, node in list(self.functions.items()):
            if name not in self.called:
                self._may("function", node, [partial(self.call, name, None), partial(bool, True)], name)


READ: dict[str, Callable[[Reader, Node], Status]] = {
    "CallExpr": Reader.simple, "IfClause": Reader._if, "CaseClause": Reader._case, "BinaryCmd": Reader._both,
    "ForClause": Reader._for, "WhileClause": Reader._while, "DeclClause": Reader.declaration,
    "FuncDecl": Reader.define, "LetClause": lambda reader, node: [*map(reader.arithmetic, node["Exprs"])] and None,
    "Block": lambda reader, node: reader.statements(node["Stmts"]),
    "Subshell": lambda reader, node: reader._apart(partial(reader.statements, node["Stmts"])),
    "TestClause": lambda reader, node: clause(node["X"], reader),
    "ArithmCmd": lambda reader, node: reader.arithmetic(node["X"]),
    "TimeClause": lambda reader, node: reader.statement(node["Stmt"])}
