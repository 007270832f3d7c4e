"""What the variables and arguments of a shell script hold, so far as it was read."""

import re
from dataclasses import dataclass, field
from typing import Any

from pipeline.bridges.shell_holes import Unknown

PART = re.compile(r"(?::\s*(?P<first>\d{1,6})(?::(?P<count>\d{1,6}))?)?")
FURTHER = "@ and further ones"  # holds something where the script's own arguments follow those that are known
UNSET = object()  # what a variable holds that nothing assigned


@dataclass(frozen=True)
class Argument:
    """An expanded word. problem: why its text is not known (text is then as written); whole: its text with holes."""

    text: str
    line: int
    problem: str | None = None
    whole: str = ""


@dataclass
class Variables:
    """Variables of a script: text, a list of arguments (an array), or Unknown.

    scopes: for every open construct what its variables held before they were assigned in it.
    """

    known: dict[str, str | list[Argument] | Unknown] = field(default_factory=dict)
    scopes: list[dict[str, Any]] = field(default_factory=list)
    integers: set[str] = field(default_factory=set)  # variables that `declare -i` makes numbers

    def assign(self, name: str, value: str | list[Argument] | Unknown) -> None:
        for scope in self.scopes:
            scope.setdefault(name, self.known.get(name, UNSET))
        self.known[name] = value

    def set_arguments(self, arguments: list[Argument] | Unknown, is_open: bool = False) -> None:
        """What `$1`, `$@` are from here on. is_open: the script's own arguments follow."""
        self.assign("@", arguments)
        self.assign(FURTHER, "yes" if is_open else "")

    def held(self, name: str) -> Any:
        """What a variable holds; of `$1` and `$#` what a call that is followed hands over. None for what is not set."""
        given, is_open = self.known.get("@"), bool(self.known.get(FURTHER))
        if isinstance(given, list) and name == "#":
            return None if is_open else str(len(given))
        if isinstance(given, list) and name.isdigit() and int(name) > 0:
            if int(name) > len(given):
                return None if is_open else ""
            chosen = given[int(name) - 1]
            return Unknown(chosen.problem) if chosen.problem else chosen.text
        return self.known.get(name)

    def positional(self, rest: str) -> list[Argument] | None:
        """`$@`, `${@:2}`, `${@:2:3}`: of a call that is followed, or of `set --`; the script's own count as none."""
        given = self.known.get("@", [])
        if isinstance(given, Unknown):
            raise given
        part = PART.fullmatch(rest)
        if not part or part["first"] == "0":
            return None
        first = int(part["first"] or 1) - 1
        return given[first:first + int(part["count"])] if part["count"] else given[first:]

    def element(self, name: str, array: list[Argument], index: str) -> str:
        if index in ("@", "*"):
            chosen = array
        elif re.fullmatch(r"\d{1,6}", index) and int(index) < len(array):
            chosen = [array[int(index)]]
        else:
            raise Unknown(f"{name}[{index}], which the script does not assign")
        if why := next((argument.problem for argument in chosen if argument.problem), None):
            raise Unknown(why)
        return " ".join(argument.text for argument in chosen)
