"""The files that a composition takes in: which there are in conf/, which are chosen, and what in them cannot be merged.

A file of the user's is read here before Hydra reads it, so that a mistake is told with the file and its line, and
together with all others. What Hydra could not lay over the schema, a list where it has a section, is told and left out.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.settings import algorithms, schema
from pipeline.settings.config import walk
from pipeline.store.errors import ConfigError, nearest
from pipeline.store.files import CONF

OTHER_FORMATS = ("data_juicer",)  # directories of conf/ that are no config group
PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.M)
STORED: dict[str, Path] = {}  # the files that Hydra was given, by the names that it knows them by


def directories() -> list[Path]:
    """The conf/ directories: ours, and that of the current directory when it is another one."""
    own = Path.cwd() / "conf"
    return [CONF, own] if own.is_dir() and own.resolve() != CONF else [CONF]


def search_path(places: Sequence[Path | str]) -> list[str]:
    """The override that lets Hydra look into the user's conf/ too. places: see `directories`."""
    return [f"hydra.searchpath=[file://{place}]" for place in places[1:]]


def groups() -> dict[str, list[str]]:
    """Config groups and their choices. Raises ConfigError for a choice of the user's that is named like one of ours."""
    found: dict[str, list[str]] = {}
    for directory in directories():
        for group in sorted(d for d in directory.iterdir() if d.is_dir() and d.name not in OTHER_FORMATS):
            names = sorted(f.stem for f in group.glob("*.yaml"))
            if twice := set(names) & set(found.get(group.name, [])):
                raise ConfigError(f"{group / min(twice)}.yaml has the name of one of ours, conf/{group.name}/"
                                  f"{min(twice)}.yaml. Rename it: it would never be read.")
            if names:
                found[group.name] = sorted([*found.get(group.name, []), *names])
    return found


def chosen_by_project(overrides: list[str]) -> list[str]:
    """`group=choice` for what the `defaults` of conf/config.yaml in the current directory choose and no override does.

    Raises ConfigError when that file says anything else.
    """
    path = directories()[-1] / "config.yaml"
    if path.parent == CONF or not os.path.lexists(path):
        return []
    needed = "Needed `defaults`, a list of group: choice such as `- recipe: mine`; settings belong into a recipe."
    problems: list[str] = []
    content, _ = _load(path, str(path), problems)
    listed, there = content.get("defaults"), ", ".join(map(str, content)) or "nothing"
    if problems or set(content) != {"defaults"} or not isinstance(listed, Sequence):
        raise ConfigError("\n  ".join([f"{path} holds {there}. {needed}", *problems]))
    if wrong := [one for one in listed if not (isinstance(one, Mapping) and len(one) == 1)]:
        raise ConfigError(f"{path}: {wrong[0]!r} among the defaults. {needed}")
    known, typed = groups(), {override.lstrip("+").partition("=")[0] for override in overrides}
    pairs = [(str(group), choice) for one in listed for group, choice in one.items()]
    if unknown := [group for group, _ in pairs if group not in known]:
        raise ConfigError(f"{path}: unknown group '{unknown[0]}'.{nearest(unknown[0], known)} {needed}")
    return [f"{group}={choice}" for group, choice in pairs if group not in typed]


def choose(group: str, value: str, known: dict[str, list[str]], problems: list[str]) -> str | None:
    """`group=choice` for Hydra; None, with a line in `problems`, for what is no choice.

    One of our algorithms is its name alone: what it is made of is filled in where nothing else is said. Raises
    ConfigError for a file that cannot be read: nothing is known of what it was to say.
    """
    if group == "algorithm" and value in algorithms.names():
        return f"++algorithm.algorithm_type={value}"
    if value in known[group]:
        own = directories()[-1] / group / f"{value}.yaml"
        of_user = os.path.lexists(own) and own.parent.parent != CONF
        return _of_user(group, own, problems) if of_user else f"{group}={value}"
    if group == "recipe" and value.endswith((".yaml", ".yml")):
        return _of_user(group, Path(value), problems)
    hint = f"set a key of the section, {group}.key=value" if _is_section(group) else "the path of a .yaml file"
    problems.append(f"unknown {group} '{value}'.{nearest(value, known[group])} Known: {', '.join(known[group])}; or "
                    f"{hint}.")
    return None


def absent_default(wanted: str, error: str) -> str:
    """The sentence for what a file names in its `defaults` and there is not. wanted: group/choice, as Hydra looked;
    error: what it says of it."""
    group, _, name = wanted.rpartition("/")
    by = re.match(r"In '(.+?)'", error)
    file = (file_of(by[1]) or by[1]) if by else "a file"
    known = groups().get(group.rpartition("/")[2], [])
    return (f"`defaults` of {file} names '{name}', and there is no {group} of that name.{nearest(name, known)} Known: "
            f"{', '.join(known) or 'none'}.")


def file_of(name: str) -> Path | None:
    """The file behind group/choice, as Hydra names it; None for the schema and for Hydra's own."""
    there = (directory / f"{name}.yaml" for directory in directories())
    return next((path for path in there if path.is_file()), STORED.get(name.rpartition("/")[2]))


def _is_section(group: str) -> bool:
    return any(key.startswith(f"{group}.") for key, _ in walk())


def _of_user(group: str, path: Path, problems: list[str]) -> str:
    """`group=choice` for a file of the user's. One that Hydra would not find, or not merge, is given a name."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    said = f"recipe={path}" if group == "recipe" and path.parent.parent != directories()[-1] else str(path)
    content, changed = _load(path, said, problems)
    if not content:
        raise ConfigError(f"{said} holds no settings; needed a mapping of them, as in conf/recipe/.")
    package = PACKAGE.search(path.read_text(encoding="utf-8"))
    whole = group == "recipe" or (package is not None and package[1] == "_global_")
    base = schema.defaults() if whole else {group: schema.defaults().get(group, {})}
    plain = OmegaConf.to_container(content, resolve=False)
    fitting = schema.fitting(plain if whole else {group: plain}, base, "", problems)
    in_place = package is not None or not whole  # a recipe is for the whole configuration, whether it says so or not
    if said == str(path) and in_place and not changed and fitting == (plain if whole else {group: plain}):
        return f"{group}={path.stem}"
    STORED[recipe_name(path)] = path
    ConfigStore.instance().store(group=group, name=recipe_name(path), node=OmegaConf.create(fitting),
                                 package="_global_")
    return f"{group}={recipe_name(path)}"


def _load(path: Path, said: str, problems: list[str]):
    """A file as OmegaConf is to read it, and whether it would read another by itself (pipeline/compose/yaml_files.py).

    Raises ConfigError when it holds no mapping of settings; other mistakes in it are among the problems.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.compose import yaml_files

    if not path.is_file():
        raise ConfigError(f"{said}: there is no such file (looked from {Path.cwd()}).")
    try:
        content, changed = yaml_files.read(path, said, problems)
        if content is not None and not isinstance(content, dict):
            raise ConfigError(f"{said} holds no settings; needed a mapping of them, as in conf/recipe/.")
        return OmegaConf.create(content or {}), changed
    except (yaml.YAMLError, ValueError) as error:  # no text, or a number of thousands of digits
        raise ConfigError(f"{said} is no YAML: {flat(error)}{_quotes(path, error)}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{said}: {flat(error)}") from error


def _quotes(path: Path, error: Exception) -> str:
    """A hint for `{key: ${other}}`, where YAML takes the braces of the interpolation for its own."""
    mark = getattr(error, "problem_mark", None)
    line = path.read_text(encoding="utf-8").splitlines()[mark.line:][:1] if mark else []
    if not any(re.search(r"[{\[,:]\s*\$\{", text) for text in line):
        return ""
    return '. Within { } or [ ] an interpolation goes in quotes: "${...}".'


def recipe_name(path: Path) -> str:
    """The name by which Hydra knows a file that it does not find by itself."""
    return re.sub(r"\W", "_", str(path.resolve()))


def flat(error: Exception) -> str:
    """An error's message on one line: YAML's names file, line and column on several."""
    return " ".join(str(error).split())
