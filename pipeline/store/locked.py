"""Environments whose packages pin other versions than ours: `ouro env lock NAME REQUIREMENT...`.

environments/NAME/requirements.lock of the project has every version with its hashes. uv installs it below the store,
in a folder that is named by the hash of the lock, once for all runs; stages find it there and install nothing.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ConfigError, DataError, StageError

PLACE, FILE = Path("environments"), "requirements.lock"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
PYTHON = "{}.{}".format(*sys.version_info)
ARGUMENT = ".workflow_args.locked_environment"
HEADER = "# ouro env lock, for Python "
# runs in environments of verifiers, so that no import leads to it
PROGRAM = files.HOME / "operators" / "verifiers_program.py"


def lock(name: str, requirements: list[str]) -> Path:
    """Resolves requirements, as uv reads them, for this Python; returns the lock. Raises StageError with what uv
    reports, and ConfigError for a name that is none, and for a requirement without hashes."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of an environment: needed letters, digits, '_', '-' and '.', the first "
                          "a letter or a digit.")
    found = _uv(["pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--python-version",
                 PYTHON, "-"], "\n".join(requirements))
    for line in found.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#") and "--hash=" not in line:
            raise ConfigError(f"{line.strip()} has no hash, so nothing was locked. Name a release of an index, or a "
                              "wheel of your own (`python -m build --wheel`).")
    path = PLACE / name / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEADER}{PYTHON}: {' '.join(requirements)}\n{found}")
    return path


def text_of(name: str) -> str:
    """Returns the lock of an environment. Raises DataError where there is none, or one of another Python."""
    path = PLACE / name / FILE
    if not path.is_file():
        raise DataError(f"{path} does not exist. Run `ouro env lock {name} REQUIREMENT...` in this directory first.")
    text = path.read_text()
    if not text.startswith(f"{HEADER}{PYTHON}:"):
        raise DataError(f"{path} is not a lock of Python {PYTHON}, which runs here: it begins with "
                        f"{text.partition(':')[0][:80]!r}. Run `ouro env lock {name}` again with its requirements.")
    return text


def digest(name: str) -> str:
    """Returns the hash of a lock, which names its folder."""
    return files.hash_text(text_of(name))[:16]


def interpreter(hashed: str, root: str | Path) -> Path:
    """Returns the Python of an installed lock. Raises DataError where it is not installed. root: of the store."""
    place = _place(hashed, root)
    if not (place / FILE).is_file():
        raise DataError(f"{place} does not exist, or is not complete. Run `ouro env install NAME --root {root}` with "
                        f"the environment's name on a machine with a network.")
    return place / "bin" / "python"


def installed(name: str, root: str | Path) -> str:
    """Returns the hash of a lock that is installed. Raises DataError for one that is not."""
    interpreter(digest(name), root)
    return digest(name)


def install(name: str, root: str | Path, on_wait: Callable[[str], None] = lambda holder: None) -> Path:
    """Installs a lock, unless it is; returns its folder. Raises StageError with what uv reports."""
    place = _place(digest(name), root)
    with files.locked(place.with_suffix(".claim"), on_wait):
        if not (place / FILE).is_file():
            shutil.rmtree(place, ignore_errors=True)
            _uv(["venv", "--quiet", "--python", sys.executable, str(place)])
            _uv(["pip", "sync", "--quiet", "--require-hashes", "--python", str(place / "bin" / "python"),
                 str(PLACE / name / FILE)])
            shutil.copy(PLACE / name / FILE, place)
    return place


def _place(hashed: str, root: str | Path) -> Path:
    return Path(root, "store", ".environments", hashed).absolute()


def _uv(arguments: list[str], given: str | None = None) -> str:
    if not (uv := shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))):
        raise ConfigError("uv is not installed, and locks are made and installed by it: pip install uv.")
    done = subprocess.run([uv, *arguments], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(f"uv {' '.join(arguments[:2])} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout
