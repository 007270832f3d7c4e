"""`ouro init`: creates a project directory and reports its content and guesses. Overwrites nothing."""

import contextlib
import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.digests import address
from ouroboros.pipeline.store.errors import ConfigError, ModelError, OuroError

TEMPLATES = files.TEMPLATES / "init"
AGENT = "openai_agent"  # the template of `ouro init agent NAME`


def init_agent(directory: Path) -> int:
    """Creates a project for an agent with OpenAI's client. Returns the exit code of the command."""
    _refuse_full(directory)
    _copy(directory, AGENT)
    _tell(directory)
    _next(directory, "pytest")
    return 0


def init(directory: Path, template: str | None, data: str | None, model: str | None, **keys: str | None) -> int:
    """Creates a project directory from a template, or for data and a model. Returns the exit code of the command.
    keys: columns of the data (prompt_key and so on)."""
    own = data is not None
    if own != (model is not None) or (own and template):
        raise OuroError("--from and --model go together, and without --template: ouro init DIR --template NAME, or "
                        "ouro init DIR --from DATA --model MODEL.")
    if not own and (named := [name.replace("_", "-") for name, column in keys.items() if column]):
        raise OuroError(f"--{named[0]} names a column of the data of --from.")
    _refuse_full(directory)
    if own:
        print("ouro: reading the data and the model", file=sys.stderr, flush=True)
        return _for_data(directory, data, model, keys)
    _copy(directory, template or "math")
    _tell(directory)
    _next(directory)
    return 0


def _refuse_full(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise OuroError(f"{directory} is a file; needed a directory that is empty or does not exist yet.")
    if directory.is_dir() and (there := sorted(path.name for path in directory.iterdir())):
        raise OuroError(f"{directory} is not empty: it holds {', '.join(there[:5])}. Name another directory; nothing "
                        "is overwritten.")


def _copy(directory: Path, *template: str) -> None:
    """Copies the files shared by all projects and those of a template; renders `.j2` files."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OuroError(f"{directory} cannot be made ({error.strerror}). Name another directory.") from error
    for part in ("common", *template):
        shutil.copytree(TEMPLATES / part, directory, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__", "*.j2"))
    (directory / "gitignore").rename(directory / ".gitignore")  # under its own name it would apply to our repository
    texts = Environment(loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True,
                        keep_trailing_newline=True)
    for name in template:
        for file in (TEMPLATES / name).rglob("*.j2"):
            text = texts.get_template(str(file.relative_to(TEMPLATES))).render(name=project_name(directory))
            (directory / file.relative_to(TEMPLATES / name)).with_suffix("").write_text(text, encoding="utf-8")


def _tell(directory: Path) -> None:
    print(f"wrote {directory}:")
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        print(f"  {path.relative_to(directory)}")


def _next(directory: Path, first: str = "ouro run") -> None:
    """first: the command to begin with."""
    print(f"next: cd {shlex.quote(str(directory))} && {first}     (its README.md says more)")


def project_name(directory: Path) -> str:
    """Returns the directory's name as the name of a project, which may contain only some characters."""
    return re.sub(r"^\W+|[^\w.,=-]", "_", directory.resolve().name)


def _for_data(directory: Path, source: str, model: str, keys: dict[str, str | None]) -> int:
    """Creates a project for a data file and a model; returns the exit code of its `ouro config check`."""
    from ouroboros.pipeline.check import preflight
    from ouroboros.pipeline.check.judge import compose

    with tempfile.TemporaryDirectory() as root:  # the directory is made once nothing can fail
        written, notes = project_files(source, model, keys, project_name(directory), directory, root)
        _copy(directory)
        for name, text in written.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
        _tell(directory)
        for read in Path(root).iterdir():
            shutil.move(read, directory)
    print("guessed (change it in conf/recipe/project.yaml):", *notes, sep="\n  ")
    with contextlib.chdir(directory):
        report = preflight.check(compose([]), data=True, code=True)
    print(f"\nouro config check\n{report.text()}")
    if report.problems:
        return 2
    _next(directory)
    return 0


def project_files(source: str, model: str, keys: dict[str, str | None], project: str, directory: Path,
                  root: str | None = None) -> tuple[dict[str, str], list[str]]:
    """Returns the files of a project for data and a model, file name -> text, and what was guessed.

    directory: of the project; it need not exist. root: of the run, below which a GGUF file is read; None: directory.
    Raises OuroError for a model or data that cannot be used, and where columns are ambiguous."""
    from ouroboros.commands.init import recipe
    from ouroboros.commands.init.columns import guess
    from ouroboros.commands.init.data import left_out, read
    from ouroboros.pipeline.store import gguf, packages
    from ouroboros.pipeline.store.model_shape import absent_model, wrong_model

    if packages.package_of(source):
        raise ConfigError(f"--from {source}: names tasks of a package; needed data files. A recipe names such tasks as "
                          "buffer.explorer_input.taskset.path (docs/tasks.md).")
    model = os.path.expanduser(model)
    is_file = gguf.is_named(model, "model_path")
    if not is_file and not Path(model).exists() and not address(model):
        raise ConfigError(f"--model {model}: no such directory. The recipe is written from a model's files: "
                          "fetch one of the hub with `hf download org/name --local-dir models/name` first.")
    try:  # what takes long comes last
        place = gguf.file_of(model) if is_file else model
        data = read(source)
        found = guess(data.drawn.rows, named=data.drawn.named, **keys)
        place = gguf.directory(model, root or str(directory), "auto") if is_file else place
    except ModelError as error:
        raise ConfigError(f"--model {model}: {error}") from error
    if problem := absent_model(place, "--model") or wrong_model(place, "--model"):
        raise ConfigError(problem)
    named = model if model.startswith(gguf.WHEEL) else recipe.relative(model, directory)
    written = recipe.files_of(found, data, Path(place).resolve(), named, project, directory)
    return written, [*found.notes, *([f"not used: {', '.join(unused)}"] if (unused := left_out(found, data)) else [])]
