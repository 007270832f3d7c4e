"""Composes a configuration and validates it; reports every invalid value and broken rule at once."""

import re
from pathlib import Path
from typing import Any

from pipeline.check import recorded_rules, stage_rules, teacher_rules, turn_rules
from pipeline.check.reward_rules import unasked_models
from pipeline.check.rules import broken_rules
from pipeline.check.sample_rules import unread_sampling
from pipeline.compose import own_algorithms
from pipeline.compose.compose import TITLE, composition, stage_names
from pipeline.compose.consequences import without_consequences
from pipeline.compose.early_values import early_values
from pipeline.compose.interpolation import resolved
from pipeline.compose.stage_settings import are_ordered, entries, stage_problems
from pipeline.plan import modes
from pipeline.settings import schema, secrets
from pipeline.settings.config import Config
from pipeline.store.errors import ConfigError


def compose(overrides: list[str]) -> dict[str, Any]:
    """Returns the whole validated configuration as plain dicts and lists. Raises ConfigError with every problem."""
    config, problems = judged(overrides)
    if problems:
        raise ConfigError.of(TITLE, problems)
    return config


def judged(overrides: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Returns the configuration and every problem in it; unreadable values have their default.

    References (arguments, code) are checked here only if there are other problems, so that all are reported together;
    otherwise check/preflight.py reports them with its own findings. Raises ConfigError when files cannot be read,
    because their settings are then unknown.
    """
    problems: list[str] = []
    composed = composition(overrides, problems)
    as_typed = len(problems)  # these quote the command line, where a stage may be given by its number
    config = schema.read(_at_home(resolved(composed, problems)), Config, "", problems)
    problems += stage_problems(config)
    if unread := own_algorithms.problems(config):  # no rule applies to an algorithm whose definition is invalid
        return config, _worded(problems + unread, as_typed, composed, config)
    broken, ordered = broken_rules(config), are_ordered(config["stages"])
    if ordered:
        broken += modes.problems(config) + unasked_models(config) + unread_sampling(config)
        broken += teacher_rules.problems(config) + turn_rules.problems(config) + recorded_rules.problems(config)
    problems += without_consequences(broken, problems, [entry["stage_name"] for entry in entries(config)])
    problems += secrets.problems_of(config)
    if problems and ordered:
        problems += stage_rules.problems_of(config)
    return config, _worded(problems, as_typed, composed, config)


def _at_home(value: Any, key: str = "") -> Any:
    """Returns nested settings with `~` in paths expanded to the home directory."""
    if isinstance(value, dict):
        return {name: _at_home(one, str(name)) for name, one in value.items()}
    if isinstance(value, list):
        return [_at_home(one, key) for one in value]
    is_path = key in ("inputs", "checkpoint_root_dir") or key.split("_")[-1] == "path"
    return type(value)(Path(value).expanduser()) if is_path and str(value).startswith("~/") else value


def warnings(overrides: list[str]) -> list[str]:
    """Lists settings of a valid composition that may be unintended, one line each."""
    from omegaconf import OmegaConf

    return early_values(OmegaConf.to_container(composition(overrides, []), resolve=False))


def check(config: dict) -> list[str]:
    """Lists every invalid value and broken rule of a configuration in plain dicts, one line each."""
    problems: list[str] = []
    read = schema.read(config, Config, "", problems)
    names = [entry["stage_name"] for entry in entries(read)]
    return problems + without_consequences(broken_rules(read), problems, names) + secrets.problems_of(config)


def _worded(problems: list[str], first: int, composed, config: dict) -> list[str]:
    """Rewrites problems from index `first` on: stages by name instead of list position, secrets masked."""
    names = stage_names(composed)
    by_name = [re.sub(r"^(.*?'?)stages\.(\d+)\.", lambda m: f"stage '{names[int(m[2])]}': {m[1]}", problem)
               for problem in problems[first:]]
    return problems[:first] + secrets.unspoken(by_name, config)
