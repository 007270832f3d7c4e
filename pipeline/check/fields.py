"""Every setting as data, for a form: what `ouro config explain` says, of all keys at once.

Meaning, unit, bounds, default and choices are declared once, in pipeline/settings; a setting that is declared there is
a field here.
"""

from typing import Any

from ouroboros.pipeline.check.explain import NAMED_BY, bounds, chosen, shown, type_name
from ouroboros.pipeline.check.workload import counted, workload
from ouroboros.pipeline.compose.recipe import Recipe, effective, entries
from ouroboros.pipeline.settings.arguments.base import Arguments, types
from ouroboros.pipeline.settings.arguments.base import bounds as argument_bounds
from ouroboros.pipeline.settings.arguments.base import choices as argument_choices
from ouroboros.pipeline.settings.config import RUN_WIDE, Config, walk
from ouroboros.pipeline.settings.declared import TABLES
from ouroboros.pipeline.settings.key_names import general
from ouroboros.pipeline.settings.schema import default
from ouroboros.pipeline.settings.secrets import mask
from ouroboros.pipeline.settings.setting import about, leaves, plain, values_of
from ouroboros.pipeline.store.files import CONF


def fields() -> list[dict[str, Any]]:
    """Returns each setting: `key` (with `*` for an element), `type`, `default` (null where an argument is needed) and
    `choices` as YAML has them, `names` as [name, what it is], `bounds`, `meaning`, `how` (changes no result), `text` (a
    value is a text), `run_wide`."""
    return [_field(key, item) for key, item in walk() if key != "stages"]


def _field(key: str, item) -> dict[str, Any]:
    said, last = about(item), key.rpartition(".")[2]
    algorithms = key == "algorithm.algorithm_type"
    known = [[name, model.summary()] for name, model in TABLES.get(last, {}).items()]
    return {"key": key, "type": type_name(item.annotation), "default": shown(plain(default(item))),
            "choices": [] if algorithms or known else [shown(one) for one in said.choices or ()],
            "names": [[name, _paper(name)] for name in said.choices] if algorithms else known or [
                [name, ""] for name in said.names or ()],
            "bounds": "" if said.choices or said.names else bounds(item), "meaning": item.description, "how": said.how,
            "text": is_text(key), "run_wide": key.partition(".")[0] in RUN_WIDE}


def _paper(algorithm: str) -> str:
    """Returns the comment that an algorithm's file begins with; empty for one of the user's own."""
    file = CONF / "algorithm" / f"{algorithm}.yaml"
    first = file.read_text(encoding="utf-8").partition("\n")[0] if file.is_file() else ""
    return first.removeprefix("# ") if first.startswith("#") else ""


def is_text(key: str) -> bool:
    """Returns whether the values of a setting are texts alone, or null."""
    found = next((item for name, item in walk() if name == general(key)), None)
    return found is not None and types(found.annotation) == [str]


def arguments(config: Config) -> dict[str, list[dict[str, Any]]]:
    """Returns the arguments of the functions of ours that each `*_args` of a configuration is for, as of `fields`: of
    the run under "", of a stage under its name."""
    scopes = {"": ""} | {entry["stage_name"]: entry["stage_name"] for entry in config.stages}
    return {scope: [_argument(f"{key}.{name}", one) for key in _of_functions(config)
                    for name, one in _parameters(config, stage, key).items()] for scope, stage in scopes.items()}


def _of_functions(config: Config) -> list[str]:
    free = [key for key, item in walk() if key.endswith("_args") and item.annotation == dict[str, Any]]
    return [found for key in free for found, _ in values_of(config, key)]


def _parameters(config: Config, stage: str, key: str) -> dict[str, Any]:
    """Returns the parameters of the functions of ours that are called with the arguments of a key, by their names."""
    path = key.split(".")
    part = NAMED_BY.get(path[-1], path[-1].removesuffix("_args"))
    if part not in TABLES:
        return {}
    called = chosen(config, stage, path[:-1], path[-1], part)
    takers = [TABLES[part].get(name) for name in called]
    return {name: field for taker in takers if taker and issubclass(taker, Arguments)
            for name, field in taker.model_fields.items()}


def _argument(key: str, field) -> dict[str, Any]:
    return {"key": key, "type": type_name(field.annotation), "names": [], "how": False, "run_wide": False,
            "default": None if field.is_required() else shown(plain(field.default)),
            "choices": [shown(one) for one in argument_choices(field)], "bounds": argument_bounds(field),
            "meaning": field.description or "", "text": types(field.annotation) == [str]}


def steps(config: Config) -> dict[str, int | None]:
    """Returns the optimizer steps of each training stage; None where they are known once its rows are curated."""
    return {name: workload(settings).trainer_steps for name, settings in counted(Recipe.of(config)).items()}


def values(config: Config) -> dict[str, dict[str, str]]:
    """Returns every value that is not the schema's default, elements and arguments too, secrets masked: of the run
    under "", of a stage, with what it inherits and its algorithm chooses, under its name."""
    each = {entry["stage_name"]: effective(config, entry) for entry in entries(config)}
    scopes = {"": config} | each if config.stages else {"": next(iter(each.values()))}
    usual = {key: plain(default(item)) for key, item in walk()}
    return {name: _values(settings, usual) for name, settings in scopes.items()}


def _values(settings: Config, usual: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in usual:
        for place, value in values_of(settings, key) if key != "stages" else ():
            if (masked := mask(plain(value))) != usual[key]:
                found[place] = shown(masked)
                found |= {f"{place}.{inner}": shown(one) for inner, one in leaves(masked) if inner}
    return found
