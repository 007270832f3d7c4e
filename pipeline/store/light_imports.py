"""Imports transformers for a process that reads tokenizers and shapes of models, and computes with none.

Two thirds of the usual import's processor time go to the reference pages of its classes, to what generates text (which
imports torch's compiler), to scikit-learn and scipy, and to the list of installed packages, which is the same for every
process.
"""

import importlib.metadata
import sys

from ouroboros.pipeline.store import kept


def import_transformers_light() -> None:
    """Imports it, if no other module has. Of its classes, docstrings are those in the source; models of users' own
    code generate no text."""
    if "transformers" in sys.modules:
        return
    version = kept.version()
    usual = importlib.metadata.packages_distributions
    if not (packages := kept.answers(__file__, version)):
        kept.keep(__file__, version, packages := usual())
    importlib.metadata.packages_distributions = lambda: packages
    try:
        from transformers import utils
    finally:
        importlib.metadata.packages_distributions = usual
    utils.is_sklearn_available = utils.is_scipy_available = lambda: False
    pages = sys.modules["transformers.utils.auto_docstring"]
    pages.auto_class_docstring = pages.auto_method_docstring = _as_written
    from transformers import dynamic_module_utils, generation  # noqa: F401  # with torch: they keep what is available
    from transformers.models.auto import configuration_auto  # noqa: F401

    usual, utils.is_torch_available = utils.is_torch_available, lambda: False
    try:
        from transformers.models.auto import auto_factory
    finally:
        utils.is_torch_available = usual
    auto_factory.GenerationMixin = object


def _as_written(one, **_):
    one.__doc__ = one.__doc__ or ""
    return one
