"""Resolves `trainer.overlap`: whether engines and trainer with mode=colocate use their devices at once or in turns."""

from pathlib import Path

import torch

from ouroboros.pipeline.check.memory import GIB, USABLE, engines, measures_cache
from ouroboros.pipeline.job.devices import planned_gpus
from ouroboros.pipeline.settings.config import Config, longest_sequence
from ouroboros.pipeline.settings.trainer import may_overlap
from ouroboros.pipeline.store.checkpoints import weight_bytes
from ouroboros.pipeline.store.errors import ConfigError
from ouroboros.stages.learner.separation import EXACT
from ouroboros.stages.recompute import needed, sized


def resolve(config: Config, model: Path, images: bool) -> str | None:
    """Sets the setting of a stage's configuration to true or false; returns what it chose as a line for the log.

    Called once gradient checkpointing is resolved. False where the explorer does not run ahead of the trainer. `auto`
    is false on CPU, with engine_type=transformers, whose memory has no bound, and with reward models on the same GPU,
    whose size is not known here. model: the policy's directory. Raises ConfigError for true where it does not fit.
    """
    asked, settings = config.trainer.overlap, config.trainer
    settings.overlap = may_overlap(config)
    if not settings.overlap:
        return None
    if not torch.cuda.is_available():
        settings.overlap = asked is True
        return "engines answer while the trainer trains (trainer.overlap)" if settings.overlap else None
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    trains, answers = needed(config, model, images), engines(config, total, weight_bytes(model))
    known = config.explorer.rollout_model.engine_type != "transformers" and not config.explorer.auxiliary_models
    fits = trains + answers <= USABLE * total
    figures = (f"the trainer needs about {trains / GIB:.1f} and engines {answers / GIB:.1f} of {total / GIB:.1f} GiB "
               "on each GPU")
    if asked is True and not fits:
        raise ConfigError(f"trainer.overlap=true, and {figures}, together more than {USABLE:.0%}. Lower "
                          "explorer.rollout_model.gpu_memory_utilization or kv_cache_mib, or set trainer.overlap=auto.")
    settings.overlap = fits and (known or asked is True)
    if not known and not settings.overlap:
        return None
    how = "engines answer while the trainer trains" if settings.overlap else "engines and trainer take turns"
    return f"{how} (trainer.overlap): {figures}"


def opens_early(config: Config, model: Path, images: bool) -> bool:
    """Returns whether engines on the trainer's GPU may open while it starts, without a teacher: the size of their
    caches is set, no reward model is there, and the memory suffices for both, also while the trainer proves rows, in
    float32 and the longest as it is (stages/learner/separation.py). Arguments, and when it is called: as `resolve`."""
    if not (config.kind.engine and config.mode == "colocate" and torch.cuda.is_available()) or (
            config.explorer.rollout_model.engine_type != "vllm" or config.explorer.auxiliary_models):
        return False
    total, weights = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory, weight_bytes(model)
    size, long = sized(config, model, images), longest_sequence(config.model)
    proof = max(4 * size.parameters + 3 * 4 * min(long, EXACT) * size.vocabulary, 10 * long * size.vocabulary)
    held = needed(config, model, images) + proof + engines(config, total, weights)
    told = (planned_gpus(config.cluster).gib or 0) * GIB  # by which the explorer counts its engines
    return held <= USABLE * total and not any(measures_cache(config, one, weights) for one in (total, told))
