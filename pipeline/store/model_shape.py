"""Reads the plain fields of a model's config.json that checks without torch need, and reports unusable ones."""

import json
import math
from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.architecture import completed
from ouroboros.pipeline.store.digests import address
from ouroboros.pipeline.store.errors import ModelError, Problem

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"  # of peft
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
         "intermediate_size", "vocab_size")
SHAPES = {"layer_types": (list, "a list of texts"), "rope_scaling": (dict, "an object"),
          "rope_parameters": (dict, "an object"), "max_position_embeddings": (int, "a whole number"),
          "max_window_layers": (int, "a whole number"),
          "sliding_window": (int, "a whole number or null")}  # what is read of their content elsewhere
POSITIVE = ("rope_theta", "rms_norm_eps", "layer_norm_eps", "partial_rotary_factor")


def read_config(path: str, key: str = "model.model_path") -> dict[str, Any]:
    """Returns config.json of the model at `path`, the value of the setting `key`. Raises ModelError when it is not a
    JSON object, or has a size that is not a positive integer."""
    return _usable(json_object(Path(path) / CONFIG, f"{key}={path}"), path, key)


def is_classifier(path: str | Path, key: str = "explorer.auxiliary_models") -> bool:
    """Returns whether a model scores a text as a whole, instead of continuing it."""
    held = read_config(str(path), key).get("architectures")
    return isinstance(held, list) and str(held[-1:]).endswith("ForSequenceClassification']")


def rewritten(path: str, model) -> dict[str, Any]:
    """Returns the same with what the section `model` overrides (rope_scaling, rope_theta, override_config), in the part
    of its text. Raises ModelError, of what has no place there too."""
    found = read_config(path)
    if not model.rewrites:
        return found
    text = found["text_config"] if isinstance(found.get("text_config"), dict) else found
    rope = {**(model.rope_scaling or {}), **({"rope_theta": model.rope_theta} if model.rope_theta else {})}
    held = text.get("rope_parameters")
    if rope and isinstance(held, dict) and any(isinstance(one, dict) for one in held.values()):
        raise ModelError(f"model.rope_scaling and model.rope_theta: the layers of {path} have positions of several "
                         f"kinds ({', '.join(held)}). Set model.override_config.rope_parameters.")
    if rope and isinstance(held, dict):  # transformers 5 writes both into one; a scaling replaces the whole of it
        kept = {"rope_theta": held["rope_theta"]} if "rope_theta" in held else {}
        text["rope_parameters"] = {**(kept if model.rope_scaling else held), **rope}
    elif rope:
        text |= ({"rope_scaling": model.rope_scaling} if model.rope_scaling else {}) | (
            {"rope_theta": model.rope_theta} if model.rope_theta else {})
    _merge(found, model.override_config)
    try:
        return _usable(found, path, "model.model_path")
    except ModelError as error:
        raise ModelError(f"{error} So model.rope_scaling, rope_theta or override_config make it.") from None


def _merge(held: dict[str, Any], given: dict[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(held.get(key), dict):
            _merge(held[key], value)
        else:
            held[key] = value


def _usable(found: dict[str, Any], path: str, key: str) -> dict[str, Any]:
    if not isinstance(found.get("model_type"), str) or not found["model_type"]:
        raise ModelError(f"{key}={path}: {CONFIG} there has no model_type, such as qwen2. Fetch the model again.")
    sizes = {name: found[name] for name in SIZES if found.get(name) is not None}
    wrong = [f"{name}={size!r}" for name, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise ModelError(f"{key}={path}: {CONFIG} there has {', '.join(wrong)}; needed whole numbers above 0.")
    if words := _indivisible(found):
        raise ModelError(f"{key}={path}: {CONFIG} there has {words}.")
    for name, (kind, needed) in SHAPES.items():
        if found.get(name) is not None and not isinstance(found[name], kind):
            raise ModelError(f"{key}={path}: {CONFIG} there has {name}={found[name]!r}; needed {needed}.")
    if words := _not_positive(found):
        raise ModelError(f"{key}={path}: {CONFIG} there has {words}; needed a finite number above 0.")
    return found


def _not_positive(found: dict[str, Any]) -> str | None:
    """Returns `name=value` of a factor that is no positive number, of the model or of the positions of some layers."""
    rope = found.get("rope_parameters") or {}
    for place in (found, rope, *(one for one in rope.values() if isinstance(one, dict))):
        for name in POSITIVE:
            value = place.get(name)
            if value is not None and not (type(value) in (int, float) and 0 < value < math.inf):
                return f"{name}={value!r}"
    return None


def _indivisible(found: dict[str, Any]) -> str | None:
    """Returns the numbers of heads that share nothing evenly: query heads a key/value head, or the width the heads."""
    heads, shared = found.get("num_attention_heads"), found.get("num_key_value_heads")
    if heads and shared and heads % shared:
        return (f"num_attention_heads={heads} and num_key_value_heads={shared}; needed a number of key/value heads "
                f"that divides {heads}")
    width, said = found.get("hidden_size"), completed(found)
    if heads and width and width % heads and not said.get("head_dim") and not said.get("kv_lora_rank"):
        return f"hidden_size={width} and num_attention_heads={heads}; needed a number of heads that divides {width}"
    return None


def plain_config(model) -> dict[str, Any] | None:
    """Returns config.json of the model in the section `model`, or the settings that create it; None when it is not on
    this machine, or unusable."""
    if model.init.enable:
        return vars(model.init)
    path = model.model_path
    if not path or absent_model(path) or wrong_model(path) or wrong_rewriting(path, model):
        return None
    return rewritten(path, model)


def json_object(file: Path, named: str) -> dict[str, Any]:
    """Reads a JSON object from a model's directory. named: the setting that names the directory, and its value.
    Raises ModelError when it is not a JSON object."""
    try:
        if (text := file.read_text(encoding="utf-8")).startswith("version https://git-lfs"):
            raise ModelError(f"{named}: {file.name} there is a pointer of Git LFS: run `git lfs pull`.")
        found = json.loads(text)
    except OSError as error:
        raise ModelError(f"{named}: {file.name} there cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # invalid JSON, or not text
        raise ModelError(f"{named}: {file.name} there is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{named}: {file.name} there is not a JSON object, {{...}}. Fetch the model again.")
    return found


def wrong_model(path: str, key: str = "model.model_path") -> Problem | None:
    """Returns the problem with config.json of the model at `path`, the value of the setting `key`, if it exists."""
    try:
        if (Path(path) / CONFIG).is_file():
            read_config(path, key)
    except ModelError as error:
        return Problem(key, str(error).removeprefix(f"{key}={path}: "), found=path)
    return None


def wrong_rewriting(path: str, model) -> Problem | None:
    """Returns the problem with what the section `model` overrides in a readable config.json, if it is there."""
    try:
        if (Path(path) / CONFIG).is_file():
            rewritten(path, model)
    except ModelError as error:
        return Problem("model.override_config" if model.override_config else "model.rope_scaling", str(error))
    return None


def absent_model(path: str, key: str = "model.model_path") -> Problem | None:
    """Returns the problem if `path`, the value of the setting `key`, is not a Hugging Face model directory."""
    if (Path(path) / CONFIG).is_file():
        return None
    place = Path(path)
    if words := address(path):
        return Problem(key, words, found=path)
    if (place / ADAPTER_CONFIG).is_file():
        return Problem(key, "it is an adapter, without its model.", "Name the model that it was trained on, and the "
                       "adapter in model.lora_configs: [{path: …}].", found=path)
    found = "the directory is empty" if place.is_dir() and not any(place.iterdir()) else (
        "the directory has no file config.json" if place.is_dir() else
        "it is no directory" if place.exists() else "no config.json there")
    return Problem(key, f"{found}; needed a Hugging Face model directory (config.json, *.safetensors, tokenizer "
                   "files), a GGUF file, or an id of the hub (org/name).", found=path)


def room_problem(path: str, limits, room: Any, key: str = "model.model_path") -> Problem | None:
    """Reports a longest sequence of the stage that exceeds the maximum positions of the model at `path`.

    key: the setting that names it. limits: the section `model` of the stage. room: `max_position_embeddings` of
    config.json, in tokens; not checked unless it is a number.
    """
    if not isinstance(room, int) or room >= limits.longest:
        return None
    return Problem(key, f"has room for {room} tokens (max_position_embeddings), and model.max_model_len, or prompt + "
                   f"response, is {limits.longest}.", "Shorten model.max_prompt_tokens or model.max_response_tokens.",
                   found=path)


def divides_heads(parts: int, heads: int, key_heads: int) -> bool:
    """Returns whether attention heads are split evenly; of fewer key/value heads than parts, several have the same."""
    return heads % parts == 0 and (key_heads % parts == 0 or parts % key_heads == 0)


def split_problem(config: dict[str, Any], key: str, parts: int) -> Problem | None:
    """Reports attention heads that cannot be split into equal parts. config: config.json, or the section model.init.
    key: the setting that asks for them."""
    own = config.get("num_attention_heads")
    shared = config.get("num_key_value_heads") or own
    fitting = [n for n in range(1, (own or 0) + 1) if divides_heads(n, own, shared)]
    if not own or parts in fitting:
        return None
    return Problem(key, f"the model has {own} attention heads and {shared} "
                   "key/value heads, which must be split evenly; needed one of "
                   f"{', '.join(map(str, fitting))}.", found=parts)
