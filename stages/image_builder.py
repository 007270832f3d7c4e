"""Builds an image with buildah, in a chroot, and unpacks its layers.

Each builder has its own store, in which equal layers are built once. The programs of a Dockerfile run with the
rights of root in a chroot that they cannot change, and the network of this machine: building is no boundary against
them, attempts are (workflows/environments/sandbox.py). A build has its own namespaces for mounts and processes,
which end with it, and limits of time, memory, processes and of what it writes, which are looked at while it runs.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import reduce
from itertools import cycle
from operator import or_
from pathlib import Path

from ouroboros.pipeline.store import dockerfiles, files, launch
from ouroboros.pipeline.store.host_memory import total_memory
from ouroboros.pipeline.store.images import OWNER, Environment, Image
from ouroboros.stages.image_layer import owners
from ouroboros.workflows.environments import memory

PROCESSES, COUNT_SECONDS = 1024, 0.1  # of a build: they are counted, as root has no limit but that of a namespace, of
# Linux 6.14 (before, a build is slow, so that this process counts in time). /dev/shm would be memory that none counts
OWN_LIMIT = [*map(int, re.findall(r"\d+", os.uname().release)[:2])] >= [6, 14]
APART = (*(() if OWN_LIMIT else ("nice", "-n", "19")), "setpriv", "--pdeathsig", "KILL", "--",
         "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-c",
         f"echo {4 * PROCESSES} > /proc/sys/kernel/pid_max && " * OWN_LIMIT
         + 'mount -t tmpfs -o size=64m,mode=1777 shm /dev/shm && exec "$@"', "sh")
POLICY = {"default": [{"type": "insecureAcceptAnything"}]}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FIRST_USER = 1000  # numbers below are those of the system's users
SHOWN = 300  # characters of a reason

UNPACKING = threading.Lock()  # builders have layers in common


class NotBuilt(Exception):
    """Why an image could not be built."""


class Builder:
    """A store of buildah below `place`, for one build at a time. layers: where files are unpacked."""

    def __init__(self, place: Path, layers: Path, max_gib: float):
        self._place, self._layers, self._most = place.absolute(), layers.absolute(), int(max_gib * 2**30)
        self._memory = min(self._most, total_memory() // 2)
        place.mkdir(parents=True, exist_ok=True)
        (place / "policy.json").write_text(json.dumps(POLICY), encoding="utf-8")
        self._call("rm", "--all")  # containers of a killed process

    def build(self, one: Environment, log: Path) -> Image:
        """Raises NotBuilt with the reason."""
        begin = time.monotonic()
        given = {name: self._loaded(path) for name, path in one.bases.items()}
        recipe = self._place / "Dockerfile"
        recipe.write_text(dockerfiles.rewritten(one.dockerfile, given), encoding="utf-8")
        context = one.context if one.context.is_dir() else self._empty()
        with open(log, "wb") as output:
            self._watched(["bud", "--isolation", "chroot", "--cap-drop", "CAP_SYS_CHROOT", "--layers",
                           "--format", "docker", "--pull=false", "--file", str(recipe), "--tag", one.key,
                           "--signature-policy", str(self._place / "policy.json"), str(context)], one.seconds, output)
        digest, manifest, config = self._pushed(one.key)
        found = [self._unpacked(layer["digest"]) for layer in manifest["layers"]]
        distinct = dict(reversed(found))  # overlayfs takes a layer once: of equal ones the topmost hides the others
        names, size = [*reversed(distinct)], sum(distinct.values())
        if size > self._most:
            raise NotBuilt(f"its files take {size / 2**30:.2f} GiB (images.max_gib)")
        settings = config.get("config") or {}
        users = _users([self._layers / name for name in names])
        user, home = _user(settings.get("User") or "", users)
        if reason := dockerfiles.several(self._owners(one.dockerfile, given, users, manifest["layers"])):
            raise NotBuilt(reason)
        variables = dict(pair.partition("=")[::2] for pair in settings.get("Env") or [])
        os.sync()  # a layer that a power loss empties must not be that of a complete image
        return Image(digest, names, variables, settings.get("WorkingDir") or "/", user, home, OWNER, size,
                     time.monotonic() - begin)

    def _empty(self) -> Path:
        place = self._place / "nothing"
        place.mkdir(exist_ok=True)
        return place

    def _command(self, *words: str) -> list[str]:
        return ["buildah", "--root", str(self._place / "root"), "--runroot", str(self._place / "run"),
                "--storage-driver", "overlay", *words]

    def _call(self, *words: str) -> str:
        ended = subprocess.run([*APART, *self._command(*words)], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, errors="replace", env=self._variables(), check=False)
        if ended.returncode:
            raise NotBuilt(f"buildah {words[0]}: {ended.stderr.strip()[-SHOWN:]}")
        return ended.stdout.strip()

    def _variables(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", PATH), "HOME": str(self._place), "TMPDIR": str(self._place),
                "BUILDAH_ISOLATION": "chroot"}

    def _loaded(self, path: Path) -> str:
        """Returns the name that a base image has in the store."""
        name = f"localhost/given-{files.hash_text(f'{path.resolve()}|{files.stamp(path)}')}"
        if not self._call("images", "--quiet", "--filter", f"reference={name}"):
            transport = "oci" if path.is_dir() else "oci-archive"
            number = self._call("pull", "--quiet", "--signature-policy", str(self._place / "policy.json"),
                                f"{transport}:{path.resolve()}")
            self._call("tag", number.splitlines()[-1], name)
        return name

    def _watched(self, words: list[str], seconds: float, output) -> None:
        """Runs a build, and ends it at its limits of time, processes, memory and of what it writes."""
        overlay, reason = self._place / "root" / "overlay", ""
        before = set(os.listdir(overlay)) if overlay.exists() else set()
        deadline, turns = time.monotonic() + seconds, cycle((True, False, False, False))  # files take longer
        with subprocess.Popen([*APART, *self._command(*words)], stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, env=self._variables()) as process, \
                memory.Namespace(process.pid) as inside, inside.watched(self._memory) as beyond:
            while process.poll() is None and not reason:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(COUNT_SECONDS)
                if inside.processes() > PROCESSES:
                    reason = f"the build had more than {PROCESSES} processes"
                elif time.monotonic() > deadline:
                    reason = f"the build took more than {seconds:g} s (environment.build_timeout_sec)"
                elif next(turns) and overlay.exists() and written(overlay, before) > self._most:
                    reason = f"the build wrote more than {self._most / 2**30:g} GiB (images.max_gib)"
            if reason:
                process.kill()  # and with it its namespaces
        if beyond.result():
            reason = (f"the build had more than {self._memory / 2**30:.3g} GiB of memory (images.max_gib, at most half "
                      "of this machine's)")
        if reason or process.returncode:
            raise NotBuilt(reason or last_words(Path(output.name)))

    def _pushed(self, key: str) -> tuple[str, dict, dict]:
        """The digest of an image, its manifest and its configuration, from a layout of OCI next to the store."""
        layout = self._place / "oci"
        self._call("push", "--quiet", "--disable-compression", "--signature-policy",
                   str(self._place / "policy.json"), key, f"oci:{layout}:{key}")
        index = json.loads((layout / "index.json").read_bytes())["manifests"]
        named = "org.opencontainers.image.ref.name"
        digest = next(one["digest"] for one in index if one.get("annotations", {}).get(named) == key)
        manifest = json.loads(self._blob(digest).read_bytes())
        return digest, manifest, json.loads(self._blob(manifest["config"]["digest"]).read_bytes())

    def _blob(self, digest: str) -> Path:
        return self._place / "oci" / "blobs" / digest.replace(":", "/")

    def _owners(self, text: str, given: dict[str, str], users: list[list[str]], layers: list[dict]) -> set[str]:
        """Returns the users to whom a Dockerfile gives files: those that its instructions name, and of those that own
        files in layers above the base image each with a name, and a number from FIRST_USER on. Files of packages belong
        to others (_apt, postgres), and those of archives to numbers without a name."""
        base = dockerfiles.stages(text)[-1].base
        below = base and self._call("inspect", "--type", "image", "--format", "{{.OCIv1.RootFS.DiffIDs}}",
                                    dockerfiles.local_name(base, given))
        own = layers[(below or "").count("sha256:"):]
        found = {*reduce(or_, (owners(self._blob(layer["digest"])) for layer in own), {}).values()}
        names = {number: name for name, _, number, *_ in users}
        return ({name for number, name in names.items() if number.isdecimal() and FIRST_USER <= int(number) in found}
                | {names.get(one, one) for one in dockerfiles.owners(text)})

    def _unpacked(self, digest: str) -> tuple[str, int]:
        """Returns the name of an unpacked layer and the bytes of its files."""
        name = digest.partition(":")[2]
        place, temporary = self._layers / name, self._layers / f".{name}.tmp"
        with UNPACKING:
            if not place.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
                unpack(self._blob(digest), temporary)
                temporary.rename(place)
        return name, sum(one.lstat().st_size for one in place.rglob("*") if one.is_symlink() or not one.is_dir())


def written(overlay: Path, before: set[str]) -> int:
    """Returns the bytes below the directories of a store that were not there before."""
    total = 0
    for name in set(os.listdir(overlay)) - before:
        for where, _, names in os.walk(overlay / name / "diff"):
            for one in names:
                with contextlib.suppress(OSError):  # deleted meanwhile
                    total += os.lstat(os.path.join(where, one)).st_blocks * 512
    return total


def last_words(log: Path) -> str:
    """Returns the last line of a build that failed, which names the instruction."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    shown = [line for line in lines if not re.match(r"(time=|level=)", line)] or lines or ["it printed nothing"]
    return shown[-1].strip()[-SHOWN:]


def unpack(archive: Path, target: Path) -> None:
    """Unpacks a layer (stages/image_layer.py). Raises NotBuilt."""
    ended = subprocess.run(launch.command("ouroboros.stages.image_layer", str(archive), str(target)),
                           stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, errors="replace", check=False)
    if ended.returncode:
        raise NotBuilt(f"a layer cannot be unpacked: {ended.stderr.strip()[-SHOWN:]}")


def _users(layers: list[Path]) -> list[list[str]]:
    """Returns the entries of an image's /etc/passwd."""
    lines = next((text.splitlines() for text in _texts(layers, "etc/passwd")), [])
    return [entry for line in lines if len(entry := line.split(":")) > 5]


def _user(named: str, users: list[list[str]]) -> tuple[int, str]:
    """Returns the number and the home of the user of an image (USER). Raises NotBuilt for one that it does not have."""
    name = named.partition(":")[0]
    if name in dockerfiles.ROOT:
        return 0, "/root"
    found = next((one for one in users if name in (one[0], one[2])), None)
    if not found and not name.isdigit():
        raise NotBuilt(f"USER {named}: the image has no such user")
    number, home = (found[2], found[5]) if found else (name, "/")
    if not re.fullmatch(r"[0-9]{1,9}", number):
        raise NotBuilt(f"USER {named}: its number is {number[:SHOWN]!r}; needed 0 to 999999999")
    return int(number), home


def _texts(layers: list[Path], name: str) -> Iterator[str]:
    """Yields the texts of a file, that of the topmost layer first. Links are not followed: they may leave the layer."""
    for layer in reversed(layers):
        file = layer.resolve() / name
        if file.is_file() and file.resolve() == file:
            yield file.read_text(encoding="utf-8", errors="replace")
