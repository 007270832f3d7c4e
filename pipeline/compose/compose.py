"""Composes conf/ and the command line into one checked configuration (Hydra), or explains why it cannot.

`composition(overrides)` returns an OmegaConf container: the schema's defaults, then conf/config.yaml, then the recipe
and the groups that were chosen, then the overrides. Overrides are Hydra's (`key=value`, `group=choice`);
`stages.<stage_name>.key=value` changes one stage of the recipe. Recipes and groups are looked up in our conf/ and in
the conf/ of the current directory, whose config.yaml may say which are chosen by default; `recipe=path/to/file.yaml`
names a file. Every problem is found before any is reported.
"""

import pickle
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.conf_files import (
    STORED,
    absent_default,
    choose,
    chosen_by_project,
    directories,
    flat,
    groups,
    search_path,
)
from ouroboros.pipeline.compose.interpolation import unreadable
from ouroboros.pipeline.settings import guide, schema, secrets
from ouroboros.pipeline.settings.key_names import exists
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

TITLE = "the configuration has problems:"


def composition(overrides: list[str], problems: list[Problem]):
    """Returns files and overrides as an OmegaConf container; interpolations unresolved, stages in their entries."""
    plain = hydra_overrides(overrides, problems)
    composed = _hydra([o for o in plain if not o.lstrip("+").startswith("stages.")], problems)
    for override in (o for o in plain if o.lstrip("+").startswith("stages.")):
        _override_stage(composed, override, problems)
    return composed


# ---------------------------------------------------------------------------------------------------------- overrides


def hydra_overrides(overrides: list[str], problems: list[Problem]) -> list[str]:
    """Converts the overrides to Hydra's form; invalid ones are added to the problems.

    Raises ConfigError, with the problems of all overrides, when a file that one chooses cannot be read, or two choose.
    """
    known, unreadable = groups(), 0
    understood = []
    for override in [*chosen_by_project(overrides), *overrides]:
        try:
            understood.append(_understood(override, known, problems))
        except ConfigError as error:
            problems += error.problems
            unreadable += 1
    problems += axes.set_twice(overrides)
    chosen = [key for key, _, _ in (override.lstrip("+").partition("=") for override in overrides) if key in known]
    if unreadable or len(set(chosen)) < len(chosen):  # the rest depends on which recipe is meant
        raise ConfigError.of(TITLE, problems)
    return [override for override in understood if override]


def _understood(override: str, known: dict[str, list[str]], problems: list[Problem]) -> str | None:
    """Converts one override to Hydra's form; None, with a problem, when it is invalid."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from ouroboros.pipeline.compose.typed_texts import as_typed

    shown = secrets.typed(override)
    if not override.lstrip("+").partition("=")[0].strip():
        problems.append(Problem(f"'{shown}'", "has no key before the '='.", "Write key=value."))
        return None
    if "=" not in override or override.startswith("~"):
        problems.append(Problem(f"'{shown}'", "is not an override.", "Write key=value. (A setting cannot be deleted: "
                                "give it another value, such as null.)"))
        return None
    if axes.has_several(override):
        problems.append(Problem(f"'{shown}'", "gives values of a sweep; needed one value.", "For a run of each: ouro "
                                "run -m. A list is [1,2], and a text with commas goes in quotes."))
        return None
    key, raw = override.lstrip("+").split("=", 1)
    if raw.startswith("~/"):  # the shell does not expand it after key=
        raw = f"'{Path(raw).expanduser()}'"
        override = f"{key}={raw}"
    if key in known and not raw.startswith("{"):
        return choose(key, raw.strip("'\""), known, problems)
    if not key.startswith("stages.") and not exists(key) and not guide.may_hold(key):
        problems.append(schema.unknown(key, known))
        return None
    override = as_typed(override)
    try:
        value = OverridesParser.create().parse_override(override).value()
    except (HydraException, ValueError) as error:  # a number with thousands of digits
        why = _why(raw, str(error)) if shown == override else "."  # a word quoted by Hydra may be the secret
        key, value = shown.lstrip("+").split("=", 1)
        problems.append(Problem(f"'{shown}'", f"the value cannot be read{why}", (
            r"In a mapping or list a text goes in quotes, and a colon of a key after a backslash: {a\:1: 'b c'}."
            if value.startswith(("{", "[")) else "A text with other characters than letters, digits and . _ - / goes "
            f"in quotes: {_quoted(key, value)}.")))
        return None
    if why := next(filter(None, (unreadable(text) for _, text in secrets.texts(value))), None):
        problems.append(Problem(f"'{shown}'", why))
        return None
    return "++" + override.lstrip("+")  # no key is appended: it exists in the schema, even if in no file


def _why(value: str, error: str) -> str:
    """Explains an invalid override value: an unmatched bracket or quote, or Hydra's message."""
    pairs = {"[": "]", "{": "}", "(": ")"}
    for opened, closed in pairs.items():
        if value.count(opened) != value.count(closed):
            return f": its '{opened}' and '{closed}' do not match."
    if any(value.count(quote) % 2 for quote in "'\""):
        return ": a quote in it is not closed."
    place = re.search(r"mismatched input '(.+?)'|at input '(.+?)'|recognition error at: '(.+?)'", error)
    return f": Hydra stops at '{next(filter(None, place.groups()))}'." if place else "."


def _quoted(key: str, value: str) -> str:
    """Returns the override with its value quoted as text."""
    plain = re.sub("['\"]", "", value)
    return f"\"{key}='{plain}'\""


def stage_names(stages: Any) -> list[str]:
    """Returns the names of the entries of `stages`, whatever their type."""
    return ([str(entry.get("stage_name") if isinstance(entry, dict) else entry) for entry in stages]
            if isinstance(stages, list) else [])


def _override_stage(composed, override: str, problems: list[Problem]) -> None:
    """Applies `stages.<name>.key=value` to the stage of that name."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_override(override)
    _, name, *path = parsed.key_or_group.split(".")
    names = stage_names(OmegaConf.to_container(composed, resolve=False)["stages"])
    shown = secrets.typed(override.lstrip("+"))
    if name in names and not path:
        problems.append(Problem(f"'{shown}'", f"needed a key of the stage, stages.{name}.key=value."))
        return
    if not names:
        problems.append(Problem(f"'{shown}'", "this recipe has no `stages`: the settings of the run are those of its "
                                "only stage.", f"Write {shown.removeprefix(f'stages.{name}.')}."))
        return
    if name not in names:
        problems.append(Problem(f"'{shown}'", f"no stage '{name}' in this recipe.{nearest(name, names)} Stages: "
                                f"{', '.join(names) or 'none'}."))
        return
    try:
        OmegaConf.update(composed, ".".join(["stages", str(names.index(name)), *path]), parsed.value(), force_add=True)
    except Exception as error:  # a key below a non-section value: OmegaConf has no type for it
        problems.append(Problem(".".join(path), str(error).splitlines()[0], stages=[name]))


# -------------------------------------------------------------------------------------------------------------- Hydra


def _hydra(overrides: list[str], problems: list[Problem]):
    """Returns the composition as an OmegaConf container, interpolations unresolved, types unchecked.

    What cannot be merged, such as a list over a section, is omitted and added to the problems.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    parsed = OverridesParser.create().parse_overrides(overrides)
    choices = tuple(o.input_line for o in parsed if not o.is_force_add())
    places = directories()
    stamps = _stamps(places, choices)
    made = pickle.loads(_of_groups(choices, tuple(map(str, places)), stamps))  # six times as fast as deepcopy
    for override in (o for o in parsed if o.is_force_add()):
        key, value = override.key_or_group, override.value()
        whole = OmegaConf.to_container(made, resolve=False)  # interpolations that are replaced may be invalid
        if lacking := _lacking(whole, key):
            typed = secrets.typed(f"{key}={override.get_value_element_as_str()}")
            problems.append(Problem(f"'{typed}'", lacking))
            continue
        if schema.fitting({key: value}, {key: at(whole, key)}, "", problems):
            OmegaConf.update(made, key, value, merge=True, force_add=True)
    return made


def _lacking(whole: dict, key: str) -> str | None:
    """Returns the message for a missing list element; overrides only change elements that a recipe has."""
    node, above = whole, []
    for part in key.split("."):
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                name, there = ".".join(above), f"has {len(node)}, counted from 0" if len(node) else "is empty"
                return (f"{name} has no element {part}: it {there}. An override changes an element that is there; to "
                        f"set the list as a whole: {name}=[{{...}}].")
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, dict) else None
        above.append(part)
    return None


def _stamps(places: Sequence[Path], choices: Sequence[str]) -> tuple[tuple[str, int, int], ...]:
    """Returns name, size and time of every file of groups, and of those that choices name by path, so that one that is
    written anew is read anew."""
    named = [path for choice in choices if (path := STORED.get(choice.partition("=")[2]))]
    files = [*named, *(file for place in places for file in place.rglob("*.yaml"))]
    found = ((file, file.stat()) for file in files if file.is_file())
    return tuple(sorted((str(file), made.st_size, made.st_mtime_ns) for file, made in found))


@lru_cache(maxsize=256)
def _of_groups(choices: tuple[str, ...], places: tuple[str, ...], stamps: tuple) -> bytes:
    """Returns the composed files, pickled. Cached per choice of groups: the points of a sweep differ in values."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "schema.yaml" not in ConfigStore.instance().repo:
        ConfigStore.instance().store(name="schema", node=OmegaConf.create(schema.defaults()))
    try:
        with search_path(places):
            return pickle.dumps(hydra_compose("config", [*choices]))
    except yaml.YAMLError as error:
        raise ConfigError(f"a file of conf/ is no YAML: {flat(error)}") from error
    except MissingConfigException as error:
        raise ConfigError(absent_default(str(error.missing_cfg_file), str(error))) from error
    except RecursionError as error:
        raise ConfigError(f"the `defaults` of a file lead back to the file itself, or nest too deep; chosen: "
                          f"{', '.join(choices)}. Take the entry out.") from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:  # of a list of defaults
        cause = error.__cause__ if isinstance(error.__cause__, (OmegaConfBaseException, yaml.YAMLError)) else error
        raise ConfigError(f"the configuration cannot be composed: {flat(cause).rstrip('.?')}. The `defaults` of a "
                          "recipe name other recipes alone (defaults: [gsm8k, _self_]); a group is chosen by a word of "
                          "the command (model=tiny), an algorithm by algorithm.algorithm_type.") from error
