"""Rules on what a run reads: files that are missing, sets without a source, recorded rows, tasks of Harbor."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ouroboros.pipeline.check.model import absent_teacher, other_models
from ouroboros.pipeline.check.named_functions import lonely
from ouroboros.pipeline.check.sources import sources
from ouroboros.pipeline.check.stage import state_problems
from ouroboros.pipeline.check.user_code import Functions, missing_code
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.plan import hub
from ouroboros.pipeline.plan.plan import Plan
from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import COMPARE
from ouroboros.pipeline.settings.arguments.worlds import World
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import EXPERTS, INPUT, PIPELINE, SHOWN, Taskset
from ouroboros.pipeline.settings.images import paths_of_sets
from ouroboros.pipeline.settings.kinds import RECIPES
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.setting import values_of
from ouroboros.pipeline.store import dockerfiles, files, harbor, images, tables
from ouroboros.pipeline.store.digests import HubPath, address, nothing_at, resolve
from ouroboros.pipeline.store.errors import DataError, Problem
from ouroboros.pipeline.store.model_shape import absent_model

FILES = ("data_processor.task_pipeline.config_path", RECIPES, "model.chat_template_path", "model.lora_configs.*.path")
IMAGES = "environment.images"  # base image -> file or directory
TAKEN = "Needed a directory that `ouro serve --record` wrote, or of a stage with mode=explore (store/NAME-HASH)."
MOST_NAMED = 5  # reasons, remarks, images


def absent_files(recipe: Recipe) -> list[Problem]:
    """Lists the configured files, models and modules that are missing on this machine."""
    found = [line for name, settings in recipe.settings.items() for line in missing(settings, recipe.models[name])]
    found += filter(None, (absent_teacher(recipe, one) for one in recipe.teachers.values()))
    return hub.about_paths(recipe.run, found) if found else []


def missing(config: Config, start: Model) -> list[Problem]:
    """Lists what a stage's settings refer to and is missing on this machine.

    start: the section `model` that names its initial model.
    """
    looked = f"does not exist (looked from {Path.cwd()})."
    named = [(single, key, path) for single in FILES for key, path in values_of(config, single) if path]
    bases = [(IMAGES, f"{IMAGES}.{name}", path) for name, path in config.environment.images.items()]
    lines = [Problem(s.label, f"{s.path} {words}") for s in sources(config)
             if not isinstance(s.path, HubPath) and (words := nothing_at(s.path))]
    lines += [Problem(key, f"{path} {address(path) or looked}") for _, key, path in named + bases
              if not resolve(path).exists()]
    lines += [Problem(key, f"{path} is {'a directory' if resolve(path).is_dir() else 'no file'}; needed a file.")
              for single, key, path in named
              if single in FILES[:3] and resolve(path).exists() and not resolve(path).is_file()]
    if start.model_path and not start.init.enable and (absent := absent_model(start.model_path)):
        lines.append(absent)
    lines += [absent_model(path, key) for key, path in other_models(config) if absent_model(str(resolve(path)))]
    return lines + missing_code(config)


def without_rows(c: Config) -> list[Problem]:
    """Lists sets of a stage without rows; a run with no data at all: `recipe.each(rowless)`."""
    return [*([] if no_file(c) else rowless(c)), *_without_split(c), *_of_turns(c)]


def _sets(places: list[tuple[str, Taskset]]) -> list[tuple[str, Taskset]]:
    return [(f"{INPUT}.{place}", taskset) for place, taskset in places]


def _without_split(c: Config) -> list[Problem]:
    """Lists sets that need a split of the pool that nothing creates: without curation all rows are training tasks.

    Judged per training stage only.
    """
    pool = c.data_processor.task_pipeline
    if c.stages or pool.config_path or pool.operators or not (pool.generator or pool.inputs):
        return []
    buffer = c.buffer.trainer_input.experience_buffer
    wanted = []
    if c.kind.learns_from_given and c.algorithm.data != "texts" and buffer.path is None:  # texts: combinations.py
        wanted.append((SHOWN, "pairs" if c.algorithm.on_pairs else "demonstrations"))
    wanted += [(key, "tasks of split test") for key, one in _sets(c.buffer.explorer_input.eval_places)
               if one.path is None and one.split == "test"]
    return [Problem(f"{key}.path", f"is not set, and of the rows of {PIPELINE} none are {what}: without curation "
                    f"nothing splits them.", f"Set {PIPELINE}.config_path to a recipe with split_by_hash_mapper "
                    "(conf/data_juicer/), or the path.") for key, what in wanted]


def _of_turns(c: Config) -> Iterator[Problem]:
    """Yields buffers of the pool's demonstrations with the wrong number of trained turns: a generator of a world makes
    conversations, whose last reply is the same in all; other rows of the pool are one turn, or end with the one that is
    trained on."""
    if c.stages:
        return
    pool, given = c.data_processor.task_pipeline, c.buffer.trainer_input
    talks = pool.generator in declared.GENERATORS and issubclass(declared.GENERATORS[pool.generator], World)
    buffers = [(SHOWN, given.experience_buffer)] if c.algorithm.data == "demonstrations" else []
    for key, one in buffers + [(f"{EXPERTS}.{name}", one) for name, one in given.auxiliary_buffers.items()]:
        place, every = f"{key}.format.enable_concatenated_multi_turn", one.format.enable_concatenated_multi_turn
        if one.path is not None or every == talks:
            continue
        why, advice = (f"of files (path), or of a generator of conversations; the rows of {PIPELINE} are others.",
                       "Leave it out.")
        if talks:
            why, advice = (f"the demonstrations of generator={pool.generator} are conversations that end with the same "
                           "reply, and no other would be trained on.", "Set true.")
        yield Problem(place, why, advice, found=every)


def no_file(c: Config) -> bool:
    """Returns whether no set of a stage names a file."""
    source, given = c.buffer.explorer_input, c.buffer.trainer_input
    sets = [given.experience_buffer, *given.auxiliary_buffers.values()]
    return all(one.path is None for one in [*sets, *(one for _, one in source.places)])


def rowless(c: Config) -> list[Problem]:
    """Returns the sets of a stage without a row source; other rules cover buffers of pairs and texts."""
    pool = c.data_processor.task_pipeline
    if pool.generator or pool.inputs:
        return []
    source, buffer = c.buffer.explorer_input, c.buffer.trainer_input.experience_buffer
    trained = [(SHOWN, buffer)] if c.kind.learns_from_given and c.algorithm.data == "demonstrations" else []
    if c.kind.explores:
        trained = _sets(source.train_places)
    if c.kind.is_online and c.algorithm.sample_strategy == "mix":
        trained += [(f"{EXPERTS}.{name}", one) for name, one in c.buffer.trainer_input.auxiliary_buffers.items()]
    return [Problem(f"{key}.path", f"is not set, and {PIPELINE} has neither generator nor inputs to take rows from.",
                    "Set one." + (_as_demonstrations(c) if key == SHOWN else ""))
            for key, taskset in [*trained, *_sets(source.eval_places)] if taskset.path is None]


def _as_demonstrations(c: Config) -> str:
    """Returns the setting that trains on the solutions of the first set of tasks that has files, or an empty text."""
    for _, one in c.buffer.explorer_input.train_places:
        if one.path is not None and (columns := one.format).prompt_type == "plaintext":
            columns = f"{{prompt_key: {columns.prompt_key}, response_key: {columns.solution_key or 'solution'}}}"
            return (f" Where the tasks have solutions, below trainer_input: experience_buffer: {{path: {one.path}, "
                    f"format: {columns}}}")
    return ""


def unfit_rows(recipe: Recipe) -> list[Problem]:
    """Lists what the rows of offline stages lack. Stages must have valid names and order."""
    pairs = ((name, recipe.explored[name]) for name, kind in recipe.kinds.items() if kind.is_offline)
    return [problem.of([name]) for name, explorer in pairs if explorer
            for problem in lacking(recipe.settings[name].algorithm, recipe.settings[explorer], f"stages.{explorer}.")]


def lonely_groups(recipe: Recipe, functions: Functions) -> list[Problem]:
    """Does the same for the user's imported advantages, whose rows need groups."""
    pairs = ((name, recipe.explored[name]) for name, kind in recipe.kinds.items() if kind.is_offline)
    return [problem.of([name]) for name, explorer in pairs if explorer for problem in lonely(
        recipe.settings[name].algorithm, recipe.settings[explorer].algorithm, functions, f"stages.{explorer}.")]


def lacking(algorithm: Algorithm, explored: Config, place: str) -> list[Problem]:
    """Lists what the rows lack for an algorithm.

    algorithm: the section, with defaults. explored: the settings of the stage that explored. place: prefix of its
    settings: `stages.look.`, or empty.
    """
    function, made = algorithm.advantage_fn, explored.algorithm
    found = []
    if function in COMPARE and (made.repeat_times or 1) < 2:
        found.append(Problem("algorithm.advantage_fn", "compares the rollouts of a group, and the rows are of groups "
                             "of one.", f"Needed {place}algorithm.repeat_times of at least 2.", found=function))
    if function == "remax" and not made.greedy_baseline:
        found.append(Problem("algorithm.advantage_fn", "needs the column baseline_reward, the reward of a greedy "
                             "response to each task, which the rows lack.", f"They have it with "
                             f"{place}algorithm.greedy_baseline=true.", found=function))
    return found + state_problems(function, explored, place)


def unfit_directory(source: Path, steps: list[int]) -> str | None:
    """Returns why the experience in a directory cannot be trained on. steps: those that are there."""
    if not steps:
        return "has no recorded step (rollouts/step=*.parquet)."
    newest = max(row.weights_version for row in tables.read_steps(source, "rollouts", steps))
    return (f"has rollouts by {newest} optimizer steps and fewer; a stage trains on those of one policy."
            if newest else None)


def directories(recipe: Recipe) -> list[Problem]:
    """Lists the directories whose experience offline stages of a run cannot take over."""
    paths = {name: recipe.settings[name].buffer.trainer_input.experience_buffer.path
             for name, kind in recipe.kinds.items() if kind.is_offline and recipe.source[name] is None}
    found = []
    for name, path in paths.items():
        if path is None or not (source := resolve(path)).exists():  # of which other rules tell
            continue
        try:
            why = unfit_directory(source, tables.steps_present(source, "rollouts"))
        except DataError as error:
            why = str(error)
        found += [Problem(f"{SHOWN}.path", why, TAKEN, found=path).of([name])] if why else []
    return found


def of_tasks(config: Config) -> tuple[list[tuple[str, str]], list[Problem]]:
    """Returns (path, sentence) of every directory of Harbor tasks: how many run, in how many images, and why others do
    not. And warnings: what is read otherwise than it is written, the first ones alone, and base images of
    environment.images that no Dockerfile names."""
    given, tasks = config.environment.images, {path: found for path in dict.fromkeys(paths_of_sets(config.buffer))
                                               if (found := images.tasks_below(path))}
    every = [task for found in tasks.values() for task in found]
    remarks = [Problem(str(task.directory), remark) for task in every for remark in task.remarks]
    more = [Problem("Harbor tasks", f"{len(remarks) - MOST_NAMED} more such remarks.")] if remarks[MOST_NAMED:] else []
    named = {dockerfiles.qualified(name) for task in every if given and task.dockerfile
             for name in dockerfiles.bases(task.dockerfile)}
    unnamed = [Problem("environment.images", f"no Dockerfile of the tasks names this image; they name "
                       f"{', '.join(sorted(named)[:MOST_NAMED]) or 'none'}.", found=name)
               for name in given if dockerfiles.qualified(name) not in named]
    return ([(path, _of_directory(config, path, found)) for path, found in tasks.items()],
            [*remarks[:MOST_NAMED], *more, *unnamed])


def _of_directory(config: Config, path: str, tasks: list[harbor.HarborTask]) -> str:
    root = config.checkpoint_root_dir
    built = images.environments([path], config.environment.images, root)
    made = sum(images.place_of(root, one.key).exists() for one in built)
    reasons = Counter(task.unsupported for task in tasks if task.unsupported)
    shown = [f"{reason} ({count})" for reason, count in reasons.most_common(MOST_NAMED)]
    others = f"; {reasons.total()} do not: {'; '.join(shown + ['…'] * (len(reasons) > MOST_NAMED))}" if reasons else ""
    largest = (f"; the disk needed is without the others, each of up to {config.images.max_gib:g} GiB, and the "
               "programs of their Dockerfiles run as root on this machine")
    return (f"{len(tasks) - reasons.total()} of {len(tasks)} Harbor tasks run, in {len(built)} images, of "
            f"which {made} are built{largest * (made < len(built))}{others}")


def unbuildable_images(plan: Plan) -> list[Problem]:
    """Returns the problem of a stage that would build images on a machine that cannot."""
    waiting = any(stage.kind.builds and not files.is_complete(stage.directory) for stage in plan.stages)
    return [Problem("environment.images", reason)] if waiting and (reason := images.no_builder()) else []
