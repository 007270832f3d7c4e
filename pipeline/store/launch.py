"""Commands of our own processes, and where they find the modules of the user's project."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import Problem, StageError
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.parent import die_with_parent

CODE = "code"  # of a stage's directory: the user's modules that rewarded its responses
LIBRARIES = ("PIL", "accelerate", "aiohttp", "click", "data_juicer", "datasets", "deepspeed", "duckdb", "fsspec",
             "httpx", "huggingface_hub", "hydra", "jinja2", "math_verify", "mlflow", "numpy", "omegaconf", "openai",
             "ouroboros", "packaging", "pandas", "peft", "psutil", "pyarrow", "pydantic", "regex", "requests",
             "safetensors", "scipy", "snakemake", "sympy", "tokenizers", "torch", "tqdm", "transformers",
             "typing_extensions", "vllm", "yaml")


def command(module: str, *arguments: str) -> list[str]:
    """Returns the command of a process of ours. `-P` keeps the current directory from the front of its sys.path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_path(first: Path | None = None) -> str:
    """Returns PYTHONPATH for it: a directory, by default the current one (the user's project), then what is set."""
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([str(first or Path.cwd()), *given]))


def ask(module: str, request: dict[str, Any], given: dict[str, str] | None = None) -> dict[str, Any]:
    """Returns the answer of a module of ours, in JSON, that is started as a separate process. given: its environment.
    Raises StageError with its last output when it fails."""
    with tempfile.TemporaryDirectory() as directory:
        asked, answer = Path(directory) / "request.json", Path(directory) / "answer.json"
        files.write_json(asked, request)
        done = subprocess.run(command(module, str(asked), str(answer)), capture_output=True, text=True,
                              env=given or environment(), check=False, preexec_fn=die_with_parent)
        if done.returncode:
            last = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise StageError(f"`python -m {module}` ended with exit code {done.returncode}:\n{last}")
        return files.read_json(answer)


def environment() -> dict[str, str]:
    """Returns the environment for it."""
    return {**os.environ, "PYTHONPATH": python_path()}


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


def hidden_modules() -> Iterator[Problem]:
    """Yields a problem for each module of the project that would be imported in place of what stages need, and for a
    project that is another checkout."""
    yield from _hiding_modules()
    place = Path.cwd().resolve()
    if place != HOME and (place / "pipeline" / "store" / "launch.py").is_file():
        yield Problem("", f"{place} is another checkout of Ouroboros, and this command is of {HOME}.", "Start it in "
                      "another directory, or take the command of that checkout.")
