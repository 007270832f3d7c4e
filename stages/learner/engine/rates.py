"""The learning rate of an optimizer step: a pure function of its number, so a resumed run repeats it."""

import math


def learning_rate(step: int, total: int, settings) -> float:
    """Learning rate of step 1 .. total: linear warmup from 0, then constant, cosine, linear or wsd.

    settings: `algorithm.optimizer` or the critic's. A schedule begins at lr and would reach lr * min_lr_ratio one step
    after the last, as PyTorch's schedulers do: no step runs at a floor of 0. wsd (warmup, stable, decay: Hu et al.
    2024, MiniCPM, arXiv:2404.06395, with exponential decay) stays at lr and decays only over its last steps, here
    linearly (Hagele et al. 2024, arXiv:2405.18392).
    """
    warmup = settings.lr_warmup_steps or math.ceil(settings.lr_warmup_steps_ratio * total)  # as in transformers
    if step <= warmup:
        return settings.lr * step / warmup
    begin = warmup
    if settings.lr_scheduler_type == "wsd":
        begin = max(total - (settings.lr_decay_steps or round(settings.lr_decay_steps_ratio * total)), warmup)
    done = max(step - 1 - begin, 0) / max(total - begin, 1)
    falling = SHAPES[settings.lr_scheduler_type](done)
    least = 1.0 if settings.lr_scheduler_type == "constant" else settings.min_lr_ratio
    return settings.lr * (least + (1.0 - least) * falling)


SHAPES = {  # remaining share of the decay, as a function of the share of steps done
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
    "wsd": lambda done: 1.0 - done,
}
