"""`ouro import`: translates a configuration of Trinity-RFT or a launch script of veRL, and accounts for every key."""

import re
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ConfigError, OuroError

if TYPE_CHECKING:  # what reads YAML is imported where it is used: `ouro --help` needs none of it
    from pipeline.bridges.source import Given
    from pipeline.bridges.translation import Translation

WIDTH = 112
LARGEST_FILE = 4 << 20  # bytes of a source


def import_trinity(arguments) -> int:
    """A configuration of Trinity-RFT, translated to a recipe, with an account of every key."""
    from pipeline.bridges.source import read_yaml
    from pipeline.bridges.trinity import translate

    text, name = _read(arguments.file)
    return _finish(translate(read_yaml(text, name), name), arguments)


def import_verl(arguments) -> int:
    """A launch script or configuration of veRL, translated to a recipe, with an account of every key."""
    from pipeline.bridges import verl

    given, made = verl.read(*_read(arguments.file))
    return _finish(verl.translate(given, made), arguments)


def import_keys(arguments) -> int:
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
    from pipeline.bridges.recipe import write

    _say_about_models(made)
    text = write(made, account(made))
    if arguments.stdout:
        print(text, end="")
        _tell(made, sys.stderr)
        return 0
    path, choice = _place(made, arguments)
    if path.exists() and path.read_text() != text and not arguments.force:
        raise OuroError(f"{path} exists already and says something else. Write --force to replace it, or --name or "
                        "--output for another file.")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    _tell(made, sys.stdout)
    print(f"wrote {path}")
    _check(choice)
    return 0


def account(made: "Translation") -> str:
    """`37 keys: 29 as they are, 5 renamed, 3 left out`."""
    kept = [f"{len(made.kept)} as they are"] if made.kept else []
    word = "renamed" if made.kept else "translated"
    return f"{made.keys} keys: " + ", ".join([*kept, f"{len(made.renamed)} {word}", f"{len(made.left_out)} left out"])


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


def _say_about_models(made: "Translation") -> None:
    """A model is a directory here; the name of one on the hub is fetched first."""
    for path, entry in made.entries.items():
        if path[-1] in ("model_path", "critic_model_path") and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(entry.value)):
            made.chosen.append(f"{path[-1]}={entry.value}: the name of a model on the hub; needed a directory. "
                               f"Fetch it (hf download {entry.value} --local-dir {entry.value}), or name another.")


# ------------------------------------------------------------------------------------------------------------ telling


def _tell(made: "Translation", out) -> None:
    from pipeline.bridges.recipe import printable

    print(f"{made.source}: {account(made)}", file=out)
    reasons: dict[str, list] = {}
    for given, why in sorted(made.left_out, key=lambda pair: pair[0].line):
        reasons.setdefault(why, []).append(given)
    if reasons:
        print("\nleft out:", file=out)
    for why, keys in reasons.items():
        for given in keys:
            print(f"  line {given.line:<4} {printable(given.key)}={printable(_shown(given))}", file=out)
        _wrapped(printable(why), " " * 12, out)
    if made.chosen:
        print("\nchosen:", file=out)
        for note in made.chosen:
            _wrapped(printable(note), "  ", out, hang="    ")
    if made.skipped:
        print("\npassed over:", file=out)
        for line, what in sorted(made.skipped, key=lambda remark: remark[0]):
            _wrapped(f"line {line:<4} {printable(what)}", "  ", out, hang=" " * 12)
    print(file=out)


def _shown(given: "Given") -> str:
    """A value for the terminal: short, and no secret."""
    from pipeline.bridges.recipe import value_text
    from pipeline.secrets import IN_ADDRESS, mask

    text = value_text(mask({given.key.rpartition(".")[2]: given.value}).popitem()[1])
    text = IN_ADDRESS.sub("://***@", text)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrapped(text: str, margin: str, out, hang: str | None = None) -> None:
    print(textwrap.fill(text, WIDTH, initial_indent=margin, subsequent_indent=margin if hang is None else hang,
                        break_long_words=False, break_on_hyphens=False), file=out)


def _check(choice: str) -> None:
    """Whether the recipe composes, what is wrong with it, and what to type next."""
    from pipeline.compose import compose

    try:
        compose([f"recipe={choice}"])
    except ConfigError as error:
        problems = error.problems or (str(error),)
        print(f"it does not compose yet: {len(problems)} problem{'s' if len(problems) > 1 else ''}")
        for problem in problems:
            _wrapped(problem, "  ", sys.stdout, hang="    ")
        print(f"next: mend the file, then  ouro config check recipe={choice}")
    else:
        print(f"it composes. next: ouro config check recipe={choice}")
