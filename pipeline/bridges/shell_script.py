"""What was read of a shell script: its simple commands, and what was passed over."""

from dataclasses import dataclass, field, replace

from pipeline.bridges.shell_construct import Construct
from pipeline.bridges.shell_variables import Argument

SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/usr/bin/bash")


@dataclass(frozen=True)
class Command:
    """A simple command. inside: the constructs that it stands in, the outermost first."""

    arguments: list[Argument]
    line: int
    inside: tuple[Construct, ...] = ()


@dataclass
class Script:
    """What was read, each in the order of the lines.

    skipped: (line, what may matter and was not read); assumed: (line, what was taken for granted); heredocs: (line,
    text), which are not read.
    """

    commands: list[Command] = field(default_factory=list)
    constructs: list[Construct] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    assumed: list[tuple[int, str]] = field(default_factory=list)
    heredocs: list[tuple[int, str]] = field(default_factory=list)

    def take_up(self, inner: "Script", offset: int, inside: tuple[Construct, ...]) -> None:
        """Adds a script within this one, at the lines of this one. inside: the constructs that it stands in."""
        for ours, theirs in ((self.skipped, inner.skipped), (self.assumed, inner.assumed),
                             (self.heredocs, inner.heredocs)):
            ours += [(line + offset, text) for line, text in theirs]
        for construct in inner.constructs:
            construct.line, construct.last = construct.line + offset, construct.last + offset
        self.constructs += inner.constructs
        self.commands += [
            Command([replace(argument, line=argument.line + offset) for argument in command.arguments],
                    command.line + offset, (*inside, *command.inside)) for command in inner.commands]


def script_of(arguments: list[Argument]) -> Argument | None:
    """The script in `bash -c 'script'`, wherever in the command it stands."""
    for shell, option, script in zip(arguments, arguments[1:], arguments[2:], strict=False):
        is_known = script.whole or not script.problem
        if is_known and shell.text in SHELLS and option.text in ("-c", "-lc", "-ic", "-ec", "-xc"):
            return script
    return None
