"""Rules for the order of modes in a recipe: what a stage needs of those before it."""

from collections.abc import Iterator

from ouroboros.pipeline.check.row_counts import most_rows
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.settings.data import SHOWN, train_places
from ouroboros.pipeline.settings.model import NO_MODEL
from ouroboros.pipeline.settings.profiles import profiled
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.train_batch import rows_of_step
from ouroboros.pipeline.store.errors import ConfigError, Problem

OPERATORS = "data_processor.experience_pipeline.operators"


def unfit_order(recipe: Recipe) -> list[Problem]:
    """Lists stages whose mode does not fit those before it. Stages must have valid names and order."""
    found = []
    for name, kind in recipe.kinds.items():
        if kind.is_offline:
            found += [problem.of([name]) for problem in _offline_problems(recipe, name)]
        own = at(recipe.settings[name], OPERATORS)
        used = own == at(recipe.run, OPERATORS) and any(one.makes_experience for one in recipe.kinds.values())
        if kind.learns_from_given and own and not used:
            found.append(Problem(OPERATORS, "judge responses of an explorer, and this stage learns from given ones.",
                                 "Set them in the stage that explores; data_processor.task_pipeline.operators curate "
                                 "given rows.", found=own, stages=[name]))
        if kind.explores:
            found += [problem.of([name]) for problem in _unmeasured(recipe, name)]
        if kind.only_rewards:
            found += [problem.of([name]) for problem in _scored_problems(recipe, name)]
        if recipe.begins_with(name) in recipe.servers():
            found.append(Problem("after", "begins with the model of a server, which is not here.",
                                 "Put it before the evaluation of the server, or give it a model.", stages=[name]))
        if kind.evaluates and not recipe.trained(name) and not recipe.settings[name].asks_server:
            found.append(Problem("mode", "evaluates the checkpoints of the stages before it, and none of those trains.",
                                 "Put it behind one that does.", found=recipe.settings[name].mode, stages=[name]))
    return found


def _unmeasured(recipe: Recipe, name: str) -> Iterator[Problem]:
    """Yields a problem for each feature that no stage measures before this one, or that one measures of other sets."""
    able = [one for one in recipe.ancestors(name) if recipe.kinds[one].explores and not recipe.kinds[one].trains]
    for place, one in train_places(recipe.settings[name].buffer.explorer_input):
        for key in one.data_selector.feature_keys:
            if (measured := profiled(key)) and measured[0] not in able:
                yield Problem(f"buffer.explorer_input.{place}.data_selector.feature_keys", "names no stage with "
                              f"mode=explore before this one; there {'is ' + ', '.join(able) if able else 'is none'}.",
                              "Put one there, which attempts every task, and set the selector in this stage alone.",
                              found=key)
            elif measured:
                yield from _another_name(recipe, measured[0], place, one.name)


def partly_measured(recipe: Recipe) -> Iterator[Problem]:
    """Yields a warning where a stage reads rates of every task, and the stage that measures them attempts fewer."""
    for name, settings in recipe.settings.items():
        places = train_places(settings.buffer.explorer_input) if recipe.kinds[name].explores else ()
        measured = {found[0] for _, one in places for key in one.data_selector.feature_keys if (found := profiled(key))}
        for source in measured & recipe.settings.keys():
            theirs, buffer = recipe.settings[source], recipe.settings[source].buffer
            tasks = most_rows(theirs)
            steps = buffer.total_steps or (tasks and max(buffer.total_epochs * tasks // buffer.batch_size, 1))
            if tasks and steps * buffer.batch_size < tasks:
                yield Problem("buffer.total_steps", f"{steps:,} steps of {buffer.batch_size:,} tasks attempt "
                              f"{steps * buffer.batch_size:,} of up to {tasks:,}; {name} stops where one has no rate "
                              "(data_selector.feature_keys).", f"{-(-tasks // buffer.batch_size)} attempts them all.",
                              found=buffer.total_steps, stages=[source])


def _another_name(recipe: Recipe, source: str, place: str, name: str) -> Iterator[Problem]:
    """Yields a problem where an earlier stage explored no set of that name, by which its tasks are found again."""
    theirs = [one.name for _, one in train_places(recipe.settings[source].buffer.explorer_input)]
    if name not in theirs:
        yield Problem(f"buffer.explorer_input.{place}.name", f"'{source}' explored {', '.join(theirs)}.",
                      "Needed a set of that name.", found=name)


def _scored_problems(recipe: Recipe, name: str) -> Iterator[Problem]:
    source = recipe.source(name)
    if source is None:
        yield Problem("mode", "is about what an earlier stage explored, and none is before it.",
                      "Put it behind one with mode=explore, both or colocate.", found=recipe.settings[name].mode)
        return
    theirs = {one.name: one for _, one in train_places(recipe.settings[source].buffer.explorer_input)}
    for place, one in train_places(recipe.settings[name].buffer.explorer_input):
        key = f"buffer.explorer_input.{place}"
        if one.name not in theirs:
            yield from _another_name(recipe, source, place, one.name)
            continue
        for part in ("path", "subset_name", "split", "format", "limit"):
            if (here := getattr(one, part)) != getattr(theirs[one.name], part):
                yield Problem(f"{key}.{part}", f"with mode={recipe.settings[name].mode} the tasks are those that "
                              f"'{source}' explored.", "Leave it as it is there.", found=here)


def _uncurated(recipe: Recipe, name: str) -> list[Problem]:
    """Reports operators on experience that an offline stage would ignore: those of the stage that wrote it judge it."""
    key, source = OPERATORS, recipe.source(name)
    own, theirs = ([] if one is None else at(recipe.settings[one], key) for one in (name, source))
    if not own or own == theirs:
        return []
    if source is None:
        return [Problem(key, "a stage with mode=train reads recorded experience as it is: these operators would judge "
                        "no row.", "Leave them out.", found=own)]
    return [Problem(key, f"a stage with mode=train reads what the operators of '{source}' left, and these would judge "
                    f"no row.", f"Set them in '{source}', or in a stage with mode=score between the two.", found=own)]


def _offline_problems(recipe: Recipe, name: str) -> list[Problem]:
    return [*_rowless(recipe, name), *_uncurated(recipe, name)]


def _rowless(recipe: Recipe, name: str) -> list[Problem]:
    source = recipe.explored(name)
    if recipe.source(name) is None:
        if isinstance(recipe.settings[name].buffer.trainer_input.experience_buffer.path, str):  # ouro serve --record
            return []
        return [Problem("mode", "with an algorithm that learns from rollouts, a stage trains on what an earlier one "
                        "with mode=explore wrote, and none is before it.", "Put one there (stage_name: explore, mode: "
                        f"explore), set {SHOWN}.path to a directory that ouro serve --record wrote, or set mode=both.",
                        found=recipe.settings[name].mode)]
    if recipe.settings[source].asks_server:
        return [Problem("mode", f"what '{source}' wrote are answers of a server, which gives neither the token "
                        "ids nor the log-probs that rollouts are trained by.", "Train on them as demonstrations, with "
                        f"algorithm_type=sft and {SHOWN}.path (docs/serve.md).", found=recipe.settings[name].mode)]
    theirs, batch = recipe.settings[source], recipe.settings[name].buffer.train_batch_size
    rows = rows_of_step(theirs)
    try:
        Schedule(rows, batch or rows, 1, 0, 1)
    except ConfigError as error:
        return [problem.but(needed=f"on the experience of '{source}': {problem.needed}")
                for problem in error.problems]
    return []


def missing_model(recipe: Recipe) -> list[Problem]:
    """Returns one problem when a stage has no initial model."""
    servers = recipe.servers()
    lacking = [not one.model_path and not one.init.enable for name, one in recipe.models.items()
               if name not in servers]
    return [NO_MODEL] if any(lacking) else []
