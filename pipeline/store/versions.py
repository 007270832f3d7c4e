"""Published weights: a full file or a delta for each version, the hash that rows carry, and how a version is rebuilt.

    weights/version=000012/   model.safetensors, or delta.safetensors; manifest.json: version, hash, probe, tensors
                              (xxh3 of the bytes of each, by name), twice (names of tensors that are others', such as
                              a tied output head), base (version and hash that a delta changes; null for a full file)

A delta has two tensors for each changed tensor NAME: `NAME:index`, the flat positions of its changed elements, and
`NAME:value`. The hash is of names, types, shapes and hashes of all tensors except `twice`, which a checkpoint does not
have, so it does not depend on the form. A manifest without `tensors` (adapters, and releases that knew no deltas) has
the sha256 of the weight file as its hash.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.store import checkpoints, files, hashes, tensor_files
from ouroboros.pipeline.store.errors import ModelError, StageError
from ouroboros.pipeline.store.tensor_files import CHUNK, Allocate, Stored, distinct, hashes_of, in_threads

DELTA = "delta.safetensors"
SHOWN = "shown.parquet"  # next to them, where the probe has images of an agent
INDEX, VALUE = ":index", ":value"
INDEX_TYPES = {"I32": np.int32, "I64": np.int64}

Positions = dict[str, np.ndarray]


def root(tensors: Mapping[str, Stored], found: Mapping[str, str], twice: Collection[str] = ()) -> str:
    """Returns the hash of weights. found: the hashes of the tensors, by name. twice: names that do not count."""
    return files.hash_json([[name, one.dtype, list(one.shape), found[name]] for name, one in sorted(tensors.items())
                            if name not in twice])


def hash_of(tensors: Mapping[str, Stored]) -> str:
    """Returns the hash of weights."""
    return root(tensors, hashes_of(tensors))


def changes(old: Mapping[str, Stored], new: Mapping[str, Stored]) -> Positions:
    """Returns the flat positions of the elements of each tensor that differ. Both have the same names and shapes."""
    first, size = distinct(new), CHUNK // 4
    parts = [(name, at) for name in dict.fromkeys(first.values()) for at in range(0, len(new[name].words), size)]

    def positions(part: tuple[str, int]) -> np.ndarray:
        name, at = part
        return np.flatnonzero(old[name].words[at : at + size] != new[name].words[at : at + size]) + at

    found: dict[str, list[np.ndarray]] = {}
    for (name, _), some in zip(parts, in_threads(positions, parts), strict=True):
        found.setdefault(name, []).append(some)
    joined = {name: np.concatenate(some) for name, some in found.items()}
    return {name: joined[first[name]] for name in new if len(joined.get(first[name], ()))}


def write_delta(path: Path, new: Mapping[str, Stored], changed: Positions) -> None:
    tensors = {}
    for name, positions in changed.items():
        code = "I32" if len(new[name].words) < 2**31 else "I64"
        index, values = positions.astype(INDEX_TYPES[code]), new[name].words[positions]
        tensors[name + INDEX] = Stored(code, index.shape, index.view(np.uint8))
        tensors[name + VALUE] = Stored(new[name].dtype, values.shape, values.view(np.uint8))
    tensor_files.write(path, tensors)


def delta_bytes(new: Mapping[str, Stored], changed: Positions) -> int:
    """Returns about the size of the file that `write_delta` writes."""
    return sum(len(positions) * (4 + new[name].words.itemsize) for name, positions in changed.items())


class Held:
    """The weights of one version in host memory. The next versions change them in place, if they are deltas.

    allocate: of their memory; None: a full file is mapped, and only pages that deltas change take memory.
    """

    def __init__(self, allocate: Allocate | None = None):
        self.allocate, self._whole = allocate, np.empty(0, np.uint8)
        self.tensors: dict[str, Stored] = {}
        self.place, self.manifest = Path(), {}

    def update(self, directory: Path) -> None:
        """Takes the weights of a published version, or of a model directory; `verify` them before they make rows."""
        before, self.manifest = (self.place, self.manifest), {}  # what an error leaves is of no version
        if not files.is_complete(directory):
            self.tensors = self._read(directory)
            return
        for place, manifest in chain(directory, *before):
            if manifest.get("base") is None:
                self.tensors = self._read(place)
            else:
                self._apply(place / DELTA)
        self.place, self.manifest = directory.resolve(), files.read_json(directory / files.MANIFEST)

    def verify(self) -> None:
        """Raises ModelError unless the hash of every tensor is the published one. The files of a model directory are
        verified by the stage that reads them."""
        if "tensors" not in self.manifest:
            if self.manifest:
                require_file_hash(self.place)
            return
        found, published = hashes_of(self.tensors), self.manifest["tensors"]
        for name in sorted(found.keys() | published.keys()):
            if found.get(name) != published.get(name):
                raise ModelError(f"{self.place}: tensor {name} has the hash {found.get(name)}; {published.get(name)} "
                                 f"was published. {_again(self.place)}")

    def _read(self, directory: Path) -> dict[str, Stored]:
        return tensor_files.read(directory / checkpoints.WEIGHTS, self.allocate and self._memory)

    def _memory(self, size: int) -> np.ndarray:
        if self._whole.nbytes != size:
            self._whole = self.allocate(size)
        return self._whole

    def _apply(self, path: Path) -> None:
        found = tensor_files.read(path)

        def change(name: str) -> None:
            index, values = found[name + INDEX], found[name + VALUE]
            self.tensors[name].words[index.data.view(INDEX_TYPES[index.dtype])] = values.words

        try:
            in_threads(change, [name.removesuffix(INDEX) for name in found if name.endswith(INDEX)])
        except (KeyError, IndexError, ValueError) as error:
            raise ModelError(f"{path} does not fit the weights that it changes ({type(error).__name__}: {error}). "
                             f"{_again(path.parent)}") from error


def chain(directory: Path, held: Path = Path(), manifest: Mapping[str, Any] | None = None
          ) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the versions to apply for one, oldest first, with their manifests: from a full one on, or those after the
    version `held` with this manifest. Raises ModelError when one is missing, or is not the one that was changed."""
    found: list[tuple[Path, dict[str, Any]]] = []
    place, wanted = directory.resolve(), None
    while True:
        if not files.is_complete(place):
            what = f", and {found[-1][0]} is a change of it" if found else ""
            raise ModelError(f"{place} is missing{what}. {_again(directory)}")
        own = files.read_json(place / files.MANIFEST)
        if wanted not in (own["hash"], None):
            raise ModelError(f"{found[-1][0]} changes weights with the hash {wanted}; those in {place} have "
                             f"{own['hash']}. {_again(directory)}")
        if place == held and manifest and own["hash"] == manifest["hash"]:
            return found[::-1]
        found.append((place, own))
        if own.get("base") is None:
            return found[::-1]
        version, wanted = own["base"]
        place = version_directory(place.parents[1], version)


def require_file_hash(directory: Path) -> None:
    """Raises ModelError unless the weight file has the hash of its manifest."""
    written, found = files.read_json(directory / files.MANIFEST)["hash"], checkpoints.weights_hash(directory)
    if found != written:
        raise ModelError(f"{directory} is damaged: the hash of its weights is {found}; {written} was written. "
                         f"{_again(directory)}")


def damage(directory: Path) -> str | None:
    """Returns how the files that rebuild a version differ from what was written, or None."""
    held = Held()
    try:
        if "tensors" in files.read_json(directory / files.MANIFEST):
            held.update(directory)
            held.verify()
        else:
            require_file_hash(directory)
    except (ModelError, StageError) as error:
        return str(error).partition(" Run the same")[0]
    return None


def numbers(stage: Path) -> list[int]:
    """Returns the versions that are there, ascending."""
    return sorted(int(path.parent.name.removeprefix("version=")) for path in
                  (stage / "weights").glob(f"version=*/{files.MANIFEST}"))


def needed(stage: Path, there: list[int], version: int, based: bool) -> set[int]:
    """Returns which of the versions `there` rebuild `version` and later ones. based: the next one may be a delta of the
    last."""
    waiting = {one for one in there if one >= version} | set(there[-1:] if based else ())
    found: set[int] = set()
    while waiting:
        found.add(one := waiting.pop())
        base = files.read_json(version_directory(stage, one) / files.MANIFEST).get("base")
        waiting |= {base[0]} & set(there) - found if base else set()
    return found


def version_directory(stage: Path, version: int) -> Path:
    return stage / "weights" / f"version={version:06d}"


def publish(stage: Path, version: int, export: Callable[[Path], dict[str, Any] | None], probe: dict,
            shown: str | None = None) -> Path:
    """Publishes weights `version` in one atomic rename: `export(directory)` writes them, `probe` verifies loading.

    probe: {"tokens": [L], "logprobs": [L - 1], "likeliest": {"token", "logprob", "temperature"}}, the trainer's own:
    of the tokens at temperature 1, and of the likeliest one after them. export returns further entries of the manifest,
    or None: its hash is then that of the file. shown: a table of images in the probe, which is linked: the explorer
    step that has it may be made again. Nothing is flushed to the disk: rows made with a version wait for that, and a
    version that a power loss damaged is found by its hash.
    """
    final = version_directory(stage, version)
    with files.new_directory(final, flush=False) as directory:
        entries = export(directory) or {"hash": checkpoints.weights_hash(directory)}
        if shown:
            files.link(Path(shown), directory / SHOWN)
        text = files.json_text({"version": version, "probe": probe, **entries})
        (directory / files.MANIFEST).write_text(text, encoding="utf-8")
    return final


def forget_before(stage: Path, version: int, keep: str, based: bool) -> None:
    """Deletes published weights older than `version` that no later version is a delta of. based: as in `needed`.

    keep: as `synchronizer.keep`.
    """
    if keep == "all":
        return
    there = numbers(stage)  # once: the trainer publishes meanwhile, and its newer version must stay
    kept = needed(stage, there, version, based)
    for one in reversed(there):  # deltas before what they change
        directory = version_directory(stage, one)
        full = files.read_json(directory / files.MANIFEST).get("base") is None
        if one not in kept and not (keep == "anchors" and full):
            files.remove_tree(directory)


def _again(directory: Path) -> str:
    stage = hashes.stage_of(directory)
    if stage and files.is_complete(stage):
        return "The version cannot be rebuilt; the stage does not need it any more."
    return "Run the same command again: the stage goes on from a checkpoint before it, and publishes it again."
