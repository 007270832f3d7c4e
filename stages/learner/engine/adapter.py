"""A LoRA adapter in a causal LM: two small matrices beside each linear layer, which learn while the model rests.

y = W x + s B A x with s = lora_alpha / lora_rank (Hu et al. 2021, arXiv:2106.09685). peft puts the layers in, so the
files are those that peft and vLLM read: `adapter_model.safetensors` and `adapter_config.json`. What is handed on to
other stages is the whole model, W + s B A, each time from the W that the stage began with: rounding does not add up.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from pipeline.settings.lora import ADAPTER, WHOLE, adapter_problem
from pipeline.store.digests import resolve
from pipeline.store.errors import ModelError, nearest

INNER = ".default."  # peft keeps several adapters apart by a name; ours is its own default
FILE_PREFIX = "base_model.model."  # before every name in an adapter's file


@dataclass(frozen=True)
class Adapter:
    """peft's configuration of an adapter that `inject` has put into a model."""

    config: object

    @property
    def scaling(self) -> float:
        return self.config.lora_alpha / self.config.r

    def merged(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """All weights [name -> tensor] of an adapted model as those of a plain one, in host memory: W + s B A.

        The product is added in float32 and rounded once, to the dtype of W.
        """
        plain = {}
        for name, tensor in state.items():
            layer = name.removesuffix(".base_layer.weight")
            if ".lora_" in name:
                continue
            if layer != name:
                a, b = (state[f"{layer}.lora_{which}{INNER}weight"].detach().float() for which in "AB")
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
    """Puts an adapter into `model`, in place: from here on only A and B require gradients.

    base: the directory that the model was read from. settings: the element of `model.lora_configs`. seed: of a new A;
    a new B is zero. Raises ModelError when a target is no linear layer of the model, or when `settings.path` holds no
    adapter of this rank for this model.
    """
    from peft import LoraConfig, inject_adapter_in_model

    if settings.path and (problem := adapter_problem(vars(settings), resolve(settings.path))):
        raise ModelError(problem)
    config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules=_targets(model, settings),
                        task_type="CAUSAL_LM", base_model_name_or_path=str(base.resolve()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    config.target_modules = sorted(config.target_modules)  # a set would be written in another order each time
    if settings.path:
        read(model, resolve(settings.path))
    return Adapter(config)


def _targets(model: nn.Module, settings) -> list[str]:
    """Last names of the layers to adapt. Raises ModelError for one that no linear layer has, and when none is left."""
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
    """Gives the adapter in `model` the values of a peft directory. Raises ModelError when they are of another model."""
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
