"""Names in a config.json of layers that carry a state along the sequence: state-space, convolution, linear attention.

Unlike attention, their code in transformers runs over a packed micro-batch as over one sequence. Families spell the
keys differently, so words are looked for in all keys, and in the values of those that list the kinds of layers.
"""

import re
from collections.abc import Iterator
from typing import Any

TYPES = {"minimax_text_01", "phi4flash", "plamo2"}  # families of whose config.json transformers has no defaults
WORDS = re.compile(
    r"(?:^|_)(?:mamba\w*|ssm|s?conv(?:1d|olution)?|lru|rwkv\d*|wkv|[msx]lstm|[a-z]*hyena|ret(?:ention|net)|recurrent|"
    r"rglru|gla|kda|gdn|hgrn\d*|delta_?net|delta_rule|lightning|cca|d_state|state_size|state_dim|dt_rank|time_step|"
    r"linear(?=_(?!bias|scal|rope|warm|unit)))(?:_|$)")
KINDS = re.compile(r"(?:^|_)(?:layers?|blocks?|attn|attention|mixers?)(?:_|$)|pattern")  # keys that may list kinds
OTHER_KINDS = re.compile(r"linear|hybrid(?:_\w+)?")
ATTENDING = {"attn_layer_period", "attn_layer_indices", "attn_layer_idxs", "full_attn_idxs"}  # others do not


def recurrent_layers(config: dict[str, Any]) -> list[str]:
    """Returns what in the content of config.json, nested sections included, names such layers; [] without any.

    A key without a value (null, false, 0, empty) names nothing.
    """
    kind = _words(config.get("model_type", ""))
    found = [f"model_type={kind}"] if kind in TYPES or WORDS.search(kind) or kind.endswith("_linear") else []
    return found + [name for key, value in config.items() for name in _named(key, value)]


def _named(key: str, value: Any) -> Iterator[str]:
    words = _words(key)
    if not value or key == "model_type":
        return
    if WORDS.search(words) or key in ATTENDING:
        yield key
    elif isinstance(value, dict):
        yield from (f"{key}.{name}" for name in recurrent_layers(value))
    elif key == "attn_type_list":  # MiniMax: 0 is linear attention
        yield from [key] * (0 in value)
    elif key == "hybrid_override_pattern":  # Nemotron-H: M is Mamba
        yield from [key] * ("M" in value)
    elif KINDS.search(words):
        kinds = {str(kind) for kind in (value if isinstance(value, list) else [value])}
        yield from (f"{key}={kind}" for kind in sorted(kinds)
                    if WORDS.search(_words(kind)) or OTHER_KINDS.fullmatch(_words(kind)))


def _words(name: Any) -> str:
    return str(name).lower().replace("-", "_")
