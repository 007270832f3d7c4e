"""Packages of tasks, which no lock can hold, as they pin other versions of what it has: `ouro fetch NAME`.

Each has a folder next to the project, without what it declares to need, and is on the path of no process but
those that read its tasks and score their answers. A file in pipeline/packages/ has its versions and their hashes.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.errors import DataError, StageError, nearest
from ouroboros.pipeline.store.files import HOME

CHOSEN = HOME / "pipeline" / "packages"
PLACE = Path(".packages")  # below the directory of the project
FETCHED = "fetched.txt"  # in a package's folder once it is complete: the versions that it has
LOCKED = ("verifiers",)  # packages whose tasks are those of an environment (pipeline/store/locked.py)
PIP = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--require-hashes")


def names() -> list[str]:
    """Returns the names of the packages that can be fetched."""
    return sorted(path.stem for path in CHOSEN.glob("*.txt"))


def package_of(path: object) -> str | None:
    """Returns the package that `NAME://tasks` names; None for any other path."""
    name, separator, _ = str(path).partition("://")
    return name if separator and name in (*names(), *LOCKED) else None


def versions(name: str) -> str:
    """Returns the versions and hashes of a package, as a requirements file. Raises DataError for an unknown one."""
    if name not in names():
        raise DataError(f"no package of tasks is called '{name}'.{nearest(name, names())} Known: {', '.join(names())}.")
    return (CHOSEN / f"{name}.txt").read_text()


def folder(name: str) -> Path:
    """Returns the folder of a fetched package. Raises DataError with the command for one that is not there, or that
    has other versions."""
    place = (PLACE / name).absolute()
    if not (place / FETCHED).is_file() or (place / FETCHED).read_text() != versions(name):
        raise DataError(f"the package {name} is not in {PLACE}/. Run `ouro fetch {name}` in this directory first.")
    return place


def fetch(name: str) -> Path:
    """Installs the chosen versions of a package; returns its folder. Raises StageError with what pip says."""
    wanted, place = versions(name), PLACE / name
    shutil.rmtree(place, ignore_errors=True)
    done = subprocess.run([sys.executable, "-m", "pip", *PIP, "--target", str(place), "--requirement",
                           str(CHOSEN / f"{name}.txt")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(f"pip could not install {name}: {done.stderr.strip()[-1000:]}")
    (place / FETCHED).write_text(wanted)
    return place


def environment(place: Path) -> dict[str, str]:
    """Returns the environment of a process that imports a package, before what is installed."""
    return os.environ | {"PYTHONPATH": launch.python_path(place), "PYTHONWARNINGS": "ignore"}
