"""Resolves `trainer.enable_gradient_checkpointing=auto` on the GPU where a stage runs."""

from pathlib import Path

import torch

from pipeline.check.memory import GIB, USABLE, recomputes, training
from stages.learner.engine import policy


def resolve(config, model: Path) -> str | None:
    """Sets the setting of a stage's configuration to true or false; returns what it chose as a line for the log.

    False on CPU. model: the policy's directory. Reward models on the same GPU, whose size is not known here, let it
    recompute.
    """
    settings = config.trainer
    if settings.enable_gradient_checkpointing != "auto":
        return None
    settings.enable_gradient_checkpointing = False
    if not torch.cuda.is_available():
        return None
    adapters = [vars(one) for one in config.model.lora_configs]
    asked = {"trainer": vars(settings), "model": {"lora_configs": adapters},
             "algorithm": {"advantage_fn": getattr(config.algorithm, "advantage_fn", None)}}
    gib = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory / GIB
    size, element = _size(model, adapters), policy.resolve_dtype(config.model.dtype, "cuda").itemsize
    needed = training(size, asked, element).peak / GIB
    shared = getattr(config, "mode", None) == "colocate" and config.explorer.auxiliary_models
    settings.enable_gradient_checkpointing = bool(shared) or recomputes(size, asked, element, USABLE * gib * GIB)
    answer = "on" if settings.enable_gradient_checkpointing else "off"
    return f"gradient checkpointing {answer}: without it about {needed:.1f} of {gib:.1f} GiB"


def _size(model: Path, adapters: list[dict]):
    from stages.model_size import build, measure

    return measure(build(str(model)), adapters[0] if adapters else None)
