"""The files of a composition: available in conf/, selected by overrides, and checked for what cannot be merged.

A user's file is read here before Hydra reads it, so that mistakes are reported together, with file and line. What
Hydra could not merge with the schema, such as a list where it has a section, is reported and omitted.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ouroboros.pipeline.settings import algorithms, schema
from ouroboros.pipeline.settings.config import walk
from ouroboros.pipeline.settings.key_names import refuse_other_program, refuse_toml
from ouroboros.pipeline.store.digests import reading
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest
from ouroboros.pipeline.store.files import CONF, hash_text

OTHER_FORMATS = ("data_juicer",)  # directories of conf/ that are not config groups
HEAD = r"(?:[ \t]*(?:#.*|---.*)?\n)*?"  # lines before the first key
PACKAGE = re.compile(rf"""{HEAD}[ \t]*#[# \t]*@[ \t]*package\b[:= \t'"]*([^\s'"]*)""", re.I)
WHOLE, OF_GROUP = "_global_", "_group_"  # Hydra's names of packages
WORD = re.compile(r"[A-Za-z][\w.-]*", re.ASCII)  # a text in Hydra's grammar of overrides, unless
TYPED = ("null", "true", "false", "nan", "inf")


class Stored(NamedTuple):
    """A user's file that Hydra would not find or merge: its path, and what of it fits the schema."""

    path: Path
    content: dict[str, Any]


STORED: dict[str, Stored] = {}  # by group/choice


def directories() -> list[Path]:
    """Returns the conf/ directories: ours, and that of the current directory when it is a different one.

    Raises ConfigError for a conf that is no directory.
    """
    own = Path.cwd() / "conf"
    if os.path.lexists(own) and not own.is_dir():
        raise ConfigError(f"{own}: is no directory; needed one of recipes there, or nothing. Give it another name.")
    return [CONF, own] if own.is_dir() and own.resolve() != CONF else [CONF]


@contextlib.contextmanager
def search_path(places: Sequence[Path | str]) -> Iterator[Any]:
    """Yields Hydra's config loader with these conf/ directories in its search path. places: see `directories`.

    Within the block a file of the user's that cannot be read raises ConfigError when Hydra reads it.

    Hydra's own way, the override hydra.searchpath, cannot express all names: `project (1)` and `Übung` are no values.
    """
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_dir(str(places[0]), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        loader.repository.sources[-1:-1] = [_in_memory(), *map(_of_project, places[1:])]  # Hydra's schemas stay last
        yield loader


def _in_memory() -> Any:
    """Returns the source of the schema and STORED. Hydra's own store is copied, all of it, in each composition."""
    from hydra.plugins.config_source import ConfigResult, ConfigSource
    from omegaconf import OmegaConf

    class InMemory(ConfigSource):
        @staticmethod
        def scheme() -> str:
            return "memory"

        def load_config(self, config_path: str):
            content = schema.defaults() if config_path == "schema" else STORED[config_path].content
            return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), {"package": WHOLE})

        def available(self) -> bool:
            return True

        def is_config(self, config_path: str) -> bool:
            return config_path == "schema" or config_path in STORED

        def is_group(self, config_path: str) -> bool:
            return False

        def list(self, config_path: str, results_filter: Any) -> list[str]:
            return []

    return InMemory("ouroboros", "memory://")


def _of_project(place: Path | str) -> Any:
    """Returns the source of a user's conf/ directory."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra.plugins.config_source import ConfigResult

    class OfProject(FileConfigSource):
        def load_config(self, config_path: str):
            path = Path(self.path) / self._normalize_file_name(config_path)
            section = _section(path, path.parent.name)
            content, problems = _load(path, str(path), section)
            if problems:
                raise ConfigError.of("a file of conf/ has problems:", problems)
            return ConfigResult(self.provider, f"{self.scheme()}://{self.path}", content,
                                {"package": _package(path) or None if section else WHOLE})

    return OfProject("project", f"file://{place}")


def groups() -> dict[str, list[str]]:
    """Returns config groups and their choices. Raises ConfigError for a user's choice with the name of one of ours."""
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
    """Returns `group=choice` for the `defaults` in conf/config.yaml of the current directory, unless overridden.

    Raises ConfigError when that file contains anything else.
    """
    path = directories()[-1] / "config.yaml"
    if path.parent == CONF or not os.path.lexists(path):
        return []
    needed = "Needed `defaults`, a list of group: choice such as `- recipe: mine`; settings belong into a recipe."
    content, problems = _load(path, str(path))
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


def choose(group: str, value: str, known: dict[str, list[str]]) -> tuple[str | None, list[Problem]]:
    """Returns `group=choice` for Hydra, and what is wrong in a user's file; None for an invalid choice.

    One of our algorithms is only its name: its components are filled in where nothing else is set. Raises
    ConfigError for an unreadable file, because its settings are then unknown.
    """
    if group == "algorithm" and value in algorithms.names():
        return f"algorithm.algorithm_type={value}", []
    if value in known[group]:
        own = directories()[-1] / group / f"{value}.yaml"
        of_user = os.path.lexists(own) and own.parent.parent != CONF
        return _of_user(group, own) if of_user else (f"{group}={value}", [])
    if group == "recipe" and value.endswith((".yaml", ".yml", ".toml")):
        return _of_user(group, Path(value))
    of_section = any(key.startswith(f"{group}.") for key, _ in walk())
    hint = f"set a key of the section, {group}.key=value" if of_section else "the path of a .yaml file"
    return None, [Problem(group, f"unknown.{nearest(value, known[group])} Known: {', '.join(known[group])}; or {hint}.",
                          found=value)]


def absent_default(wanted: str, error: str) -> str:
    """Returns the message for a missing file in another's `defaults`. wanted: group/choice, as Hydra searched it;
    error: Hydra's message."""
    group, _, name = wanted.rpartition("/")
    by = re.match(r"In '(.+?)'", error)
    file = (file_of(by[1]) or by[1]) if by else "a file"
    known = groups().get(group.rpartition("/")[2], [])
    return (f"`defaults` of {file} names '{name}', and there is no {group} of that name.{nearest(name, known)} Known: "
            f"{', '.join(known) or 'none'}.")


def file_of(name: str) -> Path | None:
    """Returns the file behind group/choice, as Hydra names it; None for the schema and Hydra's own."""
    there = (directory / f"{name}.yaml" for directory in directories())
    return next((path for path in there if path.is_file()), STORED[name].path if name in STORED else None)


def _of_user(group: str, path: Path) -> tuple[str, list[Problem]]:
    """Returns `group=choice` for a user's file, registered under a name if Hydra would not find or merge it; and the
    problems in it."""
    from omegaconf import OmegaConf

    shown_name = f"recipe={path}" if group == "recipe" and path.parent.parent != directories()[-1] else str(path)
    section = _section(path, group)
    content, problems = _load(path, shown_name, section)
    if not content:
        raise ConfigError(f"{shown_name} holds no settings; needed a mapping of them, as in conf/recipe/.")
    whole = not section
    base = schema.defaults() if whole else {group: schema.defaults().get(group, {})}
    plain = OmegaConf.to_container(content, resolve=False)
    if whole:
        refuse_other_program(plain, shown_name)
    given = plain if whole else {group: plain}
    fitting, misfits = schema.fitting(given, base)
    problems += misfits
    readable = WORD.fullmatch(path.stem) and path.stem.lower() not in TYPED
    if shown_name == str(path) and readable and not problems:
        return f"{group}={path.stem}", []
    STORED[f"{group}/{recipe_name(path)}"] = Stored(path, fitting)
    return f"{group}={recipe_name(path)}", problems


def _section(path: Path, group: str) -> str:
    """Returns the dotted key of the section that a file of a group sets; empty for the whole configuration.

    Raises ConfigError for a recipe that names a section: it sets the whole, with or without a package."""
    with reading(path):
        name = (path.is_file() and _package(path)) or (WHOLE if group == "recipe" else OF_GROUP)
    if group == "recipe" and name != WHOLE:
        raise ConfigError(f"{path} has `@package {name}`: a recipe sets the whole configuration, each section by its "
                          f"name. Write `# @package {WHOLE}`, or leave the line out.")
    return "" if name == WHOLE else group if name == OF_GROUP else name


def _package(path: Path) -> str:
    """Returns the package that a comment before the first key names, in any spelling; Hydra reads some of them."""
    found = PACKAGE.match(path.read_text(encoding="utf-8-sig", errors="replace"))
    name = found[1] if found else ""
    return name.lower() if name.lower() in (WHOLE, OF_GROUP) else name


def _load(path: Path, shown_name: str, section: str = "") -> tuple[Any, list[Problem]]:
    """Reads a file for OmegaConf, without what is wrong in it. Raises ConfigError when it holds no mapping of settings.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ouroboros.pipeline.compose import yaml_files

    if not path.is_file():
        found = "there is no such file" if not path.exists() else (
            f"is {'a directory' if path.is_dir() else 'a pipe, socket or device'}, and no file")
        raise ConfigError(f"{shown_name}: {found} (looked from {Path.cwd()}).")
    try:
        with reading(path):
            if path.suffix == ".toml":
                refuse_toml(path.read_text(encoding="utf-8", errors="replace"), shown_name)
            content, problems = yaml_files.read(path, shown_name, section)
        if content is not None and not isinstance(content, dict):
            raise ConfigError(f"{shown_name} holds no settings; needed a mapping of them, as in conf/recipe/.")
        return OmegaConf.create(content or {}), problems
    except (yaml.YAMLError, ValueError) as error:  # not text, or a number with thousands of digits
        raise ConfigError(f"{shown_name} is no YAML: {flat(error)}{_quotes(path, error)}") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{shown_name}: {flat(error)}") from error


def _quotes(path: Path, error: Exception) -> str:
    """Hints at quotes for `{key: ${other}}`, where YAML reads the braces of the interpolation as its own."""
    mark = getattr(error, "problem_mark", None)
    line = path.read_text(encoding="utf-8").splitlines()[mark.line:][:1] if mark else []
    if not any(re.search(r"[{\[,:]\s*\$\{", text) for text in line):
        return ""
    return '. Within { } or [ ] an interpolation goes in quotes: "${...}".'


def recipe_name(path: Path) -> str:
    """Returns the name under which Hydra knows a file outside its search path, or whose own name it cannot read."""
    whole = str(path.resolve())
    return f"{re.sub(r'[^0-9A-Za-z]', '_', whole)}_{hash_text(whole)}"


def flat(error: Exception) -> str:
    """Joins an error's message to one line: YAML's has file, line and column on several."""
    return " ".join(str(error).split())
