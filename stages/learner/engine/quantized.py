"""The frozen linear layers of a decoder in 4 bits, as QLoRA holds them (Dettmers et al. 2023, arXiv:2305.14314).

NF4: each block of 64 weights has its largest absolute value as a scale, and each weight the nearest of 16 values
between -1 and 1. Scales are kept in the type of the weights, in which they are exact, and are not quantized themselves:
so a dequantized weight is quantized to itself. The stage `quantized` writes the dequantized weights, which are the
model that engines load, adapters are merged into, and references are of; the trainer holds these in 4 bits.
"""

import logging
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from ouroboros.pipeline.settings.lora import BLOCK
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.stages.learner.engine.way import decoder

TYPE = "nf4"
ROWS = 1024  # of a matrix that are quantized at once on a CPU, where each weight is compared with all 16 values


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix [N, M] as two codes a byte [N M / 2, 1] and scales [N M / 64], of its type and device."""
    packed, state = _bitsandbytes().quantize_4bit(weight.detach(), blocksize=BLOCK, quant_type=TYPE)
    return packed, state.absmax.to(weight.dtype)


def dequantized(packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
    """The matrix [N, M] of `quantized`, in the type of the scales."""
    return torch.ops.bitsandbytes.dequantize_4bit(packed, scales.float(), BLOCK, TYPE, shape, scales.dtype)


@cache
def _bitsandbytes():
    """Its functions; its operators are registered, and `ouroboros::linear_4bit` over them: x W^T + bias, [..., M] ->
    [..., N], and its gradient of x. W exists within the operator alone: a compiled layer that saw it would keep it for
    the backward pass."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # on a CPU it warns of a kernel that is not called
    from bitsandbytes import functional as found

    @torch.library.custom_op("ouroboros::linear_4bit", mutates_args=())
    def linear(x: Tensor, packed: Tensor, scales: Tensor, bias: Tensor | None, shape: list[int]) -> Tensor:
        return functional.linear(x, dequantized(packed, scales, shape), bias)

    @torch.library.custom_op("ouroboros::linear_4bit_backward", mutates_args=())
    def backward(gradient: Tensor, packed: Tensor, scales: Tensor, shape: list[int]) -> Tensor:
        return gradient @ dequantized(packed, scales, shape)

    def keep(ctx, inputs, output) -> None:
        _, packed, scales, _, ctx.shape = inputs
        ctx.save_for_backward(packed, scales)

    linear.register_fake(lambda x, packed, scales, bias, shape: x.new_empty((*x.shape[:-1], shape[0])))
    backward.register_fake(lambda gradient, packed, scales, shape: gradient.new_empty((*gradient.shape[:-1], shape[1])))
    linear.register_autograd(
        lambda ctx, gradient: (backward(gradient, *ctx.saved_tensors, ctx.shape), None, None, None, None),
        setup_context=keep)
    return found


class Linear4bit(nn.Module):
    """A frozen linear layer whose weight [N, M] is held in 4 bits; neither file nor optimizer has it."""

    def __init__(self, linear: nn.Linear, device: torch.device):
        super().__init__()
        self.shape, self.bias = list(linear.weight.shape), linear.bias
        packed, scales = quantized(linear.weight.to(device))
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", scales, persistent=False)

    @property
    def weight(self) -> Tensor:
        return dequantized(self.packed, self.scales, self.shape)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.ouroboros.linear_4bit(x, self.packed, self.scales, self.bias, self.shape)


class Frozen:
    """The weights of a module that no step changes: they leave a GPU while engines use it."""

    def __init__(self, module: nn.Module):
        self.tensors = [one for one in (*module.parameters(), *module.buffers()) if not one.requires_grad]
        self.device, self.away = next(module.parameters()).device, False
        self.kept: list[Tensor] = []  # in host memory, not page-locked: that would take the next power of two of each
        module.register_forward_pre_hook(lambda *_: self.come())

    def leave(self) -> None:
        self.kept = self.kept or [torch.empty_like(one, device="cpu").copy_(one) for one in self.tensors]
        for one, kept in zip(self.tensors, self.kept, strict=True):
            one.data = kept
        self.away = True

    def come(self) -> None:
        """Called before each forward."""
        if self.away:
            for one, kept in zip(self.tensors, self.kept, strict=True):
                one.data = kept.to(self.device)
        self.away = False


def round_weights(model: nn.Module, name: str) -> None:
    """Replaces each weight that `hold` quantizes by what its codes stand for, in place. name: of the model. Raises
    ModelError as `layers`."""
    for _, layer in layers(model, name):
        for rows in layer.weight.detach().split(ROWS):
            rows.copy_(dequantized(*quantized(rows), list(rows.shape)))


def hold(model: nn.Module, device: torch.device, name: str) -> None:
    """Puts the linear layers of a model with an adapter into 4 bits, in place, on the device. name: of the model.

    Raises ModelError as `layers`, and for weights that are not those of their codes.
    """
    for path, layer in layers(model, name):
        held = Linear4bit(layer, device)
        if not torch.equal(held.weight, layer.weight.to(device)):
            raise ModelError(f"{name}: {path} is not what its 4 bits stand for in {layer.weight.dtype}. The directory "
                             "was written for another model.dtype; set model.dtype for the run.")
        model.set_submodule(path, held)


def layers(model: nn.Module, name: str) -> list[tuple[str, nn.Linear]]:
    """The linear layers of a model's text below its output head, without those of an adapter, with their names. Raises
    ModelError where they are not held in 4 bits."""
    if why := unheld(model):
        raise ModelError(f"{name}: model.load_in_4bit=true, and {why}. Set it to false.")
    return [(path, module) for path, module in _of_text(model) if isinstance(module, nn.Linear)]


def unheld(model: nn.Module) -> str:
    """Why the weights of a model's text are not held in 4 bits; empty where they can be. Asks shapes alone."""
    for path, module in _of_text(model):
        if any(p.dim() > 2 for p in module.parameters(recurse=False)):
            return (f"{path} has weights that are no linear layer's (experts, convolutions), which are not held in 4 "
                    "bits")
        if isinstance(module, nn.Linear) and module.in_features % BLOCK:
            return f"{path} has {module.in_features} inputs, no multiple of {BLOCK}"
    if any(isinstance(module, nn.Linear) for _, module in _of_text(model)):
        return ""
    return "no torch.nn.Linear is below its output head, and weights of these alone are held in 4 bits"


def _of_text(model: nn.Module) -> list[tuple[str, nn.Module]]:
    text = {*decoder(model).modules()}
    return [(path, module) for path, module in model.named_modules() if module in text and ".lora_" not in path]
