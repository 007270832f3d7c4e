"""Commands of our own processes, and where they find modules: ours first, whatever the user's directories contain."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipeline.store.errors import Problem
from pipeline.store.files import HOME
from pipeline.store.project_imports import OURS

LIBRARIES = ("PIL", "accelerate", "aiohttp", "click", "data_juicer", "datasets", "deepspeed", "duckdb", "fsspec",
             "httpx", "huggingface_hub", "hydra", "jinja2", "math_verify", "mlflow", "numpy", "omegaconf", "openai",
             "packaging", "pandas", "peft", "psutil", "pyarrow", "pydantic", "regex", "requests", "safetensors",
             "scipy", "snakemake", "sympy", "tokenizers", "torch", "tqdm", "transformers", "typing_extensions",
             "vllm", "yaml")


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a process of ours. `-P` keeps the current directory from the front of its sys.path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_path() -> str:
    """Returns PYTHONPATH for it: our packages, then the current directory (the user's project), then what is set."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([str(HOME), os.getcwd(), *given]))


def _hiding_modules() -> Iterator[Problem]:
    """Yields a problem for each module of the project that would be imported in place of one that stages need: Python's
    own, or a library's."""
    place = Path.cwd()
    libraries = {*LIBRARIES} if place.resolve() != HOME else set()
    for path in sorted(place.iterdir()):
        module = path if path.suffix == ".py" else path / "__init__.py"
        name, of_python = path.stem, path.stem in sys.stdlib_module_names
        loaded = getattr(sys.modules.get(name), "__file__", None) or ""
        taken = of_python and loaded and not Path(loaded).is_relative_to(place)
        if (taken or name in libraries) and module.is_file():
            yield Problem("", f"{module} has the name of {'a module of Python' if of_python else 'a library'} that "
                          f"every stage imports, and would be imported as `{name}` in its place.",
                          f"Rename {path.name}.")


def hidden_modules(named: Iterable[str] = ()) -> Iterator[Problem]:
    """Yields a problem for each module of the user that has the name of a package here, and so is never imported, and
    for those of the project that would be imported in place of what stages need.

    named: dotted names of the user's functions; the other packages of a checkout (tests) hide only what these need.
    """
    yield from _hiding_modules()
    first = {name.partition(":")[0].partition(".")[0] for name in named}
    names = [*OURS, *sorted(name for name in first - {*OURS} if (HOME / name / "__init__.py").is_file())]
    for place in map(Path, python_path().split(os.pathsep)[1:]):
        if place.resolve() == HOME:
            continue
        if (place / "pipeline" / "store" / "launch.py").is_file():
            yield Problem("", f"{place} is another checkout of Ouroboros, and this command is of {HOME}.", "Start "
                          "it in another directory, or take the command of that checkout.")
            continue
        for name in names:
            found = [path for path in (place / f"{name}.py", place / name / "__init__.py") if path.is_file()]
            if found:
                yield Problem("", f"{found[0]} has the name of a package of Ouroboros ({', '.join(names)}), so that "
                              f"`import {name}` gives that one.", f"Rename {found[0].relative_to(place).parts[0]}.")
