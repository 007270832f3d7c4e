"""The published weights that an engine loads, as torch tensors in host memory, to which deltas are applied in place.

An engine that sleeps loses its weights on the device, so it loads all of them after each delta; from page-locked memory
that takes some 10 milliseconds a gigabyte.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ouroboros.pipeline.job.background import Background
from ouroboros.pipeline.store.tensor_files import TYPES, Stored
from ouroboros.pipeline.store.versions import Held


class HostWeights:
    """The weights of one version, and of those that follow it."""

    def __init__(self):
        import torch

        self._held = Held(_page_locked if torch.cuda.is_available() else None)
        self._background = Background()

    @contextmanager
    def verified(self, directory: str | Path) -> Iterator[dict]:
        """Yields the tensors of a version by name. Their hashes are compared in the background with the published ones;
        raises ModelError at the end of the block where they differ."""
        self._held.update(Path(directory))
        self._background.start(self._held.verify)
        yield {name: _tensor(stored) for name, stored in self._held.tensors.items()}
        self._background.finish()


def _tensor(stored: Stored):
    import torch

    return torch.from_numpy(stored.data).view(getattr(torch, TYPES[stored.dtype][0])).view(stored.shape)


def _page_locked(size: int) -> np.ndarray:
    import torch

    return torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
