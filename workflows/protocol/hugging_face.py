"""Imports transformers without dependencies that our models do not need.

Its module for assisted decoding imports scikit-learn, and with it scipy and pandas, where they are installed: half of
the import's processor time, in every process with a model or a tokenizer. Its losses of object detection import scipy.
"""

import sys
from pathlib import Path

from pipeline.store.errors import ModelError

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


def causal_model(directory: Path, headless: bool = False, trust: bool = False, **how):
    """The causal language model of a Hugging Face directory. headless: its output head may be absent. trust:
    model.trust_remote_code. how: arguments of from_pretrained.

    Raises ModelError where it cannot be read, or its weights are not all those that config.json asks for: transformers
    would draw the others at random, with a word in the log.
    """
    try:
        model, report = model_class(read_config(directory, trust)).from_pretrained(
            directory, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True,
            trust_remote_code=trust, **how)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{directory} cannot be read as a causal language model: {error}") from error
    lacking = [name for name in sorted(report["missing_keys"]) if not (headless and name.startswith("lm_head."))]
    other = [f"{name} {list(held)} instead of {list(asked)}" for name, held, asked in sorted(report["mismatched_keys"])]
    found = [f"{words}: {len(names)} ({', '.join(names[:2])}{', …' * (len(names) > 2)})" for names, words in (
        (lacking, "missing tensors"), (other, "of another shape")) if names]
    if found:
        raise ModelError(f"{directory}: its weights are not those of its config.json: {'; '.join(found)}. Fetch "
                         "config.json and weights of one revision.")
    return model


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


def read_config(model: str | Path, trust: bool = False):
    """The configuration of a Hugging Face directory. trust: model.trust_remote_code. Raises OSError, ValueError."""
    return import_transformers().AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=trust)


def model_class(config):
    """The class that reads the whole of a causal language model: where it reads images too, with their tower, so that
    checkpoints keep the architecture. config: as transformers reads it."""
    transformers = import_transformers()
    whole, alone = transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM
    if type(config) in alone._model_mapping and (has_text_alone(config) or type(config) not in whole._model_mapping):
        return alone
    return whole if type(config) in whole._model_mapping else alone


def has_text_alone(config) -> bool:
    """Whether a model reads text alone. config: as transformers reads it."""
    return config.get_text_config() is config
