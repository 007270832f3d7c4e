"""Copies of a rank's state in host memory: a checkpoint is written from them during the next optimizer steps.

Storages are copied, not tensors: views of one buffer stay views of one buffer, so a file written from a copy has the
bytes of one written from the original on the same device.
"""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ouroboros.pipeline.store import tensor_files
from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.host_memory import free_memory
from ouroboros.pipeline.store.tensor_files import Stored

RESERVE = 1.25  # times the size of the copies: host memory that must be free for them
CODES = {getattr(torch, name): code for code, (name, _) in tensor_files.TYPES.items()}
Written = tuple[Path, tuple[int, str] | tuple[int, str, str]]


class Part(NamedTuple):
    """A file of a checkpoint: the state that it holds (tensors in dicts, lists and tuples), and what writes it, which
    returns the path and entry (pipeline/store/hashes.py) of what it hashed meanwhile, of weights also the first digits
    of their sha256. fresh: training changes none of its tensors, which are in host memory."""

    state: Any
    write: Callable[[Any], Written | None]
    fresh: bool = False


def copied(parts: Sequence[Part]) -> list[Part] | None:
    """Returns the parts with a copy of their state in host memory; None where that is too large for the free memory.

    From a GPU, copies go to page-locked memory, which torch keeps for the next ones.
    """
    tensors = {id(tensor): tensor for part in parts if not part.fresh for tensor in _tensors(part.state)}
    storages = {_key(tensor): tensor.untyped_storage() for tensor in tensors.values()}
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if RESERVE * ranks * sum(storage.nbytes() for storage in storages.values()) > free_memory():
        return None
    made = {key: _in_host_memory(storage) for key, storage in storages.items()}
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()
    known: dict[int, Any] = {name: _view(made[_key(tensor)], tensor) for name, tensor in tensors.items()}
    # of `known` objects deepcopy takes the copies
    return [part if part.fresh else part._replace(state=copy.deepcopy(part.state, known)) for part in parts]


def reserve(parameters: Iterable[nn.Parameter], ranks: int) -> None:
    """Has torch keep page-locked memory for a rank's copies of AdamW's state in float32 and of the weights: the first
    checkpoint would otherwise wait seconds for it. Without a GPU does nothing."""
    if not torch.cuda.is_available():
        return
    learning = [p for p in parameters if p.requires_grad]
    elements = sum(getattr(p, "ds_numel", p.numel()) for p in learning)
    sizes = [4 * elements // ranks] * 3 + [sum(p.nbytes for p in learning)]
    if RESERVE * int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * sum(sizes) < free_memory():
        held = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in sizes]
        del held


def written(parts: Sequence[Part]) -> dict[Path, tuple]:
    """Writes every part, all at once; returns the entries of those that were hashed meanwhile. Leaves out torch's
    checksums, which take longer than writing: a checkpoint has hashes of its files."""
    torch.serialization.set_crc32_options(compute_crc32=False)
    with ThreadPoolExecutor(max(len(parts), 1)) as pool:
        return dict(filter(None, pool.map(lambda part: part.write(part.state), parts)))


def stored(tensors: Mapping[str, Tensor]) -> dict[str, Stored]:
    """The bytes of tensors in host memory. Raises ModelError where a file of weights cannot have one's type."""
    if other := next((name for name, one in tensors.items() if one.dtype not in CODES), None):
        raise ModelError(f"the tensor {other} is of {tensors[other].dtype}; needed {', '.join(map(str, CODES))}.")
    return {name: Stored(CODES[one.dtype], tuple(one.shape), one.contiguous().view(-1).view(torch.uint8).numpy())
            for name, one in tensors.items()}


def write_weights(tensors: Mapping[str, Tensor], path: Path) -> Written:
    """Writes tensors as a safetensors file."""
    return path, tensor_files.write_hashed(path, stored({name: one.detach().cpu() for name, one in tensors.items()}))


def released(parts: list[Part]) -> None:
    """Gives the memory of written copies back to the system. As long as a process holds page-locked memory it ends
    slowly: by 2 s for 8 GB."""
    parts.clear()
    if torch.cuda.is_available() and hasattr(torch.accelerator.memory, "empty_host_cache"):  # torch 2.11 has none
        torch.accelerator.memory.empty_host_cache()


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, dict | list | tuple):
        for inner in state.values() if isinstance(state, dict) else state:
            yield from _tensors(inner)


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _in_host_memory(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    target = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=storage.device.type == "cuda")
    return target.copy_(source, non_blocking=True).untyped_storage()


def _view(storage: torch.UntypedStorage, like: Tensor) -> Tensor:
    made = torch.empty(0, dtype=like.dtype).set_(storage, like.storage_offset(), like.size(), like.stride())
    if type(like) is Tensor:
        vars(made).update(vars(like))  # DeepSpeed's marks, which torch.save writes too
    return made.requires_grad_(like.requires_grad)
