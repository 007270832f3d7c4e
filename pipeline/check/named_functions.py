"""Checks the functions that settings name: their arguments, and what their callers give them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ouroboros.pipeline.check.samples import generator_problems
from ouroboros.pipeline.check.user_code import Functions, tool_notes, wrong_code
from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.algorithm import Algorithm
from ouroboros.pipeline.settings.arguments.answers import ToolArguments, tool_arguments
from ouroboros.pipeline.settings.arguments.base import Taker, problems
from ouroboros.pipeline.settings.arguments.binding import EACH, bind_reward, required_columns
from ouroboros.pipeline.settings.arguments.terms import Kl
from ouroboros.pipeline.settings.arguments.users import GROUPS, Signature, column_of, provided, wrong_first
from ouroboros.pipeline.settings.columns import ratio_column, ratio_problems, unweighed_steps, wrong_parameters
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import Taskset, reward_functions, workflow_of
from ouroboros.pipeline.settings.monitors import monitor_problems
from ouroboros.pipeline.settings.reward_rules import answered
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.settings.train_batch import REPLAY
from ouroboros.pipeline.settings.trainer import several_steps
from ouroboros.pipeline.store.errors import Problem


def wrong_references(recipe: Recipe) -> list[Problem]:
    """Lists invalid arguments and code missing from its module. Stages must have valid names and order."""
    monitor = recipe.run.monitor
    return [*monitor_problems(monitor.monitor_type, monitor.monitor_args),
            *recipe.each(lambda c: [*wrong_code(c), *wrong_arguments(c)], written=True)]


def of_stage(config: Config, functions: Functions) -> dict[str, list[Problem | None]]:
    """Returns what is wrong with the functions that a stage names, or remarkable. functions: imported ones."""
    return {"problems": wrong_arguments(config, functions),
            "warnings": [loss_note(config, functions), clip_note(config, functions), estimate_note(config),
                         *tool_notes(config, functions)]}


def wrong_arguments(config: Config, functions: Functions | None = None) -> list[Problem]:
    """Lists unknown, missing or invalid arguments in `*_args`, and parameters of a user's function that its caller
    cannot supply.

    config: the settings of one stage. functions: the user's imported functions; those not imported are not checked.
    """
    known = functions or {}
    wrong = [line for found in _named(config, known) for line in problems(*found)]
    wrong += [Problem(key, f"the workflow '{name}' {why}") for key, _, name in _attempted(config)  # needed the task
              if (found := known.get(name)) and (why := wrong_first(found))]
    wrong += _without_tools(config, known)
    wrong += _cut_prefixes(config, known) + _without_models(config, known) + generator_problems(config)
    if config.algorithm.on_rollouts and (taken := loss_columns(config.algorithm, known)) is not None:
        wrong += ratio_problems(config.algorithm, taken, several_steps(config.trainer))
    if config.kind.is_online:
        wrong += lonely(config.algorithm, config.algorithm, known, None)
    wrong += unweighed_steps(config, known.get(config.algorithm.advantage_fn or ""))
    return _wrong_parameters(config, known) + _wrong_rewards(config, known) + _wrong_columns(config) + wrong


def lonely(algorithm: Algorithm, explored: Algorithm, functions: Functions, place: str | None) -> list[Problem]:
    """Returns the problem of a user's advantage that compares the rollouts of groups of one.

    explored: the settings of the stage that explored them. place: prefix of these, `stages.look.`, or empty; None: it
    is the same stage.
    """
    name, own = algorithm.advantage_fn, functions.get(algorithm.advantage_fn or "")
    if not own or not own.compares_groups or (explored.repeat_times or 1) > 1:
        return []
    read = "" if "compares_groups" in own.facts else (
        f" It reads {' or '.join(GROUPS)}: where it compares no rollouts by them, its module says "
        f"{name.rpartition(':')[2]}.compares_groups = False.")
    if place is None:
        return [Problem("algorithm.repeat_times", f"{name} compares the rollouts of a group; needed at least 2.{read}",
                        found=1)]
    return [Problem("algorithm.advantage_fn", "compares the rollouts of a group, and the rows are of groups of one.",
                    f"Needed {place}algorithm.repeat_times of at least 2.{read}", found=name)]


def _wrong_parameters(config: Config, functions: Functions) -> list[Problem]:
    """Checks the parameters of user functions that are components of a stage's algorithm."""
    algorithm = config.algorithm
    found = {part: functions.get(getattr(algorithm, part)) for part in _used(algorithm)}
    return [problem for part, one in found.items() if one
            for problem in by_position(part, getattr(algorithm, part), one)
            or wrong_parameters(part, (*one.required, *("**" for _ in range(one.takes_anything))), algorithm)]


def by_position(part: str, name: str, function: Signature) -> list[Problem]:
    """Returns the problem of positional-only parameters in a function that is called with column names as keywords."""
    if part == "advantage_fn" or not function.only_positional:
        return []
    return [Problem(f"algorithm.{part}", f"takes {', '.join(function.only_positional)} by position only, and a column "
                    "is passed by its name.", "Take the '/' out.", found=name)]


def _wrong_rewards(config: Config, functions: Functions) -> list[Problem]:
    """Checks the parameters of the user's reward functions."""
    explorer = config.buffer.explorer_input
    found = {name: own for _, one in answered(config) for name in reward_functions(one, explorer)
             if (own := functions.get(name))}
    return [Problem(f"'{name}'", f"has {len(one.positional)} parameters by position "
                    f"({', '.join(one.positional) or 'none'}); it is called with 2, the response and its "
                    "truth: needed f(response, answer, ...).") for name, one in found.items()
            if not (one.takes_others or len(one.positional) > 1 or bind_reward(one, {}).way != EACH)]


def _wrong_columns(config: Config) -> list[Problem]:
    """Lists columns that nobody has, of a generator's rows, and arguments `${column:NAME}` of functions of ours."""
    explorer, generator, found = config.buffer.explorer_input, config.data_processor.task_pipeline.generator, {}
    for place, one in answered(config):
        for name in required_columns(asked_columns(one, explorer, place)) if generator and one.path is None else ():
            found[name] = Problem(f"buffer.explorer_input.{place}", f"a function of the set takes the column '{name}', "
                                  f"and rows of the generator {generator} have no columns.", "Give its parameter a "
                                  "default, or a value in reward_fn_args or workflow_args.")
    return [*found.values(), *(
        Problem(f"buffer.explorer_input.{place}.reward_fn_args.{argument}", f"is a column, and {name} takes no column.",
                "Needed a value, or a function of yours.", found=value)
        for place, one in answered(config) for argument, value in one.reward_fn_args.items() if column_of(value)
        for name in reward_functions(one, explorer) if name in declared.REWARDS
        and argument in declared.REWARDS[name].names())]


def loss_columns(algorithm: Algorithm, functions: Functions) -> Sequence[str] | None:
    """Returns the columns that the policy loss takes; None where unknown."""
    name = algorithm.policy_loss_fn or ""
    ours, own = declared.POLICY_LOSSES.get(name), functions.get(name)
    return ours.columns if ours else own.required if own else None


def _named(config: Config, functions: Functions) -> Iterator[tuple[str, str, list[Taker | None], dict]]:
    """Returns (key of the arguments, functions, their parameters or None where unknown, arguments)."""
    pipeline = config.data_processor.task_pipeline
    if name := pipeline.generator:
        key = "data_processor.task_pipeline.generator_args"
        yield key, name, [declared.GENERATORS.get(name)], pipeline.generator_args
    explorer = config.buffer.explorer_input
    yield from _parts(config.algorithm, functions)
    yield from _on_experience(config, functions)
    replay = config.buffer.trainer_input.experience_buffer.replay_buffer
    if replay.enable:
        taker = declared.PRIORITIES.get(replay.priority_fn)
        yield f"{REPLAY}.priority_fn_args", replay.priority_fn, [taker], replay.priority_fn_args
    for key, taskset, workflow in _attempted(config):
        names = reward_functions(taskset, explorer)
        takers = [reward_taker(name, functions) for name in names]
        takers += declared.REWARDS.values() if _by_row(config, taskset, "reward_fn_key") else ()
        yield f"{key}.reward_fn_args", ", ".join(names), takers, taskset.reward_fn_args
        more = declared.WORKFLOWS.values() if _by_row(config, taskset, "workflow_key") else ()
        yield f"{key}.workflow_args", workflow, [
            workflow_taker(workflow, functions), *[ToolArguments] * _takes_tools(workflow, functions), *more
        ], taskset.workflow_args


def _on_experience(config: Config, functions: Functions) -> Iterator[tuple[str, str, list[Taker | None], dict]]:
    """Returns the user's operators on experience in the form of `_named`; the rows are their first parameter."""
    for i, one in enumerate(config.data_processor.experience_pipeline.operators):
        if (own := functions.get(one.get("name"))) and config.kind.makes_experience:
            key = f"data_processor.experience_pipeline.operators.{i}.args"
            yield key, one["name"], [own.without(*own.names()[:1])], one.get("args") or {}


def _by_row(config: Config, taskset: Taskset, key: str) -> str | None:
    """Returns a key of the format that the rows of a set are read by: its own, or the pool's."""
    own = taskset if taskset.path is not None else config.data_processor.task_pipeline
    return getattr(own.format, key)


def _cut_prefixes(config: Config, functions: Functions) -> list[Problem]:
    """Lists the sets whose replies begin with a text, and whose workflow asks for more than one reply."""
    found = []
    for key, one, name in _attempted(config):
        prefix, own = _by_row(config, one, "reply_prefix"), functions.get(name)
        several = ASKING & set(own.names()) if own else name != SINGLE and ":" not in name
        if prefix and several:
            place = key if one.path is not None else "data_processor.task_pipeline"
            found.append(Problem(f"{place}.format.reply_prefix", f"begins the only reply of an attempt, and {name} has "
                                 "several.", f"Needed {SINGLE}, or a generator of your own.", found=prefix))
    return found


def _takes_tools(workflow: str, functions: Functions) -> bool:
    own, ours = functions.get(workflow), declared.WORKFLOWS.get(workflow)
    return "toolbox" in own.names() if own else bool(ours) and issubclass(ours, ToolArguments)


def _without_tools(config: Config, functions: Functions) -> list[Problem]:
    """Lists the sets whose workflow calls tools and whose arguments name none."""
    return [Problem(f"{key}.workflow_args", f"name no tools for {workflow}; needed tools=['my_tools:search'], "
                    "environment_class=my_world:World or mcp={shop: {command: my-server}}.")
            for key, one, workflow in _attempted(config)
            if _takes_tools(workflow, functions)
            and not any(map(tool_arguments(workflow, one.workflow_args).get, ("tools", "environment_class", "mcp")))]


def _without_models(config: Config, functions: Functions) -> list[Problem]:
    """Reports a workflow that asks auxiliary models where explorer.auxiliary_models is empty."""
    asking = [name for _, _, name in _attempted(config) if "auxiliary_models" in (
        functions[name].names() if functions.get(name) else ())]
    return [Problem("explorer.auxiliary_models", f"is empty, and {asking[0]} asks the models there.",
                    "Add {model_path: ...}.", found=[])] if asking and not config.explorer.auxiliary_models else []


def tools_with_servers(config: Config, functions: Functions) -> list[tuple[str, dict[str, Any]]]:
    """Returns (setting, arguments that name tools) of the sets whose agents use MCP servers, if they are valid."""
    return [(f"{key}.workflow_args", {name: value for name, value in one.workflow_args.items()
                                      if name in ToolArguments.model_fields})
            for key, one, workflow in _attempted(config)
            if one.workflow_args.get("mcp") and not ToolArguments.wrong_values(key, one.workflow_args)
            and _takes_tools(workflow, functions)]


def _attempted(config: Config) -> list[tuple[str, Taskset, str]]:
    """Returns (setting, task set, its workflow) of the sets for which a stage samples responses."""
    return [(f"buffer.explorer_input.{place}", one, workflow_of(one, config.buffer.explorer_input, place))
            for place, one in answered(config)]


def _parts(algorithm: Algorithm, functions: Functions) -> Iterator[tuple[str, str, list[Taker | None], dict]]:
    """Returns an algorithm's components that have arguments, in the form of `_named`."""
    for part, args in ((part, f"{part}_args") for part in _used(algorithm)):
        if name := getattr(algorithm, part):
            yield f"algorithm.{args}", name, [part_taker(part, name, functions)], getattr(algorithm, args)


def loss_note(config: Config, functions: Functions) -> Problem | None:
    """Returns the warning about a loss without advantages in a stage whose settings compute them."""
    algorithm = config.algorithm
    name = algorithm.policy_loss_fn
    on_rollouts = config.kind.learns_from_rollouts
    if not (on_rollouts and name) or _chooses_rows(algorithm.advantage_fn, functions):
        return None
    taken = loss_columns(algorithm, functions)
    if taken is None or "advantages" in taken:
        return None
    return Problem("algorithm.policy_loss_fn", "takes no advantages: every response that advantage_fn="
                   f"{algorithm.advantage_fn} keeps has the same weight, whatever its reward.", "Choose another "
                   "loss if that is not meant.", found=name)


def _chooses_rows(advantage: str | None, functions: Functions) -> bool:
    ours, own = declared.ADVANTAGES.get(advantage or ""), functions.get(advantage or "")
    return ours.chooses_rows if ours else bool(own and own.facts.get("chooses_rows"))


def estimate_note(config: Config) -> Problem | None:
    """Returns the warning about a KL without weight, or as a loss with zero expected gradient: neither constrains the
    policy."""
    algorithm = config.algorithm
    learns = config.kind.learns_from_rollouts
    for part in ("kl_loss_fn", "kl_penalty_fn") if learns else ():
        if getattr(algorithm, part) not in (None, "none") and getattr(algorithm, f"{part}_args").get("kl_coef") == 0:
            return Problem(f"algorithm.{part}_args.kl_coef", "the KL is measured, by a forward of the reference over "
                           f"each row, and does not constrain the policy. Where it need not be, take {part}=none.",
                           found=0)
    if algorithm.kl_loss_fn != "k1" or not learns:
        return None
    return Problem("algorithm.kl_loss_fn", "in the mean over tokens that the policy sampled its gradient is 0, so as a "
                   "loss it does not constrain the policy.", "Take k2 or k3, or use it as algorithm.kl_penalty_fn.",
                   found="k1")


def clip_note(config: Config, functions: Functions) -> Problem | None:
    """Returns the warning about a loss whose ratio is 1 at every update, so that clipping has no effect."""
    algorithm = config.algorithm
    name, given = algorithm.policy_loss_fn, algorithm.policy_loss_fn_args
    if not config.kind.learns_from_rollouts or several_steps(config.trainer):
        return None
    taken = loss_columns(algorithm, functions)
    if taken is None:
        return None
    if ratio_column(algorithm, taken) == "old_logprobs":
        return Problem("algorithm.bypass_old_logprobs", f"a train batch is one update, so {name}'s ratio to the policy "
                       "just before it is 1, and clipping cannot act. rollout_correction bounds stale rows.",
                       found=False)
    clips = [key for key in given if key.startswith("clip_")]
    if "prox_logprobs" in taken and clips:
        return Problem(f"algorithm.policy_loss_fn_args.{clips[0]}", f"a train batch is one update, so {name}'s ratio "
                       "to the policy just before it is 1, and clipping cannot act. The importance weight bounds "
                       "stale rows.")
    return None


def _used(algorithm: Algorithm) -> list[str]:
    """Returns the components that a stage of an algorithm calls."""
    if algorithm.on_given_tokens:  # one loss, without arguments
        return []
    return [part for part in PARTS if algorithm.on_rollouts or part not in ON_ROLLOUTS]


def part_taker(part: str, name: str, functions: Functions) -> Taker | None:
    """Returns the `*_args` schema of an algorithm component; it is the same for every KL estimator."""
    if part in ("kl_loss_fn", "kl_penalty_fn"):
        return declared.KL_ESTIMATORS.get(name, Kl)
    own = functions.get(name)
    return replace(own, required=()) if own else declared.TABLES[part].get(name)


def reward_taker(name: str, functions: Functions) -> Taker | None:
    """Returns a reward function's parameters except those its caller supplies."""
    own = functions.get(name)
    if not own:
        return declared.REWARDS.get(name)
    bound = bind_reward(own, {})
    return own.without(*bound.by_position, *bound.reserved).relaxed()


def workflow_taker(name: str, functions: Functions) -> Taker | None:
    """Returns a workflow's parameters except the prompt and the task, which its caller supplies."""
    own = functions.get(name)
    return own.without(*provided(own)).relaxed() if own else declared.WORKFLOWS.get(name)


SINGLE = "simple_workflow"
ASKING = {"model", "endpoint", "toolbox", "auxiliary_models"}  # parameters of workflows that write their own prompts
# settings below `algorithm` that have a corresponding `*_args`
PARTS = ("sample_strategy", "advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")
ON_ROLLOUTS = ("sample_strategy", "advantage_fn", "kl_penalty_fn")
