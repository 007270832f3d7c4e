"""Python files beside a model's config.json (auto_map): run where model.trust_remote_code says so, else refused."""

from pathlib import Path
from typing import Any

from ouroboros.pipeline.check.references import OTHER_MODELS
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.setting import values_of
from ouroboros.pipeline.settings.unused import without_unused
from ouroboros.pipeline.store.architecture import has_code
from ouroboros.pipeline.store.digests import HubPath, resolve
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.model_shape import plain_config
from ouroboros.pipeline.store.packable import unknown_type

KEY = "model.trust_remote_code"


def of_stage(config: Config, start: Model, teacher: Model | None) -> tuple[list[Problem], list[Problem]]:
    """Lists problems, and what running code means, for the models that a stage reads: its initial one, its teacher, its
    critic and the auxiliary ones, for which one switch holds. start, teacher: the sections `model` that name them."""
    used = without_unused(config)
    named = [path for key in OTHER_MODELS for _, path in values_of(used, key) if path]
    others = [*([teacher.model_path] if teacher and not teacher.init.enable else []), *named]
    trust = {"trust_remote_code": config.model.trust_remote_code}
    models = [start, *(Model.model_construct(model_path=str(resolve(one)), **trust) for one in dict.fromkeys(others)
                       if one and not isinstance(one, HubPath))]
    here = [(plain, one) for one in models if (plain := plain_config(one))]
    with_code = [(plain, one) for plain, one in here if plain.get("auto_map")] or here[:1]
    return ([problem for plain, one in here if (problem := untrusted(plain, one))],
            [note for plain, one in with_code if (note := trusted(plain, one))])


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
