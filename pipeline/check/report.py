"""The findings on a run before it starts, and how they are printed."""

import json
import sys
import textwrap
from dataclasses import dataclass, field
from functools import cache

from ouroboros.pipeline.check.memory import GIB
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import Problem, masked

WIDTH = 110  # columns of the report
Facts = list[tuple[str, str]]  # (word, sentence)


@dataclass
class Report:
    """problems: must be fixed first. warnings: possibly unintended. unjudged: not on this machine.

    facts: (heading, facts below it). plan: the run's stages; None when a problem prevents planning. expected: of each
    stage that trains and is not complete its time in a sentence, and as an `Expected` of times.py.
    """

    run: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    unjudged: list[Problem] = field(default_factory=list)
    facts: list[tuple[str, Facts]] = field(default_factory=list)
    plan: Plan | None = None
    expected: list[tuple] = field(default_factory=list)

    def add(self, stage: str, found: list[Problem | str | None], to: str = "problems") -> None:
        """Adds the findings of one stage, without repeating those that another stage added.

        A plain text is a finding about no single setting; planning repeats some that a setting was given.
        """
        known = getattr(self, to)
        for one in filter(None, found):
            problem = one if isinstance(one, Problem) else Problem(needed=one)
            if not any((problem.needed, problem.do) == (other.needed, other.do)
                       and (not problem.key or (problem.key, problem.found) == (other.key, other.found))
                       and (stage or problem.stages in ((), other.stages)) for other in known):
                known.append(problem.of([stage]) if stage else problem)

    def add_all(self, stage: str, found: dict[str, list]) -> Facts:
        """Does the same for findings by the list that they belong to; returns the `facts` among them."""
        for to, several in found.items():
            if to != "facts":
                self.add(stage, several, to)
        return found.get("facts", [])

    def news_of_models(self, lines: list[str], named: dict[str, str]) -> list[Problem | str]:
        """Returns what a process that reads models says of them as problems of the settings that name them, without
        models of which a problem is known: it found the same. named: path -> setting."""
        known = [path for path, key in named.items() if any(one.startswith(f"{key}={path}: ") for one in self.problems)]
        found = [_of_model(line, named) for line in lines]
        return [one for one in found if not (isinstance(one, Problem) and one.found in known)]

    def as_json(self) -> str:
        """Returns the report as JSON: problems, warnings and what is not judged by their parts; facts by heading."""
        lists = ("problems", "warnings", "unjudged")
        shown = {
            "run": self.run,
            **{name: [one.parts() for one in getattr(self, name)] for name in lists},
            "facts": [{"heading": heading, "facts": [list(fact) for fact in facts]} for heading, facts in self.facts],
            "stages": [{"name": one.name, "directory": one.directory, "complete": files.is_complete(one.directory)}
                       for one in (self.plan.stages if self.plan else ())],
        }
        return masked(json.dumps(shown, indent=2, ensure_ascii=False))

    def text(self) -> str:
        """Returns the report as text at most WIDTH columns wide: problems first, then the plan."""
        lines = [f"{self.run}: {_counted(self)}"]
        for title, found in (("problems", self.problems), ("warnings", self.warnings),
                             ("not judged here", self.unjudged)):
            if found:
                lines += ["", title, *(_wrapped(line, "  - ", "    ") for line in found)]
        if self.plan:
            made = [s.name + (" (made)" if files.is_complete(s.directory) else "") for s in self.plan.stages]
            lines += ["", _wrapped(", ".join(made), "stages  ", " " * 8)]
        width = max((len(word) for _, facts in self.facts for word, _ in facts), default=0) + 4
        for heading, facts in self.facts:
            if facts:
                lines += ["", heading, *(_wrapped(s, f"  {word}".ljust(width), " " * width) for word, s in facts)]
        return masked("\n".join(lines))


def _of_model(line: str, named: dict[str, str]) -> Problem | str:
    for path, key in named.items():
        for begin in (f"{path}: ", f"{path} ", f"{key}={path}: "):
            if line.startswith(begin):
                return Problem(key, line.removeprefix(begin), found=path)
        if line.startswith((f"the tokenizer of {path} ", f"the chat template of {path}")):
            return Problem(key, line, found=path)
    return line


@cache
def warn(line: str) -> None:
    """Prints a warning once, however many points of a sweep it concerns."""
    print(_wrapped(line, "ouro: warning: ", "  "), file=sys.stderr)


def size(count: float) -> str:
    """Formats bytes in MiB, or in GiB from 1 GiB."""
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / 2**20:,.1f} MiB"


def _counted(report: Report) -> str:
    counts = [f"{len(found)} {word}{'s' * (len(found) > 1)}" for word, found in
              (("problem", report.problems), ("warning", report.warnings)) if found]
    return ", ".join(counts) or "no problem found"


def _wrapped(sentence: str, first: str, rest: str) -> str:
    line, *frames = sentence.split("\n")
    form = {"initial_indent": first, "subsequent_indent": rest, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join([textwrap.fill(line, WIDTH, **form), *(rest + frame for frame in frames)])
