"""Which experts a model of transformers gives each token to: recorded, or set (router replay).

Engine and trainer round differently, so of two experts with nearly equal scores each may take another one, and the
log-probs of such a token differ far more than by rounding. The trainer then computes each sampled token with the
experts that the engine took; the weights of these experts are of the trainer's own scores, with their gradient
(R3: Ma et al. 2025, arXiv:2510.11370).

Routers of all families choose by `topk` over scores [tokens, experts] within a layer, the last such call where experts
are in groups. So the calls within layers are observed, and no family's code is known here.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

CALLS = (torch.topk, torch.Tensor.topk)
TRIED = 5  # tokens of the forward that finds the routers


class Routers:
    """The routers of a model. chosen: layer -> experts that its router chose in the last forward [tokens, choices]."""

    def __init__(self, model: nn.Module, layers: nn.ModuleList):
        """layers: of the model's text. `found` is False where no router is recognized in them."""
        self.count, self.chosen = len(layers), {}
        self._given: tuple[Tensor, Tensor] | None = None
        self._calls: dict[int, int] = {}  # of each layer, of which the last is its router's
        hooks = [_Layer(self, number) for number in range(self.count)]
        self._handles = [one for layer, hook in zip(layers, hooks, strict=True) for one in (
            layer.register_forward_pre_hook(hook.enter), layer.register_forward_hook(hook.leave, always_call=True))]
        device = model.get_input_embeddings().weight.device
        with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            model(input_ids=torch.arange(TRIED, device=device)[None], use_cache=False)
        self._calls = {hook.number: hook.calls for hook in hooks if hook.calls}
        self.found = bool(self._calls) and len({self.chosen[layer].shape[1] for layer in self._calls}) == 1
        if not self.found:
            self.remove()

    def remove(self) -> None:
        """Observes the model no more."""
        for handle in self._handles:
            handle.remove()

    def give(self, places: Tensor, experts: Tensor) -> None:
        """Sets the experts of some tokens for the forwards from now on. places: [N], of the flattened tokens of a
        forward; experts: [N, layers, choices]."""
        self._given = places, experts

    def free(self) -> None:
        """Lets routers choose by themselves."""
        self._given = None

    def last(self, rows: int) -> Tensor:
        """The choices at the last token of each row of a forward of `rows` rows [rows, layers, choices], int64; 0 in
        layers without experts."""
        some = next(iter(self.chosen.values()))
        return torch.stack([self.chosen[layer].view(rows, -1, some.shape[1])[:, -1] if layer in self._calls
                            else some.new_zeros(rows, some.shape[1]) for layer in range(self.count)], 1)

    def differing(self, places: Tensor, experts: Tensor) -> Tensor:
        """Share of the layers with experts whose router itself chose others than `experts`, [N] float32; as `give`."""
        others = [(self.chosen[layer][places].sort(-1).values != experts[:, layer].sort(-1).values).any(-1)
                  for layer in self._calls]
        return torch.stack(others).float().mean(0)

    def choose(self, layer: int, call: int, scores: Tensor, found: Any) -> Any:
        """What a call of topk in a layer returns. call: its number there, from 1."""
        if self._calls and self._calls.get(layer) != call:
            return found
        self.chosen[layer] = found[1].detach()
        if self._given is None:
            return found
        places, experts = self._given
        chosen = self.chosen[layer].index_put((places,), experts[:, layer])
        return torch.return_types.topk((scores.gather(-1, chosen), chosen))


class _Layer(TorchFunctionMode):
    """Observes the calls within one layer; entered again where its activations are recomputed."""

    def __init__(self, routers: Routers, number: int):
        super().__init__()
        self.routers, self.number, self.calls = routers, number, 0

    def enter(self, *_) -> None:
        self.calls = 0
        self.__enter__()

    def leave(self, *_) -> None:
        self.__exit__(None, None, None)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func not in CALLS:
            return found
        scores = args[0] if args else kwargs["input"]
        if scores.dim() != 2:  # a step before that within groups of experts, or attention to chosen keys
            return found
        self.calls += 1
        return self.routers.choose(self.number, self.calls, scores, found)
