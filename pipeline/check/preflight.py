"""Everything known about a run before it starts: its problems, and the resources it needs.

`check` asks the rules of each subject: model, data, batch, stage, code (named_functions.py, user_code.py), machine
(with engine.py, fit.py). It runs nothing except, on request, stages/preview.py and stages/own_code.py in processes of
their own. It imports neither torch nor operators.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ouroboros.pipeline.check import (
    batch,
    engine,
    fit,
    machine,
    model,
    model_size,
    named_functions,
    samples,
    stage,
    times,
    user_code,
    workload,
)
from ouroboros.pipeline.check.calls import ask_judges, ask_policies, ask_servers, call_once, call_rewards
from ouroboros.pipeline.check.data import (
    absent_files,
    directories,
    lonely_groups,
    of_tasks,
    rowless,
    unbuildable_images,
)
from ouroboros.pipeline.check.judge import judged
from ouroboros.pipeline.check.model_size import Sizes
from ouroboros.pipeline.check.report import Report, warn
from ouroboros.pipeline.check.user_code import Functions
from ouroboros.pipeline.compose.origins import located
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job import trunks
from ouroboros.pipeline.job.devices import Gpus, gpus_by_stage
from ouroboros.pipeline.plan import hub, packaged_tasks
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.plan.repositories import NO_ID
from ouroboros.pipeline.settings.config import Config, Slurm
from ouroboros.pipeline.settings.kinds import is_below
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.errors import UNSAID, ConfigError, OuroError, Problem
from ouroboros.pipeline.store.model_shape import plain_config

# settings that the number of GPUs and the data sample depend on
OF_GPUS = ("cluster", "mode", "trainer.ranks", "explorer.rollout_model", "explorer.auxiliary_models",
           "algorithm.algorithm_type")
OF_ROWS = ("data_processor", "buffer.explorer_input", "buffer.trainer_input", "model", "algorithm.sample_strategy_args")


def report_on(overrides: list[str], elsewhere: bool = False, data: bool = True, call: bool = True) -> Report:
    """Returns what `ouro config check` says: of settings that do not compose, their problems alone, and no run.

    elsewhere, data, call: as in `check`; without data, no code of the user is imported either.
    """
    try:
        composed, problems = judged(overrides)
    except ConfigError as error:  # a file cannot be read
        return Report("", problems=error.problems)
    return report_of(composed, problems, overrides, elsewhere, data, call)


def report_of(composed: Config, problems: list[Problem], overrides: list[str], elsewhere: bool = False,
              data: bool = True, call: bool = True) -> Report:
    """Returns what `report_on` does. composed, problems: of `judged`."""
    forget()
    if problems:
        more = further_problems(composed, problems, elsewhere, data)
        return Report("", problems=located([*problems, *more], overrides))
    report = check(composed, elsewhere, data=data, code=data, call=data and call and not elsewhere, ask=data)
    if not data:
        report.add("", ["rows of data files, sizes of models (GPU memory, disk), Data-Juicer operators, code of yours: "
                        "--no-data leaves them out."], "unjudged")
    report.problems, report.warnings = located(report.problems, overrides), located(report.warnings, overrides)
    return report


def further_problems(config: Config, problems: list[Problem], elsewhere: bool = False, data: bool = False
                     ) -> list[Problem]:
    """Lists further problems. config: settings with problems have their default value.

    elsewhere, data: as in `check`. Checks that depend on an invalid setting are skipped.
    """
    recipe, right = Recipe.of(config), _are_right(("model",), problems)
    found = [*model.missing_model(recipe), *model.broken_models(recipe, elsewhere)] if right else []
    unreadable = any(problem.key.endswith(".path") and problem.found is not UNSAID for problem in problems)  # no text
    if not (elsewhere or unreadable):
        found += absent_files(recipe)
    if recipe.ordered and _are_right(OF_GPUS, problems):
        gpus = gpus_by_stage(recipe.settings, here=not elsewhere)
        found += [problem.of([name]) for name, settings in recipe.settings.items()
                  if (problem := fit.count_problem(settings, gpus[name]))]
    if data and _are_right(OF_ROWS, problems):
        found += samples.preview(config, list(recipe.settings.values()))["problems"]
    return found


def _are_right(sections: tuple[str, ...], problems: list[Problem]) -> bool:
    """Returns whether no problem is about a setting of these sections."""
    return not any(is_below(problem.key, sections) for problem in problems)


def forget() -> None:
    """Answers of samples and calls of code are kept for the points of a sweep: called before another command,
    since files and code may have changed."""
    samples.answered.cache_clear()
    call_once.cache_clear()
    times.pace.cache_clear()


def judged_plan(config: Config, on_warning: Callable[[str], None] | None = None, update_hub: bool = False,
                plans_only: bool = False) -> Plan:
    """Returns the plan of a run about to start. Raises ConfigError with every problem. on_warning: receives each
    warning; default: `warn`. plans_only: nothing is to start, so no data is read and no code called."""
    deep = False if plans_only else None
    report = check(config, data=deep, code=not plans_only, call=deep, update_hub=update_hub)
    for line in report.warnings:
        (on_warning or warn)(line)
    if report.problems:
        raise ConfigError.of("the run would not go through (`ouro config check` says more):", report.problems)
    return replace(report.plan, expected=tuple(report.expected))


def check(config: Config, elsewhere=False, data: bool | None = False, code=False, call: bool | None = False, ask=True,
          update_hub=False) -> Report:
    """Returns the Report on a composed configuration.

    elsewhere: the run is for another machine; files missing on this one are not checked. These take seconds: data reads
    a sample of every file of rows; code imports the user's named functions; call calls the reward functions among them
    and starts MCP servers. None for data or call: where nothing is wrong so far and a stage is incomplete, no servers.
    ask, update_hub: see hub.located.
    """
    report = Report(f"{config.project}/{config.name}")
    missing_is = "unjudged" if elsewhere else "problems"
    given, (config, unlocated) = config, hub.located(config, ask, update_hub)
    malformed = [line for line in unlocated if NO_ID in line]  # invalid whatever the hub answers
    report.add("", malformed)
    report.add("", [one for one in unlocated if one not in malformed], missing_is if ask else "unjudged")
    made = list(packaged_tasks.facts(config)) if config is not given else []
    report.facts += [("tasks", made)] if made else []
    recipe = Recipe.of(config)
    stages, absent = workload.counted(recipe), absent_files(recipe)
    gpus = gpus_by_stage(stages, here=not elsewhere)
    report.add("", absent, missing_is)
    if not (_of_run(report, recipe, elsewhere) or absent or unlocated):  # planning stores digests below the root
        _plan(report, config, elsewhere)
    fetched = report.add_all("", hub.downloads(report.plan.stages if report.plan else []))
    report.facts += [("downloaded by `ouro run`, before its first job", fetched)] if fetched else []
    waiting = [settings for name, settings in stages.items() if _made(report.plan, name) is not None]
    deep = not report.problems and bool(waiting)
    sizes = _sizes(report, recipe, stages, deep if data is None else data, code and any(g.gib for g in gpus.values()))
    functions = _import(report, waiting, elsewhere, deep if call is None else call, bool(call)) if code else {}
    report.add("", [*lonely_groups(recipe, functions), *([] if elsewhere else directories(recipe))])
    report.add("", machine.unknown_gpus(list(gpus.values())), "unjudged")
    needed = {name: _stage(report, recipe, name, settings, gpus[name], functions, sizes, elsewhere)
              for name, settings in stages.items()}
    if None not in needed.values():
        uncounted = [name for name, settings in stages.items() if workload.workload(settings).experiences is None]
        words, problem = machine.disk(config.checkpoint_root_dir, sum(needed.values()), elsewhere, uncounted)
        report.facts += [("disk", [("needed", words)])] if words else []
        report.add("", [problem])
    return report


def _of_run(report: Report, recipe: Recipe, elsewhere: bool) -> bool:
    """Adds the findings that need neither a plan nor sizes of models; returns whether one of them prevents planning."""
    root = recipe.run.checkpoint_root_dir
    wrong = [*recipe.each(user_code.wrong_code, written=True), *([] if elsewhere else machine.unusable_root(root)),
             *model.broken_models(recipe, elsewhere)]
    report.add("", [*wrong, *recipe.each(rowless), *model.missing_model(recipe), *batch.unfillable_steps(recipe)])
    report.add_all("", machine.of_run(recipe, elsewhere))
    report.add("", [*stage.unread(recipe), *stage.idle_pool(recipe), *stage.partly_measured(recipe)], "warnings")
    return bool(wrong)


def _plan(report: Report, config: Config, elsewhere: bool) -> None:
    try:
        plan = make_plan(config)
    except OuroError as error:
        report.add("", getattr(error, "problems", error.args))
        return
    continued = [(one.name, words) for one in plan.stages if (words := trunks.continued(one))]
    report.plan = replace(plan, continued=tuple(continued))
    report.facts += [("steps that are there", continued)] if continued else []
    if not elsewhere:
        meant = [one for one in report.plan.stages if one.config.cluster.slurm.model_dump() != Slurm().model_dump()]
        report.add("", [*machine.unsatisfiable_requests(meant), *unbuildable_images(report.plan)])


def _sizes(report: Report, recipe: Recipe, stages: dict[str, Config], data: bool, alone: bool) -> Sizes | None:
    """Returns the sizes of the models, counted in a separate process that also samples the data; None without it.
    alone: whether to count the models without the data."""
    if not (data or alone):
        return None
    starts = recipe.models
    asked = model_size.questions(stages, starts, recipe.teachers)
    found = samples.preview(recipe.run, list(stages.values()), asked) if data else model_size.counted(asked)
    named = {path: key for name, settings in stages.items() for key, path in model.models(settings, starts[name])}
    found["problems"] = report.news_of_models(found["problems"], named)
    report.add_all("", {to: found[to] for to in ("problems", "warnings", "unjudged")})
    if data:
        facts, remarks = of_tasks(recipe.run)
        report.add("", remarks, "warnings")
        report.facts.append(("data", [*map(tuple, found["facts"]), *facts]))
    return Sizes(found["sizes"], starts)


def _import(report: Report, waiting: list[Config], elsewhere: bool, call: bool, servers: bool) -> Functions:
    """Imports, and calls, the user's code named by incomplete stages, in separate processes;
    returns the imported functions. waiting: their settings."""
    functions, wrong = user_code.imported(waiting, "\n".join([*report.problems, *report.unjudged]))
    report.add("", wrong, "unjudged" if elsewhere else "problems")
    if call:
        wrong = (line for one in waiting for line in named_functions.wrong_arguments(one, functions))
        report.facts.append(("rewards", call_rewards(waiting, "\n".join([*report.problems, *wrong]), report.add)))
    if servers:
        report.facts += [("MCP servers", ask_servers(waiting, functions, report.add)),
                         ("judges", ask_judges(waiting, report.add)), ("servers", ask_policies(waiting, report.add))]
    return functions


def _stage(report: Report, recipe: Recipe, name: str, config: Config, gpus: Gpus, functions: Functions,
           sizes: Sizes | None, elsewhere: bool) -> float | None:
    """Checks and describes one training stage, unless it is complete; returns the disk bytes it still needs, if known.

    config: its settings, with the steps that are known. functions: the user's imported functions. sizes: of the models;
    None where they were not counted."""
    start, teacher = recipe.models[name], recipe.teachers[name]
    made, plain, facts = _made(report.plan, name), plain_config(start), workload.described(config)
    planned = next((one for one in report.plan.stages if one.name == name), None) if report.plan else None
    if planned and made is not None:
        size = sizes and sizes.of(start)
        found = times.expected(planned, config, size and size.parameters, report.plan.stages)
        facts += (said := times.described(planned, config, found))
        report.expected += [(planned, words, found) for _, words in said[:1]]
    report.facts.append((name, facts))
    judged = Report("") if made is None else report  # a complete stage has no problems
    fitting, taken = fit.of_stage(config, gpus, start, teacher, sizes)
    for found in (model.of_stage(config, start, teacher, plain, gpus), named_functions.of_stage(config, functions),
                  {"warnings": batch.notes(config)}, engine.of_stage(config, plain, gpus, elsewhere),
                  {} if elsewhere else machine.of_stage(config, gpus),
                  {} if elsewhere else samples.isolation(config), fitting):
        facts += judged.add_all(name, found)
    if taken:
        return 0.0 if made is None else max(taken.total - made, 0.0)
    wrong = any(one.found == start.model_path for one in report.problems)
    lacking = [] if sizes is None or plain or wrong else ["GPU memory and disk: the model is not here."]
    judged.add("", lacking, "unjudged")
    return None if judged is report else 0.0


def _made(plan: Plan | None, name: str) -> float | None:
    """Returns the bytes that a stage has already written; None when it is complete."""
    found = next((s for s in plan.stages if s.name == name), None) if plan else None
    if found is None:
        return 0.0
    if files.is_complete(found.directory):
        return None
    return float(sum(path.stat().st_size for path in Path(found.directory).rglob("*") if path.is_file()))
