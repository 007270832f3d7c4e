"""Rules for single stages beyond the bounds of settings: function arguments, settings read by a kind of stage.

They need the source of functions but no user files other than code; checks of files are in check/preflight.py.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ouroboros.pipeline.check import named_functions, references
from ouroboros.pipeline.check.data_rules import rowless
from ouroboros.pipeline.compose.recipe import Recipe, renamed_components, sets
from ouroboros.pipeline.plan.data import data_settings
from ouroboros.pipeline.plan.identity import is_below, received_settings
from ouroboros.pipeline.settings.config import RUN_WIDE, Config, walk
from ouroboros.pipeline.settings.data import eval_places, reward_functions, train_places
from ouroboros.pipeline.settings.kinds import KINDS, TEST_ROWS, Kind
from ouroboros.pipeline.settings.model import TEACHER
from ouroboros.pipeline.settings.monitors import monitor_problems
from ouroboros.pipeline.settings.setting import about, at
from ouroboros.pipeline.settings.unused import switched_off, unused
from ouroboros.pipeline.store.digests import address
from ouroboros.pipeline.store.errors import Problem
from ouroboros.pipeline.store.signatures import parameters_of

# check/teacher_rules.py, `unasked_models`; a name that no stage reads cannot be wrong
REPORTED_ELSEWHERE = (TEACHER, "explorer.auxiliary_models", "buffer.explorer_input.taskset.name",
                  "buffer.trainer_input.experience_buffer.name")


def wrong_references(recipe: Recipe) -> list[Problem]:
    """Lists invalid arguments and code missing from its module. Stages must have valid names and order."""
    monitor = recipe.run.monitor
    return [*monitor_problems(monitor.monitor_type, monitor.monitor_args),
            *recipe.each(lambda c: [*references.wrong_code(c), *named_functions.wrong_arguments(c)], written=True)]


def without_data(recipe: Recipe) -> list[Problem]:
    """Lists sets of a run without a row source, for a recipe that names no data at all.

    Composing such a recipe is valid: an imported recipe may leave the data to the command line.
    """
    return recipe.each(rowless)


def unread(recipe: Recipe) -> list[Problem]:
    """Lists settings that are set but have no effect, once for each stage and once for the run.

    These are warnings: a recipe may be shared, and a stage may repeat a whole section. Run-wide settings at their
    default are not listed.
    """
    config, said, standard = recipe.run, recipe.run.said, Config()
    problems = [*_always_so(said, [entry["stage_name"] for entry in recipe.entries])]
    for entry in recipe.entries:
        name = entry["stage_name"]
        lost = _lost([key for key in _decisive() if sets(entry, key)], recipe.kinds[name], recipe.settings[name])
        if lost:
            problems.append(Problem(", ".join(lost), "is not read by the stage and changes nothing there.",
                                    "Take it out, or set it where it is read.", stages=[name]))
    given = [key for key in _decisive() if not is_below(key, (*RUN_WIDE, *REPORTED_ELSEWHERE))
             and at(config, key) != at(standard, key)]
    for entry in recipe.entries:
        name = entry["stage_name"]
        dropped = [f"algorithm.{part}_args" for part in renamed_components(config, entry)]
        lost = _lost(given, recipe.kinds[name], recipe.settings[name])
        given = [key for key in given if key in lost or key in dropped]
    if given:
        problems.append(Problem(", ".join(given), "is read by no stage of this run and changes nothing.",
                                "Take it out, unless the recipe is shared with runs that read it."))
    return problems


def _always_so(said: Iterable[str], names: list[str]) -> Iterator[Problem]:
    """Yields the warnings about keys that say what holds in any case, one for the run and one for each stage."""
    found: dict[str, list[str]] = {}
    for key in said:
        of_stage = re.fullmatch(r"stages\.(\d+)\.(.+)", key)
        found.setdefault(names[int(of_stage[1])] if of_stage else "", []).append(of_stage[2] if of_stage else key)
    for name, keys in found.items():
        yield Problem(", ".join(keys), "says what holds here in any case, and changes nothing.",
                      "Take it out, unless the recipe is shared with Trinity-RFT.", stages=[name] if name else [])


def idle_pool(recipe: Recipe) -> list[Problem]:
    """Returns the warning about a generator, or files, from which no set of any stage takes rows."""
    pool = recipe.run.data_processor.task_pipeline
    given = [f"data_processor.task_pipeline.{key}" for key in ("generator", "inputs") if getattr(pool, key)]
    for settings in recipe.settings.values():
        read = filter(None, {TEST_ROWS, settings.kind.rows})
        left = [data_settings(settings, rows).data_processor.task_pipeline for rows in read]
        if any(one.generator or one.inputs for one in left):
            return []
    return [Problem(" and ".join(given), "no set takes rows from it: each has a path of its own.",
                    "Take it out, or set the path to null.")] if given else []


def unasked_models(recipe: Recipe) -> list[Problem]:
    """Returns the problem of auxiliary models of a run that no stage uses: they would occupy GPUs for nothing."""
    stages = recipe.settings.values()
    sources = [stage.buffer.explorer_input for stage in stages]
    sets = [(taskset, source) for source in sources for _, taskset in [*train_places(source), *eval_places(source)]]
    if not any(stage.explorer.auxiliary_models for stage in stages) or any(
            _asks_models(taskset, source) for taskset, source in sets):
        return []
    return [Problem("explorer.auxiliary_models", "nothing asks them.", "Name reward_model or judge_reward with a "
                    "judge_model among the functions of buffer.explorer_input.default_reward_fn_type, or a workflow "
                    "with a parameter auxiliary_models, or leave them out.")]


def _asks_models(taskset, source) -> bool:
    """Returns whether the answers to a set may need auxiliary models; rows may name what asks them."""
    functions, given = reward_functions(taskset, source), taskset.reward_fn_args
    judged = "judge_reward" in functions and given.get("judge_model") and not given.get("judge_url")
    workflows = [taskset.default_workflow_type, source.default_workflow_type, source.default_eval_workflow_type]
    return bool("reward_model" in functions or judged or taskset.format.reward_fn_key or taskset.format.workflow_key
                or any(":" in name and "auxiliary_models" in parameters_of(name).names() for name in workflows if name))


def _lost(keys: list[str], kind: Kind, settings: Config) -> list[str]:
    """Returns the keys that this kind of stage does not read, or that its algorithm does not use."""
    read, idle, off, standard = _read(kind, settings), unused(settings.algorithm), switched_off(settings), Config()
    return [key for key in keys if is_below(key, idle) or not is_below(key, read)
            or (is_below(key, off) and at(settings, key) != at(standard, key))]


def _read(kind: Kind, settings: Config) -> tuple[str, ...]:
    """Returns the settings read by this kind of stage or by its data, model and evaluation stages."""
    made, algorithm_type = (kind, *map(KINDS.get, kind.brings)), settings.algorithm.algorithm_type
    filled = ["algorithm.algorithm_type"] if kind.explores else []  # it fills null values: a greedy baseline
    return (*(key for each in made for key in received_settings(each, algorithm_type)), "data_processor.task_pipeline",
            "environment.images", "images.max_gib",
            "model.model_path", *([TEACHER] if settings.asks_teacher else []), *filled)


def _decisive() -> list[str]:
    """Returns the settings that affect results rather than execution; list elements count as a whole."""
    return [key for key, item in walk() if "*" not in key and not about(item).how]


def unusable_root(root: str) -> list[Problem]:
    """Reports a `checkpoint_root_dir` in which no directory can be created. Creates none."""
    if address(root):
        return [Problem("checkpoint_root_dir", "is an address; needed a directory of this machine.", found=root)]
    above = Path(os.path.abspath(root))
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if above.is_dir() and os.access(above, os.W_OK) and above.resolve().parts[1:2] not in (("proc",), ("sys",)):
        return []
    wrong = "cannot be written to" if above.is_dir() else "is no directory"
    return [Problem("checkpoint_root_dir", f"{above} {wrong}.", "Name a place in which store/ and runs/ can be made.",
                    found=root)]
