"""Rules on the stages of a recipe: their order, what one needs of those before it, and settings that none reads."""

import re
from collections.abc import Iterable, Iterator

from ouroboros.pipeline.check.sources import most_rows
from ouroboros.pipeline.compose.recipe import Recipe, renamed_components, sets
from ouroboros.pipeline.job.schedule import Schedule
from ouroboros.pipeline.plan.data import data_settings
from ouroboros.pipeline.plan.identity import uses
from ouroboros.pipeline.settings.arguments.answers import WORKFLOWS
from ouroboros.pipeline.settings.config import RUN_WIDE, Config, walk
from ouroboros.pipeline.settings.data import RETRY, SHOWN, profiled, reward_functions, turns_of, workflow_of
from ouroboros.pipeline.settings.declared import ADVANTAGES
from ouroboros.pipeline.settings.kinds import KINDS, TEST_ROWS, Kind, is_below
from ouroboros.pipeline.settings.model import TEACHER
from ouroboros.pipeline.settings.setting import about, at
from ouroboros.pipeline.settings.train_batch import rows_of_step
from ouroboros.pipeline.settings.unused import switched_off, unused
from ouroboros.pipeline.store.errors import ConfigError, Problem
from ouroboros.pipeline.store.signatures import parameters_of

OPERATORS = "data_processor.experience_pipeline.operators"
# check/model.py, `unasked_models`; a name that no stage reads cannot be wrong
REPORTED_ELSEWHERE = (TEACHER, "explorer.auxiliary_models", "buffer.explorer_input.taskset.name",
                  "buffer.trainer_input.experience_buffer.name")


def unfit_order(recipe: Recipe) -> list[Problem]:
    """Lists stages whose mode does not fit those before it. Stages must have valid names and order."""
    return [problem.of([name]) for name in recipe.kinds for problem in _of_order(recipe, name)]


def _of_order(recipe: Recipe, name: str) -> Iterator[Problem]:
    kind, settings = recipe.kinds[name], recipe.settings[name]
    if (begins := recipe.begins_with[name]) and recipe.settings[begins].asks_server:
        yield Problem("after", "begins with the model of a server, which is not here.", "Put it before the evaluation "
                      "of the server, or give it a model.")
    if kind.explores:
        yield from _unmeasured(recipe, name)
    if kind.only_rewards:
        yield from _scored_problems(recipe, name)
    if kind.is_offline:
        yield from (*_rowless(recipe, name), *_uncurated(recipe, name))
    own = at(settings, OPERATORS)
    used = own == at(recipe.run, OPERATORS) and any(one.makes_experience for one in recipe.kinds.values())
    if kind.learns_from_given and own and not used:
        yield Problem(OPERATORS, "judge responses of an explorer, and this stage learns from given ones.",
                      "Set them in the stage that explores; data_processor.task_pipeline.operators curate given rows.",
                      found=own)
    if kind.evaluates and not recipe.trained(name) and not settings.asks_server:
        yield Problem("mode", "evaluates the checkpoints of the stages before it, and none of those trains.",
                      "Put it behind one that does.", found=settings.mode)


def _unmeasured(recipe: Recipe, name: str) -> Iterator[Problem]:
    """Yields a problem for each feature that no stage measures before this one, or that one measures of other sets."""
    able = [one for one in recipe.ancestors[name] if recipe.kinds[one].explores and not recipe.kinds[one].trains]
    for place, one in recipe.settings[name].buffer.explorer_input.train_places:
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
        places = settings.buffer.explorer_input.train_places if recipe.kinds[name].explores else ()
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
    theirs = [one.name for _, one in recipe.settings[source].buffer.explorer_input.train_places]
    if name not in theirs:
        yield Problem(f"buffer.explorer_input.{place}.name", f"'{source}' explored {', '.join(theirs)}.",
                      "Needed a set of that name.", found=name)


def _scored_problems(recipe: Recipe, name: str) -> Iterator[Problem]:
    source = recipe.source[name]
    if source is None:
        yield Problem("mode", "is about what an earlier stage explored, and none is before it.",
                      "Put it behind one with mode=explore, both or colocate.", found=recipe.settings[name].mode)
        return
    theirs = {one.name: one for _, one in recipe.settings[source].buffer.explorer_input.train_places}
    for place, one in recipe.settings[name].buffer.explorer_input.train_places:
        yield from _another_name(recipe, source, place, one.name)
        for part in ("path", "subset_name", "split", "format", "limit") if one.name in theirs else ():
            if (here := getattr(one, part)) != getattr(theirs[one.name], part):
                yield Problem(f"buffer.explorer_input.{place}.{part}", f"with mode={recipe.settings[name].mode} the "
                              f"tasks are those that '{source}' explored.", "Leave it as it is there.", found=here)


def _uncurated(recipe: Recipe, name: str) -> list[Problem]:
    """Reports operators on experience that an offline stage would ignore: those of the stage that wrote it judge it."""
    source = recipe.source[name]
    own, theirs = ([] if one is None else at(recipe.settings[one], OPERATORS) for one in (name, source))
    if not own or own == theirs:
        return []
    if source is None:
        return [Problem(OPERATORS, "a stage with mode=train reads recorded experience as it is: these operators would "
                        "judge no row.", "Leave them out.", found=own)]
    return [Problem(OPERATORS, f"a stage with mode=train reads what the operators of '{source}' left, and these would "
                    f"judge no row.", f"Set them in '{source}', or in a stage with mode=score between the two.",
                    found=own)]


def _rowless(recipe: Recipe, name: str) -> list[Problem]:
    source = recipe.explored[name]
    if recipe.source[name] is None:
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
    rows = rows_of_step(recipe.settings[source])
    try:
        Schedule(rows, recipe.settings[name].buffer.train_batch_size or rows, 1, 0, 1)
    except ConfigError as error:
        return [one.but(needed=f"on the experience of '{source}': {one.needed}") for one in error.problems]
    return []


def unread(recipe: Recipe) -> list[Problem]:
    """Lists settings that are set but have no effect, once for each stage and once for the run.

    These are warnings: a recipe may be shared, and a stage may repeat a whole section. Run-wide settings at their
    default are not listed.
    """
    config, said, standard = recipe.run, recipe.run.said, Config()
    named = [(entry["stage_name"], entry) for entry in recipe.entries]
    problems = list(_always_so(said, [name for name, _ in named]))
    for name, entry in named:
        if lost := _lost([key for key in _decisive() if sets(entry, key)], recipe.kinds[name], recipe.settings[name]):
            problems.append(Problem(", ".join(lost), "is not read by the stage and changes nothing there.",
                                    "Take it out, or set it where it is read.", stages=[name]))
    given = [key for key in _decisive() if not is_below(key, (*RUN_WIDE, *REPORTED_ELSEWHERE))
             and at(config, key) != at(standard, key)]
    for name, entry in named:
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
    return [Problem(" and ".join(given), "no set takes rows from it: each has its own path.",
                    "Take it out, or set the path to null.")] if given else []


def unasked_models(recipe: Recipe) -> list[Problem]:
    """Returns the problem of auxiliary models of a run that no stage uses: they would occupy GPUs for nothing."""
    stages = recipe.settings.values()
    sets = [(one, stage.buffer.explorer_input) for stage in stages for _, one in stage.buffer.explorer_input.places]
    if not any(stage.explorer.auxiliary_models for stage in stages) or any(
            _asks_models(taskset, source) for taskset, source in sets) or any(
            stage.asks_teacher and stage.own_teacher for stage in stages):
        return []
    return [Problem("explorer.auxiliary_models", "nothing asks them.", "Name reward_model or judge_reward with a "
                    "judge_model among the functions of buffer.explorer_input.default_reward_fn_type, a workflow "
                    "with a parameter auxiliary_models, or one as model.teacher_name, or leave them out.")]


def _asks_models(taskset, source) -> bool:
    """Returns whether the answers to a set may need auxiliary models; rows may name what asks them."""
    functions, given = reward_functions(taskset, source), taskset.reward_fn_args
    judged = "judge_reward" in functions and given.get("judge_model") and not given.get("judge_url")
    workflows = [taskset.default_workflow_type, source.default_workflow_type, source.default_eval_workflow_type]
    return bool("reward_model" in functions or judged or taskset.format.reward_fn_key or taskset.format.workflow_key
                or any(":" in name and "auxiliary_models" in parameters_of(name).names()
                       for name in workflows if name))


def _lost(keys: list[str], kind: Kind, settings: Config) -> list[str]:
    """Returns the keys that this kind of stage does not read, or that its algorithm does not use."""
    read, idle, off, standard = _read(kind, settings), unused(settings.algorithm), switched_off(settings), Config()
    return [key for key in keys if is_below(key, idle) or not is_below(key, read)
            or (is_below(key, off) and at(settings, key) != at(standard, key))]


def _read(kind: Kind, settings: Config) -> tuple[str, ...]:
    """Returns the settings read by this kind of stage or by its data, model and evaluation stages."""
    made, algorithm_type = (kind, *map(KINDS.get, kind.brings)), settings.algorithm.algorithm_type
    filled = ["algorithm.algorithm_type"] if kind.explores else []  # it fills null values: a greedy baseline
    given = (key for each in made for key in (*uses(each, algorithm_type), *each.external, *each.watches))
    return (*given, "data_processor.task_pipeline", "environment.images", "images.max_gib", "model.model_path",
            *([TEACHER] if settings.asks_teacher else []), *filled)


def _decisive() -> list[str]:
    """Returns the settings that affect results rather than execution; list elements count as a whole."""
    return [key for key, item in walk() if "*" not in key and not about(item).how]


def unfit_turns(recipe: Recipe) -> list[Problem]:
    """Lists what is wrong with turns and their states, stage by stage. Stages must have valid names and order."""
    return [problem.of([name]) for name, c in recipe.settings.items() for problem in (
        # offline stages: pipeline/check/data.py
        *(state_problems(c.algorithm.advantage_fn, c) if c.kind.is_online else ()),
        *(() if c.kind.learns_from_given else _short_of_turns(c)))]


def state_problems(function: str, explored: Config, place: str = "") -> list[Problem]:
    """Lists sets whose workflow does not identify states that the advantage `function` compares.

    explored: the settings of the stage whose explorer creates the rows. place: prefix of its settings: `stages.look.`.
    """
    if function not in ADVANTAGES or not ADVANTAGES[function].compares_states:
        return []
    source = explored.buffer.explorer_input
    chosen = [(name, workflow_of(one, source, name)) for name, one in source.train_places]
    return [Problem("algorithm.advantage_fn", "compares turns that begin in the same state (column state_hash), and "
                    f"the workflow of {place}buffer.explorer_input.{name}, {workflow}, does not tell states apart.",
                    "Set its default_workflow_type to retry_workflow, or to a workflow of your own whose "
                    "trajectories have a state.", found=function)
            # a user's workflow is only known after a run
            for name, workflow in chosen if workflow in WORKFLOWS and not WORKFLOWS[workflow].tells_states]


def _short_of_turns(settings: Config) -> list[Problem]:
    """Lists the sets, of a stage or of the evaluation of its model, whose sequences are too short for a second turn:
    its prompt holds the first turn, the answer and the feedback."""
    source, model = settings.buffer.explorer_input, settings.model
    least = model.max_prompt_tokens + 2 * model.max_response_tokens
    places = [*(source.train_places if settings.kind.explores else []), *source.eval_places]
    return [Problem(f"buffer.explorer_input.{place}", f"{RETRY} appends the feedback to the conversation, which takes "
                    f"more than {least} tokens (a prompt and two responses), and a sequence may have {model.longest}.",
                    "Raise model.max_model_len, or set workflow_args.feedback=null to ask the question as it was.")
            for place, one in places if model.longest <= least and turns_of(one, source, place) > 1
            and one.workflow_args.get("feedback", "") is not None]
