"""Python files beside a model's config.json (auto_map): run where model.trust_remote_code says so, else refused."""

from pathlib import Path
from typing import Any

from pipeline.settings.model import Model
from pipeline.store.architecture import has_code
from pipeline.store.errors import Problem
from pipeline.store.packable import unknown_type

KEY = "model.trust_remote_code"


def untrusted(config: dict[str, Any], start: Model) -> Problem | None:
    """Reports a model that transformers has no code for, and whose own may not be run. config: config.json. start: the
    section `model` that names it."""
    if start.trust_remote_code or not has_code(config) or not unknown_type(str(config.get("model_type", ""))):
        return None
    return Problem(KEY, f"transformers has no code for model_type {config['model_type']} of {start.model_path}, whose "
                   f"directory has its own ({_files(start)}). It would run with your rights.",
                   f"Read it, and set {KEY}=true, or take another model.", found=False)


def trusted(config: dict[str, Any], start: Model) -> Problem | None:
    """Says what running a model's own code means."""
    if not start.trust_remote_code:
        return None
    if not config.get("auto_map"):
        return Problem(KEY, f"changes nothing: config.json of {start.model_path} names no code (auto_map).", found=True)
    return Problem(KEY, f"tokenizer, trainer and engine run {_files(start)} of {start.model_path} with your rights, "
                   "also where transformers has code for the model.", found=True)


def _files(start: Model) -> str:
    names = sorted(file.name for file in Path(start.model_path or "").glob("*.py"))
    return ", ".join(names[:4]) + ", …" * (len(names) > 4) if names else "of another repository"
