"""Weights and checkpoints on disk: their layout, completeness, and use when a stage resumes.

    weights/version=000012/       synchronized from trainer to explorer (pipeline/store/versions.py)
    checkpoints/step=000050/      model/ (Hugging Face), masters/ (ZeRO-3: state/; DeepSpeed: exact), manifest.json;
                                  with LoRA adapter/ (peft) too, which model/ has merged, and masters/ of that alone
    reference/step=000003.parquet log-probs of the rows of explorer step 3 under the stage's initial weights
    teacher/step=000003.parquet   the same under a teacher
    model/, adapter/              the last checkpoint's, for the stages that follow and for other programs
"""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store import files, hashes, tensor_files
from ouroboros.pipeline.store.errors import ModelError, StageError
from ouroboros.pipeline.store.locations import PER_STEP, ROUTINGS

WEIGHTS = "model.safetensors"
ASIDE = "damaged-step="
LOST = "lost.json"  # table -> steps whose file is damaged or missing, and not made again (pipeline/store/recovery.py)
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf")  # of any framework
TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}  # of safetensors -> of config.json


def model_directory(directory: Path) -> Path:
    """Returns the Hugging Face directory of a stage that trains a model, or `directory` itself when it is one.

    Raises ModelError when there is neither.
    """
    for candidate in (directory, directory / "model"):
        if (candidate / "config.json").exists():
            return candidate
    raise ModelError(f"{directory} holds no model: neither config.json nor model/config.json is there.")


def weight_bytes(model: Path) -> int:
    """Returns the size of the weight files of a Hugging Face directory."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def model_name(directory: Path) -> str:
    """Returns a model's name in tables: its directory, or in the hub's cache the repository at its commit."""
    repository, snapshots, commit = directory.parts[-3:] if len(directory.parts) > 2 else ("", "", "")
    if snapshots != "snapshots" or not repository.startswith("models--"):
        return directory.name
    return f"{repository.removeprefix('models--').replace('--', '/')}@{commit[:12]}"


def weights_hash(directory: Path) -> str:
    """Hashes the weight files of a Hugging Face directory, or a single file. Raises ModelError without any."""
    found = [files.hash_file(path) for path in sorted(directory.iterdir()) if path.suffix in WEIGHT_SUFFIXES]
    if not found:
        raise ModelError(f"{directory} holds no weights: no file there ends in {', '.join(WEIGHT_SUFFIXES)}.")
    return found[0] if len(found) == 1 else files.hash_json(found)


def trained_steps(stage: Path) -> int:
    """Returns the trainer steps of the stage that trained a model; 0 for a model that was not trained here."""
    if not (stage / "stage.json").exists():  # a user's directory may have an unrelated manifest.json
        return 0
    return files.read_json(stage / files.MANIFEST).get("steps", 0)


def checkpoint_directory(stage: Path, step: int) -> Path:
    return stage / "checkpoints" / f"step={step:06d}"


def complete_checkpoints(stage: Path) -> list[int]:
    """Returns the steps of the complete checkpoints, ascending; incomplete ones are skipped."""
    found = (stage / "checkpoints").glob(f"step=*/{files.MANIFEST}")
    return sorted(int(path.parent.name.removeprefix("step=")) for path in found)


def read_manifest(stage: Path, step: int) -> dict[str, Any]:
    """Returns the manifest of a checkpoint. Raises StageError where it is damaged, or of another step."""
    path = checkpoint_directory(stage, step) / files.MANIFEST
    found = files.read_json(path)
    if (written := found.get("step", step)) != step:
        raise StageError(f"{path} is of step {written!r}, in the directory of step {step}. Delete that directory and "
                         "run the same command again.")
    return found


def difference(stage: Path, step: int, verify: str, part: str = "") -> str | None:
    """Returns which file of a checkpoint is damaged and how, or None. verify: as in hashes.difference.

    part: only files whose name begins so.
    """
    directory = checkpoint_directory(stage, step)
    try:
        entries = read_manifest(stage, step).get(hashes.FILES, {})
    except StageError as error:
        return str(error).partition(" Delete")[0]
    chosen = {name: entry for name, entry in entries.items() if name.startswith(part)}
    for name, words in hashes.differences(directory, chosen, verify).items():
        return f"{directory / name} is damaged: {words}"
    return None


def require_intact(stage: Path, step: int, verify: str = "hash", part: str = "") -> None:
    """Raises ModelError when `difference` finds one."""
    if words := difference(stage, step, verify, part):
        raise ModelError(f"{words}. {hashes.advice(stage / files.MANIFEST)}")


def set_aside(stage: Path, step: int) -> None:
    """Renames a damaged checkpoint, so that it is not used; only the last one is kept, until the stage ends."""
    remove_damaged(stage)
    checkpoint_directory(stage, step).rename(stage / "checkpoints" / f"{ASIDE}{step:06d}")


def remove_damaged(stage: Path) -> None:
    for directory in (stage / "checkpoints").glob(f"{ASIDE}*"):
        files.remove_tree(directory)


def keep_newest(stage: Path, count: int | None) -> None:
    """Deletes all but the newest `count` complete checkpoints; None keeps all. count: at least 1.

    One of a stage that was asked to end (`unscheduled`) lasts until the next one and does not count, so that an
    interruption changes neither which checkpoints are kept nor their number. One that is `kept` stays, and does not
    count either.
    """
    complete = complete_checkpoints(stage)
    deletable = [step for step in complete if not is_marked(stage, step, "kept")]
    scheduled = [step for step in deletable if not is_marked(stage, step, "unscheduled")]
    for step in deletable:
        if step != complete[-1] and (step not in scheduled or (count is not None and step in scheduled[:-count])):
            files.remove_tree(checkpoint_directory(stage, step))


def is_marked(stage: Path, step: int, mark: str) -> bool:
    """Returns whether a checkpoint is `unscheduled` or `kept`."""
    with contextlib.suppress(StageError):  # a damaged one: reported where it would be used
        return read_manifest(stage, step).get(mark, False)
    return False


def copy_model_files(source: Path, target: Path) -> None:
    """Copies everything in a Hugging Face directory except the weights: configuration, tokenizer, chat template."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        weights = path.suffix in WEIGHT_SUFFIXES or path.name.endswith(".index.json")
        ours = path.name in hashes.WORKING or hashes.is_list(path) or path.suffix in hashes.LOGS
        if path.is_file() and not weights and not ours and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)


def write_dtype(model: Path) -> str:
    """Writes the type of a model's weights (the largest tensor's) into its config.json, by which other programs load
    them, in place of the base's, and returns it. Older releases wrote torch_dtype; parts have their own."""
    tensors = (one for file in model.glob("*.safetensors") for one in tensor_files.read(file).values())
    dtype, config = TYPES[max(tensors, key=lambda one: one.data.nbytes).dtype], model / "config.json"
    written = json.loads(config.read_text(encoding="utf-8"), object_hook=lambda part: part | dict.fromkeys(
        part.keys() & {"dtype", "torch_dtype"}, dtype)) | {"dtype": dtype}
    written.pop(files.CHECKSUM, None)  # of a base whose config.json a stage wrote
    config.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    return dtype


def link_tree(source: Path, target: Path) -> None:
    """Copies a directory with hard links: no bytes are written, and deleting the source keeps the copy."""
    temporary = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    files.link_files(source, temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def begin_anew(stage: Path) -> None:
    """Deletes the outputs of earlier launches of a stage: checkpoints, weights and tables; keeps its logs.

    Checkpoints first: should it be interrupted, none may remain without the rows before it.
    """
    for name in ("checkpoints", "weights", *PER_STEP, ROUTINGS, "model", "adapter"):
        hashes.forget_all(stage / name)
        files.remove_tree(stage / name)
    (stage / LOST).unlink(missing_ok=True)
