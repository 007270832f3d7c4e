"""Harbor tasks: an agent works in a shell, and the task's own tests/test.sh says what that was worth.

    python -m ouroboros.workflows.environments.harbor DIR

runs the solution of every task, and nothing, and prints both rewards: a task whose solution has no reward of its own
does not work here. DIR: a directory of tasks, or that of a stage `curate`, whose tasks have their images.

The format is read by pipeline/store/harbor.py, commands run in workflows/environments/sandbox.py. Every command is a
new shell in the working directory; files are kept between commands, processes are not.
"""

import io
import json
import math
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ouroboros.pipeline.settings.arguments.answers import ToolArguments
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.errors import OuroError
from ouroboros.pipeline.store.harbor import HarborTask, greeting, read_task, tasks_in, with_crlf
from ouroboros.pipeline.store.images import Image, read_image
from ouroboros.pipeline.store.records import Task
from ouroboros.workflows.environments.sandbox import NO_CUSTOMS, PUT_BACK, Ended, Sandbox, require
from ouroboros.workflows.protocol.tools import Environment, Situation, tool

MEGABYTES = 1024  # most that the files of an attempt take of the machine's memory
RUN_FILES = ("BASH_ENV", "ENV", "LD_AUDIT", "LD_PRELOAD", "NODE_OPTIONS", "PERL5OPT", "PYTEST_ADDOPTS",
             "PYTEST_PLUGINS", "PYTHONPYCACHEPREFIX", "PYTHONSTARTUP", "RUBYOPT")
OWN_LIMIT = 86400.0  # seconds: calls whose limit is the task's
VERIFIER_SECONDS = 600.0  # without a verifier.timeout_sec, as in Harbor
FILE_SECONDS = 60.0  # for copying files
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DIRECTORIES = ("root", "tmp", "var/tmp")
REWARDS = ("reward.json", "reward.txt")  # the first that is there counts, as in Harbor
WHOLE = "; ".join(f"if [ -f /logs/verifier/{name} ]; then echo {name}; head -c 65536 /logs/verifier/{name}; exit; fi"
                  for name in REWARDS)


class Unverified(Exception):
    """The tests of a task gave no reward."""


class Harbor(Environment):
    """The truth of a task is `{"directory": …, "sha256": of its files}`, or `{"files": {path: text}}` of such a
    directory. accuracy: the reward, if from 0 to 1."""

    idempotent = True  # files are in the attempt's own memory, and there is no network
    _sandbox: Sandbox | None = None
    _written: tempfile.TemporaryDirectory | None = None
    _mounted: Mapping[str, Path] | None = None  # of a Sandbox

    @classmethod
    def check(cls) -> None:
        require()

    @tool(seconds=OWN_LIMIT)
    def reset(self, task: Situation) -> str:
        truth = json.loads(task.answer)
        self._task = self._read(truth)
        if "files" not in truth and self._task.digest != truth["sha256"]:
            raise ValueError(f"the files of {self._task.directory} changed since they were read; needed the same ones. "
                             "The next `ouro run` reads them again")
        wanted, image = self._task.settings, self._image(truth)
        layers = [Path(truth["image"]).parent / "layers" / name for name in image.layers] if image else []
        self._user, self._home = (image.user, image.home) if image else (0, "/root")
        self._variables = (image.variables if image else {}) | wanted.environment.env
        if image:
            self._task.workdir = os.path.normpath(os.path.join(image.workdir, wanted.environment.workdir))
        self._sandbox = Sandbox(min(wanted.environment.storage_mb or MEGABYTES, MEGABYTES),
                                wanted.environment.memory_mb, max(wanted.environment.cpus, 1.0), layers, self._user,
                                mounted=self._mounted)
        self._left = wanted.agent.timeout_sec or math.inf
        if not image:
            self._put([*((None, one) for one in (*DIRECTORIES, self._task.workdir)), *self._task.copies], "/")
        return greeting(self._task.workdir, self._user)

    def _read(self, truth: dict) -> HarborTask:
        """The task of a directory; that of a generator's files, which are written for the attempt."""
        if "files" not in truth:
            return read_task(Path(truth["directory"]))
        self._written = tempfile.TemporaryDirectory()
        for name, text in truth["files"].items():
            file = Path(self._written.name, name)
            if not file.resolve().is_relative_to(Path(self._written.name).resolve()):
                raise ValueError(f"'{name}' is outside the task; needed a relative path below it")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return read_task(Path(self._written.name))

    def _image(self, truth: dict) -> Image | None:
        """The image of the task; None without one."""
        if "image" not in truth:
            if self._task.dockerfile is not None:
                raise ValueError(f"{self._task.directory} needs its image, and no stage `images` built one")
            return None
        image = read_image(Path(truth["image"]))
        if image.digest != truth["digest"]:
            raise ValueError(f"{truth['image']} was built again since the tasks were read, with other content "
                             f"({image.digest}); needed {truth['digest']}. Delete the stage `tasks` that read them")
        return image

    @tool(seconds=OWN_LIMIT)
    def bash(self, command: str) -> str:
        """Runs a command with bash. Returns what it prints, and its exit code unless that is 0."""
        with self._spending() as seconds:
            ended = self._run(["bash", "-c", command], seconds)
        if ended.code is None:
            return f"{ended.output}\n({ended.why}, and was ended)"
        return ended.output + (f"\n(exit code {ended.code})" if ended.code else "")

    @contextmanager
    def _spending(self) -> Iterator[float]:
        """Takes what the block needs from the task's time; yields a call's limit, seconds. Raises TimeoutError."""
        seconds, begin = min(self.settings.tool_seconds, self._left), time.monotonic()
        if seconds <= 0:
            raise TimeoutError("the time of this task is used up")
        try:
            yield seconds
        finally:
            self._left -= time.monotonic() - begin

    @tool(seconds=OWN_LIMIT)
    def reward(self) -> dict[str, float]:
        verifier = self._task.settings.verifier
        self._sandbox.unlink()
        self._sandbox.restore(put_back(self._path(), self._task.workdir), self._task.workdir)
        self._put([(self._task.directory / "tests", "."), *self._unix("tests", "")], "/tests", verifies=True)
        seconds = verifier.timeout_sec or VERIFIER_SECONDS
        ended = self._run(["bash", "-c", "chmod +x /tests/test.sh; /tests/test.sh"], seconds, True, **verifier.env)
        if ended.code is None:
            raise Unverified(f"tests/test.sh {ended.why} (verifier.timeout_sec, environment.memory_mb)")
        found = self._sandbox.run(["sh", "-c", WHOLE], FILE_SECONDS, verifies=True, variables={"PATH": PATH}).output
        if not found:
            raise Unverified(f"tests/test.sh ended with exit code {ended.code} and wrote neither "
                             f"/logs/verifier/{' nor '.join(REWARDS)}: {ended.output.strip()[-300:]}")
        return components(*found.split("\n", 1))

    def _solve(self) -> Ended:
        """Runs the task's own solution, as Harbor's oracle does."""
        settings = self._task.settings
        self._put([(self._task.directory / "solution", "/solution"), *self._unix("solution", "solution")], "/")
        return self._run(["bash", "/solution/solve.sh"], settings.agent.timeout_sec or OWN_LIMIT,
                         **settings.solution.env)

    def _close(self) -> None:
        if self._sandbox:
            self._sandbox.close()
        if self._written:
            self._written.cleanup()

    def _run(self, command: list[str], seconds: float, verifies: bool = False, descriptors: Sequence[int] = (),
             **more: str) -> Ended:
        named = {name: os.environ[name] for name in self.settings.environment if name in os.environ}
        known = {"PATH": PATH, "HOME": "/root" if verifies else self._home, "LANG": "C.UTF-8"} | named
        known |= self._variables
        if verifies:  # no programs of the agent, nor its own files that others run
            known = {name: value for name, value in known.items() if name not in RUN_FILES}
            known |= {"PATH": trusted(self._path(), self._task.workdir), "PYTHONNOUSERSITE": "1"}
        known |= more
        if verifies and known.get("PYTHONPATH"):
            known["PYTHONPATH"] = f"{NO_CUSTOMS}:{known['PYTHONPATH']}"
        return self._sandbox.run(command, seconds, self._task.workdir, known, verifies, descriptors=descriptors)

    def _path(self) -> str:
        return self._variables.get("PATH", PATH)

    def _unix(self, part: str, target: str) -> list[tuple[bytes, str]]:
        """The scripts of a part of the task that have CRLF, with LF."""
        place = self._task.directory / part
        return [(file.read_bytes().replace(b"\r\n", b"\n"), os.path.join(target, file.relative_to(place)))
                for file in with_crlf(place)]

    def _put(self, files: Iterable[tuple[Path | bytes | None, str]], target: str, verifies: bool = False) -> None:
        """Unpacks files, as a command: nothing that an agent left can lead it out of the private file system."""
        with _archive(files) as archive:
            ended = self._sandbox.run(["tar", "--extract", "--no-same-owner", "--directory", target], FILE_SECONDS,
                                      variables={"PATH": PATH}, verifies=verifies, stdin=archive)
        if ended.code != 0:
            raise OSError(f"the files of {self._task.directory} could not be copied: {ended.output.strip()[-300:]}")


def trusted(path: str, workdir: str) -> str:
    """The directories of PATH that are the image's own during verification, where others are the agent's."""
    again = put_back(path, workdir)
    return ":".join(one for one in map(os.path.normpath, path.split(":")) if _first(one) in again
                    and not (one == workdir or one.startswith(f"{workdir}/")))


def put_back(path: str, workdir: str) -> list[str]:
    """The directories of the root that verification has as the image has them: those of programs, and of PATH, but not
    the working directory, homes and those of every user's files."""
    named = {_first(os.path.normpath(one)) for one in path.split(":")} - {"", "home", "root", "tmp", "var"}
    return [one for one in dict.fromkeys([*PUT_BACK, *sorted(named)]) if f"/{one}" != workdir]


def _first(path: str) -> str:
    """The directory of the root that an absolute path begins with; empty for another path."""
    return path.split("/")[1] if path.startswith("/") else ""


def components(name: str, text: str) -> dict[str, float]:
    """The rewards of a reward file. A number, or the entry `reward` of an object, is the reward; the entries of any
    other object are components, which are summed. Raises Unverified for what is no finite number."""
    try:
        found = json.loads(text) if name.endswith(".json") else float(text)
        given = found if isinstance(found, dict) else {"reward": found}
        "".join(given).encode()  # half of a surrogate pair is in no table
        if not (given and all(isinstance(value, int | float) for value in given.values())
                and math.isfinite(math.fsum(given.values()))):
            raise ValueError(name)
    except (ValueError, OverflowError, RecursionError) as error:
        raise Unverified(f"{name} has {text[:80]!r}; needed a finite number, or an object of such") from error
    if "reward" not in given:
        return {key: float(value) for key, value in given.items()}
    reward = float(given["reward"])
    return {"accuracy" if 0 <= reward <= 1 else "reward": reward}


@contextmanager
def _archive(files: Iterable[tuple[Path | bytes | None, str]]) -> Iterator[IO[bytes]]:
    """A tar file of (file or directory, its name in it); bytes: what a program has; None: an empty directory."""
    with tempfile.TemporaryFile() as made:
        with tarfile.open(fileobj=made, mode="w") as archive:
            for path, name in files:
                entry = tarfile.TarInfo(name.lstrip("/") or ".")
                if isinstance(path, bytes):
                    entry.size, entry.mode = len(path), 0o755
                    archive.addfile(entry, io.BytesIO(path))
                elif path is None:
                    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
                    archive.addfile(entry)
                else:
                    archive.add(path, name.lstrip("/"), filter=_as_root)
        made.seek(0)
        yield made


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def tried(truth: str, settings: ToolArguments) -> list[str]:
    """The reward of a task without any work, and that of its solution, or why there is none. truth: of its row."""
    found, note = [], ""
    for work in ("nothing", "solution"):
        world = Harbor()
        world.settings = settings
        try:
            world.reset(Situation([], truth))
            if work == "solution" and (code := world._solve().code) != 0:
                note = " (solve.sh timed out)" if code is None else f" (exit code {code} of solve.sh)"
            found.append(f"{work} {world.reward()}{note}")
        except (OSError, Unverified, OuroError) as error:
            found.append(f"{work}: {error}")
        finally:
            world._close()
    return found


def truths(place: Path) -> Iterator[tuple[str, str | None]]:
    """The truth of each task of a stage `curate`, or below a directory, and why it cannot run here, or None."""
    if (curated := place / tables.LOCATIONS["tasks"]).exists():
        yield from ((answer, None) for answer in tables.read(curated, Task)["answer"].to_pylist()
                    if answer.startswith(('{"directory"', '{"files"')))
        return
    for task in (read_task(file.parent) for file in tasks_in(place)):
        reason = "its image is that of a stage (docs/harbor.md)" if task.is_built else None
        yield task.record()["answer"], task.unsupported or reason


def named(truth: str) -> str:
    """The name of a task's directory, or what a generated one asks for."""
    found = json.loads(truth)
    return Path(found["directory"]).name if "directory" in found else found["files"]["instruction.md"]


if __name__ == "__main__":
    for truth, reason in truths(Path(sys.argv[1])):
        said = [f"unsupported: {reason}"] if reason else tried(truth, ToolArguments())
        print(f"{named(truth)}: {', '.join(said)}", flush=True)
