"""Data-Juicer's recipes: YAML files, or lists of operators with name and args."""

from pathlib import Path
from typing import Any

from ouroboros.pipeline.store.errors import ConfigError


def read_recipe(path: Path) -> dict[str, Any]:
    """Reads a recipe file. Raises ConfigError when it is missing, not YAML, or has no list `process`."""
    import yaml

    try:
        recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"Data-Juicer recipe {path} cannot be read: {error}") from error
    if not isinstance(recipe, dict) or not isinstance(recipe.get("process"), list):
        raise ConfigError(f"Data-Juicer recipe {path} has no list `process:` of operators.")
    if recipe.get("custom_operator_paths"):
        raise ConfigError(f"Data-Juicer recipe {path}: custom_operator_paths is not supported, as their content would "
                          "not enter the stage's identity. Add the operator to OURS in operators/curation.py.")
    if (executor := recipe.get("executor_type", "default")) != "default":
        raise ConfigError(f"Data-Juicer recipe {path}: executor_type: {executor} is not here: the operators run in the "
                          "processes of the stage curate, on one machine (task_pipeline.num_process). Leave it out.")
    return recipe


def inline_recipe(operators: list[dict[str, Any]], text_keys: list[str]) -> dict[str, Any]:
    """A recipe from operators with `name` and `args`, as in the Trinity-RFT guide."""
    return {"process": [{one["name"]: one.get("args") or {}} for one in operators], "text_keys": text_keys}


def text_key_of(recipe: dict, default: str) -> str:
    keys = recipe.get("text_keys") or default
    return keys if isinstance(keys, str) else keys[0]


def items(recipe: dict):
    """(operator name, arguments) of each item of `process`, which may be only a name."""
    for item in recipe["process"]:
        if isinstance(item, str):
            yield item, {}
        elif isinstance(item, dict) and len(item) == 1 and isinstance(next(iter(item.values())), dict | None):
            name, arguments = next(iter(item.items()))
            yield name, dict(arguments or {})
        else:
            raise ConfigError(f"recipe line {item!r}: needed `- operator_name: {{argument: value}}`.")
