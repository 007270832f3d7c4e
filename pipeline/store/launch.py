"""Commands of our own processes, and where they find modules: ours first, whatever the user's directories contain."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pipeline.store.errors import Problem
from pipeline.store.files import HOME
from pipeline.store.project_imports import OURS


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a process of ours. `-P` keeps the current directory from the front of its sys.path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_path() -> str:
    """Returns PYTHONPATH for it: our packages, then the current directory (the user's project), then what is set."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([str(HOME), os.getcwd(), *given]))


def hidden_modules() -> Iterator[Problem]:
    """Yields a problem for each module of the user that has the name of a package here, and so is never imported."""
    for place in map(Path, python_path().split(os.pathsep)[1:]):
        for name in OURS if place.resolve() != HOME else ():
            found = [path for path in (place / f"{name}.py", place / name / "__init__.py") if path.is_file()]
            if found:
                yield Problem("", f"{found[0]} has the name of a package of Ouroboros ({', '.join(OURS)}), so that "
                              f"`import {name}` gives that one.", f"Rename {found[0].relative_to(place).parts[0]}.")
