"""`ouro config diff A B`: the settings in which two configurations differ, and the stages affected."""

import re
import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store.errors import ConfigError, DataError, OuroError

ABSENT = "not there"


@dataclass(frozen=True)
class Side:
    """One of the two. config: as in a file. stages: name -> directory name, which ends in the stage's identity; None
    where `unplanned` explains why it is unknown."""

    title: str
    config: dict[str, Any]
    stages: dict[str, str] | None
    unplanned: str = ""


def side(root: Path, text: str) -> Side:
    """Returns a run by name (its frozen configuration), or what the overrides in `text` compose ('': the default)."""
    from ouroboros.pipeline.check.judge import compose
    from ouroboros.pipeline.results import sweep_view

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"'{text}' cannot be split into key=value words ({error}); quotes come in pairs.") from error
    if not sweep_view.is_known(root, text) and all("=" in word for word in words):
        return _planned(text or "(no overrides)", compose(words))
    if len(words) > 1:
        raise DataError(f"'{text}': needed the name of one run, or overrides alone (key=value), in quotes.")
    shown = sweep_view.find(root, text)
    if isinstance(shown, sweep_view.SweepView):
        points = ", ".join(entry.view.run for entry in shown.entries)
        raise DataError(f"{shown.run} is a sweep; name two of its points: {points}.")
    return Side(shown.run, frozen(shown.path), {s.name: s.directory.name for s in shown.stages})


def sides(root: Path, *texts: str) -> list[Side]:
    """Returns every side (see `side`). Raises ConfigError with the problems of all of them."""
    made, problems = [], {}
    for text in texts:
        try:
            made.append(side(root, text))
        except OuroError as error:
            problems[text] = getattr(error, "problems", [str(error)])
    if len(problems) > 1:
        raise ConfigError.of("both sides have problems:", [f"{text}: {problem}" for text, found in problems.items()
                                                           for problem in found])
    if problems:
        (text, found), = problems.items()
        raise ConfigError.of(f"'{text}' has problems:", found)
    return made


def _planned(title: str, config: Config) -> Side:
    """Returns a configuration with its stages, if they can be identified here from file contents."""
    from ouroboros.pipeline.plan.plan import make_plan

    located, _ = hub.located(config, ask=False)
    written = plain(hub.frozen(located))
    try:
        plan = make_plan(located)
    except OuroError as error:
        return Side(title, written, None, str(error))
    return Side(title, written, {s.name: Path(s.directory).name for s in plan.stages})


def frozen(path: Path) -> dict[str, Any]:
    """Returns the configuration of a run's last launch; `path` is its directory under runs/."""
    import yaml

    try:
        return _loaded(path / "config.yaml", (path / "config.yaml").stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{path / 'config.yaml'} cannot be read ({why}). `ouro stages --write` with the run's "
                        "overrides writes it again.") from error


@lru_cache(1000)
def _loaded(path: Path, written: int) -> dict[str, Any]:
    """written: when, so that a later launch is read again."""
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8"))


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """Maps dotted keys to values: stages by name, elements of other lists of mappings by index."""
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        value = {str(v.get("stage_name", i)): v for i, v in enumerate(value)}
    if not isinstance(value, dict) or not value:
        return {key: value}
    return {k: v for name, below in value.items() for k, v in flatten(below, f"{key}.{name}" if key else name).items()}


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """Returns the dotted keys whose values are not all equal, in order of first appearance."""
    flat = [flatten(config) for config in configs]
    keys = dict.fromkeys(key for values in flat for key in values)
    above = {key.rsplit(".", depth)[0] for key in keys for depth in range(1, key.count(".") + 1)}
    covered = {key for key in above if all(values.get(key, {}) in ({}, []) for values in flat)}  # by others
    return [key for key in keys if key not in covered
            and any(values.get(key, ABSENT) != flat[0].get(key, ABSENT) for values in flat)]


def values(paths: list[Path]) -> list[dict[str, Any]]:
    """Returns `key` and `values`, one of each run, secrets masked, of all settings of a run, or of those in which
    several differ; None where a run has no such key. paths: of the runs, as of `frozen`."""
    from ouroboros.pipeline.settings.secrets import mask

    configs = [frozen(path) for path in paths]
    flat = [flatten(mask(config)) for config in configs]
    keys = differing(configs) if len(configs) > 1 else flat[0]
    return [{"key": key, "values": [one.get(key) for one in flat]} for key in keys]


def is_how(key: str) -> bool:
    """Returns whether a dotted key sets a run's name or its execution, not its results."""
    from ouroboros.pipeline.settings.config import walk
    from ouroboros.pipeline.settings.setting import about

    if key.startswith("stages.") and key.count(".") > 1:
        key = key.split(".", 2)[2]
    general = re.sub(r"\.\d+(?=\.|$)", ".*", key)
    how = [k for k, item in walk() if about(item).how] + ["project", "name"]
    return any(general == k or general.startswith(k + ".") for k in how)


def difference_lines(a: Side, b: Side) -> list[str]:
    """Returns the lines of the answer. Values that look like secrets are compared, and shown as ***."""
    from ouroboros.pipeline.results.query import aligned
    from ouroboros.pipeline.settings.secrets import mask

    keys = differing([a.config, b.config])
    values = [flatten(mask(one.config)) for one in (a, b)]
    rows = [(key, *(_value(v, key) for v in values)) for key in keys]
    lines = [aligned(["key", a.title, b.title], rows)] if rows else ["no setting differs"]
    if a.stages is None or b.stages is None:
        reasons = dict.fromkeys(one.unplanned for one in (a, b) if one.unplanned)
        return [*lines, "", *(f"stages are not compared, because that reads the files they are made of: {reason}"
                              for reason in reasons)]
    return [*lines, "", *_stages(a.stages, b.stages)]


def _value(flat: dict[str, Any], key: str) -> str:
    """Formats a value as in an override; for a setting that one stage does not set, the run-wide one."""
    from ouroboros.pipeline.check.explain import shown

    if key in flat:
        return shown(flat[key])
    of_all = key.split(".", 2)[2] if key.startswith("stages.") and key.count(".") > 1 else ""
    return f"{shown(flat[of_all])} (of all stages)" if of_all in flat else ABSENT


def _stages(a: dict[str, str], b: dict[str, str]) -> list[str]:
    both = [name for name in a if name in b]
    parts = {
        "stages that differ": [f"{n} ({_hash(a[n])} | {_hash(b[n])})" for n in both if a[n] != b[n]],
        "stages that both share": [n for n in both if a[n] == b[n]],
        "only in the first": [n for n in a if n not in b],
        "only in the second": [n for n in b if n not in a],
    }
    return [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]


def _hash(directory: str) -> str:
    return directory.rsplit("-", 1)[-1]
