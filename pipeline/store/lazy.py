"""Libraries that are slow to import, imported when something of theirs is first used.

What settings read may name them (operators/losses, operators/advantages): a command that computes nothing imports none.
Such a module has `from __future__ import annotations`, and uses them in functions alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import torch
    from torch import Tensor
else:
    class Library:
        """A module under its name, empty until an attribute of it is read."""

        def __init__(self, name: str):
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            found = getattr(import_module(self._name), attribute)
            setattr(self, attribute, found)
            return found

    np, pa, pc, torch = map(Library, ("numpy", "pyarrow", "pyarrow.compute", "torch"))
    Tensor = "torch.Tensor"  # of annotations, which nothing evaluates
