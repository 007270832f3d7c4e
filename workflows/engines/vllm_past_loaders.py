"""Weights that a model of vLLM writes past its loaders, handed to vLLM's reload all the same.

While vLLM reloads weights its parameters are on the meta device, and it waits for the loader of each (`weight_loader`).
A model that writes `param.copy_(tensor)` itself (gpt-oss: experts, sinks) writes nowhere, and vLLM puts the old weights
back. Seen with vLLM 0.26 and 0.32.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


class PastLoaders(TorchFunctionMode):
    """While active, each copy into a parameter on the meta device is given to vLLM's reload as if by a loader.

    Copies within a loader are left alone: vLLM runs them in a dispatch mode that counts their elements.
    """

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self._model = model
        self._owners: dict[int, tuple[torch.nn.Module, str, torch.Tensor]] = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_ and args[0].is_meta and not is_in_torch_dispatch_mode():
            owner = self._owner(args[0])
            if owner:
                _load(*owner, *args[:2])
                return args[0]
        return func(*args, **(kwargs or {}))

    def _owner(self, written: torch.Tensor) -> tuple[torch.nn.Module, str, torch.Tensor] | None:
        """The module, name and value of the parameter of which `written` is all or a view."""
        storage = written.untyped_storage()._cdata
        if storage not in self._owners:
            self._owners = {parameter.untyped_storage()._cdata: (module, name, parameter)
                            for module in self._model.modules() for name, parameter in module._parameters.items()
                            if parameter is not None and parameter.is_meta}
        return self._owners.get(storage)


def _load(module: torch.nn.Module, name: str, parameter: torch.Tensor, written: torch.Tensor,
          tensor: torch.Tensor) -> None:
    """Loads `tensor` into the part `written` of a parameter once vLLM has given it memory again."""
    from vllm.model_executor.model_loader.reload.layerwise import make_online_process_loader

    if getattr(parameter.weight_loader, "__wrapped__", None) is not _place:
        parameter.weight_loader = _place
        parameter.weight_loader = make_online_process_loader(module, name)
    parameter.weight_loader(parameter, tensor.expand_as(written), written.stride(), written.storage_offset())


def _place(param: torch.Tensor, loaded_weight: torch.Tensor, stride: tuple[int, ...], offset: int) -> None:
    param.data.as_strided(loaded_weight.shape, stride, offset).copy_(loaded_weight)
