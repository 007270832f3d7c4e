"""Everything known about a run before it starts: its problems, and the resources it needs.

`check` inspects data files, function arguments, GPUs and their memory, and disk space; it runs nothing except, on
request, stages/preview.py and stages/own_code.py in processes of their own. It imports neither torch nor operators.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ouroboros.pipeline.check import (
    batch_rules,
    builtin_rewards,
    cluster_rules,
    engine_rules,
    fit,
    harbor_rules,
    host_rules,
    installation,
    mode_rules,
    model_size,
    named_functions,
    recorded_rules,
    references,
    remote_code,
    samples,
    server_call,
    stage_rules,
    teacher_rules,
    workload,
)
from ouroboros.pipeline.check.model_size import Sizes
from ouroboros.pipeline.check.report import Report, size, warn
from ouroboros.pipeline.check.reward_call import call_once, call_rewards
from ouroboros.pipeline.check.step_rules import step_notes
from ouroboros.pipeline.check.user_code import Functions, imported, tool_notes
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.devices import Gpus, gpus_by_stage
from ouroboros.pipeline.plan import hub, packaged_tasks
from ouroboros.pipeline.plan.plan import Plan, make_plan
from ouroboros.pipeline.plan.repositories import NO_ID
from ouroboros.pipeline.settings.config import Config, Slurm
from ouroboros.pipeline.settings.model import Model
from ouroboros.pipeline.settings.monitors import absent_package, monitor_problems
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.architecture import text_part, windowed
from ouroboros.pipeline.store.errors import ConfigError, OuroError, Problem
from ouroboros.pipeline.store.model_shape import plain_config, room_problem, split_problem


def check(config: Config, elsewhere=False, data: bool | None = False, code=False, call: bool | None = False, ask=True,
          update_hub=False):
    """Returns the Report on a composed configuration.

    elsewhere: the run is for another machine; files missing on this one are not checked. These take seconds: data reads
    a sample of every file of rows; code imports the user's named functions; call calls the reward functions among them
    and starts MCP servers. None for data or call: where nothing is wrong so far and a stage is incomplete, no servers.
    ask, update_hub: see hub.located.
    """
    report = Report(f"{config.project}/{config.name}")
    missing_is = "unjudged" if elsewhere else "problems"
    config, unlocated = hub.located(config, ask, update_hub)
    malformed = [line for line in unlocated if NO_ID in line]  # invalid whatever the hub answers
    report.add("", malformed)
    report.add("", [one for one in unlocated if one not in malformed], missing_is if ask else "unjudged")
    report.facts += [("tasks", found)] if (found := list(packaged_tasks.facts(config))) else []
    recipe = Recipe(config)
    stages = workload.counted(recipe)
    gpus = gpus_by_stage(stages, here=not elsewhere)
    starts, absent = recipe.models, absent_files(recipe)
    teachers = {name: recipe.teacher(name) for name in stages}
    report.add("", absent, missing_is)
    wrong = _of_run(report, recipe, stages, elsewhere)
    if not (absent or unlocated or wrong):  # planning stores digests below the run's root
        _plan(report, config, elsewhere)
    hub.judge_downloads(report)
    waits = not report.problems and bool(_waiting(report, stages))
    data, rewards = (waits if one is None else one for one in (data, call))
    sizes = _sizes(report, config, stages, starts, teachers, data, code and any(one.gib for one in gpus.values()))
    functions = _import(report, stages, elsewhere, rewards, bool(call)) if code else {}
    report.add("", recorded_rules.lonely_groups(recipe, functions))
    report.add("", [] if elsewhere else recorded_rules.directories(recipe))
    report.add("", host_rules.unknown_gpus(list(gpus.values())), "unjudged")
    needed = [_stage(report, settings, (starts[name], teachers[name]), name, gpus[name], functions, sizes, elsewhere)
              for name, settings in stages.items()]
    if None not in needed:
        _disk(report, config.checkpoint_root_dir, sum(needed), elsewhere, [
            name for name, settings in stages.items() if workload.workload(settings).experiences is None])
    report.add("", [] if elsewhere else [installation.absent_gpus(config.cluster.gpu_per_node)], "warnings")
    return report


def _of_run(report: Report, recipe: Recipe, stages: dict[str, Config], elsewhere: bool) -> bool:
    """Adds the findings that need neither a plan nor sizes of models; returns whether one of them prevents planning."""
    config = recipe.run
    monitor, wrong_code = config.monitor, recipe.each(references.wrong_code, written=True)
    report.add("", wrong_code)
    report.add("", [absent_package(monitor.monitor_type)], "unjudged" if elsewhere else "problems")
    report.add("", [*monitor_problems(monitor.monitor_type, monitor.monitor_args), *stage_rules.without_data(recipe)])
    unusable = [] if elsewhere else stage_rules.unusable_root(config.checkpoint_root_dir)
    report.add("", unusable)
    report.add("", [*stage_rules.unread(recipe), *stage_rules.idle_pool(recipe), *mode_rules.partly_measured(recipe)],
               "warnings")
    report.add("", [] if elsewhere else [*installation.remarks()], "warnings")
    report.add("", [] if elsewhere else [installation.absent_engine(stages), 
                                          *launch.hidden_modules()])
    broken = broken_models(recipe, elsewhere)
    report.add("", broken + mode_rules.missing_model(recipe) + batch_rules.unfillable_steps(recipe))
    return bool(wrong_code or unusable or broken)


def absent_files(recipe: Recipe) -> list[Problem]:
    """Lists the configured files, models and modules that are missing on this machine."""
    named = (references.missing(settings, recipe.models[name]) for name, settings in recipe.settings.items())
    taught = (teacher_rules.absent_teacher(recipe, recipe.teacher(name)) for name in recipe.settings)
    return hub.about_paths(recipe.run, [*(line for lines in named for line in lines), *filter(None, taught)])


def broken_models(recipe: Recipe, elsewhere: bool = False) -> list[Problem]:
    """Lists models and adapters on this machine that cannot be used. elsewhere: the run is for another
    machine, where the weights may be complete."""
    stages = ((settings, recipe.models[name]) for name, settings in recipe.settings.items())
    return list(dict.fromkeys(line for settings, start in stages for line in (
        *references.wrong_models(settings, start), *references.wrong_adapters(settings),
        *([] if elsewhere else references.wrong_weights(settings, start)))))


def forget() -> None:
    """Answers of samples and calls of code are kept for the points of a sweep: called before another command,
    since files and code may have changed."""
    samples.answered.cache_clear()
    call_once.cache_clear()


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
    return report.plan


def _plan(report: Report, config: Config, elsewhere: bool) -> None:
    try:
        report.plan = make_plan(config)
    except OuroError as error:
        report.add("", getattr(error, "problems", error.args))
        return
    usual = Slurm().model_dump()
    meant = [stage for stage in report.plan.stages if stage.config.cluster.slurm.model_dump() != usual]
    report.add("", [] if elsewhere else [*cluster_rules.unsatisfiable_requests(meant),
                                         *harbor_rules.unbuildable_images(report.plan)])


def _sizes(report: Report, config: Config, stages: dict[str, Config], starts: dict[str, Model],
           teachers: dict[str, Model | None], data: bool, alone: bool) -> Sizes | None:
    """Returns the sizes of the models, counted in a separate process that also samples the data; None without it.
    alone: whether to count the models without the data."""
    if not (data or alone):
        return None
    asked = model_size.questions(stages, starts, teachers)
    found = samples.preview(config, list(stages.values()), asked) if data else model_size.counted(asked)
    named = {path: key for name, settings in stages.items() for key, path in references.models(settings, starts[name])}
    found["problems"] = report.news_of_models(found["problems"], named)
    for to in ("problems", "warnings", "unjudged"):
        report.add("", found[to], to)
    if data:
        report.add("", [*harbor_rules.remarks(config), *harbor_rules.unnamed_images(config)], "warnings")
        report.facts.append(("data", [*map(tuple, found["facts"]), *harbor_rules.facts(config)]))
    return Sizes(found["sizes"], starts)


def _waiting(report: Report, stages: dict[str, Config]) -> list[Config]:
    """Returns the settings of the incomplete stages."""
    return [settings for name, settings in stages.items() if _made(report.plan, name) is not None]


def _import(report: Report, stages: dict[str, Config], elsewhere: bool, call: bool, servers: bool) -> Functions:
    """Imports, and calls, the user's code named by incomplete stages, in separate processes;
    returns the imported functions."""
    waiting = _waiting(report, stages)
    functions, wrong = imported(waiting, "\n".join([*report.problems, *report.unjudged]))
    report.add("", wrong, "unjudged" if elsewhere else "problems")
    if call:
        wrong = (line for one in waiting for line in named_functions.wrong_arguments(one, functions))
        known = [*report.problems, *wrong]
        report.facts.append(("rewards", call_rewards(waiting, "\n".join(known), report.add)))
    if servers:
        report.facts += server_call.ask(waiting, functions, report.add)
    return functions


def _stage(report: Report, config: Config, models: tuple[Model, Model | None], name: str, gpus: Gpus,
           functions: Functions, sizes: Sizes | None, elsewhere: bool) -> float | None:
    """Checks and describes one training stage, unless it is complete; returns the disk bytes it still needs,
    if known. models: the sections `model` that name its model and its teacher. functions: the user's imported
    functions. sizes: of the models; None where they were not counted."""
    start, teacher = models
    made, plain = _made(report.plan, name), plain_config(start)
    judged = Report("") if made is None else report  # a complete stage has no problems
    _settings(judged, config, models, plain, name, gpus, functions)
    if teacher:
        _teacher(judged, config, (start, teacher), name, gpus, sizes)
    facts = [*workload.described(config), ("GPUs", fit.gpu_words(config, gpus))]
    window = None if plain is None or start.init.enable else windowed(text_part(plain), config.model.longest)
    facts += [("attention", f"{window}.")] if window else []
    report.facts.append((name, facts))
    if not elsewhere:
        judged.add(name, host_rules.unfit_host(config, gpus),
                   "warnings" if config.ignore_validator_suggestions else "problems")
        judged.add(name, engine_rules.idle(config), "warnings")
        for to, found in zip(("problems", "warnings"), builtin_rewards.isolation(config), strict=True):
            judged.add(name, found, to)
    size = sizes and sizes.of(start, config.model.lora_configs)
    if size is None:
        wrong = any(one.found == start.model_path for one in report.problems)
        lacking = [] if sizes is None or plain or wrong else ["GPU memory and disk: the model is not here."]
        judged.add("", lacking, "unjudged")
        return None if judged is report else 0.0
    if gpus.gib:
        judged.add(name, fit.beyond_memory(size, config, gpus, fit.judge_bytes(config, gpus, sizes)),
                   "warnings" if config.ignore_validator_suggestions else "problems")
    judged.add(name, [fit.tiles_problem(size, config)])
    trained = fit.adapter_words(size, config)
    facts += [("LoRA", trained)] if trained else []
    facts += fit.described(size, config, gpus) if gpus.any else []
    taken = workload.disk(config, size, fit.element_bytes(config, gpus))
    facts.append(("disk", _words(taken)))
    return 0.0 if made is None else max(taken.total - made, 0.0)


def _settings(judged: Report, config: Config, models: tuple[Model, Model | None], plain: dict | None, name: str,
              gpus: Gpus, functions: Functions) -> None:
    """Adds what is wrong with a stage's settings, or remarkable, but for sizes. plain: its config.json."""
    start, teacher = models
    judged.add(name, [*references.untrainable_models(config, start, gpus),
                      *named_functions.wrong_arguments(config, functions), fit.count_problem(config, gpus)])
    notes = [named_functions.loss_note(config, functions), named_functions.clip_note(config, functions),
             named_functions.estimate_note(config), *tool_notes(config, functions), *step_notes(config)]
    judged.add(name, [*notes, *batch_rules.batch_notes(config)], "warnings")
    if plain:
        parallel = config.explorer.rollout_model.tensor_parallel_size if gpus.any else 1
        split = config.trainer.ulysses_sequence_parallel_size if config.kind.trains else 1
        judged.add(name, [room_problem(start.model_path, config.model, plain.get("max_position_embeddings")),
                          split_problem(plain, f"{engine_rules.ENGINE}.tensor_parallel_size", parallel),
                          split_problem(plain, "trainer.ulysses_sequence_parallel_size", split),
                          *engine_rules.of_model(config, plain, gpus)])
    for to, found in zip(("problems", "warnings"), remote_code.of_stage(config, start, teacher), strict=True):
        judged.add(name, found, to)
    judged.add(name, [] if gpus.any else [engine_rules.in_chunks(config)])


def _teacher(report: Report, config: Config, models: tuple[Model, Model], name: str, gpus: Gpus,
             sizes: Sizes | None) -> None:
    """Checks the memory of a stage's teacher. models: the sections `model` that name the policy's and the teacher's."""
    start, teacher = models
    policy = sizes and sizes.of(start, config.model.lora_configs)
    own = sizes and sizes.of(teacher)
    if not (gpus.any and policy and own):
        return
    element = fit.element_bytes(config, gpus)
    report.facts.append((f"{name}, its teacher", [("memory", teacher_rules.words(own, config, element))]))
    if gpus.gib:
        report.add(name, [teacher_rules.memory_problem(own, policy, config, element, gpus.gib)],
                   "warnings" if config.ignore_validator_suggestions else "problems")


def _made(plan: Plan | None, name: str) -> float | None:
    """Returns the bytes that a stage has already written; None when it is complete."""
    stage = next((s for s in plan.stages if s.name == name), None) if plan else None
    if stage is None:
        return 0.0
    if files.is_complete(stage.directory):
        return None
    return float(sum(path.stat().st_size for path in Path(stage.directory).rglob("*") if path.is_file()))


def _disk(report: Report, root: str, needed: float, elsewhere: bool, uncounted: list[str]) -> None:
    """Compares the estimate with the free space at the run's root. uncounted: stages whose tables are excluded."""
    more = f", and beside it the experience tables of {', '.join(uncounted)}" if uncounted else ""
    if elsewhere:
        words = f"at most {size(needed)}{more}; what is free elsewhere is not known here"
        report.facts.append(("disk", [("needed", words)]))
        return
    existing = Path(os.path.abspath(root))
    if stage_rules.unusable_root(root):  # reported already
        return
    while not existing.is_dir():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    words = f"at most {size(needed)} more of {size(free)} free at {existing}{more}"
    report.facts.append(("disk", [("needed", words)]))
    if needed > free:
        report.add("", [Problem("checkpoint_root_dir", f"the training stages need up to {size(needed)}, {size(free)} "
                                "are free there.", "Free some space, set another directory, or lower "
                                "trainer.max_checkpoints_to_keep.", found=root)])


def _words(taken: workload.Disk) -> str:
    counted = taken.checkpoints is not None
    parts = [f"checkpoints {size(taken.checkpoints)}" if counted else
             f"{size(taken.checkpoint)} each checkpoint, of which all are kept"]
    if taken.versions:
        parts.append(f"weights on their way {size(taken.versions)}")
    if taken.tables != 0:
        parts.append("tables: known once the tasks are curated" if taken.tables is None else
                     f"tables {size(taken.tables)}")
    bound = f"at {'most' if counted else 'least'} {size(taken.total)}"
    return f"{bound if taken.tables is not None else f'without the tables {bound}'}: {', '.join(parts)}"
