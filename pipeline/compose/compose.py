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
from typing import Any, NamedTuple

from ouroboros.pipeline.compose import axes
from ouroboros.pipeline.compose.branching import branch_of
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
from ouroboros.pipeline.compose.interpolation import stage_names, unreadable
from ouroboros.pipeline.settings import guide, schema, secrets
from ouroboros.pipeline.settings.key_names import exists, letters_lost
from ouroboros.pipeline.settings.setting import at, leaves
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest

TITLE = "the configuration has problems:"


def composition(overrides: list[str]) -> tuple[dict[str, Any], list[Problem]]:
    """Returns files and overrides merged, in plain dicts and lists, interpolations unresolved, stages in their entries;
    and the problems. Types are unchecked. What cannot be merged, such as a list over a section, is left out."""
    from omegaconf import OmegaConf

    branch = branch_of(overrides)
    places, words = directories(), read(branch.words if branch else overrides, branch is None)
    problems = words.problems
    stamps = _stamps(places, words.choices)
    made = pickle.loads(_of_groups(words.choices, tuple(map(str, places)), stamps))  # six times as fast as deepcopy
    for override in sorted(words.values, key=lambda one: one.key_or_group.startswith("stages.")):  # of the run first
        whole = OmegaConf.to_container(made, resolve=False)  # interpolations that are replaced may be invalid
        key, wrong = _place(whole, override)
        problems = problems + wrong
        if key:
            key, value = branch.placed(whole, key, override.value()) if branch else (key, override.value())
            OmegaConf.update(made, key, value, merge=True, force_add=True)
    return OmegaConf.to_container(made, resolve=False), problems


# ---------------------------------------------------------------------------------------------------------- overrides


class Words(NamedTuple):
    """Overrides as they are understood. choices: `group=choice`, as Hydra takes them. values: Hydra's parses of those
    that set a key."""

    choices: tuple[str, ...]
    values: list[Any]
    problems: list[Problem]


def read(overrides: list[str], chooses: bool = True) -> Words:
    """Returns the overrides, and where `chooses` what the project's conf/config.yaml chooses, as they are understood.

    Raises ConfigError, with the problems of all overrides, when a file that one chooses cannot be read, or two choose.
    """
    known, found, stopped = groups(), [], False
    problems: list[Problem] = []
    words = [*(chosen_by_project(overrides) if chooses else ()), *overrides]
    chosen, twice = [key for key in map(axes.key_of, overrides) if key in known], axes.set_twice(overrides)
    for override in words:
        try:
            word, wrong = _understood(override, known)
        except ConfigError as error:
            word, wrong, stopped = None, error.problems, True
        found += [word] if word else []
        problems += wrong
    problems += twice
    if stopped or len(set(chosen)) < len(chosen):  # the rest depends on which recipe is meant
        raise ConfigError.of(TITLE, problems)
    return Words(tuple(word for word in found if isinstance(word, str)),
                 [word for word in found if not isinstance(word, str)], problems)


def _understood(override: str, known: dict[str, list[str]]) -> tuple[Any, list[Problem]]:
    """Returns `group=choice`, or Hydra's parse of a value; None with the problem of an invalid override."""
    if why := _malformed(override):
        return None, [_problem(override, *why)]
    key, raw = override.lstrip("+").split("=", 1)
    typed = override
    if raw.startswith("~/"):  # the shell does not expand it after key=
        override = axes.word_of(key, Path(raw).expanduser())
        raw = override.partition("=")[2]
    try:
        word, unparsed = axes.parsed(override), []
    except ValueError as error:  # of Hydra's grammar, or a number with thousands of digits
        word, unparsed = None, [_unparsed(override, secrets.typed(typed), str(error))]
    if word and word.is_sweep_override():
        return None, [_problem(typed, "gives values of a sweep; needed one value.", "For a run of each: ouro run -m. A "
                               "list is [1,2], and a text with commas goes in quotes.")]
    if key in known and not raw.startswith("{"):
        choice, wrong = choose(key, word.value() if word and raw.startswith(("'", '"')) else raw, known)
        return axes.parsed(choice) if choice and "." in choice.partition("=")[0] else choice, wrong
    if not key.startswith("stages.") and not exists(key) and not guide.may_hold(key):
        return None, [schema.unknown(key, known)]
    if not word:
        return None, unparsed
    lost = letters_lost(key, word.value(), override)
    wrong = [why for _, text in leaves(word.value()) if isinstance(text, str) and (why := unreadable(text))] + lost
    return None if wrong else word, [_problem(typed, why) for why in wrong[:1]]


def _problem(override: str, *why: str) -> Problem:
    """Returns the problem of a word of the command line, shown without secrets."""
    return Problem(f"'{secrets.typed(override)}'", *why)


def _malformed(override: str) -> tuple[str, str] | None:
    """Returns why a word is no override, and what to write."""
    if not axes.key_of(override).strip():
        return "has no key before the '='.", "Write key=value."
    if "=" not in override or override.startswith("~"):
        return "is not an override.", ("Write key=value. (A setting cannot be deleted: give it another value, such as "
                                       "null.)")
    return None


def _unparsed(override: str, shown: str, error: str) -> Problem:
    """Returns the problem of a value that Hydra cannot parse. shown: the override without secrets."""
    why = _why(override.partition("=")[2], error) if shown == override else "."  # a word quoted by Hydra may be secret
    key, _, value = shown.lstrip("+").partition("=")
    return Problem(f"'{shown}'", f"the value cannot be read{why}", (
        r"In a mapping or list a text goes in quotes, and a colon of a key after a backslash: {a\:1: 'b c'}."
        if value.startswith(("{", "[")) else "A text with other characters than letters, digits and . _ - / goes in "
        f"quotes: {_quoted(key, value)}."))


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


def _place(whole: dict[str, Any], override: Any) -> tuple[str | None, list[Problem]]:
    """Returns the key in a composition that an override sets, in which a stage is an element; None with the problem of
    one that cannot be merged there."""
    key, value, typed = override.key_or_group, override.value(), override.input_line.lstrip("+")
    if key.startswith("stages."):
        key, wrong = of_stage(stage_names(whole["stages"]), key, typed)
    else:
        wrong = [_problem(typed, why) for why in filter(None, [_lacking(whole, key)])]
    if wrong:
        return None, wrong
    _, misfits = schema.fitting({key: value}, {key: at(whole, key)})
    return None if misfits else key, misfits


def of_stage(names: list[str], key: str, typed: str) -> tuple[str, list[Problem]]:
    """Returns `stages.<index>.key` for `stages.<name>.key`, and why that is none. names: of the stages."""
    _, name, *path = key.split(".")
    if name in names and not path:
        return key, [_problem(typed, f"needed a key of the stage, stages.{name}.key=value.")]
    if not names:
        return key, [_problem(typed, "this recipe has no `stages`: the settings of the run are those of its only "
                              "stage.", f"Write {secrets.typed(typed).removeprefix(f'stages.{name}.')}.")]
    if name not in names:
        return key, [_problem(typed, f"no stage '{name}' in this recipe.{nearest(name, names)} Stages: "
                              f"{', '.join(names) or 'none'}.")]
    return ".".join(["stages", str(names.index(name)), *path]), []


# -------------------------------------------------------------------------------------------------------------- Hydra


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
    named = [stored.path for choice in choices if (stored := STORED.get(choice.replace("=", "/", 1)))]
    files = [*named, *(file for place in places for file in place.rglob("*.yaml"))]
    found = ((file, file.stat()) for file in files if file.is_file())
    return tuple(sorted((str(file), made.st_size, made.st_mtime_ns) for file, made in found))


@lru_cache(maxsize=256)
def _of_groups(choices: tuple[str, ...], places: tuple[str, ...], stamps: tuple) -> bytes:
    """Returns the composed files, pickled. Cached per choice of groups: the points of a sweep differ in values."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf.errors import OmegaConfBaseException

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
