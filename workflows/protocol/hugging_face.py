"""Imports transformers without dependencies that our models do not need.

Its module for assisted decoding imports scikit-learn, and with it scipy and pandas, where they are installed: half of
the import's processor time, in every process with a model or a tokenizer. Its losses of object detection import scipy.
"""

import inspect
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ouroboros.pipeline.store.errors import ModelError
from ouroboros.pipeline.store.weights import HEAD, heads_differ

ASSISTED = "transformers.generation.candidate_generator"
# buffers that older releases stored and that are computed now; layers that predict further tokens, which none runs
COMPUTED = re.compile(r"(^|\.)((original_)?inv_freq|(cos|sin)_cached|position_ids|(attn|attention)\.(masked_)?bias)$|"
                      r"(^|\.)(mtp|nextn)(_\w+)?\.")
PREDICTS = re.compile(r".*\blayers\.\d+\.(?=(eh_proj|enorm|hnorm|shared_head)\.)")
CAPPED = "attn_logit_softcapping"
HEADS = ("lm_head.", "score.", "v_head.", "classifier.")  # of language models, classifiers and critics


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
    """The causal language model of a Hugging Face directory. headless: its output head may be absent, or another's.
    trust: model.trust_remote_code. how: arguments of from_pretrained. Raises ModelError as `whole`."""
    try:
        kind = model_class(read_config(directory, trust))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"{directory} cannot be read as a causal language model: {error}") from error
    return whole(kind, directory, headless, trust_remote_code=trust, **how)


def classifier(directory: Path, **how):
    """The sequence classifier of a Hugging Face directory. Raises ModelError as `whole`."""
    return whole(import_transformers().AutoModelForSequenceClassification, directory, **how)


def scalar_classifier(directory: Path, dtype: str, trust: bool = False):
    """Loads a classifier with one label; all of its weights must be present. trust: model.trust_remote_code."""
    import torch

    needed = "Needed a sequence classifier with one label (…ForSequenceClassification, num_labels 1)."
    try:
        config = read_config(directory, trust)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"the reward model {directory} has no readable config.json: {error}. {needed}") from error
    held = ", ".join(config.architectures or ["no architecture"])
    if not held.endswith("ForSequenceClassification"):
        raise ModelError(f"the reward model {directory} holds {held}, which has no score head. {needed}")
    if config.num_labels != 1:
        raise ModelError(f"the reward model {directory} has {config.num_labels} labels, and which of them is the "
                         f"reward nobody says. {needed}")
    return classifier(directory, dtype=getattr(torch, dtype), trust_remote_code=trust)


def empty_classifier(directory: Path, padding: int, trust: bool = False):
    """The sequence classifier with one label of a model's family, without weights. Raises ModelError where transformers
    has none."""
    import torch

    config, kind = read_config(directory, trust), import_transformers().AutoModelForSequenceClassification
    if type(config) not in kind._model_mapping:
        raise ModelError(f"{directory}: transformers has no sequence classifier for {config.model_type}, which a "
                         "reward model is. Take a model of another family.")
    config.num_labels = 1
    config.get_text_config().pad_token_id = padding
    with torch.device("meta"):
        return kind.from_config(config)


def set_exact_attention(model) -> None:
    """Sets the fastest attention of transformers that computes all that the model has on any device. sdpa leaves capped
    scores out (Gemma 2) without a word."""
    names = ["eager"] if getattr(model.config.get_text_config(), CAPPED, None) else ["sdpa", "eager"]
    for name in names[:-1]:
        with suppress(ValueError, ImportError):  # of a family that has no such attention
            return model.set_attn_implementation(name)
    return model.set_attn_implementation(names[-1])


def check_weights(directory: Path, trust: bool = False) -> None:
    """Raises ModelError where a directory's safetensors files are not those of its config.json, by names and shapes.

    Quantized weights have other names, which their engine knows."""
    config = read_config(directory, trust)
    if not any(directory.glob("*.safetensors")) or getattr(config, "quantization_config", None):
        return
    if str((config.architectures or [""])[0]).endswith("ForSequenceClassification"):
        classifier(directory, device_map="meta", trust_remote_code=trust)
    else:
        causal_model(directory, trust=trust, device_map="meta")


def whole(kind, directory: Path, headless: bool = False, **how):
    """The model of a Hugging Face directory. kind: the class of transformers that reads it.

    Raises ModelError where it cannot be read, or its weights are not those that config.json asks for, no less and no
    more: transformers would draw what is missing at random and leave out the rest, with a word in the log.
    """
    try:
        model, report = kind.from_pretrained(
            directory, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True, **how)
    except (OSError, ValueError, LookupError, ImportError, AssertionError) as error:
        raise ModelError(f"{directory} cannot be read as a model: {error}") from error
    lacking = [name for name in sorted(report["missing_keys"]) if not (headless and name.startswith("lm_head."))]
    other = [f"{name} {list(held)} instead of {list(asked)}" for name, held, asked in sorted(report["mismatched_keys"])]
    more = surplus(report["unexpected_keys"], headless)
    found = [f"{words}: {len(names)} ({', '.join(names[:3])}{', …' * (len(names) > 3)})" for names, words in (
        (lacking, "missing tensors"), (other, "of another shape"), (more, "tensors without a place")) if names]
    if not headless and _untied(model, directory):
        found.append("tie_word_embeddings is true, and the output head there differs from the embedding")
    if found:
        raise ModelError(f"{directory}: its weights are not those of its config.json: {'; '.join(found)}. Fetch "
                         "config.json and weights of one revision.")
    if getattr(model.config.get_text_config(), CAPPED, None):
        set_exact_attention(model)
    return model


def surplus(names: Iterable[str], headless: bool = False) -> list[str]:
    """The tensors of a checkpoint, of those that transformers did not place, that change what the model computes."""
    predicting = {found[0] for name in names if (found := PREDICTS.match(name))}
    left_out = (*predicting, *(HEADS if headless else ()))
    return sorted(name for name in names if not COMPUTED.search(name) and not name.startswith(left_out))


def _untied(model, directory: Path) -> bool:
    """Whether the files have a separate output head where config.json ties it to the embedding."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings().weight
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    if head is None or not any(name.endswith(HEAD) for name in tied):
        return False
    return heads_differ(directory) if embedding.is_meta else head.weight is not embedding


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
    """The configuration of a Hugging Face directory. trust: model.trust_remote_code. Raises OSError or ValueError where
    it is not one of transformers, and ModelError where its values do not go together."""
    try:
        return import_transformers().AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=trust)
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:  # of a validator: huggingface_hub has a class for it, others are any
        why = " ".join(str(error).split())
        raise ModelError(f"{model}: transformers does not take its config.json ({type(error).__name__}: {why}). Fetch "
                         "it again.") from error


def model_class(config):
    """The class that reads the whole of a causal language model: where it reads images too, with their tower, so that
    checkpoints keep the architecture. config: as transformers reads it."""
    transformers = import_transformers()
    whole, alone = transformers.AutoModelForImageTextToText, transformers.AutoModelForCausalLM
    sees = type(config) in whole._model_mapping
    chosen = alone if not sees or (type(config) in alone._model_mapping and has_text_alone(config)) else whole
    _check_layers(config, chosen)
    return chosen


def _check_layers(config, kind) -> None:
    """Raises ModelError for kinds of layers that the code of a family does not name: it would leave them out."""
    text, mapping = config.get_text_config(), kind._model_mapping
    classes = [type(config), type(text), *(mapping[type(one)] for one in (config, text) if type(one) in mapping)]
    source = "".join(inspect.getsource(sys.modules[one.__module__]) for one in classes)
    own = any(not one.__module__.startswith("transformers.models.") for one in classes)  # the model's own files
    named = set() if own else {*(getattr(text, "layer_types", None) or ())} - {"full_attention"}
    if strange := sorted(name for name in named if f'"{name}"' not in source):
        raise ModelError(f"{config._name_or_path}: layer_types of its config.json has {', '.join(strange)}, which "
                         f"{text.model_type} of transformers has no layers for. Fetch it again.")


def has_text_alone(config) -> bool:
    """Whether a model reads text alone. config: as transformers reads it."""
    return config.get_text_config() is config
