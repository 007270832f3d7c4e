"""The default recipe, composed once, and copies of it in which a test changes what it is about."""

from functools import cache
from typing import Any

import pytest
import yaml

from ouroboros.pipeline.check.judge import compose, judged, rules_of_stage
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings import secrets
from ouroboros.pipeline.settings.algorithms import filled
from ouroboros.pipeline.settings.config import Config, Lora
from ouroboros.pipeline.settings.schema import read
from ouroboros.pipeline.settings.setting import Section, plain
from ouroboros.pipeline.store.errors import ConfigError, Problem

# 64 wide, 2 layers, 2 query heads on 1 key/value head: grouped-query attention, 0.1M parameters. Weights every step.
TINY = ("model.init.num_hidden_layers=2", "model.init.num_key_value_heads=1", "model.max_prompt_tokens=40",
        "model.max_response_tokens=24", "explorer.rollout_model.engine_type=transformers", "model.dtype=float32",
        "synchronizer.sync_interval=1")


@cache
def composed() -> Config:
    """The default configuration; not to be changed."""
    return compose([])


def changed(values: dict[str, Any]) -> Config:
    """A copy of the configuration with dotted keys set, unchecked; `stages.sft.key` sets one of a stage."""
    config = plain(composed())
    for key, value in values.items():
        parts, target = key.split("."), config
        if parts[0] == "stages" and len(parts) > 1:
            target = next(s for s in config["stages"] if s["stage_name"] == parts[1])
            parts = parts[2:]
        for part in parts[:-1]:
            target = target[int(part)] if part.isdigit() else target.setdefault(part, {})
        target[parts[-1]] = plain(value)
    return Config.partial(config)


def element(section: type, given: dict[str, Any]) -> Section:
    """An element of a list of sections: what is given, over the defaults."""
    made, problems = read(given, section, "element")
    assert not problems, problems
    return made


def lora(**given: Any) -> Lora:
    """An adapter of `model.lora_configs`: what is given, over the defaults."""
    return element(Lora, given)


def overridden(*overrides: str) -> Config:
    """The same, from `key=value` words, with the algorithm's parts filled in, as a stage is handed them.

    Without Hydra, so that each test may have its own settings in no time.
    """
    config = changed({key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in overrides)})
    return config.but("algorithm", filled(config.algorithm))


def check(config: Config) -> list[Problem]:
    """Every invalid value and broken rule of an unchecked configuration."""
    made, problems = read(plain(config), Config)
    broken = Recipe(made).each(lambda stage: rules_of_stage(stage, [one.key for one in problems]))
    return problems + broken + secrets.problems_of(plain(config))


def problems_of(*overrides: str) -> list[Problem]:
    """Every problem with composing these `key=value` words."""
    try:
        return judged(list(overrides))[1]
    except ConfigError as error:  # a file cannot be read
        return error.problems


def places(problems: list[Problem]) -> list[str]:
    """The stages and the key of each problem: `seed`, `sft: seed`, `sft, rft: seed`."""
    return [": ".join(filter(None, (", ".join(one.stages), one.key))) for one in problems]


def broken(*overrides: str) -> list[str]:
    """The places of every problem with composing these `key=value` words, sorted."""
    return sorted(places(problems_of(*overrides)))


def refused(*overrides: str) -> str:
    """The message about composing these `key=value` words."""
    with pytest.raises(ConfigError) as caught:
        compose(list(overrides))
    return str(caught.value)
