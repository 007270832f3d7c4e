"""The import of transformers, without what no model of ours asks for.

Its module of assisted decoding takes in scikit-learn, and with that scipy and pandas, where they are installed: half of
the processor time of the import, in every process that holds a model or a tokenizer.
"""

import sys

ASSISTED = "transformers.generation.candidate_generator"


def import_transformers():
    """The package, whose classes are then its attributes. Assisted decoding does without scikit-learn's thresholds."""
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
