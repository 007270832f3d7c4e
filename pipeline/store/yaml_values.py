"""YAML as OmegaConf reads it: `1e-6` is a number, a date is text."""

import re
from typing import Any

import yaml

FLOAT = re.compile(r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\.\d[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+"
                   r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)")


class Loader(yaml.SafeLoader):
    """PyYAML's loader with OmegaConf's definition of a number, and no dates."""


OTHERWISE = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in OTHERWISE]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT.pattern})$"), list("-+0123456789."))


def scalar(text: str) -> Any:
    """Returns the value of a YAML scalar; the text itself when it has no other type."""
    try:
        return plain(yaml.load(text, Loader))
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError):
        return text


def plain(value: Any) -> Any:
    """Converts types that a recipe cannot hold (sets, bytes) to text."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
