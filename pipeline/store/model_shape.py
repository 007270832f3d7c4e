"""The shape of a decoder from its config.json: how many parameters it has, and where they lie.

What is counted is the architecture that Llama, Mistral, Qwen2 and Qwen3 share: grouped-query attention, a gated MLP,
two RMS norms a layer; and what pipeline/store/mixture.py puts in place of these: experts, latent attention. Another
architecture (convolutions, an encoder of images) is said to be unknown rather than be counted wrongly.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.store import mixture
from pipeline.store.errors import ModelError
from pipeline.store.mixture import Experts, Latent

CONFIG = "config.json"
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
SIZES = (*NEEDED, "num_key_value_heads", "head_dim")
DENSE = ("llama", "mistral", "qwen2", "qwen3")  # model_type
KNOWN = (*DENSE, *mixture.NEEDED)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
CHARACTERS = 99  # tokens of the model that `model.init` makes (stages/model.py; a test compares them)


@dataclass(frozen=True)
class Shape:
    """Widths and counts of a decoder.

    width: of the residual stream. heads, key_value_heads: per layer. head_width: of each. mlp_width: of the gated MLP.
    tied: the output head is the input embedding. qkv_bias, head_norm: Qwen2's biases, Qwen3's norms of query and key.
    longest: positions that it has room for; None when it does not say. experts: in place of the MLP of some layers.
    latent: in place of the attention of all.
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
        """Of the values that a token's heads attend to, and of what they hand to the output projection."""
        return self.heads * (self.latent.value if self.latent else self.head_width)

    @property
    def key_value_width(self) -> int:
        return self.key_value_heads * self.head_width

    @property
    def embedding(self) -> int:
        """Parameters of the input embedding; an untied output head has as many again."""
        return self.vocabulary * self.width

    @property
    def largest(self) -> int:
        """Parameters of the largest tensor: the embedding, or gate and up of a layer's experts, which are one."""
        return max(self.embedding, 2 * self.experts.held(self.width) // 3 if self.experts else 0)

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention with the layer's two norms: query, key, value, output projection."""
        norms = 2 * self.width + (2 * self.head_width if self.head_norm else 0)
        if self.latent:
            linear = self.latent.linear(self.width, self.heads).values()
            return sum(inputs * outputs for inputs, outputs in linear) + self.latent.norms + norms
        bias = self.query_width + 2 * self.key_value_width if self.qkv_bias else 0
        return self.width * (2 * self.query_width + 2 * self.key_value_width) + bias + norms

    @property
    def layer(self) -> int:
        """Parameters of one layer without experts: attention, gate, up and down, norms."""
        return self.attention + 3 * self.width * self.mlp_width

    @property
    def inner(self) -> int:
        """Parameters of all layers and the last norm."""
        of_kind = {False: self.layer, True: self.experts and self.attention + self.experts.parameters(self.width)}
        return sum(count * of_kind[has] for count, has in kinds(self)) + self.width

    @property
    def parameters(self) -> int:
        """All of them: embedding, layers, last norm, and the head when it is not tied."""
        return self.embedding * (1 if self.tied else 2) + self.inner

    @property
    def critic(self) -> int:
        """Parameters of a critic of this shape: no output head, but one of width 1 with its bias."""
        return self.embedding + self.inner + self.width + 1


def kinds(shape: Shape) -> list[tuple[int, bool]]:
    """The kinds of layers that a decoder has, as (how many, whether they have experts)."""
    sparse = shape.experts.layers if shape.experts else 0
    return [(count, has) for count, has in ((shape.layers - sparse, False), (sparse, True)) if count]


def shape_of(config: dict[str, Any]) -> Shape | None:
    """The shape that a Hugging Face config.json describes; None when it is none that is counted here."""
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
    """Why no shape is made of a config.json; None when one is."""
    kind = config.get("model_type")
    if kind not in KNOWN:
        return f"its model_type is {kind}; counted are {', '.join(KNOWN)}"
    if kind in DENSE and (own := [key for key in EXPERTS if config.get(key)]):
        return f"its model_type is {kind}, and it has {', '.join(own)}: a {kind} has no experts"
    said = {**mixture.ABSENT.get(kind, {}), **config}
    lacking = [key for key in (*NEEDED, *mixture.NEEDED.get(kind, ())) if not said.get(key)]
    return f"its model_type is {kind}, and its {CONFIG} does not say {', '.join(lacking)}" if lacking else None


def shape_of_init(model: dict[str, Any]) -> Shape:
    """The shape of the model that the section `model` has made (`model.init`)."""
    init = model["init"]
    return Shape(
        vocabulary=CHARACTERS, width=init["hidden_size"], layers=init["num_hidden_layers"],
        heads=init["num_attention_heads"], key_value_heads=init["num_key_value_heads"],
        head_width=init["hidden_size"] // init["num_attention_heads"], mlp_width=init["intermediate_size"],
        tied=init["tie_word_embeddings"], qkv_bias=True,
    )


def read_shape(model: dict[str, Any]) -> Shape | None:
    """The shape of the model that the section `model` names; None when it is not here, or none that is counted."""
    if model["init"]["enable"]:
        return shape_of_init(model)
    return shape_at(model["model_path"])


def shape_at(directory: str | None) -> Shape | None:
    """The shape of the model in a directory; None without one, or when it is none that is counted."""
    if not directory or not (Path(directory) / CONFIG).is_file() or wrong_model(directory):
        return None  # each of them is told where a configuration is judged
    return shape_of(read_config(directory))


def read_config(path: str, key: str = "model.model_path") -> dict[str, Any]:
    """What config.json says of the model at `path`, the value of the setting `key`. Raises ModelError when it is no
    JSON object, or has a size that is no whole number."""
    found = json_object(Path(path) / CONFIG, f"{key}={path}")
    if not found.get("model_type"):
        raise ModelError(f"{key}={path}: {CONFIG} there has no model_type, such as qwen2. Fetch the model again.")
    if wrong := wrong_sizes(found):
        raise ModelError(f"{key}={path}: {CONFIG} there has {', '.join(wrong)}; needed whole numbers.")
    return found


def wrong_sizes(config: dict[str, Any]) -> list[str]:
    """The sizes of a counted model, as `name=value`, that are not what they must be.

    One for which transformers has a value of its own may be absent, not null, with which it builds no model.
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
    """Sizes of a counted model, all whole numbers, that do not divide as attention needs it."""
    pairs = [("num_attention_heads", "num_key_value_heads")]
    if "head_dim" not in given and not kind.startswith(("qwen3", "deepseek")):  # those have head widths of their own
        pairs += [("hidden_size", "num_attention_heads")]
    return [f"{by}={given[by]} (no divisor of {of}={given[of]})" for of, by in pairs
            if of in given and by in given and given[of] % given[by]]


def json_object(file: Path, told: str) -> dict[str, Any]:
    """What a file of a model's directory says. told: the setting that names the directory, and its value. Raises
    ModelError when it is no JSON object."""
    try:
        if (text := file.read_text(encoding="utf-8")).startswith("version https://git-lfs"):
            raise ModelError(f"{told}: {file.name} there is a pointer of Git LFS: run `git lfs pull`.")
        found = json.loads(text)
    except ValueError as error:  # no JSON, or no text at all
        raise ModelError(f"{told}: {file.name} there is not valid JSON ({error}). Fetch the model again.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{told}: {file.name} there is no JSON object, {{...}}. Fetch the model again.")
    return found


def wrong_model(path: str, key: str = "model.model_path") -> str | None:
    """What is wrong with the config.json of the model at `path`, the value of the setting `key`, where it has one."""
    try:
        if (Path(path) / CONFIG).is_file():
            read_config(path, key)
    except ModelError as error:
        return str(error)
    return None


def absent_model(path: str, key: str = "model.model_path") -> str | None:
    """What is wrong when `path`, the value of the setting `key`, is no Hugging Face model directory."""
    if (Path(path) / CONFIG).is_file():
        return None
    place = Path(path)
    found = "the directory is empty" if place.is_dir() and not any(place.iterdir()) else (
        "the directory has no config.json" if place.is_dir() else
        "it is a file" if place.exists() else "no config.json there")
    return (f"{key}={path}: {found}; needed a Hugging Face model directory (config.json, *.safetensors, tokenizer "
            "files), or an id of the hub (org/name).")


def room_problem(path: str, limits: dict[str, Any], room: Any, key: str = "model.model_path") -> str | None:
    """What is wrong when the longest sequence that a stage allows exceeds the room of the model at `path`, tokens.

    key: the setting that names it. limits: the section `model` of the stage. room: `max_position_embeddings` of
    config.json; nothing is judged when it is no number.
    """
    longest = limits["max_model_len"] or limits["max_prompt_tokens"] + limits["max_response_tokens"]
    if not isinstance(room, int) or room >= longest:
        return None
    return (f"{key}={path} has room for {room} tokens (max_position_embeddings), and "
            f"model.max_model_len, or prompt + response, is {longest}. Shorten model.max_prompt_tokens or "
            "model.max_response_tokens.")


def split_problem(shape: Shape, tensor_parallel: int) -> str | None:
    """What is wrong when vLLM cannot cut the attention heads into `tensor_parallel` equal parts."""
    own, shared = shape.heads, shape.key_value_heads
    whole = own % tensor_parallel == 0 and (shared % tensor_parallel == 0 or tensor_parallel % shared == 0)
    if whole:
        return None
    fitting = [n for n in range(1, own + 1)
               if own % n == 0 and (shared % n == 0 or n % shared == 0)]
    return (f"explorer.rollout_model.tensor_parallel_size={tensor_parallel}: the model has {own} attention heads and "
            f"{shared} key/value heads, which must be cut evenly; needed one of {', '.join(map(str, fitting))}.")
