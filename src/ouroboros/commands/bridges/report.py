"""The output of `ouro import`: the recipe with the origin of each line, the result for every key, open questions."""

import math
import re
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import yaml

from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import SETTINGS, Entry, Translation, cut_to_limit, lines_of
from ouroboros.commands.bridges.translation import Path as Place
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.check.named_functions import wrong_references
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.guide import general
from ouroboros.pipeline.settings.secrets import is_secret, mask, typed
from ouroboros.pipeline.settings.setting import about
from ouroboros.pipeline.store.errors import ConfigError, OuroError
from ouroboros.pipeline.store.files import require_file
from ouroboros.pipeline.store.yaml_values import Loader

WIDTH = 112  # characters of a line on the terminal


def finish(made: Translation, arguments) -> int:
    """Writes the recipe and prints the result per key.

    Returns 0 if it is the source's task, composes, and leaves no question open, else 1.
    """
    text, out = write(made, account(made)), sys.stderr if arguments.stdout else sys.stdout
    if arguments.stdout:
        print(text, end="")
        _print_account(made, out)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "recipe.yaml"
            path.write_text(text, encoding="utf-8")
            return _check(made, str(path), out, "recipe=FILE")
    path, choice = _place(made, arguments)
    there = path.exists() and require_file(path, f"--output {path}")  # a pipe would never end
    if there and path.read_bytes() != text.encode() and not arguments.force:
        raise OuroError(f"{path} exists already and says something else. Write --force to replace it, or --name or "
                        "--output for another file.")
    if path.parent.exists() and not path.parent.is_dir():
        raise OuroError(f"{path}: {path.parent} is no directory. Name another place by --output.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    _print_account(made, out)
    print(f"wrote {path}")
    return _check(made, choice, out, f"recipe={choice}")


def account(made: Translation) -> str:
    """`37 keys: 29 as they are, 5 renamed, 1 left out, 2 without effect here`."""
    counts = [(made.kept, "as they are"), (made.unknown, "unknown"), (made.left_out, "left out"),
              (made.idle, "without effect here")]
    said = [f"{len(keys)} {word}" for keys, word in counts if keys]
    said.insert(bool(made.kept), f"{len(made.renamed)} {'renamed' if made.kept else 'translated'}")
    return f"{made.keys} keys: " + ", ".join(said)


def _place(made: Translation, arguments) -> tuple[Path, str]:
    """Returns the recipe's path, and the argument that selects it: `recipe=<name>`, or its path."""
    if arguments.output:
        return Path(arguments.output), arguments.output
    own = str(made.value("name") or "${}")
    given = arguments.name or (Path(made.source).stem if "${" in own else own)
    name = cut_to_limit(re.sub(r"[^\w-]+", "-", given).strip("-")) or "imported"
    path = Path("conf") / "recipe" / f"{name}.yaml"
    ours = Path(__file__).resolve().parents[2] / "conf" / "recipe" / path.name
    if ours.exists() and ours != path.resolve():
        raise OuroError(f"{name} is a recipe of ours: name this one otherwise, by --name.")
    return path, name


# ----------------------------------------------------------------------------------------------------------- the recipe


def write(translation: Translation, account: str) -> str:
    """Returns the text of the recipe. account: how many keys became what, in one line."""
    notes = [translation.incomplete, f"From {translation.source}: {account}.",
             *(f"unknown: {', '.join(one.to)} ({typed(f'{one.given.key}={one.given.value}')}): {one.why}."
               for one in translation.unknown), *translation.chosen, *translation.asked]
    if translation.left_out:
        notes.append(f"Left out: {', '.join(dict.fromkeys(given.key for given, _ in translation.left_out))}.")
    head = ["# @package _global_", *(line for note in filter(None, notes) for line in _comment(note))]
    tree = _tree(translation.entries)
    sections = list(Config.model_fields)
    order = sorted(tree, key=lambda name: sections.index(name) if name in sections else len(sections))
    body = [line for name in order for line in _lines({name: tree[name]}, 0)]
    return "\n".join([*head, *(body or ["{}"])]) + "\n"


def value_text(value: Any) -> str:
    """Formats a value as one line of YAML that OmegaConf reads back unchanged."""
    text = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def printable(text: str) -> str:
    """Formats text for a comment or the terminal: one line, no unprintable characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _comment(note: str) -> list[str]:
    lines = textwrap.wrap(printable(note), WIDTH + 4, break_long_words=False, break_on_hyphens=False)
    return [("# " if number == 0 else "#   ") + line for number, line in enumerate(lines)]


def _tree(entries: dict[Place, Entry]) -> dict:
    """Nests entries by their paths; a node whose keys are all numbers becomes a list, in their order."""
    root: dict = {}
    for path, entry in entries.items():
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = entry
    return root


def _lines(node: dict, depth: int) -> list[str]:
    made = []
    for name, child in node.items():
        key = "  " * depth + value_text(name) + ":"
        if isinstance(child, Entry):
            made.append(f"{key} {_leaf(child)}")
        elif all(isinstance(part, int) for part in child):
            made += [key, *(line for index in sorted(child) for line in _element(child[index], depth + 1))]
        else:
            made += [key, *_lines(child, depth + 1)]
    return made


def _element(child: dict | Entry, depth: int) -> list[str]:
    dash = "  " * depth + "- "
    if isinstance(child, Entry):
        return [dash + _leaf(child)]
    below = _lines(child, depth + 1)
    return [dash + below[0].removeprefix("  " * (depth + 1)), *below[1:]]


def _leaf(entry: Entry) -> str:
    return value_text(entry.value) + (f"  # {printable(entry.comment)}" if entry.comment else "")


class _Dumper(yaml.SafeDumper):
    """Quotes text only where the reader of these files would give it another type."""

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if "\n" in value else None)


def _number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    if not math.isfinite(value):
        return dumper.represent_float(value)
    return dumper.represent_scalar("tag:yaml.org,2002:float", re.sub(r"e([-+])0+(?=\d)", r"e\1", repr(value)))


_Dumper.add_representer(str, _text)
_Dumper.add_representer(float, _number)


# --------------------------------------------------------------------------------------------------------- the account


def _print_account(made: Translation, out) -> None:
    """Prints lost keys first and keys without effect last, under separate headings."""
    print(f"{made.source}: {account(made)}", file=out)
    if made.incomplete:
        print(file=out)
        _wrapped(made.incomplete, "", out)
    _print_keys("unknown (nothing is written for them: set them yourself)",
                [(u.given, f"{u.why}; here {', '.join(u.to)}.") for u in made.unknown], out)
    _print_keys("left out", made.left_out, out)
    _print_lines(f"not read ({len(set(made.skipped))})", made.skipped, out)
    _print_lines("assumed", made.assumed, out)
    if made.chosen:
        print("\nchosen:", file=out)
    for note in made.chosen:
        _wrapped(printable(note), "  ", out, hang="    ")
    _print_keys("without effect here", made.idle, out)
    _print_lines("passed over, as it changes nothing here", made.passed, out)
    print(file=out)


def _print_keys(title: str, keys: list[tuple[Given, str]], out) -> None:
    """Prints keys with their lines, grouped by reason."""
    reasons: dict[str, list] = {}
    for given, why in sorted(keys, key=lambda pair: pair[0].line):
        reasons.setdefault(why, []).append(given)
    if reasons:
        print(f"\n{title}:", file=out)
    for why, those in reasons.items():
        for given in those:
            line = f"line {given.line}" if given.line else "made here"
            print(f"  {line:<9} {printable(given.key)}={printable(_shown(given))}", file=out)
        _wrapped(printable(why), " " * 12, out)


def _print_lines(title: str, lines: list[tuple[int, str]], out) -> None:
    if lines:
        print(f"\n{title}:", file=out)
    for line, what in sorted(dict.fromkeys(lines), key=lambda remark: remark[0]):
        _wrapped(f"line {line:<4} {printable(what)}", "  ", out, hang=" " * 12)


def _shown(given: Given) -> str:
    """Formats a value for the terminal: short, and without secrets."""
    text = value_text("***" if is_secret(given.key) and given.value else mask(given.value))
    return text if len(text) <= 60 else text[:57] + "..."


def _wrapped(text: str, margin: str, out, hang: str | None = None) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin if hang is None else hang,
                        break_long_words=False, break_on_hyphens=False), file=out)


# ---------------------------------------------------------------------------------------------------------- the verdict


def _check(made: Translation, choice: str, out, shown: str) -> int:
    """Reports whether the recipe composes, what is missing, and the next command. Returns the exit code, 0 or 1."""
    if not made.kept and not made.renamed:
        print("none of its keys could be translated: the recipe is nothing but defaults.", file=out)
        return 1
    verdict, found = _problems(choice)
    if problems := _by_cause(found):
        print(f"{verdict}: {len(problems)} problem{'s' if len(problems) > 1 else ''}", file=out)
        for problem in problems:
            _wrapped(problem.replace(f"recipe={choice}", shown), "  ", out, hang="    ")
        print(f"next: fix the file, then  ouro config check {shown}", file=out)
        return 1
    questions = [*filter(None, [made.incomplete and said("still_incomplete")]), *_open_questions(made)]
    print(f"it composes. next: {'complete it, then  ' if questions else ''}ouro config check {shown}", file=out)
    for question in questions:
        _wrapped(question, "", out)
    return 1 if questions else 0


def _by_cause(problems: list[str]) -> list[str]:
    """Returns the problems as texts; keys with the same complaint share one."""
    causes: dict[str, list[str]] = {}
    for problem in problems:
        named = getattr(problem, "key", "")
        key = named if str(problem).startswith(named) else ""  # that of a stage begins with its name
        causes.setdefault(str(problem).removeprefix(key), []).append(key)
    return [", ".join(dict.fromkeys(keys)) + text for text, keys in causes.items()]


def _open_questions(made: Translation) -> list[str]:
    """Lists differences between a composing recipe and its source: our defaults apply to keys it does not set."""
    questions = list(made.asked)
    if doubted := made.doubt and sum(entry.comment.endswith(made.doubt) for entry in made.entries.values()):
        questions.append(f"{doubted} of its lines are veRL's defaults{made.doubt}: look there, and set what it says.")
    if made.lost:
        questions.append(f"it lacks the overrides of {lines_of(made.lost)}, which were not read: fix the source, or "
                         "set what they say.")
    said = {".".join(map(str, path)) for path in made.entries}
    how = {key for key, item in SETTINGS.items() if about(item).how} | {"project", "name"}
    silent = dict.fromkeys(key for unread in made.unknown for key in unread.to
                           if key not in said and general(key) not in how)  # a setting that affects results
    if silent:
        questions.append(f"our defaults stand where a value is unknown that decides what is made: set "
                         f"{', '.join(silent)}.")
    return questions


def _problems(choice: str) -> tuple[str, list[str]]:
    """Returns (what the problems prevent, the problems) of a recipe that can be found without user files."""
    try:
        config, problems = judged([f"recipe={choice}"])
    except ConfigError as error:
        return "it does not compose yet", list(error.problems or (str(error),))
    if problems:
        return "it does not compose yet", problems
    return "it composes, but `ouro config check` refuses it", wrong_references(Recipe(config))
