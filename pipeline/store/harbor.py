"""Task directories of Harbor: instruction.md, task.toml, environment/, tests/test.sh and solution/solve.sh.

What is read follows Harbor 0.25 (task.toml up to version 1.4), which ignores other keys too. A Dockerfile is built to
an image (pipeline/store/images.py). Without one, a private file system has the files of environment/, and the programs
are those of the machine.
"""

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ouroboros.pipeline.store import dockerfiles
from ouroboros.pipeline.store.errors import DataError, nearest

FILE = "task.toml"
UNSUPPORTED = "harbor_unsupported"  # key of a record: why the task cannot run here
SOURCE = "harbor_source"  # key of a record: hash of what its image is built of
ISOLATION = ("commands run confined by bubblewrap, without network and with their own files, as programs of the "
             "task's image, or without one of this machine: the kernel and its processors are shared")
WORKDIR = "/app"  # without a Dockerfile
OF_THE_MACHINE = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/proc", "/dev",
                  "/sys", "/tests", "/logs")  # where a task cannot have its own files
# keys of task.toml that this runtime does not have, but for these values
REFUSED = {"steps": (), "agent.user": ("root", 0), "verifier.user": ("root", 0), "verifier.environment": (),
           "verifier.environment_mode": ("shared",), "verifier.collect": (), "environment.os": ("linux",),
           "environment.gpus": (), "environment.mcp_servers": (), "environment.healthcheck": ()}
# tables of Harbor's task.toml, used or not
SECTIONS = ("metadata", "task", "agent", "agent.env", "verifier", "verifier.env", "verifier.environment", "solution",
            "solution.env", "environment", "environment.env", "environment.healthcheck", "environment.tpu")
CANARY = re.compile(r"(?:\s*(?:<!--.*canary.*-->|#.*canary.*|)\n)*", re.I)  # leading lines that mark benchmark data

Positive = Annotated[float, Field(gt=0, le=2**20)]  # seconds up to 12 days, MiB up to 1 TiB; neither inf nor nan
Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]
Variables = dict[Annotated[str, Field(pattern=r"^[^=\x00]+$")], Text]


class Part(BaseModel):
    timeout_sec: Positive | None = None
    env: Variables = {}


class Environment(Part):
    docker_image: str | None = None
    workdir: Text = "."
    cpus: Positive = 1.0
    memory_mb: Positive | None = None
    storage_mb: Annotated[float, Field(ge=1, le=2**20)] | None = None  # a file system of 0 MiB has no limit
    build_timeout_sec: Positive | None = None


class Settings(BaseModel):
    """The keys of task.toml that are used."""

    agent: Part = Part()
    verifier: Part = Part()
    solution: Part = Part()
    environment: Environment = Environment()


@dataclass
class HarborTask:
    """A task as its files describe it.

    digest: of all files. dockerfile: what its image is built of, or None; then it has `copies`, (file or directory of
    environment/, path in the private file system). unsupported: why it cannot run here, or None. remarks: sentences on
    what is read otherwise than it is written.
    """

    directory: Path
    instruction: str
    settings: Settings
    digest: str
    workdir: str = WORKDIR
    copies: list[tuple[Path, str]] = field(default_factory=list)
    dockerfile: str | None = None
    unsupported: str | None = None
    remarks: list[str] = field(default_factory=list)

    @property
    def environment(self) -> Path:
        return self.directory / "environment"

    @cached_property
    def source(self) -> str | None:
        """Returns the hash of what its image would be built of, but for the base image; None without a Dockerfile."""
        content = digest_of(self.environment) if self.environment.is_dir() else ""
        return self.dockerfile and hashlib.sha256(f"{self.dockerfile}\0{content}".encode()).hexdigest()[:16]

    @property
    def is_built(self) -> bool:
        """Returns whether it runs in an image."""
        return not self.unsupported and self.dockerfile is not None

    def record(self) -> dict[str, Any]:
        """A row of a task set; the truth says where the task is, and its content."""
        truth = {"directory": str(self.directory), "sha256": self.digest}
        return {"question": self.instruction, "answer": json.dumps(truth), UNSUPPORTED: self.unsupported,
                SOURCE: self.source}


def greeting(workdir: str, user: int = 0) -> str:
    """Returns what a model is told at first. user: the number that commands see as theirs."""
    owner = f"user {user}" if user else "root"
    return f"You work in {workdir}, as {owner}, without network. Each command is a new shell."


class _Unsupported(Exception):
    """What a task needs, and this runtime does not have."""


def tasks_in(directory: Path) -> list[Path]:
    """The task.toml of every task whose directory is directly below; empty for a directory of other data."""
    return sorted(directory.glob(f"*/{FILE}"))


def read_task(directory: Path) -> HarborTask:
    """Raises DataError, naming the file, where one is missing or malformed."""
    try:
        given = tomllib.loads(_text(directory / FILE))
        settings = Settings.model_validate(given)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{directory / FILE} is no TOML: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}={one['input']!r}: "
                          f"{'needed a table' if one['type'] == 'model_type' else one['msg']}"
                          for one in error.errors())
        raise DataError(f"{directory / FILE}: {wrong}") from error
    text = ""
    if not given.get("steps"):  # those have their own files
        _text(directory / "tests" / "test.sh")
        text = _text(directory / "instruction.md") + "\n"
        if not (text := text[CANARY.match(text).end():].strip()):
            raise DataError(f"{directory / 'instruction.md'} has no text; needed what the agent is to do.")
    task = HarborTask(directory, text, settings, digest_of(directory), remarks=_unknown(given))
    task.remarks += [f"{file.relative_to(directory)} has CRLF at the ends of its lines, read as LF."
                     for part in ("tests", "solution") for file in with_crlf(directory / part)]
    try:
        _refuse(given, settings)
        _build(task)
    except _Unsupported as reason:
        task.unsupported = str(reason)
    if _works_at_root(task):
        task.remarks.append("works in /: its tests do not see what an attempt leaves there for pytest (conftest.py, "
                            "pytest.ini, tox.ini, setup.cfg, a pyproject.toml that names pytest).")
    return task


def _works_at_root(task: HarborTask) -> bool:
    """Returns whether the task is known to work in /; the base image may decide it."""
    if not task.is_built:
        return not task.unsupported and task.workdir == "/"
    named = dockerfiles.stages(task.dockerfile)[-1].workdir
    return os.path.normpath(os.path.join(named, task.settings.environment.workdir)) == "/"


def with_crlf(place: Path) -> list[Path]:
    """Returns the scripts below a directory whose first line ends in CRLF: no shell runs them."""
    return [file for file in sorted(place.rglob("*.sh")) if file.is_file() and not file.is_symlink()
            and file.read_bytes().partition(b"\n")[0].endswith(b"\r")]


def _unknown(given: dict) -> list[str]:
    named = [*given.items(), *((f"{part}.{key}", value) for part in Settings.model_fields
                               for key, value in given.get(part, {}).items())]
    return [f"{FILE}: [{name}] is no section of Harbor's and has no effect.{nearest(name, SECTIONS)}"
            for name, value in named if isinstance(value, dict) and name not in SECTIONS]


def _text(file: Path, newline: str | None = None) -> str:
    """newline: as of open()."""
    if file.exists() and not file.is_file():  # reading a pipe may never end
        raise DataError(f"{file} is not a file; a Harbor task needs it.")
    try:
        with open(file, encoding="utf-8", newline=newline) as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}); a Harbor task needs it, in UTF-8.") from error


def digest_of(directory: Path) -> str:
    """Hashes paths, contents and the owner's rights of all files below a directory, and of directories that are empty
    or lack a right. A umask changes none of these."""
    found = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        rights = path.lstat().st_mode
        if path.is_symlink() or path.is_file():
            content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
            mode = rights & 0o120100 | ~rights & 0o600  # of a link; executable; what it lacks to read and write
        elif path.is_dir():
            if not ~rights & 0o700 and any(path.iterdir()):
                continue
            content, mode = b"", 0o040000 | ~rights & 0o700
        else:
            raise DataError(f"{path} is a pipe, socket or device; a Harbor task has files and directories.")
        found.update(os.fsencode(path.relative_to(directory)) + f"\0{mode}\0{len(content)}\0".encode() + content)
    return found.hexdigest()


def _refuse(given: dict, settings: Settings) -> None:
    """Raises _Unsupported for what task.toml asks for, and this runtime does not have. given: as in the file."""
    for key, fine in REFUSED.items():
        section, _, name = key.rpartition(".")
        if (value := (given.get(section, {}) if section else given).get(name)) and value not in fine:
            raise _Unsupported(f"{FILE} asks for {key}={str(value)[:80]}")
    if ".." in (path := settings.environment.workdir).split("/"):
        raise _Unsupported(f"{FILE} asks for environment.workdir={path}, which Docker refuses")
    for name, part in settings:
        if named := [variable for variable, value in part.env.items() if "${" in value]:
            raise _Unsupported(f"{FILE}: {name}.env.{named[0]} is taken from the machine's environment")


def _build(task: HarborTask) -> None:
    """Fills in what its image is built of, or else its working directory and files. Raises _Unsupported."""
    source, wanted = task.environment, task.settings.environment
    for name in ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"):
        if (source / name).exists():
            raise _Unsupported(f"environment/{name}")
    if (source / "Dockerfile").is_file():
        task.dockerfile = _text(source / "Dockerfile", newline="")
        _refuse_dockerfile(task)
    elif wanted.docker_image:
        task.dockerfile = f"FROM {wanted.docker_image}\n"
    else:
        task.workdir = os.path.normpath(os.path.join(WORKDIR, wanted.workdir))
        if any(PurePosixPath(task.workdir).is_relative_to(one) for one in OF_THE_MACHINE):
            raise _Unsupported(f"files in {task.workdir}, where those of the machine are")
        if source.is_dir():
            task.copies = [(one, f"{WORKDIR}/{one.name}") for one in sorted(source.iterdir())]


def _refuse_dockerfile(task: HarborTask) -> None:
    """Raises _Unsupported for a Dockerfile that cannot be built."""
    if reason := dockerfiles.refusal(task.dockerfile):
        raise _Unsupported(f"environment/Dockerfile: {reason}")
    if lacking := [name for name in dockerfiles.copied(task.dockerfile)
                   if not os.path.lexists(task.environment / os.path.normpath(f"/{name}").lstrip("/"))]:
        raise _Unsupported(f"environment/Dockerfile: COPY or ADD of {lacking[0]}, which is not in environment/")
