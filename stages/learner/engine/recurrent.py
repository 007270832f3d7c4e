"""Layers that carry a state along the sequence (state spaces, convolutions, linear attention) in a packed micro-batch.

Their code in transformers takes a packed micro-batch for one sequence. Where a family hands on the bounds of rows and
the packages of its kernels are installed (extra `hybrids`), the kernels keep to the bounds. Otherwise these layers
alone run over rows that are padded behind their end, those of similar lengths together, so that less than half is
padding. The proof at the start (separation.py) judges both.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ouroboros.stages.learner.engine.kernels import broken
from ouroboros.stages.learner.engine.sharing import Segments

PACKAGE = re.compile(r'^@use_kernel_func_from_hub_with_fallback\(\s*"\w+",\s*"(\w+)"', re.M)
HANDED_ON = re.compile(r"\bseq_idx\b|\bcu_seq_lens_q\b")
BOUNDS = {"seq_idx", "cu_seq_lens_q"}


def layers_of(decoder: nn.Module) -> list[nn.Module]:
    """Those that begin with a convolution over the sequence, as all known do."""
    return [module for module in decoder.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]


def obstacle(layers: list[nn.Module], zero_stage: int, split: bool) -> str | None:
    """Why these layers cannot go through a packed micro-batch, or None. split: ranks have a part of its tokens each."""
    if split:
        return "its layers that carry a state along the sequence need whole rows"
    if not layers:
        return "its layers that carry a state from one row into the next are not found"
    if zero_stage == 3 and not keep_to_bounds(layers):
        return ("under trainer.zero_stage=3 every rank calls a layer equally often, and those that carry a state from "
                "one row into the next would be called once for each group of rows of similar lengths")
    return None


class Recurrent:
    """Such layers of one model."""

    def __init__(self, config, packed: str, layers: list[nn.Module]):
        """config: of the decoder that they are in. packed: the name in transformers of the attention that packs."""
        self._config, self._packed = config, packed
        self._groups: list[Tensor] = []
        self._back = torch.empty(0, dtype=torch.int64)
        self._bounded = keep_to_bounds(layers)
        for layer in layers if not self._bounded else ():
            layer.forward = partial(self._by_rows, layer.forward)

    def place(self, segments: Segments, device: torch.device) -> dict[str, Tensor]:
        """Prepares a forward and its backward pass; returns the arguments of the model's forward."""
        if self._bounded:
            rows = np.repeat(np.arange(len(segments.lengths), dtype=np.int32), segments.lengths)
            return {"seq_idx": torch.from_numpy(rows)[None].to(device),
                    "cu_seq_lens_q": torch.from_numpy(segments.bounds).to(device)}
        groups, back = padded_groups(segments)
        self._groups = [torch.from_numpy(group).to(device) for group in groups]
        self._back = torch.from_numpy(back).to(device)
        return {}

    def _by_rows(self, own, *args, **kwargs) -> Tensor:
        """A layer's own forward, in a packed micro-batch [1, T, width] over one group of rows after the other."""
        if self._config._attn_implementation != self._packed:
            return own(*args, **kwargs)
        flat, *args = args or (kwargs.pop("hidden_states"),)
        kwargs = {name: value for name, value in kwargs.items() if name not in BOUNDS}
        made = [own(flat[0].index_select(0, group.flatten()).view(*group.shape, -1), *args, **kwargs).flatten(0, 1)
                for group in self._groups]
        return torch.cat(made).index_select(0, self._back)[None]


def padded_groups(segments: Segments) -> tuple[list[np.ndarray], np.ndarray]:
    """For each group of rows of similar lengths, flat positions of their tokens [S, longest], 0 behind a row's end; and
    where the tokens are in all groups one behind the other, [T]. A row of a group has over half the tokens of the
    longest."""
    lengths, starts = segments.lengths, segments.bounds[:-1].astype(np.int64)
    sizes = np.ceil(np.log2(lengths)).astype(np.int64)
    groups, back, end = [], np.zeros(segments.bounds[-1], np.int64), 0
    for size in np.unique(sizes):
        rows = np.flatnonzero(sizes == size)
        offsets = np.arange(lengths[rows].max())
        valid = offsets < lengths[rows][:, None]
        groups.append(np.where(valid, starts[rows][:, None] + offsets, 0))
        back[groups[-1][valid]] = end + np.flatnonzero(valid)
        end += valid.size
    return groups, back


def keep_to_bounds(layers: list[nn.Module]) -> bool:
    """Whether the code of layers hands the bounds of rows to kernels, and the packages of all of them are here."""
    return torch.cuda.is_available() and all(map(HANDED_ON.search, _sources(layers))) and not any(
        map(broken, packages(layers)))


def packages(modules: Iterable[nn.Module]) -> list[str]:
    """The packages that have kernels for functions in the files of modules' classes."""
    return sorted({name for source in _sources(modules) for name in PACKAGE.findall(source)})


def _sources(modules: Iterable[nn.Module]) -> set[str]:
    """The texts of the files that modules' classes are in."""
    return {inspect.getsource(sys.modules[name]) for name in {type(module).__module__ for module in modules}}
