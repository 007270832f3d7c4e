"""The values that transformers gives to keys absent from a config.json, read from the source of its class.

config.json leaves out keys at their defaults, and defaults differ by family: heads of Gemma are 256 wide, layers of
Mistral attend to the last 4,096 tokens. The source is read, not imported: that would take torch.
"""

import ast
from functools import cache
from typing import Any

from ouroboros.pipeline.store.packable import family_directory, transformers_file


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of a config.json, or of the part of its text, with those defaults of its family that are
    constants. What a family names otherwise (GPT-2's n_head) is there under the usual name (num_attention_heads) too.
    """
    defaults, names = _of_family(str(config.get("model_type", "")))
    found = config | {key: value for key, value in defaults.items() if key not in config}
    return found | {usual: found[own] for usual, own in names.items() if own in found and usual not in config}


@cache
def _of_family(model_type: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the defaults, and usual name -> own name of keys; both empty without such a class."""
    name = family_directory(model_type)
    text = transformers_file(name, f"configuration_{name}.py") if name.isidentifier() else None
    for node in ast.parse(text or "").body:
        found = _constants(node) if isinstance(node, ast.ClassDef) else {}
        if found.get("model_type") == model_type:
            return found, found.pop("attribute_map", {})
    return {}, {}


def _constants(node: ast.ClassDef) -> dict[str, Any]:
    found = {}
    for one in node.body:
        target = getattr(one, "target", None) or (one.targets[0] if isinstance(one, ast.Assign) else None)
        if isinstance(target, ast.Name) and getattr(one, "value", None) is not None:
            try:
                found[target.id] = ast.literal_eval(one.value)
            except ValueError:  # made by a function
                continue
    return found
