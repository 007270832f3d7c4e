"""The shape of a decoder from its config.json: parameter counts by component.

Counts the architecture shared by Llama, Mistral, Qwen2 and Qwen3: grouped-query attention, a gated MLP, two RMS norms
per layer; and its replacements in pipeline/store/mixture.py: experts, latent attention. Any other architecture
(convolutions, an image encoder) is reported as unknown rather than counted wrongly.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.store import mixture
from pipeline.store.errors import ModelError, Problem
from pipeline.store.mixture import Experts, Latent

CONFIG = "config.json"
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = (*NEEDED, "num_key_value_heads", "head_dim")
DENSE = ("llama", "mistral", "qwen2", "qwen3")  # model_type
KNOWN = (*DENSE, *mixture.NEEDED)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHARACTERS = 99  # tokens of the model created by `model.init` (stages/model.py; a test compares them)


@dataclass(frozen=True)
class Shape:
    """Widths and counts of a decoder.

    width: of the residual stream. heads, key_value_heads: per layer. head_width: of each. mlp_width: of the gated MLP.
    tied: the output head is the input embedding. qkv_bias, head_norm: Qwen2's biases, Qwen3's norms of query and key.
    longest: maximum positions; None if not given. experts: replace the MLP of some layers.
    latent: replaces the attention of all layers.
    """

    vocabulary: int
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    mlp_width: int
    tied: bool
    qkv_bias: bool = False
    head_norm: bool = False
    longest: int | None = None
    experts: Experts | None = None
    latent: Latent | None = None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def value_width(self) -> int:
        """Returns the width of all value heads together, which is the input of the output projection."""
        return self.heads * (self.latent.value if self.latent else self.head_width)

    @property
    def key_value_width(self) -> int:
        return self.key_value_heads * self.head_width

    @property
    def embedding(self) -> int:
        """Returns the parameters of the input embedding; an untied output head has the same number."""
        return self.vocabulary * self.width

    @property
    def largest(self) -> int:
        """Returns the parameters of the largest tensor: the embedding, or fused gate and up of a layer's experts."""
        return max(self.embedding, 2 * self.experts.held(self.width) // 3 if self.experts else 0)

    @property
    def attention(self) -> int:
        """Returns the parameters of one layer's attention (query, key, value, output projection) and its two norms."""
        norms = 2 * self.width + (2 * self.head_width if self.head_norm else 0)
        if self.latent:
            linear = self.latent.linear(self.width, self.heads).values()
            return sum(inputs * outputs for inputs, outputs in linear) + self.latent.norms + norms
        bias = self.query_width + 2 * self.key_value_width if self.qkv_bias else 0
        return self.width * (2 * self.query_width + 2 * self.key_value_width) + bias + norms

    @property
    def layer(self) -> int:
        """Returns the parameters of one layer without experts: attention, gate, up and down, norms."""
        return self.attention + 3 * self.width * self.mlp_width

    @property
    def inner(self) -> int:
        """Returns the parameters of all layers and the last norm."""
        of_kind = {False: self.layer, True: self.experts and self.attention + self.experts.parameters(self.width)}
        return sum(count * of_kind[has] for count, has in kinds(self)) + self.width

    @property
    def parameters(self) -> int:
        """Returns all parameters: embedding, layers, last norm, and the head when it is not tied."""
        return self.embedding * (1 if self.tied else 2) + self.inner

    @property
    def critic(self) -> int:
        """Returns the parameters of a critic of this shape: its head has width 1 and a bias."""
        return self.embedding + self.inner + self.width + 1


def kinds(shape: Shape) -> list[tuple[int, bool]]:
    """Returns the kinds of layers of a decoder, as (count, whether they have experts)."""
    sparse = shape.experts.layers if shape.experts else 0
    return [(count, has) for count, has in ((shape.layers - sparse, False), (sparse, True)) if count]


def shape_of(config: dict[str, Any]) -> Shape | None:
    """Returns the shape described by a Hugging Face config.json; None for an unsupported architecture."""
    if uncounted(config):
        return None
    kind = config["model_type"]
    config = {**mixture.ABSENT.get(kind, {}), **config}
    heads, latent = config["num_attention_heads"], mixture.latent_of(kind, config)
    head_width = latent.plain + latent.rotary if latent else config.get("head_dim") or config["hidden_size"] // heads
    return Shape(
        vocabulary=config["vocab_size"], width=config["hidden_size"], layers=config["num_hidden_layers"], heads=heads,
        key_value_heads=config.get("num_key_value_heads") or heads, head_width=head_width,
        mlp_width=config["intermediate_size"], tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=kind == "qwen2" or (kind == "qwen2_moe" and bool(config.get("qkv_bias", True))),
        head_norm=kind in ("qwen3", "qwen3_moe"), longest=config.get("max_position_embeddings"),
        experts=mixture.experts_of(kind, config), latent=latent,
    )


def uncounted(config: dict[str, Any]) -> str | None:
    """Returns why a config.json gives no shape; None when it does."""
    kind = config.get("model_type")
    if kind not in KNOWN:
        return f"its model_type is {kind}; counted are {', '.join(KNOWN)}"
    if kind in DENSE and (own := [key for key in EXPERTS if config.get(key)]):
        return f"its model_type is {kind}, and it has {', '.join(own)}: a {kind} has no experts"
    said = {**mixture.ABSENT.get(kind, {}), **config}
    lacking = [key for key in (*NEEDED, *mixture.NEEDED.get(kind, ())) if not said.get(key)]
    return f"its model_type is {kind}, and its {CONFIG} does not say {', '.join(lacking)}" if lacking else None


def shape_of_init(model: dict[str, Any]) -> Shape:
    """Returns the shape of the model that the section `model` creates (`model.init`)."""
    init = model["init"]
    return Shape(
        vocabulary=CHARACTERS, width=init["hidden_size"], layers=init["num_hidden_layers"],
        heads=init["num_attention_heads"], key_value_heads=init["num_key_value_heads"],
        head_width=init["hidden_size"] // init["num_attention_heads"], mlp_width=init["intermediate_size"],
        tied=init["tie_word_embeddings"], qkv_bias=True,
    )


def read_shape(model: dict[str, Any]) -> Shape | None:
    """Returns the shape of the model in the section `model`; None when it is missing or unsupported."""
    if model["init"]["enable"]:
        return shape_of_init(model)
    return shape_at(model["model_path"])


def shape_at(directory: str | None) -> Shape | None:
    """Returns the shape of the model in a directory; None when it is missing or unsupported."""
    if not directory or not (Path(directory) / CONFIG).is_file() or wrong_model(directory):
        return None  # reported when the configuration is checked
    return shape_of(read_config(directory))


def read_config(path: str, key: str = "model.model_path") -> dict[str, Any]:
    """Returns config.json of the model at `path`, the value of the setting `key`. Raises ModelError when it is not a
    JSON object, or has a non-integer size."""
    found = json_object(Path(path) / CONFIG, f"{key}={path}")
    if not found.get("model_type"):
        raise ModelError(f"{key}={path}: {CONFIG} there has no model_type, such as qwen2. Fetch the model again.")
    if wrong := wrong_sizes(found):
        raise ModelError(f"{key}={path}: {CONFIG} there has {', '.join(wrong)}; needed whole numbers.")
    return found


def wrong_sizes(config: dict[str, Any]) -> list[str]:
    """Lists the invalid sizes of a counted model, as `name=value`.

    A size with a default in transformers may be absent, but not null, which transformers rejects.
    """
    kind = config.get("model_type")
    if kind not in KNOWN:
        return []
    own = mixture.ABSENT.get(kind, {})
    given = {name: config[name] for name in (*SIZES, *mixture.NEEDED.get(kind, ()), *mixture.OTHERS)
             if name in config and (config[name] is not None or name in own or name in NEEDED)}
    wrong = [f"{name}={value!r}" for name, value in given.items()
             if not isinstance(value, int) or isinstance(value, bool)]
    wrong += [f"{name}={value} (below 1)" for name, value in given.items()
              if f"{name}={value!r}" not in wrong and name in SIZES and value < 1]
    wrong = wrong or _indivisible(kind, given)
    dense = config.get("mlp_only_layers")
    return wrong + ([] if isinstance(dense, list | None) else [f"mlp_only_layers={dense!r}"])


def _indivisible(kind: str, given: dict[str, int]) -> list[str]:
    """Returns sizes of a counted model, all integers, that do not divide as attention requires."""
    pairs = [("num_attention_heads", "num_key_value_heads")]
    if "head_dim" not in given and not kind.startswith(("qwen3", "deepseek")):  # those have their own head width
        pairs += [("hidden_size", "num_attention_heads")]
    return [f"{by}={given[by]} (no divisor of {of}={given[of]})" for of, by in pairs
            if of in given and by in given and given[of] % given[by]]


def json_object(file: Path, told: str) -> dict[str, Any]:
    """Reads a JSON object from a model's directory. told: the setting that names the directory, and its value. Raises
    ModelError when it is not a JSON object."""
    try:
        if (text := file.read_text(encoding="utf-8")).startswith("version https://git-lfs"):
            raise ModelError(f"{told}: {file.name} there is a pointer of Git LFS: run `git lfs pull`.")
        found = json.loads(text)
    except ValueError as error:  # invalid JSON, or not text
        raise ModelError(f"{told}: {file.name} there is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{told}: {file.name} there is no JSON object, {{...}}. Fetch the model again.")
    return found


def wrong_model(path: str, key: str = "model.model_path") -> str | None:
    """Returns the problem with config.json of the model at `path`, the value of the setting `key`, if it exists."""
    try:
        if (Path(path) / CONFIG).is_file():
            read_config(path, key)
    except ModelError as error:
        return str(error)
    return None


def absent_model(path: str, key: str = "model.model_path") -> Problem | None:
    """Returns the problem if `path`, the value of the setting `key`, is not a Hugging Face model directory."""
    if (Path(path) / CONFIG).is_file():
        return None
    place = Path(path)
    found = "the directory is empty" if place.is_dir() and not any(place.iterdir()) else (
        "the directory has no config.json" if place.is_dir() else
        "it is a file" if place.exists() else "no config.json there")
    return Problem(key, f"{found}; needed a Hugging Face model directory (config.json, *.safetensors, tokenizer "
                   "files), or an id of the hub (org/name).", found=path)


def room_problem(path: str, limits: dict[str, Any], room: Any, key: str = "model.model_path"
                 ) -> Problem | None:
    """Reports a longest sequence of the stage that exceeds the maximum positions of the model at `path`.

    key: the setting that names it. limits: the section `model` of the stage. room: `max_position_embeddings` of
    config.json, in tokens; not checked unless it is a number.
    """
    longest = limits["max_model_len"] or limits["max_prompt_tokens"] + limits["max_response_tokens"]
    if not isinstance(room, int) or room >= longest:
        return None
    return Problem(key, f"it has room for {room} tokens (max_position_embeddings), and model.max_model_len, or prompt "
                   f"+ response, is {longest}.", "Shorten model.max_prompt_tokens or model.max_response_tokens.",
                   found=path)


def split_problem(shape: Shape, tensor_parallel: int) -> Problem | None:
    """Reports attention heads that vLLM cannot split into `tensor_parallel` equal parts."""
    own, shared = shape.heads, shape.key_value_heads
    whole = own % tensor_parallel == 0 and (shared % tensor_parallel == 0 or tensor_parallel % shared == 0)
    if whole:
        return None
    fitting = [n for n in range(1, own + 1)
               if own % n == 0 and (shared % n == 0 or n % shared == 0)]
    return Problem("explorer.rollout_model.tensor_parallel_size", f"the model has {own} attention heads and {shared} "
                   f"key/value heads, which must be cut evenly; needed one of {', '.join(map(str, fitting))}.",
                   found=tensor_parallel)
