"""Content hashes of what a stage depends on besides settings: the user's files, models and code."""

import ast
import contextlib
import importlib.util
import io
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError, nearest
from ouroboros.pipeline.store.files import CONF
from ouroboros.pipeline.store.project_imports import bare, new_name, taken_in

NEEDED = ("Needed package.module:function, with the package in the current directory, installed, or with its parent "
          "directory on PYTHONPATH.")
EMPTY = "is an empty directory; needed data files in it."


class HubPath(str):
    """A path in the cache of huggingface_hub that keeps the id it was named by (pipeline/plan/hub.py).

    asked: the id as the user wrote it. pinned: the same with its commit, which enters an identity.
    """

    asked: str
    commit: str
    pinned: str

    def __new__(cls, path: str, asked: str = "", commit: str = "", pinned: str = ""):
        made = super().__new__(cls, path)
        made.asked, made.commit, made.pinned = asked, commit, pinned
        return made


class MadePath(str):
    """What planning made of what the user named: tasks of a package (pipeline/plan/packaged_tasks.py), the directory of
    a GGUF file (pipeline/store/gguf.py). pinned: the name as the user wrote it."""

    pinned: str

    def __new__(cls, path: str, pinned: str = ""):
        made = super().__new__(cls, path)
        made.pinned = pinned
        return made


class StageModel(str):
    """A stage of the run as the model of another one: its name, in a plan its directory.

    scores: whether it is a reward model.
    """

    scores: bool

    def __new__(cls, named: str, scores: bool = False):
        made = super().__new__(cls, named)
        made.scores = scores
        return made


def below(path: str, subset: str | None) -> str:
    """Returns the path of a sub-directory."""
    if isinstance(path, HubPath):
        return HubPath(f"{path}/{subset}", path.asked, path.commit, f"{path.pinned}/{subset}") if subset else path
    return path if "://" in path else str(Path(path, subset or ""))  # Path would shorten the // of an id


def resolve(path: str) -> Path:
    """Returns a user's path as given, or, when it does not exist there, relative to the repository."""
    return Path(path) if Path(path).exists() else CONF.parent / path


def address(path: str) -> str | None:
    """Returns the message for a path that is an address of another machine (s3://, https://), or None."""
    scheme, separator, rest = str(path).partition("://")
    if not separator or scheme == "hf" or not scheme.isalnum():
        return None
    if scheme == "file":
        return f"is a URL; needed the path itself: {rest}"
    return (f"is an address ({scheme}://), and files are read from this machine, or from the Hugging Face hub (models: "
            "org/name; data: hf://datasets/org/name). Download it, and name the local path.")


def nothing_at(path: str) -> str | None:
    """Returns the message for a path with no file at or below it, or None."""
    found = resolve(path)
    if words := address(path):
        return words
    if not found.exists():
        return f"does not exist (looked from {Path.cwd()})."
    if not found.is_file() and not found.is_dir():
        return "is neither a file nor a directory."
    return None if found.is_file() or any(below.is_file() for below in found.rglob("*")) else EMPTY


def module_file(name: str) -> Path | None:
    """Returns the file of an importable module, found without importing it; None without one.

    The current directory comes first, as in the process of a stage; elsewhere its parent packages are imported.
    """
    parts = name.split(".")
    if all(part.isidentifier() for part in parts):
        here = Path.cwd().joinpath(*parts)
        for path in (here / "__init__.py", here.with_name(f"{here.name}.py")):
            if path.is_file():
                return path
    try:
        found = importlib.util.find_spec(name)
    except Exception:  # a parent package may raise anything on import; the name may be invalid
        return None
    return Path(found.origin) if found and found.has_location else None


def digest_code(dotted: str) -> str:
    """Hashes the user's module in `package.module:function`, and the user's modules it imports, so that an edited
    reward function is a new stage. Their location does not count."""
    return files.hash_json({name: _hash_module(path) for name, path in code_files(dotted).items()})


def code_files(dotted: str) -> dict[str, Path]:
    """Maps the user's module in `package.module:function`, and the user's modules it imports, to their files."""
    module, _, name = dotted.partition(":")
    if new := new_name(module, Path.cwd()):
        raise ConfigError(f"'{dotted}' is now called '{new}{':' * bool(name)}{name}'. Write that name.")
    source = module_file(module)
    if source is None:
        raise ConfigError(f"'{dotted}': no such module. {NEEDED}")
    if not name:
        raise ConfigError(f"'{dotted}' names no function; needed one of {source} behind the ':'.")
    if source.suffix == ".py" and name not in (known := _names(source)) and "*" not in known:
        raise ConfigError(f"'{dotted}': {source} has no '{name}'.{nearest(name, known)}")
    return taken_in(source, module)


@files.remembered
def _hash_module(path: Path) -> str:
    """Hashes a Python file without comments and blank lines, any other file by its bytes.

    Docstrings count: a function may read its own.
    """
    if path.suffix != ".py":
        return files.hash_file(path)
    try:
        with tokenize.open(path) as file:  # by its coding cookie
            source = file.read()
    except (UnicodeDecodeError, SyntaxError):  # no Python: whoever imports it says so
        return files.hash_file(path)
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return files.hash_text(bare("\n".join(line.rstrip() for line in lines if line.strip())))


@files.remembered
def _names(source: Path) -> set[str]:
    """Returns the names a module defines or imports, without running it; `*` for a star import."""
    try:
        with reading(source):
            body = ast.parse(source.read_bytes()).body
    except SyntaxError as error:
        raise ConfigError(f"{source}, line {error.lineno}: {error.msg}") from error
    names: set[str] = set()
    for node in (n for top in body for n in ast.walk(top)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def missing(path: Path, key: str, named: str = "") -> DataError:
    """Returns the error for a missing path; suggests a Hugging Face hub dataset id that it may mean. named: the path as
    written, where a Path would shorten it."""
    if words := address(named or str(path)):
        return DataError(f"{named or path} {words} Check {key}.")
    where = f"{path} does not exist (looked from {Path.cwd()}). Check {key}."
    if "*" in str(path):
        return DataError(f"{where} A pattern is no path: name the directory of the files, or each file.")
    local = path.parent.exists() or path.parent.name == "data" or path.suffix in (".jsonl", ".parquet", ".jinja")
    if path.is_absolute() or local or len(path.parts) != 2:
        return DataError(where)
    return DataError(f"{where} If it is a dataset of the Hugging Face hub: hf://datasets/{path}.")


def digests(value: str | list[str] | None, root: str, key: str) -> list[str]:
    """Returns content hashes of the files and directories that a setting names; `key` is that setting."""
    names = [value] if isinstance(value, str) else list(value or [])
    for name in names:
        if not isinstance(name, HubPath) and not resolve(name).exists():
            raise missing(Path(name), key, name)
    with told(key):
        return [digest_input(name, root) for name in names]


@contextlib.contextmanager
def told(key: str) -> Iterator[None]:
    """Puts the setting `key` before what is wrong with the files that it names, within the block."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{key}: {error}") from error


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns an error of the file system into a DataError that names the file, within the block: a read gives none."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read ({error.strerror}). Needed a file that can, or the "
                        "path of another one.") from error


def digest_input(path: str, root: str) -> str:
    """Returns a file's or directory's part of an identity: its content; for a hub repository its id and commit."""
    return path.pinned if isinstance(path, HubPath) else digest_tree(resolve(path), root)


def digest_meaning(path: str | None, key: str) -> list[str]:
    """Does the same as `digests` for one YAML file by its parsed content, ignoring comments and key order."""
    if not path:
        return []
    if not resolve(path).exists():
        raise missing(Path(path), key)
    return [_meaning(resolve(path), f"{key}={path}")]


@files.remembered
def _meaning(path: Path, named: str) -> str:
    """Hashes the content of a YAML file. named: the setting, in messages."""
    import yaml

    from ouroboros.pipeline.store.yaml_aliases import load

    try:
        content = load(path.read_bytes(), named)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{named} is no YAML: {' '.join(str(error).split())}") from error
    return files.hash_text(yaml.safe_dump(content))


def digest_tree(path: Path, root: str) -> str:
    """Hashes the content of a file, or the names and contents of all files below a directory."""
    if not path.exists():
        raise DataError(f"{path} does not exist (looked from {Path.cwd()}). Check the path in the configuration.")
    with reading(path):
        found = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not found:
        raise DataError(f"{path} {EMPTY}")
    names = [str(file.relative_to(path)) for file in found]
    return files.hash_json([list(pair) for pair in zip(names, hashes_of(found, root), strict=True)])


def hashes_of(found: list[Path], root: str) -> list[str]:
    """Returns `files.hash_file` of each file, remembered as in `remembered_of`."""
    return remembered_of(found, root, _hash_file)


def remembered_of(found: list[Path], root: str, read: Callable[[Path], Any], what: str = "") -> list[Any]:
    """Returns `read` of each file, as JSON has it. what: tells it from other answers about the file.

    Those of unchanged files (path, inode, size, times) are kept in store/.digests.json.
    """
    cache_file, cache = Path(root) / "store" / ".digests.json", {}
    with contextlib.suppress(StageError):  # damaged: all are computed again
        cache = files.read_json(cache_file) if cache_file.exists() else {}
    keys = [f"{file.resolve()}|{files.stamp(file)}{what}" for file in found]
    fresh = cache | {key: cache[key] if key in cache else read(file) for key, file in zip(keys, found, strict=True)}
    if fresh != cache:
        files.write_json(cache_file, fresh)
    return [fresh[key] for key in keys]


def _hash_file(path: Path) -> str:
    with reading(path):
        return files.hash_file(path)
