"""What an advantage function requires of recorded rows: groups, greedy baselines, states.

An offline stage trains on what another stage explored, and `ouro replay` applies algorithms to a batch recorded for
another one. Missing properties are reported before anything runs, with the setting of the exploring stage that adds it.
"""

from pathlib import Path

from ouroboros.pipeline.check.named_functions import lonely
from ouroboros.pipeline.check.turn_rules import state_problems
from ouroboros.pipeline.check.user_code import Functions
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.algorithms import COMPARE
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import SHOWN
from ouroboros.pipeline.store import tables
from ouroboros.pipeline.store.digests import resolve
from ouroboros.pipeline.store.errors import DataError, Problem

TAKEN = "Needed a directory that `ouro serve --record` wrote, or of a stage with mode=explore (store/NAME-HASH)."


def unfit_rows(recipe: Recipe) -> list[Problem]:
    """Lists what the rows of offline stages lack. Stages must have valid names and order."""
    pairs = ((name, recipe.explored(name)) for name, kind in recipe.kinds.items() if kind.is_offline)
    return [problem.of([name]) for name, explorer in pairs if explorer
            for problem in lacking(recipe.settings[name].algorithm, recipe.settings[explorer], f"stages.{explorer}.")]


def lonely_groups(recipe: Recipe, functions: Functions) -> list[Problem]:
    """Does the same for the user's imported advantages, whose rows need groups."""
    pairs = ((name, recipe.explored(name)) for name, kind in recipe.kinds.items() if kind.is_offline)
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
             for name, kind in recipe.kinds.items() if kind.is_offline and recipe.source(name) is None}
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
