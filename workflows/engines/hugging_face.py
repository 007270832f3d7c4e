"""Imports transformers without dependencies that our models do not need.

Its module for assisted decoding imports scikit-learn, and with it scipy and pandas, where they are installed: half of
the import's processor time, in every process with a model or a tokenizer. Its losses of object detection import scipy.
"""

import sys

ASSISTED = "transformers.generation.candidate_generator"


def import_transformers():
    """The package with its classes as attributes. Assisted decoding lacks scikit-learn's thresholds."""
    import transformers
    from transformers import utils

    if ASSISTED not in sys.modules:
        available = utils.is_sklearn_available
        utils.is_sklearn_available = lambda: False
        try:
            import transformers.generation.candidate_generator
        finally:
            utils.is_sklearn_available = available
    return transformers


def import_light() -> None:
    """Imports transformers without scipy, too, for all modules of this process."""
    from transformers import utils

    available = utils.is_scipy_available
    utils.is_scipy_available = lambda: False
    try:
        import transformers.loss.loss_utils  # noqa: F401
    finally:
        utils.is_scipy_available = available
    import_transformers()
