"""Resolves `trainer.enable_gradient_checkpointing=auto` on the GPU where a stage runs."""

from pathlib import Path

import torch

from ouroboros.pipeline.check.memory import GIB, USABLE, beside, training, with_tower
from ouroboros.pipeline.check.model_size import Size
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.checkpoints import weight_bytes
from ouroboros.stages.learner.engine import policy
from ouroboros.stages.learner.engine.attention import choose
from ouroboros.stages.model_size import build, measure


def resolve(config: Config, model: Path, images: bool) -> str | None:
    """Sets the setting of a stage's configuration to true or false; returns what it chose as a line for the log.

    False on CPU. model: the policy's directory. images: whether tasks have some. Reward models on the same GPU, whose
    size is not known here, let it recompute.
    """
    settings = config.trainer
    if settings.enable_gradient_checkpointing != "auto":
        return None
    if not torch.cuda.is_available():
        settings.enable_gradient_checkpointing = False
        return None
    needed_bytes = needed(config, model, images)
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    room = USABLE * total - beside(config, total, weight_bytes(model))
    shared = at(config, "mode") == "colocate" and bool(at(config, "explorer.auxiliary_models"))
    settings.enable_gradient_checkpointing = shared or needed_bytes > room
    answer = "on" if settings.enable_gradient_checkpointing else "off"
    return f"gradient checkpointing {answer}: without it about {needed_bytes / GIB:.1f} of {total / GIB:.1f} GiB"


def needed(config: Config, model: Path, images: bool) -> float:
    """Returns the estimated bytes of this rank's GPU, with the attention that runs here, and with `auto` without
    recomputation. Stages of demonstrations have no critic.
    """
    trainer = config.trainer.model_copy(update={"attention": choose(config.trainer.attention, "cuda")})
    asked = Config.partial({"trainer": trainer, "model": config.model, "algorithm": {
        "advantage_fn": at(config, "algorithm.advantage_fn"), "optimizer": config.algorithm.optimizer}})
    size = sized(config, model, images)
    return training(size, asked, policy.resolve_dtype(config.model.dtype, "cuda").itemsize).peak


def sized(config: Config, model: Path, images: bool) -> Size:
    """The size of the policy, with its adapter and the tower that reads images."""
    size = measure(build(str(model), config.model.trust_remote_code), next(iter(config.model.lora_configs), None))
    return with_tower(size, not config.trainer.freeze_vision_tower, images)
