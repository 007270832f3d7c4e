"""MLPs computed in parts of the tokens (TiledMLP of Arctic Long Sequence Training, arXiv:2506.13996).

An MLP takes each token alone, so its inner values need to exist for a part of a micro-batch only. The backward pass
computes them again, part by part: no inner value is kept between the passes. DeepSpeed's own TiledMLP runs a backward
pass of each part within that of the layer; steps of its ZeRO-1 were wrong with it (benchmarks/gpu_two.md). Here torch
adds up the gradients of the parts before DeepSpeed sees them.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ouroboros.pipeline.store.errors import ModelError

GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}


def gated(module: nn.Module) -> bool:
    """Returns whether a module is an MLP as Llama's and Qwen's: act_fn(gate_proj x) * up_proj x, narrowed again."""
    return {name for name, _ in module.named_children()} == GATED


def tile(model: nn.Module, shards: int) -> None:
    """Lets the MLPs of a model compute `shards` parts of the tokens one after another, in place. Raises ModelError
    where it has none of this shape."""
    found = [module for module in model.modules() if gated(module)]
    if not found:
        raise ModelError(f"trainer.tiled_mlp_num_shards={shards}: no layer of {type(model).__name__} has an MLP of "
                         "gate_proj, up_proj, down_proj and act_fn. Set it to 1.")
    for module in found:
        module.forward = partial(_forward, module.forward, shards)


def _forward(whole, shards: int, x: Tensor) -> Tensor:
    """whole(x) by parts. x: [..., T, width]."""
    return torch.cat([checkpoint(whole, part, use_reentrant=False) for part in x.chunk(shards, dim=-2)], dim=-2)
