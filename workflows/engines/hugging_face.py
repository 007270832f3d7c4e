"""Imports transformers without dependencies that our models do not need.

Its module for assisted decoding imports scikit-learn, and with it scipy and pandas, where they are installed: half of
the import's processor time, in every process with a model or a tokenizer.
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
