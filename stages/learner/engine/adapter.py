"""A LoRA adapter in a causal LM: two low-rank matrices per linear layer; the model is frozen.

y = W x + s B A x with s = lora_alpha / lora_rank (Hu et al. 2021, arXiv:2106.09685). peft inserts the layers, so the
files are those that peft and vLLM read: `adapter_model.safetensors` and `adapter_config.json`. Later stages get the
whole model, W + s B A, always merged from the stage's initial W, so that rounding does not accumulate.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ouroboros.pipeline.settings.lora import ADAPTER, WHOLE, adapter_problem
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import ModelError, nearest
from ouroboros.stages.learner.engine.quantized import Linear4bit
from ouroboros.stages.learner.engine.way import decoder

INNER = ".default."  # peft names adapters; ours has its default name
FILE_PREFIX = "base_model.model."  # prefix of every name in an adapter's file


@dataclass(frozen=True)
class Adapter:
    """peft's configuration of an adapter that `inject` has put into a model."""

    config: object

    @property
    def scaling(self) -> float:
        return self.config.lora_alpha / self.config.r

    def merged(self, state: dict[str, Tensor | Linear4bit]) -> dict[str, Tensor]:
        """All weights [name -> tensor] of the model with the adapter merged, in host memory: W + s B A.

        The product is added in float32 and rounded once, to the dtype of W. Layers in place of their weights are
        dequantized one after the other.
        """
        plain = {}
        for name, tensor in state.items():
            layer = name.removesuffix(".base_layer.weight")
            if ".lora_" in name:
                continue
            tensor = tensor.weight if isinstance(tensor, Linear4bit) else tensor
            if layer != name:
                a, b = (state[f"{layer}.lora_{which}{INNER}weight"].detach().to(tensor.device).float() for which
                        in "AB")
                tensor = (tensor.detach().float() + self.scaling * (b @ a)).to(tensor.dtype)
            plain[name.replace(".base_layer.", ".")] = tensor.detach().cpu()
        return plain

    def write(self, state: dict[str, Tensor], directory: Path) -> None:
        """Writes A and B [name -> tensor] into an existing directory, in peft's format."""
        from safetensors.torch import save_file

        tensors = {FILE_PREFIX + name.replace(INNER, "."): tensor.detach().cpu().contiguous()
                   for name, tensor in state.items()}
        save_file(tensors, directory / ADAPTER, metadata={"format": "pt"})
        self.config.save_pretrained(directory)


def inject(model: nn.Module, base: Path, settings, seed: int) -> Adapter:
    """Puts an adapter into `model`, in place; afterwards only A and B require gradients.

    base: the directory that the model was read from. settings: the element of `model.lora_configs`. seed: for a new A;
    a new B is zero. Raises ModelError when a target is not a linear layer of the model, or when `settings.path` holds
    no adapter of this rank for this model.
    """
    from peft import LoraConfig, inject_adapter_in_model

    if settings.path and (problem := adapter_problem(settings, resolve(settings.path))):
        raise ModelError(problem)
    text = set(decoder(model).modules())
    towers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module not in text]
    config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha,
                        target_modules=_targets(decoder(model), settings), exclude_modules=towers or None,
                        task_type="CAUSAL_LM", base_model_name_or_path=str(base.resolve()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    config.target_modules = sorted(config.target_modules)  # the order of a set would vary from file to file
    if settings.path:
        read(model, resolve(settings.path))
    return Adapter(config)


def _targets(model: nn.Module, settings) -> list[str]:
    """Last name components of the layers to adapt, of a decoder. Raises ModelError for unknown names or none left."""
    linear = {name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    inner = linear - set(WHOLE)
    named = inner if settings.target_modules == "all-linear" else set(settings.target_modules)
    for key, names in (("target_modules", named), ("exclude_modules", settings.exclude_modules)):
        for name in sorted(set(names) - inner):
            raise ModelError(f"model.lora_configs.0.{key}: the model has no linear layer '{name}'."
                             f"{nearest(name, inner)} Needed names among {', '.join(sorted(inner))}.")
    if not named - set(settings.exclude_modules):
        raise ModelError("model.lora_configs.0: exclude_modules takes away every layer of target_modules; nothing is "
                         "left to train. Name fewer.")
    return sorted(named - set(settings.exclude_modules))


def read(model: nn.Module, directory: Path) -> None:
    """Loads a peft directory into the adapter of `model`. Raises ModelError for another model's."""
    from safetensors.torch import load_file

    found = load_file(directory / ADAPTER)
    own = {FILE_PREFIX + name.replace(INNER, "."): p for name, p in model.named_parameters() if p.requires_grad}
    for name in sorted(own.keys() ^ found.keys()):
        where = "the file has no such tensor" if name in own else "no layer of the model and target_modules"
        raise ModelError(f"{directory / ADAPTER} is an adapter for another model or other target_modules: {name}: "
                         f"{where}. Name the model that it was made for, and its target_modules.")
    for name, parameter in own.items():
        if found[name].shape != parameter.shape:
            raise ModelError(f"{directory / ADAPTER} is an adapter for another model: {name} is "
                             f"{list(found[name].shape)}, needed {list(parameter.shape)}.")
        parameter.data.copy_(found[name])
