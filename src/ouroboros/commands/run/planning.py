"""Composes, checks and plans a run, without reading data."""

import os
from collections.abc import Callable
from dataclasses import replace

from ouroboros.pipeline.check.data import rowless
from ouroboros.pipeline.check.judge import compose
from ouroboros.pipeline.check.machine import unusable_root
from ouroboros.pipeline.check.report import warn
from ouroboros.pipeline.check.stage import unread
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.monitors import check_monitor
from ouroboros.pipeline.store.errors import ConfigError

Planner = Callable[..., Plan]  # (configuration, on_warning=warn); on_warning: receives the warnings, one line each
SUMMARY_FOLLOWS = "OURO_SUMMARY_FOLLOWS"  # set when `ouro run` prints the summary, so that the Snakefile does not


def checked_plan(config: Config, on_warning: Callable[[str], None] = warn, ask: bool = True) -> Plan:
    """Returns the plan of a configuration; checks that its monitor is installed (not after hours) and that it names
    data, and reports settings that nothing reads on stderr, unless `ouro run` has done so before it started this.

    ask: whether to query the hub for what is neither pinned nor cached."""
    config, problems = hub.located(config, ask)
    judged, recipe = bool(os.environ.get(SUMMARY_FOLLOWS)), Recipe.of(config)
    if not judged:
        check_monitor(config.monitor.monitor_type, config.monitor.monitor_args)
        problems += recipe.each(rowless) + unusable_root(config.checkpoint_root_dir)
    if problems:
        raise ConfigError("\n  ".join(problems), problems)
    for line in [] if judged else unread(recipe):
        on_warning(line)
    return make_plan(config)


def files_here(config: Config) -> Config:
    """Returns a configuration with local directories for ids, after fetching the rows of its taskset from the hub, so
    that they can be read before it is run. Raises ConfigError for what cannot be had."""
    config, problems = hub.located(config)
    if problems:
        raise ConfigError("\n  ".join(problems), problems)
    taskset = config.buffer.explorer_input.taskset
    path, split = taskset.path, taskset.split
    if not hub.is_here(path, split):
        hub.fetch(f"{path.pinned.partition('@')[0]}@{path.commit}", hub.lacking(path, split=split))
    return config


def make_checked_plan(overrides: list[str], plan_of: Planner = checked_plan) -> Plan:
    """Composes, checks and plans. plan_of: plans a composed configuration, or raises for its problems."""
    return replace(plan_of(compose(overrides)), overrides=tuple(overrides))
