"""Reads a GGUF file into a Hugging Face directory: config.json, safetensors, tokenizer, chat template.

    python -m ouroboros.stages.gguf file.gguf DIRECTORY float32|bfloat16

transformers dequantizes in float32; the weights are then written in the given type, and are trained like any others.
Called by planning (pipeline/store/gguf.py). Not a stage of the plan: its directory is that of an external model.
"""

import sys
from pathlib import Path

from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import ModelError, OuroError
from ouroboros.workflows.protocol.hugging_face import import_light, model_class, whole
from ouroboros.workflows.protocol.template_trial import try_template

PARTS, TOKENS = "split.count", "tokenizer.ggml.tokens"


def read(file: Path, directory: Path, dtype: str) -> None:
    """Makes the directory; the model is in one in it, named like the file. dtype: of the weights, a name in torch.

    Raises OuroError unless the file is a whole model, with a tokenizer and a chat template, if any, that renders.
    """
    import torch

    _require_whole(file)
    try:
        model, tokenizer = _read(file)
    except (OSError, ValueError, LookupError, NotImplementedError) as error:
        raise ModelError(f"transformers does not read it: {error}") from error
    if tokenizer.chat_template:
        try_template(tokenizer, "its chat template", is_own=True)
    with files.new_directory(directory) as made:
        model.to(dtype=getattr(torch, dtype)).save_pretrained(made / file.stem)
        tokenizer.save_pretrained(made / file.stem)
        files.write_json(made / files.MANIFEST, {"dtype": dtype})


def _require_whole(file: Path) -> None:
    """Raises ModelError for a file that its header shows to be cut short, one of several, or without a tokenizer."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ModelError("reading it needs the package gguf: pip install 'ouroboros-rft[gguf]'.") from error
    try:
        fields = GGUFReader(file).fields
    except (OSError, ValueError, LookupError) as error:
        raise ModelError("no whole GGUF file. Fetch it again.") from error
    if PARTS in fields and (parts := fields[PARTS].contents()) > 1:
        raise ModelError(f"one of {parts} parts of a model. Merge them: llama-gguf-split --merge FIRST OUT.gguf.")
    if TOKENS not in fields:
        raise ModelError(f"it has no tokenizer ({TOKENS}). Take a file that has one.")


def _read(file: Path) -> tuple:
    """The model in float32, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoTokenizer, GgufConfig

    given = {"gguf_file": file.name, "local_files_only": True}
    kind = model_class(AutoConfig.from_pretrained(file.parent, **given))
    dense = GgufConfig(dequantize=True)  # else blocks stay as they are where transformers has kernels for them
    model = whole(kind, file.parent, gguf_file=file.name, quantization_config=dense, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(file.parent, **given)


if __name__ == "__main__":
    sys.modules["deepspeed"] = None  # transformers imports it to save a model, and MLflow with it
    import_light()
    try:
        read(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except OuroError as refused:
        sys.exit(" ".join(str(refused).split()))
