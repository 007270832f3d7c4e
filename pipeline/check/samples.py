"""Runs stages/preview.py in a separate process to show a data sample as the model sees it, and what judges its rows.

It passes on which of our reward functions that read the truth judge a source, to be called with sampled rows
(stages/judged_rows.py); for functions of the user see calls.py.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from ouroboros.pipeline.check.sources import POOL, Source
from ouroboros.pipeline.check.sources import sources as sources_of
from ouroboros.pipeline.job.tasksets import sets_with_paths
from ouroboros.pipeline.plan.data import data_settings
from ouroboros.pipeline.plan.hub import is_here
from ouroboros.pipeline.settings import reward_rules
from ouroboros.pipeline.settings.arguments.answers import REWARDS, tool_arguments
from ouroboros.pipeline.settings.arguments.experience import DATA_JUICER, EXPERIENCE
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.curation import TaskPipeline
from ouroboros.pipeline.settings.data import EXPERTS, INPUT, PIPELINE, SHOWN, Rows, reward_functions, workflow_of
from ouroboros.pipeline.settings.explorer import runs_programs
from ouroboros.pipeline.settings.setting import at, plain
from ouroboros.pipeline.store import launch
from ouroboros.pipeline.store.digests import below, nothing_at, resolve
from ouroboros.pipeline.store.errors import ConfigError, Problem

ROWS = 200  # rows sampled from each source
LIMITS = ("max_prompt_tokens", "max_response_tokens")  # the widest of any stage: a longer row is of use to none
TASKSETS = ("buffer.explorer_input.taskset",)  # and tasksets.N


def preview(config: Config, stages: list[Config], models: Sequence[str] = ()) -> dict[str, Any]:
    """Returns `problems`, `warnings`, `unjudged`, and `facts` as [word, sentence], of the sources that exist, of tasks
    that evaluation sets share with what is trained on, and of the Data-Juicer recipes and operators of the stages; and
    the `sizes` of `models`, as in pipeline/check/model_size.py.

    stages: their complete settings. Raises like `ask`.
    """
    pipelines = [stage.data_processor.task_pipeline for stage in stages]
    request = {
        "sources": sources_here(stages),
        "sets": compared_sets(stages),
        "rows": ROWS,
        "model": plain(config.model) | {key: max(getattr(stage.model, key) for stage in stages) for key in LIMITS},
        "system_prompt": config.buffer.explorer_input.system_prompt,
        "recipes": _distinct(str(resolve(one.config_path)) for one in pipelines
                             if one.config_path and resolve(one.config_path).is_file()),
        "operators": _distinct([one.operators, one.target_fields] for one in pipelines if one.operators),
        "on_experience": _distinct(found for stage in stages for found in _recipes(stage)),
        "models": list(models),
        "tools": _distinct(key for stage in stages for key in _with_tools(stage)) if not any(
            stage.kind.learns_from_given for stage in stages) else [],
    }
    return json.loads(answered(json.dumps(request)))


@cache
def answered(request: str) -> str:
    """`ask`, once for points of a sweep that have the same."""
    return json.dumps(ask(json.loads(request)))


def _with_tools(stage: Config) -> Iterator[str]:
    """Returns the settings of sets whose workflow sends tools, as no text; demonstrations show them without that."""
    explorer = stage.buffer.explorer_input
    for place, one in explorer.places if stage.kind.engine else ():
        workflow = workflow_of(one, explorer, place)
        named = tool_arguments(workflow, one.workflow_args)
        if workflow != "react_workflow" and any(map(named.get, ("tools", "environment_class", "mcp"))):
            yield f"{INPUT}.{place}.workflow_args"


def _recipes(stage: Config) -> Iterator[list]:
    """Returns [key, file or null, operators] of each Data-Juicer recipe in a stage's experience_pipeline."""
    for i, one in enumerate(stage.data_processor.experience_pipeline.operators if stage.kind.makes_experience else ()):
        key, args = f"data_processor.experience_pipeline.operators.{i}", one.get("args") or {}
        path = args.get("config_path")
        if one["name"] == DATA_JUICER and path and resolve(path).is_file():
            yield [f"{key}.args.config_path={path}", str(resolve(path)), []]
        elif one["name"] == DATA_JUICER and not path:
            yield [f"{key}.args.operators", None, args["operators"]]
        elif one["name"] not in EXPERIENCE and ":" not in one["name"]:
            yield [key, None, [one]]


def sources_here(stages: list[Config]) -> list[dict[str, Any]]:
    """Returns the sources of the stages that exist on this machine, each once, as stages/preview.py reads them."""
    found = dict.fromkeys(source for stage in stages for source in sources_of(stage))
    return [one.request() | {"rewards": judging(one, stages)} for one in found
            if not nothing_at(one.path) and is_here(one.path, one.split)]


def judging(source: Source, stages: Iterable[Config]) -> list[dict[str, Any]]:
    """Returns the functions that judge the rows of a source in any stage, each once, with their arguments.

    key: the setting that names it. optional: the workflow, or environment, that may reward attempts itself; else None.
    """
    found: list[dict[str, Any]] = []
    for settings in stages:
        for path, asked in _judged(settings):
            own = path == source.key or source.key.startswith(f"{path}.")
            found += [each for each in asked if own and each not in found]
    return found


def generator_problems(config: Config) -> list[Problem]:
    """Lists the sets of a generator whose truths the reward does not read. config: the settings of a stage."""
    made = config.data_processor.task_pipeline.generator
    of_pool = [each for path, asked in _judged(config) if path.startswith(PIPELINE) for each in asked]
    return [Problem(each["key"], f"judges expressions of the generator countdown; {PIPELINE}.generator={made} makes "
                    "other tasks.", "Name the function for them, or give generator=countdown.", found=each["name"])
            for each in of_pool if each["name"] == "countdown_reward" and made not in (None, "countdown")
            and not config.data_processor.task_pipeline.inputs and not each["optional"]]


def isolation(config: Config) -> dict[str, list[Problem]]:
    """Returns why programs of replies cannot be isolated here, and a warning where they are not to be (code_reward)."""
    key, wrong, asked = f"{INPUT}.taskset.reward_fn_args.isolation", [], runs_programs(config.kind, config) or ()
    for how in dict.fromkeys(asked):
        from ouroboros.workflows.attempts.code_reward import require_isolation  # starts processes

        try:
            require_isolation(how)
        except ConfigError as error:
            wrong.append(Problem(key, str(error), found=how))
    return {"problems": wrong, "warnings": [
        Problem(key, "programs of replies will run with all your rights: they may read, change and delete what you "
                     "may, and use the network.", found="none")] if "none" in asked else []}


def _judged(settings: Config) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields, for each set that a stage rewards, the setting of its rows, and its functions."""
    explorer = settings.buffer.explorer_input
    for place, one in reward_rules.answered(settings):
        workflow = workflow_of(one, explorer, place)
        named = f"{INPUT}.{place}" if one.default_reward_fn_type else INPUT
        asked = [{"name": name, "arguments": one.reward_fn_args, "key": f"{named}.default_reward_fn_type",
                  "optional": workflow if ":" in workflow else (
                      tool_arguments(workflow, one.workflow_args)["environment_class"])}
                 for name in reward_functions(one, explorer) if name in REWARDS and REWARDS[name].reads_truths]
        yield (f"{INPUT}.{place}.path" if one.path else f"{PIPELINE}.{POOL}"), asked


def ask(request: dict[str, Any], module: str = "ouroboros.stages.preview") -> dict[str, Any]:
    """Returns the answer of a module that is started as a separate process. Raises StageError when it dies."""
    return launch.ask(module, request)


def compared_sets(stages: list[Config]) -> list[dict[str, Any]]:
    """Returns every local set of tasks or demonstrations that a stage evaluates on (`held`) or learns from."""
    return _distinct(one for stage in stages for one in _sets(stage) if not any(map(nothing_at, one["paths"]))
                     and all(is_here(below(path, one["subset"]), one["split"]) for path in one["paths"]))


def _sets(settings: Config) -> Iterator[dict[str, Any]]:
    kind, pool = settings.kind, settings.data_processor.task_pipeline
    mixes = settings.algorithm.sample_strategy == "mix"
    learns = ((SHOWN,) if kind.learns_from_given else TASKSETS if kind.explores else ()) + (
        (EXPERTS,) if kind.is_online and mixes else ())
    if learns and data_settings(settings, kind.rows).data_processor.task_pipeline.inputs:
        yield _set(f"{PIPELINE}.inputs", "", pool.inputs, pool, "task", False)
    for key, name, split, one in sets_with_paths(settings.buffer):
        if split == "test":
            yield _set(key, name, one.path, one, "task", True) | {"limit": one.limit}
        elif key.startswith(learns) and settings.algorithm.data != "texts":
            yield _set(key, name, one.path, one, "task" if split == "train" else "demonstration", False)


def _set(key: str, name: str, paths: str | list[str], one: Rows | TaskPipeline, purpose: str, held: bool
         ) -> dict[str, Any]:
    return {"key": f"{key}.path", "label": f"{key} ({name})" if name else key, "name": name,
            "paths": paths if isinstance(paths, list) else [paths], "subset": at(one, "subset_name"),
            "split": one.split, "format": plain(one.format), "purpose": purpose, "held": held}


def _distinct(values: Iterable) -> list:
    """Removes duplicates from values that may be unhashable, keeping their order."""
    kept: list = []
    for value in values:
        kept += [] if value in kept else [value]
    return kept
