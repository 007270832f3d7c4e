"""The policies of a training stage: which steps' weights are kept, and a model directory made of those of one step."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ouroboros.pipeline.settings.lora import ADAPTER
from ouroboros.pipeline.store import checkpoints, files, tensor_files, versions
from ouroboros.pipeline.store.errors import DataError


@dataclass(frozen=True)
class Policy:
    """The kept weights of a step. directory: a checkpoint's, or a published version's. form: of its files."""

    step: int
    directory: Path
    form: str

    @property
    def size(self) -> int:
        """Bytes of the weights, with the model's other files."""
        return size(self.directory / "model" if self.form == "checkpoint" else self.directory)


def kept(stage: Path) -> list[Policy]:
    """Returns the steps whose weights are kept, ascending; a checkpoint's model first."""
    found = {}
    for version in versions.numbers(stage):
        place = versions.version_directory(stage, version)
        with contextlib.suppress(FileNotFoundError):  # an explorer deletes what it needs no more
            form = "delta" if files.read_json(place / files.MANIFEST).get("base") else "full"
            found[version] = Policy(version, place, form)
    for step in checkpoints.complete_checkpoints(stage):
        found[step] = Policy(step, checkpoints.checkpoint_directory(stage, step), "checkpoint")
    return [found[step] for step in sorted(found)]


def size(directory: Path) -> int:
    """Returns the bytes of the files in a directory."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def scorable(stage: Path) -> list[int]:
    """Returns the steps whose policies can be evaluated: all that are kept, of an adapter those of checkpoints."""
    return [one.step for one in kept(stage) if not (one.directory / ADAPTER).exists()]


def benched(trained: Path, asked: list[int] | None) -> list[int]:
    """Returns the steps of a training stage that a bench evaluates; without the last, which is the stage's model.

    asked: explorer.bench_steps; None: every checkpoint.
    """
    complete = checkpoints.complete_checkpoints(trained)
    steps = complete if asked is None else sorted({*asked} & {*scorable(trained)})
    return [step for step in steps if step != complete[-1]]


@contextlib.contextmanager
def opened(stage: Path, step: int, scratch: Path) -> Iterator[Path]:
    """Yields a model directory of a step's weights. scratch: an absent directory for those of a published version,
    which are deleted afterwards."""
    if step in checkpoints.complete_checkpoints(stage):
        yield checkpoints.checkpoint_directory(stage, step) / "model"
        return
    shutil.rmtree(scratch, ignore_errors=True)  # of a killed launch
    rebuild(stage, step, scratch)
    yield scratch
    shutil.rmtree(scratch)


def rebuild(stage: Path, step: int, out: Path) -> str:
    """Makes a model directory of a step's weights (of an adapter: a peft directory); returns their hash.

    Raises DataError for a step whose weights are not kept, ModelError where they are not those that were written.
    """
    able = {one.step: one for one in kept(stage)}
    if step not in able:
        closest = min(able, key=lambda one: (abs(one - step), one))
        raise DataError(f"the weights of step {step} of stage '{stage.name}' are not kept; the nearest are those of "
                        f"{closest}. synchronizer.keep=all keeps every published version, anchors those that are "
                        "written whole, and trainer.max_checkpoints_to_keep checkpoints.")
    if out.exists():
        raise DataError(f"{out} is there already; name a new directory.")
    chosen = able[step]
    with files.explained(out):
        temporary = out.with_name(f".{out.name}.tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            digest = _checkpoint(stage, chosen, temporary) if chosen.form == "checkpoint" else _version(
                stage, chosen, temporary)
            temporary.rename(out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return digest


def _checkpoint(stage: Path, chosen: Policy, out: Path) -> str:
    checkpoints.require_intact(stage, chosen.step, part="model")
    shutil.copytree(chosen.directory / "model", out)
    checkpoints.write_dtype(out)
    return versions.hash_of(tensor_files.read(out / checkpoints.WEIGHTS))


def _version(stage: Path, chosen: Policy, out: Path) -> str:
    manifest = files.read_json(chosen.directory / files.MANIFEST)
    if (chosen.directory / ADAPTER).exists():
        versions.require_file_hash(chosen.directory)
        shutil.copytree(chosen.directory, out, ignore=shutil.ignore_patterns(files.MANIFEST))
        return manifest["hash"]
    held = versions.Held()
    held.update(chosen.directory)
    held.verify()
    checkpoints.copy_model_files(_like(stage), out)
    tensor_files.write(out / checkpoints.WEIGHTS, {
        name: tensor for name, tensor in held.tensors.items() if name not in manifest.get("twice", ())})
    checkpoints.write_dtype(out)
    return manifest["hash"]


def _like(stage: Path) -> Path:
    """Returns a model directory of the stage's architecture, with its tokenizer and chat template."""
    newest = [checkpoints.checkpoint_directory(stage, step) / "model"
              for step in checkpoints.complete_checkpoints(stage)]
    initial = Path(files.read_json(stage / "stage.json")["inputs"]["model"])
    return newest[-1] if newest else checkpoints.model_directory(initial)
