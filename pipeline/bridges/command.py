"""`ouro import`: translates a configuration of Trinity-RFT or a launch script of veRL, and accounts for every key."""

import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.store.errors import ConfigError, OuroError

if TYPE_CHECKING:  # what reads YAML is imported where it is used: `ouro --help` needs none of it
    from pipeline.bridges.source import Given
    from pipeline.bridges.translation import Translation

WIDTH = 112
LARGEST_FILE = 4 << 20  # bytes of a source


def import_trinity(file: str, arguments) -> int:
    """A configuration of Trinity-RFT, translated to a recipe, with an account of every key."""
    from pipeline.bridges.source import read_yaml
    from pipeline.bridges.trinity import translate

    text, name = _read(file)
    return _finish(translate(read_yaml(text, name), name), arguments)


def import_verl(file: str, arguments) -> int:
    """A launch script or configuration of veRL, translated to a recipe, with an account of every key."""
    from pipeline.bridges import verl

    return _finish(verl.translate(*verl.read(*_read(file))), arguments)


def import_keys() -> int:
    """Every key of the Trinity-RFT guide and of veRL, and what it is here, as a Markdown page."""
    from pipeline.bridges.page import page

    print(page(), end="")
    return 0


def _read(file: str) -> tuple[str, str]:
    """Text and name of a source; `-` is the standard input. Raises ConfigError for what is no text."""
    content = sys.stdin.buffer.read(LARGEST_FILE + 1) if file == "-" else Path(file).read_bytes()
    name = "the standard input" if file == "-" else Path(file).name
    if len(content) > LARGEST_FILE:
        raise ConfigError(f"{name} has more than {LARGEST_FILE >> 20} MiB: that is no configuration.")
    try:
        return content.decode("utf-8-sig"), name
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is no text in UTF-8 ({error.reason} at byte {error.start}).") from error


# ------------------------------------------------------------------------------------------------------------ writing


def _finish(made: "Translation", arguments) -> int:
    """Writes the recipe and tells what became of every key. 0 when it composes, else 1: what it needs is told too."""
    from pipeline.bridges.recipe import write

    text, out = write(made, account(made)), sys.stderr if arguments.stdout else sys.stdout
    if arguments.stdout:
        print(text, end="")
        _tell(made, out)
        return _check_text(made, text, out)
    path, choice = _place(made, arguments)
    if path.exists() and path.read_text() != text and not arguments.force:
        raise OuroError(f"{path} exists already and says something else. Write --force to replace it, or --name or "
                        "--output for another file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _tell(made, out)
    print(f"wrote {path}")
    return _check(made, choice, out)


def account(made: "Translation") -> str:
    """`37 keys: 29 as they are, 5 renamed, 1 left out, 2 without effect here`."""
    word = "renamed" if made.kept else "translated"
    counts = [f"{len(made.kept)} as they are"] if made.kept else []
    counts += [f"{len(made.renamed)} {word}"]
    counts += [f"{len(made.unknown)} unknown"] if made.unknown else []
    counts += [f"{len(made.left_out)} left out"] if made.left_out else []
    counts += [f"{len(made.idle)} without effect here"] if made.idle else []
    return f"{made.keys} keys: " + ", ".join(counts)


def _place(made: "Translation", arguments) -> tuple[Path, str]:
    """Where the recipe goes, and the word by which it is chosen: `recipe=<name>`, or its path."""
    if arguments.output:
        return Path(arguments.output), arguments.output
    entry = made.entries.get(("name",))
    given = arguments.name or (str(entry.value) if entry and "${" not in str(entry.value) else Path(made.source).stem)
    name = re.sub(r"[^\w-]+", "-", given).strip("-") or "imported"
    path = Path("conf") / "recipe" / f"{name}.yaml"
    ours = Path(__file__).resolve().parents[2] / "conf" / "recipe" / path.name
    if ours.exists() and ours != path.resolve():
        raise OuroError(f"{name} is a recipe of ours: name this one otherwise, by --name.")
    return path, name


# ------------------------------------------------------------------------------------------------------------ telling


def _tell(made: "Translation", out) -> None:
    """What was lost first, what has no effect last, each under a heading of its own."""
    from pipeline.bridges.recipe import printable

    print(f"{made.source}: {account(made)}", file=out)
    _tell_keys("unknown (nothing is written for them: set them yourself)",
               [(u.given, f"{u.why}; here {', '.join(u.to)}.") for u in made.unknown], out)
    _tell_keys("left out", made.left_out, out)
    _tell_lines(f"not read ({len(set(made.skipped))})", made.skipped, out)
    _tell_lines("assumed", made.assumed, out)
    if made.chosen:
        print("\nchosen:", file=out)
        for note in made.chosen:
            _wrapped(printable(note), "  ", out, hang="    ")
    _tell_keys("without effect here", made.idle, out)
    _tell_lines("passed over, as it changes nothing here", made.passed, out)
    print(file=out)


def _tell_keys(title: str, keys: list[tuple["Given", str]], out) -> None:
    """Keys with their lines, those of one reason together."""
    from pipeline.bridges.recipe import printable

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


def _tell_lines(title: str, lines: list[tuple[int, str]], out) -> None:
    from pipeline.bridges.recipe import printable

    if lines:
        print(f"\n{title}:", file=out)
    for line, what in sorted(dict.fromkeys(lines), key=lambda remark: remark[0]):
        _wrapped(f"line {line:<4} {printable(what)}", "  ", out, hang=" " * 12)


def _shown(given: "Given") -> str:
    """A value for the terminal: short, and no secret."""
    from pipeline.bridges.recipe import value_text
    from pipeline.settings.secrets import is_secret, mask
    from pipeline.store.secret_names import hidden

    text = hidden(value_text("***" if is_secret(given.key) and given.value else mask(given.value)))
    return text if len(text) <= 60 else text[:57] + "..."


def _wrapped(text: str, margin: str, out, hang: str | None = None) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin if hang is None else hang,
                        break_long_words=False, break_on_hyphens=False), file=out)


def _check_text(made: "Translation", text: str, out) -> int:
    """As `_check`, of a recipe that goes to the standard output."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "recipe.yaml"
        path.write_text(text)
        return _check(made, str(path), out, told="recipe=FILE")


def _check(made: "Translation", choice: str, out, told: str = "") -> int:
    """Whether the recipe composes, what it still needs, and what to type next. 0 or 1, as the command ends."""
    told = told or f"recipe={choice}"
    if not made.kept and not made.renamed:
        print("none of its keys could be translated: the recipe is nothing but defaults.", file=out)
        return 1
    verdict, problems = _problems(choice)
    if problems:
        print(f"{verdict}: {len(problems)} problem{'s' if len(problems) > 1 else ''}", file=out)
        for problem in problems:
            _wrapped(_without_list(problem.replace(f"recipe={choice}", told)), "  ", out, hang="    ")
        print(f"next: mend the file, then  ouro config check {told}", file=out)
        return 1
    print(f"it composes. next: ouro config check {told}", file=out)
    open_questions = _open_questions(made)
    for question in open_questions:
        _wrapped(question, "", out)
    return 1 if open_questions else 0


def _without_list(problem: str) -> str:
    """A problem without the names that could stand there, where they are many, or like a workflow's by chance."""
    key = problem.partition("=")[0]
    if key.endswith("workflow_type"):
        return re.sub(r" Did you mean '[^']*'\?$", "", problem)
    return re.sub(r"needed one of (?:[\w-]+, ){12,}.*", f"needed one of those that `ouro config explain {key}` lists.",
                  problem)


def _open_questions(made: "Translation") -> list[str]:
    """What keeps a recipe that composes from being the source's: where it is silent, our defaults apply."""
    from pipeline.bridges.translation import lines_of

    questions = []
    if doubted := made.doubt and sum(entry.comment.endswith(made.doubt) for entry in made.entries.values()):
        questions.append(f"{doubted} of its lines are veRL's defaults{made.doubt}: look there, and set what it says.")
    if made.lost:
        questions.append(f"it lacks the overrides of {lines_of(made.lost)}, which were not read: mend the source, or "
                         "set what they say.")
    said = {".".join(map(str, path)) for path in made.entries}
    silent = dict.fromkeys(key for unread in made.unknown for key in unread.to if key not in said and _decides(key))
    if silent:
        questions.append(f"our defaults stand where a value is unknown that decides what is made: set "
                         f"{', '.join(silent)}.")
    return questions


def _decides(key: str) -> bool:
    """Whether a setting says what is made: not how it runs, nor what the run is called."""
    from pipeline.bridges.translation import SETTINGS
    from pipeline.settings.guide import general

    item = SETTINGS.get(general(key))
    return key not in ("project", "name") and not (item and item.metadata["how"])


def _problems(choice: str) -> tuple[str, list[str]]:
    """(what the problems keep it from, the problems) of a recipe, as far as no file of the user's says more."""
    from pipeline.check.judge import judged
    from pipeline.check.stage_rules import problems_of

    try:
        config, problems = judged([f"recipe={choice}"])
    except ConfigError as error:
        return "it does not compose yet", list(error.problems or (str(error),))
    if problems:
        return "it does not compose yet", problems
    return "it composes, but `ouro config check` refuses it", problems_of(config)
