"""Checks that a model directory's weights are complete, from safetensors headers, and numbers, without torch."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ouroboros.pipeline.store import checkpoints, tensor_files
from ouroboros.pipeline.store.errors import ModelError, Problem
from ouroboros.pipeline.store.model_shape import ADAPTER_CONFIG, read_config

NAMES = ("model.safetensors", "pytorch_model.bin")  # the names transformers looks for; sharded: with INDEX
INDEX = ".index.json"
POINTER = b"version https://git-lfs"  # the file that Git stores for a large file
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
LAYER = re.compile(r"\blayers\.(\d+)\.")
ROW = 1 << 16  # numbers that a look at a tensor begins with
SAMPLED = 128 << 20  # bytes of a model whose values are looked at here; a trainer looks at all (Policy)
EXPONENTS = {"F64": 0x7FF0 << 48, "F32": 0x7F80 << 16, "BF16": 0x7F80, "F16": 0x7C00}  # all set: NaN or infinite
# exponents of values from 2^33 on, 8.6 billion: with such weights no model computes a probability
BEYOND = {"F64": (1023 + 33) << 52, "F32": (127 + 33) << 23, "BF16": (127 + 33) << 7, "F16": 0x7C00}


def whole_model(named: Path, key: str) -> Path:
    """Returns `checkpoints.model_directory` of a directory, the value of `key`. Raises ModelError unless config.json
    there is readable and the weights are whole."""
    directory = checkpoints.model_directory(named)
    if problem := weights_problem(str(directory), read_config(str(directory), key), key):
        raise ModelError(problem)
    return directory


def weights_problem(path: str, config: dict[str, Any], key: str) -> Problem | None:
    """Returns the problem with the weights of the model at `path`, the value of the setting `key`.

    config: the content of its config.json.
    """
    directory = Path(path)
    if (directory / ADAPTER_CONFIG).is_file():  # transformers reads the model that it names, not the one next to it
        return Problem(key, f"has {ADAPTER_CONFIG} and config.json: an adapter in the directory of a model.", "Move "
                       "the adapter's files into another directory, and name that one in model.lora_configs: "
                       "[{path: …}].", found=path)
    try:
        shapes = {name: shape for file in _files(directory) for name, shape in _shapes(file).items()}
        readable = [file for file in _files(directory) if file.suffix == ".safetensors" and shapes]
        if odd := None if config.get("quantization_config") else _not_floating(readable):
            return Problem(key, f"{odd}; needed floating-point weights.", "Take another checkpoint, or fetch the model "
                           "again.", found=path)
        if sick := _not_finite(readable):
            return Problem(key, f"{sick} has values that are NaN, infinite or above 2^33; needed finite weights.",
                           "Take another checkpoint, or fetch the model again.", found=path)
        if blank := _blank(readable):
            return Problem(key, f"{blank} holds nothing but zeros, so the model answers every prompt alike; needed "
                           "trained weights.", "Take another checkpoint, or fetch the model again.", found=path)
    except OSError as error:
        return Problem(key, f"its weights cannot be read ({error.strerror}).", "Fetch the model again.", found=path)
    except ModelError as error:
        return Problem(key, str(error), "Fetch the model again.", found=path)
    found = dict(zip(("vocab_size", "hidden_size"), next(
        (shape for name, shape in shapes.items() if name.endswith(EMBEDDING)), ()), strict=False))
    if numbers := [int(number) for name in shapes for number in LAYER.findall(name)]:
        found["num_hidden_layers"] = max(numbers) + 1
    if "word_embed_proj_dim" in config:  # OPT: an embedding of a different width
        found.pop("hidden_size", None)
    wrong = [f"{name}={config[name]}, and the weights have {number:,}" for name, number in found.items()
             if config.get(name) not in (number, None)
             and not (name == "num_hidden_layers" and number > config[name])]  # DeepSeek V3: one unused layer more
    if not wrong:
        return None
    return Problem(key, f"config.json has {'; '.join(wrong)}; needed the same number.", "Fetch config.json and weights "
                   "of one revision.", found=path)


def heads_differ(directory: Path) -> bool:
    """Whether safetensors files have both an embedding and an output head, of different values."""
    found = {}
    for file in directory.glob("*.safetensors"):
        found |= {end: one for name, one in tensor_files.read(file).items() for end in (EMBEDDING, HEAD)
                  if name.endswith(end)}
    return len(found) == 2 and not np.array_equal(found[EMBEDDING].data, found[HEAD].data)


def _files(directory: Path) -> list[Path]:
    """Returns the files of a model's weights. Raises ModelError when some are missing."""
    for name in NAMES:
        if (directory / name).is_file():
            return [directory / name]
        if (directory / (name + INDEX)).is_file():
            return _parts(directory / (name + INDEX))
    raise ModelError(f"no file of weights there; needed {NAMES[0]}, or its parts with {NAMES[0]}{INDEX}.")


def _parts(index: Path) -> list[Path]:
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(Path(name)) for name in listed.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ModelError(f"{index.name} there is not a readable index of weights ({why}).") from error
    if outside := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise ModelError(f"{index.name} names {outside[0]}, which is outside the model's directory.")
    if absent := [name for name in names if not (index.parent / name).is_file()]:
        raise ModelError(f"{len(absent)} of the {len(names)} files that {index.name} names are not there: "
                         f"{', '.join(absent[:3])}{', …' if len(absent) > 3 else ''}.")
    return [index.parent / name for name in names]


def _not_floating(files: list[Path]) -> str | None:
    """Returns `FILE: TENSOR is DTYPE` of a weight of whole numbers or truth values: loading it would convert it."""
    return next((f"{file.name}: {name} is {one.dtype}" for file in files
                 for name, one in tensor_files.read(file).items()
                 if name.endswith("weight") and "F" not in one.dtype), None)


def _not_finite(files: list[Path]) -> str | None:
    """Returns `FILE: TENSOR` of one with a value that is no number; of large files a part of each tensor is read."""
    for file in files:
        tensors, size = tensor_files.read(file), file.stat().st_size
        share = min(SAMPLED // len(files) / size, 1)
        for name, one in tensors.items():
            if bits := EXPONENTS.get(one.dtype):
                words = one.words[:max(int(one.words.size * share), 1)]
                if np.any((words & words.dtype.type(bits)) >= BEYOND[one.dtype]):
                    return f"{file.name}: {name}"
    return None


def _blank(files: list[Path]) -> str | None:
    """Returns `FILE: TENSOR` of an embedding or an output head of zeros alone; a norm or a bias may be so."""
    return next((f"{file.name}: {name}" for file in files for name, one in tensor_files.read(file).items()
                 if name.endswith((EMBEDDING, HEAD)) and one.dtype in EXPONENTS and one.data.nbytes
                 and not any((part << 1).any() for part in (one.words[:ROW], one.words))), None)  # << 1: without signs


def adapter_words(file: Path, rank: int, targets: str | list[str]) -> str | None:
    """Returns what the tensors of peft's file do not have as `rank` and a list of `targets` say, or None. Raises
    ModelError when it is incomplete."""
    for name, shape in (held := _shapes(file)).items():
        part = re.search(r"\.lora_([AB])\.weight$", name)
        if not part or len(shape) != 2:
            return f"{file.name} has a tensor {name} {shape}, which is no A or B of LoRA"
        if (found := shape["AB".index(part[1])]) != rank:
            return f"{file.name} has {name} of rank {found}, and r={rank}"
    if isinstance(targets, list) and (layers := {name.split(".")[-3] for name in held}) != set(targets):
        return f"{file.name} adapts {', '.join(sorted(layers)) or 'no layer'}, and not {', '.join(sorted(targets))}"
    return f"{sick} has values that are NaN, infinite or above 2^33" if (sick := _not_finite([file])) else None


def _shapes(file: Path) -> dict[str, list[int]]:
    """Maps tensors of a weight file to shapes; empty for a .bin, which only torch reads. Raises ModelError when it is
    incomplete."""
    from safetensors import SafetensorError, safe_open

    size = file.stat().st_size
    with open(file, "rb") as opened:
        begin = opened.read(len(POINTER))
    if begin == POINTER:
        raise ModelError(f"{file.name} there is a pointer of Git LFS, not the weights: run `git lfs pull`.")
    if file.suffix == ".bin":
        if not begin.startswith((b"PK", b"\x80")):  # formats of torch.save: a zip, or the older pickle
            raise ModelError(f"{file.name} there holds no weights ({size:,} bytes).")
        if begin.startswith(b"PK") and not zipfile.is_zipfile(file):  # a zip's directory is at its end
            raise ModelError(f"{file.name} there is cut short: {size:,} bytes.")
        return {}
    try:
        with safe_open(file, framework="np") as tensors:
            return {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ModelError(f"{file.name} there is not a whole safetensors file ({size:,} bytes: {error}).") from error
