"""Packages of GPU kernels, which may be installed and yet not import: built for another torch, Python or GPU."""

import importlib
import importlib.util
from functools import cache


@cache
def broken(package: str) -> str | None:
    """Why a package cannot be used here, or None."""
    if importlib.util.find_spec(package) is None:
        return "it is not installed"
    try:
        importlib.import_module(package)
    except Exception as error:  # of a compiled extension: any
        return f"it does not import ({type(error).__name__}: {error})"
    return None
