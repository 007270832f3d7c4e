"""Recipes while they are written: lists them, checks drafts and saves them.

A draft is a text that the browser holds. The same functions as in `ouro config check` judge it, from a file in a
temporary directory; only `save` writes below the directory where the studio was started.
"""

import contextlib
import json
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

from ouroboros.commands.init.columns import guess
from ouroboros.commands.init.data import is_rewritten, read
from ouroboros.commands.web import recipe_text
from ouroboros.pipeline.check import fields
from ouroboros.pipeline.check.judge import judged, of_first_point
from ouroboros.pipeline.check.preflight import report_of
from ouroboros.pipeline.check.report import Report
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.data_files import READERS
from ouroboros.pipeline.store.errors import ConfigError, DataError, Problem

ENDINGS = (".yaml", ".yml")
ONE_AT_A_TIME = threading.Lock()  # Hydra keeps its search path in the process
DRAFT = "draft.yaml"
MOST = 200  # suggested paths
GROUP = Path("conf") / "recipe"


def recipes(root: Path) -> list[dict[str, Any]]:
    """Returns the recipes below `root` and those shipped: `file`, `about` (its first comment), `shipped`."""
    own = sorted({path for place in (root / GROUP, root) for ending in ENDINGS for path in place.glob(f"*{ending}")
                  if path.is_file()})
    found = [(str(path.relative_to(root)), path, False) for path in own]
    shipped = [] if is_checkout(root) else sorted((files.CONF / "recipe").glob("*.yaml"))
    return [{"file": name, "about": _about(path), "shipped": ours}
            for name, path, ours in [*found, *((path.stem, path, True) for path in shipped)]]


def suggestions(root: Path) -> dict[str, list[str]]:
    """Returns `models`, directories below `root` that hold one, and `data`, files of rows there."""
    models = [path.parent for pattern in ("*", "models/*", "models/*/*", "store/model-*", "store/*/model")
              for path in root.glob(f"{pattern}/config.json")]
    data = [path for pattern in ("*", "data/*") for path in root.glob(pattern) if path.suffix in READERS]
    return {name: sorted(str(path.relative_to(root)) for path in found)[:MOST]
            for name, found in (("models", models), ("data", data))}


def columns(root: Path, path: str, prompt_key: str | None, response_key: str | None) -> dict[str, Any]:
    """Returns what `ouro init` concludes from the columns of a file of rows: `format`, settings of a set's format;
    `notes`; `rewritten`, whether stages could not read the file as it is. Raises DataError where that is ambiguous."""
    data = read(str(root / path))
    found = guess(data.drawn.rows, prompt_key or None, response_key or None, data.drawn.named)
    return {"format": found.format, "notes": found.notes, "rewritten": is_rewritten(found, data)}


def is_checkout(root: Path) -> bool:
    return root.resolve() == files.HOME


def _about(path: Path) -> str:
    """Returns the first sentence of the comment that a recipe begins with; nothing of one that cannot be read."""
    said, lines = [], []
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        if not line.startswith("# ") or line.startswith("#  "):  # commands are indented
            break
        said += [] if line.startswith(("# @package", "# yaml-language-server")) else [line[2:]]
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(said))[0]  # not behind "et al."


def opened(root: Path, file: str) -> dict[str, Any]:
    """Returns the text of a recipe, `file` to save it as, and `digest`, by which `save` knows it; a recipe that is
    shipped becomes a new file."""
    shipped = files.CONF / "recipe" / f"{file}.yaml"
    if not file.endswith(ENDINGS) and file in {path.stem for path in shipped.parent.glob("*.yaml")}:
        return {"text": _read(shipped), "file": _free(root, file), "digest": None}
    path = place(root, file)
    text = _read(path)
    return {"text": text, "file": file, "digest": files.hash_text(text)}


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no text in UTF-8.") from error


def _free(root: Path, name: str) -> str:
    names = (GROUP / f"my_{name}{number or ''}.yaml" for number in range(1000))
    return str(next(one for one in names if not (root / one).exists()))


def place(root: Path, file: str) -> Path:
    """Returns the path of a recipe below `root`. Raises ConfigError for any other, and for a name that `ouro run` does
    not take."""
    if not file.isprintable() or "," in file:
        raise ConfigError(f"{file!r}: needed a name that can be printed and has no comma, which would be between the "
                          "values of a sweep.")
    path = (root / file).resolve()
    if not file.endswith(ENDINGS) or not path.is_relative_to(root.resolve()):
        raise ConfigError(f"{file}: needed a .yaml file below {root.resolve()}, such as {GROUP / 'mine.yaml'}, "
                          f"or one of {', '.join(sorted(p.stem for p in (files.CONF / 'recipe').glob('*.yaml')))}.")
    if path.relative_to(root.resolve()).parts[0] in ("store", "runs"):
        raise ConfigError(f"{file}: store/ and runs/ are written by runs alone. Name a file elsewhere.")
    return path


def own_place(root: Path, file: str) -> Path:
    """Returns the path that a recipe is saved at: where `recipes` finds it. Raises ConfigError for any other."""
    path, group = place(root, file), (root / GROUP).resolve()
    if not (path.is_relative_to(group) or path.parent == root.resolve()) or path.name.startswith("."):
        raise ConfigError(f"{file}: recipes are saved below {group}, or in {root.resolve()} itself. Name this one "
                          f"{GROUP / path.name.lstrip('.')}.")
    return path


def save(root: Path, file: str, text: str, digest: str | None) -> dict[str, Any]:
    """Writes a recipe; returns its digest. digest: of the text that was opened, None for a new file. Raises DataError
    for a file that was changed since, and overwrites no other."""
    path = own_place(root, file)
    in_group = path.parent == (root / GROUP).resolve()
    if in_group and not is_checkout(root) and (files.CONF / "recipe" / path.name).exists():
        raise ConfigError(f"{file}: {path.stem} is the name of a recipe of ours. Give it another name.")
    if path.exists() and digest is None:
        raise DataError(f"{file} exists. Give this recipe another name, or open that one.")
    if digest is not None and (not path.exists() or files.hash_text(_read(path)) != digest):
        raise DataError(f"{file} was changed since it was opened here. Save under another name, or open it again, "
                        "which drops what was changed here.")
    recipe_text.loaded(text)
    files.write_atomic(path, lambda temporary: temporary.write_bytes(text.encode()))
    return {"digest": files.hash_text(text), "file": file}


def edited(text: str, stage: str, key: str, value: str | None, field: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe with another value of a setting, as typed in a field, or without it (None). stage: its name, ""
    for the whole run. field: `text` and `meaning` of fields.py."""
    typed = None if value is None else recipe_text.fragment(value, field.get("text") is True)
    above = ["stages", stage] if stage else []
    if stage and stage not in recipe_text.written(text):
        raise ConfigError(f"stage {stage} is of another recipe, which `defaults` names. Change it in the text.")
    return {"text": recipe_text.changed(text, [*above, *key.split(".")], typed, str(field.get("meaning", "")))}


def root_of(path: Path, words: list[str]) -> Path:
    """Returns the directory of the store and the runs of a recipe. words: overrides, of a sweep too."""
    with ONE_AT_A_TIME:
        return Path(of_first_point([f"recipe={path}", *words]).checkpoint_root_dir)


class Drafts:
    """The file that drafts are judged from."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="ouro-studio-")

    def judge(self, text: str, file: str) -> dict[str, Any]:
        """Returns what `ouro config check --no-data` says, as its JSON, and `written`, `values` and `arguments` of the
        whole run and its stages (fields.py); these are absent where the recipe cannot be read."""
        path = Path(self._directory.name) / DRAFT
        try:
            shown = {"written": recipe_text.written(text)}
        except ConfigError as error:
            return _of(Report("", problems=[Problem(needed=str(error))]), path, file)
        with ONE_AT_A_TIME:
            path.write_text(text, encoding="utf-8")
            words = [f"recipe={path}"]
            try:
                config, problems = judged(words)
            except ConfigError as error:  # a file cannot be read
                return _of(Report("", problems=error.problems), path, file) | shown
            report = report_of(config, problems, words, data=False)
        return _of(report, path, file) | shown | {
            "values": fields.values(config), "arguments": fields.arguments(config),
            "steps": fields.steps(config), "run": f"{config.project}/{config.name}"}


def _of(report: Report, path: Path, file: str) -> dict[str, Any]:
    return named(report.as_json(), path, file)


def written(text: str, directory: str) -> Path:
    """Returns the file of a draft. Raises ConfigError for invalid YAML."""
    recipe_text.loaded(text)
    path = Path(directory) / DRAFT
    path.write_text(text, encoding="utf-8")
    return path


def named(report: str, path: Path, file: str) -> dict[str, Any]:
    """Returns a report in JSON in which the name of a recipe stands for that of the file it was judged from."""
    return json.loads(report.replace(json.dumps(str(path))[1:-1], json.dumps(file)[1:-1]))
