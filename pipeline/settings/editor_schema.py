"""The JSON schema of recipes for completion and validation in editors: `ouro config schema`, conf/schema.json."""

from typing import Any

from ouroboros.pipeline.settings.config import RUN_WIDE, Config
from ouroboros.pipeline.settings.guide import fates
from ouroboros.pipeline.settings.key_tables import NUMBER, OWN_NAME, Always
from ouroboros.pipeline.settings.setting import elements, is_section

# any setting may be an interpolation, so that text is valid for a number or a choice too
INTERPOLATION = {"type": "string", "pattern": r"\$\{"}
OF_A_RECIPE = {"defaults": {"type": "array", "description": "recipes that come before this one, such as - gsm8k"}}
OF_A_STAGE = {
    "stage_name": {"type": "string", "description": "its name: letters, digits and '_'"},
    "after": {"description": "stages that it comes after: a name, or a list of names; absent: the one above it",
              "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
}


def editor_schema() -> dict[str, Any]:
    """Returns the JSON schema (draft 2020-12) of a recipe: keys optional, unknown ones rejected, described."""
    made = Config.model_json_schema()
    sections = {name: {**one, "properties": _properties(one)} for name, one in made.pop("$defs").items()}
    settings = _properties(made)
    for key, fate in fates().items():
        if isinstance(fate, Always):
            _allow(key, fate, settings, sections)
    of_stage = {key: one for key, one in settings.items() if key not in RUN_WIDE}
    stage = {"type": "object", "additionalProperties": False, "required": ["stage_name"],
             "properties": OF_A_STAGE | of_stage}
    settings["stages"] = {**settings["stages"], "anyOf": [{"type": "array", "items": stage}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A recipe of Ouroboros",
            "type": "object", "additionalProperties": False, "properties": OF_A_RECIPE | settings, "$defs": sections}


def _allow(key: str, fate: Always, settings: dict[str, Any], sections: dict[str, Any]) -> None:
    """Adds a key that says what always holds to its section; a section that is not ours is free."""
    kind, (*place, name) = Config, key.split(".")
    for part in place:
        field = kind.model_fields.get(part) if part != "*" else None
        if part != "*" and field is None:
            return
        kind = kind if field is None else field.annotation if is_section(field.annotation) else elements(
            field.annotation)
    named = [one for one in fate.values if one not in (NUMBER, OWN_NAME)]
    free = {"type": "number", "minimum": 0} if NUMBER in fate.values else {"type": ["string", "null"]}
    kinds = {"type": ["object", "null"]} if {} in named else {"enum": named} if named == [*fate.values] else free
    properties = settings if kind is Config else sections[kind.__name__]["properties"]
    properties[name] = {"description": f"always so: {fate.why}", **kinds}


def _properties(section: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a section, each also as an interpolation; redundant titles are omitted."""
    return {key: _or_interpolation(one) for key, one in section["properties"].items()}


def _or_interpolation(setting: dict[str, Any]) -> dict[str, Any]:
    kept = {name: setting[name] for name in ("description", "default") if name in setting}
    kinds = {name: value for name, value in setting.items() if name not in (*kept, "title")}
    return {**kept, "anyOf": [kinds, INTERPOLATION]}
