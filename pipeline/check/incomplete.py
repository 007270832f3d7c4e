"""All findings on a recipe; of one whose settings have problems, the valid parts are checked all the same."""

from ouroboros.pipeline.check import fit, preflight
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.check.mode_rules import missing_model
from ouroboros.pipeline.check.report import Report
from ouroboros.pipeline.check.samples import preview
from ouroboros.pipeline.compose.origins import located
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.compose.stage_settings import are_ordered
from ouroboros.pipeline.job.devices import gpus_by_stage
from ouroboros.pipeline.plan.identity import is_below
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store.errors import UNSAID, ConfigError, Problem

# settings that the number of GPUs and the data sample depend on
OF_GPUS = ("cluster", "mode", "trainer.ranks", "explorer.rollout_model", "explorer.auxiliary_models",
           "algorithm.algorithm_type")
OF_ROWS = ("data_processor", "buffer.explorer_input", "buffer.trainer_input", "model",
           "algorithm.sample_strategy_args")


def report_on(overrides: list[str], elsewhere: bool = False, data: bool = True, call: bool = True) -> Report:
    """Returns what `ouro config check` says: of settings that do not compose, their problems alone, and no run.

    elsewhere, data, call: as in preflight.check; without data, no code of the user is imported either.
    """
    try:
        composed, problems = judged(overrides)
    except ConfigError as error:  # a file cannot be read
        return Report("", problems=error.problems)
    return report_of(composed, problems, overrides, elsewhere, data, call)


def report_of(composed: Config, problems: list[Problem], overrides: list[str], elsewhere: bool = False,
              data: bool = True, call: bool = True) -> Report:
    """Returns what `report_on` does. composed, problems: of `judged`."""
    preflight.forget()
    if problems:
        more = further_problems(composed, problems, elsewhere, data)
        return Report("", problems=located([*problems, *more], overrides))
    report = preflight.check(composed, elsewhere, data=data, code=data, call=data and call and not elsewhere, ask=data)
    if not data:
        report.add("", ["rows of data files, sizes of models (GPU memory, disk), Data-Juicer operators, code of yours: "
                        "--no-data leaves them out."], "unjudged")
    found, number = located([*report.problems, *report.warnings], overrides), len(report.problems)
    report.problems, report.warnings = found[:number], found[number:]
    return report


def further_problems(config: Config, problems: list[Problem], elsewhere: bool = False, data: bool = False
                     ) -> list[Problem]:
    """Lists further problems. config: settings with problems have their default value.

    elsewhere, data: as in preflight.check. Checks that depend on an invalid setting are skipped.
    """
    recipe, right = Recipe(config), _are_right(("model",), problems)
    found = [*missing_model(recipe), *preflight.broken_models(recipe, elsewhere)] if right else []
    unreadable = any(problem.key.endswith(".path") and problem.found is not UNSAID for problem in problems)  # no text
    if not (elsewhere or unreadable):
        found += preflight.absent_files(recipe)
    if are_ordered(config.stages) and _are_right(OF_GPUS, problems):
        gpus = gpus_by_stage(recipe.settings, here=not elsewhere)
        found += [problem.of([name]) for name, settings in recipe.settings.items()
                  if (problem := fit.count_problem(settings, gpus[name]))]
    if data and _are_right(OF_ROWS, problems):
        found += preview(config, list(recipe.settings.values()))["problems"]
    return found


def _are_right(sections: tuple[str, ...], problems: list[Problem]) -> bool:
    """Returns whether no problem is about a setting of these sections."""
    return not any(is_below(problem.key, sections) for problem in problems)
