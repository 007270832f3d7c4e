"""`ouro gc`: finds what no run needs in store/ and images/: stages, checkpoints, models of GGUF files, images of Harbor
tasks, leftovers of killed processes."""

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.results import view
from ouroboros.pipeline.results.query import aligned
from ouroboros.pipeline.settings.kinds import IMAGES
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store import checkpoints, files, gguf, hashes, images, tables, versions
from ouroboros.pipeline.store.checkpoints import ASIDE
from ouroboros.pipeline.store.errors import DataError
from ouroboros.pipeline.store.records import Image

KILLED = "left by a killed process"
OLD_SECONDS = 3600.0  # age of a temporary file that no living process writes


@dataclass(frozen=True)
class Unneeded:
    """A file or directory that can be deleted, and why. bytes: freed by that; hard links elsewhere keep theirs."""

    path: Path
    bytes: int
    reason: str


def find(root: Path) -> list[Unneeded]:
    """Returns what can be deleted below root/store. Raises DataError without a store/, or for a run whose
    plan cannot be read."""
    if not (root / "store").is_dir():
        raise DataError(f"no store/ below {root}. Say with --root where runs/ and store/ are (checkpoint_root_dir).")
    places = _runs(root)  # all: others' stages are listed
    runs = [view.open_view(place) for place in places if (place / view.View.PLAN).exists()]
    # by name in all that a run names: a setting may be the path of a model in another run's stage
    named = b"".join(path.read_bytes() for place in places
                     for path in (place / view.View.PLAN, place / "config.yaml") if path.exists())
    named += b"".join(os.fsencode(os.readlink(link)) for place in places for link in (place / "stages").glob("*")
                      if link.is_symlink())
    benched = {Path(directory).name for run in runs for stage in run.stages if stage.kind.benches
               for directory in _inputs(stage.directory)}
    left = [path for pattern in (".mlflow.db.*.tmp*", "store/.*.tmp", "runs/*/*/.*.tmp") for path in root.glob(pattern)]
    found = [_unneeded(path, KILLED) for path in sorted(left)
             if path.is_file() and time.time() - path.stat().st_mtime > OLD_SECONDS]
    kept = []
    models = root / gguf.FOLDER
    for stage in (path for path in view.below(root / "store") if not path.is_symlink() and path != models):
        kept.append(stage)
        if view.is_locked(stage / ".lock"):
            continue
        if stage.name.endswith(".tmp"):
            found.append(_unneeded(stage, KILLED))
        elif os.fsencode(stage.name) not in named and (stage / "stage.json").exists():
            found.append(_unneeded(stage, "a stage of no run"))
            kept.remove(stage)
        else:
            found += _inside(stage, stage.name in benched)
    return [*found, *_models(models, named, kept), *_images(images.directory(str(root)), kept)]


def _models(place: Path, named: bytes, stages: list[Path]) -> Iterator[Unneeded]:
    """Yields the directories made of GGUF files (store/gguf.py) that neither runs nor these stages name. named: plans
    and configurations of runs."""
    named += b"".join(spec.read_bytes() for stage in stages if (spec := stage / "stage.json").exists())
    for directory in view.below(place) if place.is_dir() else ():
        unique = "-".join(directory.name.rsplit("-", 2)[1:])  # hash and type: JSON may escape what is before
        if directory.name.endswith(".tmp"):  # a living process may write it
            if time.time() - directory.stat().st_mtime > OLD_SECONDS:
                yield _unneeded(directory, KILLED)
        elif os.fsencode(unique) not in named:
            yield _unneeded(directory, "a GGUF file's model of no run")


def _images(place: Path, stages: list[Path]) -> Iterator[Unneeded]:
    """Yields the images of Harbor tasks that none of these stages built, and layers of no other image. While images are
    being built, or a stage that builds some is not complete, nothing is listed."""
    building = [stage for stage in stages if (stage / "stage.json").exists() and not files.is_complete(stage)
                and files.read_json(stage / "stage.json").get("kind") == IMAGES.name]
    if not place.is_dir() or building or view.is_locked(place / ".lock"):
        return
    rows = (tables.read(table, Image).to_pylist() for stage in stages
            if (table := stage / tables.LOCATIONS["images"]).exists())
    keys = {row["key"] for of_stage in rows for row in of_stage}
    built = {path: files.read_json(path)["layers"] for path in sorted(place.glob("*.json"))}
    for path in built:
        if path.stem not in keys:
            yield from (_unneeded(one, "an image of no stage") for one in (path, path.with_suffix(".log"))
                        if one.exists())
    needed = {layer for path, layers in built.items() if path.stem in keys for layer in layers}
    yield from (_unneeded(layer, "a layer of no image") for layer in view.below(place / "layers")
                if layer.name not in needed) if (place / "layers").is_dir() else ()
    if (place / "build").exists():
        yield _unneeded(place / "build", KILLED)


def _runs(root: Path) -> list[Path]:
    """Returns the directories of runs. Raises OSError for one that cannot be read, and DataError for a link to one that
    is not there, perhaps on a disk that is not mounted: its stages would be deleted."""
    runs = root / "runs"
    projects = view.below(runs) if os.path.lexists(runs) else []
    for link in (path for place in (runs, *projects) for path in place.glob("*")
                 if path.is_symlink() and not path.exists()):
        raise DataError(f"{link} is a link to {os.readlink(link)}, which is not there: stages of its runs would be "
                        "deleted. Mount or move it there, or delete the link.")
    return [run for project in projects for run in view.below(project)]


def _inputs(stage: Path) -> list[str]:
    spec = stage / "stage.json"
    return list(files.read_json(spec)["inputs"].values()) if spec.exists() else []


def _inside(stage: Path, benched: bool) -> Iterator[Unneeded]:
    """Yields what is not needed of a stage that is. benched: whether a stage evaluates each of its checkpoints."""
    for path in sorted(stage.rglob(".*.tmp")):
        yield _unneeded(path, KILLED)
    for path in sorted((stage / "checkpoints").glob(f"{ASIDE}*")):
        yield _unneeded(path, "a damaged checkpoint, set aside")
    if not files.is_complete(stage):
        return
    for step in checkpoints.complete_checkpoints(stage)[:-1] if not benched else ():
        kept = "kept" if checkpoints.is_marked(stage, step, "kept") else "superseded"
        yield _unneeded(checkpoints.checkpoint_directory(stage, step),
                        f"{kept}; only bench, replay and longer runs read it")
    there = versions.numbers(stage)
    if there and at(files.read_json(stage / "stage.json"), "config.synchronizer.keep") == "last":
        for version in there:
            yield _unneeded(versions.version_directory(stage, version), "weights that only a longer run begins with")


def _unneeded(path: Path, reason: str) -> Unneeded:
    inside = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file() and not one.is_symlink()]
    names: dict[int, list[int]] = {}  # inode -> size, links, names among these
    for stat in (one.stat() for one in inside):
        names.setdefault(stat.st_ino, [stat.st_size, stat.st_nlink, 0])[2] += 1
    return Unneeded(path, sum(size for size, links, here in names.values() if here == links), reason)


def report(found: list[Unneeded], delete: bool) -> str:
    """Returns a line per path, and the total."""
    total = f"{sum(one.bytes for one in found) / 1e6:,.1f} MB"
    if not found:
        return "nothing can be deleted"
    rows = [(files.near(one.path), f"{one.bytes / 1e6:,.1f} MB", one.reason) for one in found]
    done = f"deleted: {total}" if delete else f"{total} in all; `ouro gc --delete` deletes them"
    return "\n".join([aligned(["path", "size", "reason"], rows), done])


def remove(found: list[Unneeded]) -> list[Unneeded]:
    """Deletes them, and returns those that no stage holds or takes now; a kill leaves each whole, gone, or under a
    temporary name that the next call lists."""
    return [one for one in found if _removed(one.path)]


def _removed(path: Path) -> bool:
    lock = (hashes.stage_of(path / files.MANIFEST) or path) / ".lock"
    with open(lock, "a", encoding="utf-8") if lock.is_file() else nullcontext() as file:
        if file and not files.take_lock(file):
            return False
        files.remove_tree(path) if path.is_dir() else path.unlink()
    return True
