"""Environments of Harbor tasks, and the images built of them, below images/ of the store's root.

    images/KEY.json         a built image: its digest, layers, variables, working directory and user
    images/KEY.log          what its build printed
    images/layers/DIGEST/   the files of a layer, which images share

KEY is the hash of what an environment is built of. A file KEY.json is complete, and its image is never built again.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from ouroboros.pipeline.store import dockerfiles, files, harbor
from ouroboros.pipeline.store.digests import digest_input, resolve
from ouroboros.pipeline.store.errors import DataError, StageError

DIRECTORY = "images"
OWNER = 65534  # of unpacked files: `nobody`, whose rights commands have where this process is root
NEEDED = ("Harbor tasks with a Dockerfile need buildah 1.28 or later and root to build their images: `apt-get "
          "install buildah`. Without root the files of every layer would be copied (1.1 GB for an image of 0.2 GB).")
BUILD_SECONDS = 600.0  # without an environment.build_timeout_sec, as in Harbor


@dataclass
class Environment:
    """What an image is built of. bases: base image -> file or directory; of others, the registry has them.
    seconds: limit of the build. task: directory of a task with it."""

    key: str
    source: str
    task: Path
    dockerfile: str
    context: Path
    bases: dict[str, Path]
    seconds: float


@dataclass(frozen=True)
class Image:
    """A built image. layers: names below images/layers, the topmost last. user: number that commands see as theirs, and
    its home. owner: of the unpacked files on this machine."""

    digest: str
    layers: list[str]
    variables: dict[str, str]
    workdir: str
    user: int
    home: str
    owner: int
    bytes: int
    seconds: float

    def write(self, place: Path) -> None:
        files.write_json(place, asdict(self))


def directory(root: str) -> Path:
    return Path(os.path.normpath(root)) / DIRECTORY


def place_of(root: str, key: str) -> Path:
    return directory(root) / f"{key}.json"


def read_image(place: Path) -> Image:
    """Raises StageError, naming the file, for an image that is not there or incomplete."""
    if not place.exists():
        raise StageError(f"{place} does not exist: the image of a Harbor task. `ouro run` builds it where the stage "
                         "images is not complete.")
    image = Image(**files.read_json(place))
    if absent := [name for name in image.layers if not (place.parent / "layers" / name).is_dir()]:
        raise StageError(f"{place.parent / 'layers' / absent[0]} does not exist: a layer of the image {place}. Delete "
                         "that file and the stage images, which builds it again.")
    return image


def environments(paths: Iterable[str], given: Mapping[str, str], root: str) -> list[Environment]:
    """Returns what the images of the tasks in these directories are built of, each once, in the order of their hashes.

    given: base image -> file or directory (environment.images). Raises DataError for a malformed task, or a base image
    that does not exist.
    """
    tasks = (task for path in paths for task in tasks_below(path))
    found = (environment_of(task, given, root) for task in tasks if task.is_built)
    return [one for _, one in sorted({one.key: one for one in found}.items())]


def tasks_below(path: str) -> list[harbor.HarborTask]:
    """Returns the tasks of a directory, those that did not change as they were read before: do not modify them."""
    return [_read(file.parent, _stamps(file.parent)) for file in harbor.tasks_in(resolve(path))]


@cache
def _read(place: Path, stamps: tuple) -> harbor.HarborTask:
    return harbor.read_task(place)


def _stamps(place: Path) -> tuple:
    """Returns what changes with any file of a task."""
    found = ((where, name, os.lstat(os.path.join(where, name))) for where, _, names in os.walk(place) for name in names)
    return tuple((where, name, stat.st_ino, stat.st_size, stat.st_mode, stat.st_mtime_ns, stat.st_ctime_ns)
                 for where, name, stat in found)


def no_builder() -> str | None:
    """Returns why images cannot be built on this machine, or None."""
    return NEEDED if not shutil.which("buildah") or os.geteuid() != 0 else None


def environment_of(task: harbor.HarborTask, given: Mapping[str, str], root: str) -> Environment:
    """Returns what the image of a task that has one (`is_built`) is built of. Raises DataError like `environments`."""
    named = dockerfiles.given_bases(task.dockerfile, given)
    for name, path in named.items():
        if not resolve(path).exists():
            raise DataError(f"environment.images.{name}: {path} does not exist (looked from {Path.cwd()}).")
    digests = {name: digest_input(path, root) for name, path in named.items()}
    seconds = task.settings.environment.build_timeout_sec or BUILD_SECONDS
    text = dockerfiles.rewritten(task.dockerfile, {})  # what buildah reads changes with this code
    return Environment(files.hash_json([task.source, digests, text]), task.source, task.directory, task.dockerfile,
                       task.environment, {name: resolve(path) for name, path in named.items()}, seconds)


def keys(paths: Iterable[str], given: Mapping[str, str], root: str) -> list[str]:
    """Returns what the identity of a stage has of the environments that it builds; empty where there are none."""
    return [one.key for one in environments(paths, given, root)]
