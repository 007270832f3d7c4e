"""Which of our reward functions that read the truth judge the rows of a source, and the generators they do not suit.

stages/judged_rows.py calls them with sampled rows. User functions: pipeline/check/reward_call.py.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from ouroboros.pipeline.check.sources import POOL, Source, rewards
from ouroboros.pipeline.settings.arguments.answers import REWARDS, CodeReward, tool_arguments
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import reward_functions, tasksets, workflow_of
from ouroboros.pipeline.settings.explorer import runs_programs
from ouroboros.pipeline.store.errors import ConfigError, Problem

SECTION = "buffer.explorer_input"
PIPELINE = "data_processor.task_pipeline"


def of_source(source: Source, stages: Iterable[Config]) -> list[dict[str, Any]]:
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
    from ouroboros.workflows.environments.programs import cell  # starts processes

    key, wrong, ways = f"{SECTION}.taskset.reward_fn_args.isolation", [], {*(runs_programs(config.kind, config) or ())}
    for how in sorted(ways):
        try:
            cell(how, CodeReward().memory_mb)
        except ConfigError as error:
            wrong.append(Problem(key, str(error), found=how))
    return {"problems": wrong, "warnings": [Problem(
        key, "programs of replies will run with all your rights: they may read, change and delete what you may, and "
             "use the network.", found="none")] if "none" in ways else []}


def _judged(settings: Config) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields, for each set that a stage rewards, the setting of its rows, and its functions."""
    explorer = settings.buffer.explorer_input
    for place, one in tasksets(settings):
        workflow = workflow_of(one, explorer, place)
        if not place.startswith("eval_") and not rewards(settings):
            continue
        named = f"{SECTION}.{place}" if one.default_reward_fn_type else SECTION
        asked = [{"name": name, "arguments": one.reward_fn_args, "key": f"{named}.default_reward_fn_type",
                  "optional": workflow if ":" in workflow else (
                      tool_arguments(workflow, one.workflow_args)["environment_class"])}
                 for name in reward_functions(one, explorer) if name in REWARDS and REWARDS[name].reads_truths]
        yield (f"{SECTION}.{place}.path" if one.path else f"{PIPELINE}.{POOL}"), asked
