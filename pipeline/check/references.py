"""Checks that everything a configuration refers to exists: files, models, user code, function arguments."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.check.sources import sources, tasksets
from pipeline.check.user_code import Functions, of_python
from pipeline.check.workload import explores
from pipeline.plan.models import KEY, asks_teacher
from pipeline.plan.modes import TRAINING, kind_of
from pipeline.settings import arguments
from pipeline.settings.algorithms import DEMONSTRATED, GIVEN
from pipeline.settings.arguments.base import Taker, problems
from pipeline.settings.arguments.terms import Kl
from pipeline.settings.arguments.users import Signature, batch_parameters
from pipeline.settings.columns import ratio_column, ratio_problems, wrong_parameters
from pipeline.settings.data import reward_functions, workflow_of
from pipeline.settings.lora import adapter_problem
from pipeline.settings.train_batch import REPLAY
from pipeline.settings.unused import without_unused
from pipeline.store.architecture import untrainable
from pipeline.store.digests import NEEDED, HubPath, digest_code, module_file, named_code, nothing_at, resolve, values_of
from pipeline.store.errors import ConfigError, Problem, nearest
from pipeline.store.model_shape import CONFIG, absent_model, read_config, wrong_model
from pipeline.store.weights import weights_problem

CHOOSES_ROWS = ("raft",)  # advantages that select the rows to train on by dropping others
FILES = ("data_processor.task_pipeline.config_path", "model.chat_template_path", "model.lora_configs.*.path")
OTHER_MODELS = ("model.critic_model_path", "explorer.auxiliary_models.*.model_path")


def missing(config: dict[str, Any], start: dict[str, Any]) -> list[Problem]:
    """Lists what a stage's settings refer to and is missing on this machine.

    start: the section `model` that names its initial model.
    """
    looked = f"does not exist (looked from {Path.cwd()})"
    lines = [Problem(s.label, f"{s.path} {words}") for s in sources(config)
             if not isinstance(s.path, HubPath) and (words := nothing_at(s.path))]
    lines += [Problem(key, f"{path} {looked}.") for single in FILES for key, path in values_of(config, single)
              if path and not resolve(path).exists()]
    lines += [Problem(key, f"{path} is a directory; needed a file.") for single in FILES[:2]
              for key, path in values_of(config, single) if path and resolve(path).is_dir()]
    if start["model_path"] and not start["init"]["enable"] and (absent := absent_model(start["model_path"])):
        lines.append(absent)
    lines += [absent_model(path, key) for key, path in _other_models(config) if absent_model(str(resolve(path)))]
    return lines + missing_code(config)


def _other_models(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns (setting, path) of the models that a stage reads besides its initial model and its teacher."""
    return [(key, path) for several in OTHER_MODELS for key, path in values_of(without_unused(config), several) if path]


def wrong_models(config: dict[str, Any], start: dict[str, Any]) -> list[Problem]:
    """Lists models on this machine with an unreadable config.json. start: as for `missing`."""
    return [line for key, path in _models(config, start) if (line := wrong_model(path, key))]


def wrong_weights(config: dict[str, Any], start: dict[str, Any]) -> list[Problem]:
    """Lists models on this machine whose weights are missing or incomplete. start: as for `missing`."""
    whole = [(key, path) for key, path in _models(config, start)  # those of the hub are fetched later, complete
             if not isinstance(path, HubPath) and (Path(path) / CONFIG).is_file() and not wrong_model(path, key)]
    return [line for key, path in whole if (line := weights_problem(path, read_config(path, key), key))]


def _models(config: dict[str, Any], start: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns (setting, path) of every model directory that a stage reads."""
    own = [("model.model_path", start["model_path"])] if start["model_path"] and not start["init"]["enable"] else []
    taught = [(KEY, config["model"]["teacher_model_path"])] if asks_teacher(config) else []
    others = ((key, path if isinstance(path, HubPath) else str(resolve(path))) for key, path in _other_models(config))
    return [(key, path) for key, path in [*own, *taught, *others] if path]


def untrainable_models(config: dict[str, Any], start: dict[str, Any]) -> list[Problem]:
    """Lists models on this machine that the trainer cannot train or score. start: as for `missing`."""
    model, kind = config["model"], kind_of(config)
    named = [] if start["init"]["enable"] else [("model.model_path", start["model_path"])]
    named += [(KEY, model["teacher_model_path"])] if asks_teacher(config) else []
    named += values_of(without_unused(config), "model.critic_model_path")
    longest = model["max_model_len"] or model["max_prompt_tokens"] + model["max_response_tokens"]
    here = [(key, str(resolve(path))) for key, path in named if path and not absent_model(str(resolve(path)), key)
            and not wrong_model(str(resolve(path)), key)] if kind in TRAINING else []
    found = ((key, path, untrainable(read_config(path, key), longest)) for key, path in here)
    return [Problem(key, problem, found=path) for key, path, problem in found if problem]


def missing_code(config: dict[str, Any]) -> list[Problem]:
    """Lists the user's modules that are named and missing on this machine."""
    return [Problem(key, f"'{name}': no such module.{_nearest_module(name)}", NEEDED)
            for name, key in _code(config).items() if not _module(name) and not of_python(name)]


def wrong_adapters(config: dict[str, Any]) -> list[Problem]:
    """Lists adapters on this machine that training cannot continue from."""
    found = ((one, resolve(one["path"])) for one in config["model"]["lora_configs"] if one["path"])
    return [line for one, place in found if place.exists() and (line := adapter_problem(one, place))]


def wrong_code(config: dict[str, Any]) -> list[Problem]:
    """Lists the user's modules that cannot be read, or lack the named function."""
    return [Problem(key, problem) for name, key in _code(config).items() if _module(name) or of_python(name)
            for problem in _code_problem(name)]


def _code(config: dict[str, Any]) -> dict[str, str]:
    """Maps each user function to the first setting that names it."""
    found: dict[str, str] = {}
    for key, name in named_code(config):
        found.setdefault(name, key)
    return found


def _nearest_module(dotted: str) -> str:
    """Suggests the closest match for a missing module among the files in and below the current directory."""
    found = [path.relative_to(Path.cwd()) for pattern in ("*.py", "*/*.py") for path in Path.cwd().glob(pattern)]
    return nearest(dotted.partition(":")[0], [".".join(path.with_suffix("").parts) for path in found])


def _module(dotted: str) -> Path | None:
    return module_file(dotted.partition(":")[0])


def _code_problem(dotted: str) -> list[str]:
    if of_python(dotted):
        return [f"'{dotted}' is a function of Python itself; needed one of yours, which may call it."]
    try:
        digest_code(dotted)
    except ConfigError as error:
        return [str(error)]
    return []


def wrong_arguments(config: dict[str, Any], functions: Functions | None = None) -> list[Problem]:
    """Lists unknown, missing or invalid arguments in `*_args`, and parameters of a user's function that its caller
    cannot supply.

    config: the settings of one stage. functions: the user's imported functions; those not imported are not checked.
    """
    known = functions or {}
    wrong = [line for found in _named(config, known) for line in problems(*found)]
    wrong += _without_task(config, known) + _ratio_problems(config["algorithm"], known)
    return _wrong_parameters(config, known) + _wrong_rewards(config, known) + wrong


def _wrong_parameters(config: dict[str, Any], functions: Functions) -> list[Problem]:
    """Checks the parameters of user functions that are components of a stage's algorithm."""
    algorithm = config["algorithm"]
    found = {part: functions.get(algorithm[part]) for part in _used(algorithm)}
    return [problem for part, one in found.items() if one for problem in by_position(part, algorithm[part], one)
            or wrong_parameters(part, (*one.required, *("**" for _ in range(one.takes_anything))), algorithm)]


def by_position(part: str, name: str, function: Signature) -> list[Problem]:
    """Returns the problem of positional-only parameters in a function that is called with column names as keywords."""
    if part == "advantage_fn" or not function.only_positional:
        return []
    return [Problem(f"algorithm.{part}", f"takes {', '.join(function.only_positional)} by position only, and a column "
                    "is passed by its name.", "Take the '/' out.", found=name)]


def _wrong_rewards(config: dict[str, Any], functions: Functions) -> list[Problem]:
    """Checks the parameters of the user's reward functions."""
    explorer = config["buffer"]["explorer_input"]
    named = dict.fromkeys(name for _, one in _answered(config) for name in reward_functions(one, explorer))
    found = [(name, one) for name in named if (one := functions.get(name))]
    wrong = [Problem(f"'{name}'", f"has {len(one.positional)} parameters by position "
                     f"({', '.join(one.positional) or 'none'}); it is called with 2, the response and its "
                     "truth: needed f(response, answer, ...).") for name, one in found
             if not (one.takes_others or len(one.positional) > 1 or batch_parameters(one.positional))]
    return wrong + [Problem("reward_fn_args of the task sets", f"'{name}' needs the argument '{need}'.")
                    for name, one in found for need in reward_taker(name, functions).needed()
                    if any(name in reward_functions(taskset, explorer) and need not in taskset["reward_fn_args"]
                           for _, taskset in _answered(config))]


def _ratio_problems(algorithm: dict[str, Any], functions: Functions) -> list[Problem]:
    """Lists conflicts between the loss's ratio and rollout_correction or masks."""
    taken = None if algorithm["algorithm_type"] in GIVEN else loss_columns(algorithm, functions)
    return ratio_problems(algorithm, taken) if taken is not None else []


def loss_columns(algorithm: dict[str, Any], functions: Functions) -> Sequence[str] | None:
    """Returns the columns that the policy loss takes; None where unknown."""
    name = algorithm["policy_loss_fn"] or ""
    ours, own = arguments.POLICY_LOSSES.get(name), functions.get(name)
    return ours.columns if ours else own.required if own else None


def _named(config: dict[str, Any], functions: Functions) -> Iterator[tuple[str, str, list[Taker | None], dict]]:
    """Returns (key of the arguments, functions, their parameters or None where unknown, arguments)."""
    pipeline = config["data_processor"]["task_pipeline"]
    if name := pipeline["generator"]:
        key = "data_processor.task_pipeline.generator_args"
        yield key, name, [arguments.GENERATORS.get(name)], pipeline["generator_args"]
    explorer = config["buffer"]["explorer_input"]
    yield from _parts(config["algorithm"], functions)
    replay = config["buffer"]["trainer_input"]["experience_buffer"]["replay_buffer"]
    if replay["enable"]:
        taker = arguments.PRIORITIES.get(replay["priority_fn"])
        yield f"{REPLAY}.priority_fn_args", replay["priority_fn"], [taker], replay["priority_fn_args"]
    for key, taskset in _answered(config):
        names = reward_functions(taskset, explorer)
        takers = [_optional(reward_taker(name, functions)) for name in names]  # what is required: _wrong_rewards
        yield f"{key}.reward_fn_args", ", ".join(names), takers, taskset["reward_fn_args"]
        workflow = workflow_of(taskset, explorer, key.removeprefix("buffer.explorer_input."))
        yield f"{key}.workflow_args", workflow, [workflow_taker(workflow, functions)], taskset["workflow_args"]


def _without_task(config: dict[str, Any], functions: Functions) -> list[Problem]:
    """Lists the user's workflows without parameters; the task is the required first one."""
    places = [(key, key.removeprefix("buffer.explorer_input."), one) for key, one in _answered(config)]
    named = [(key, workflow_of(one, config["buffer"]["explorer_input"], place)) for key, place, one in places]
    return [Problem(key, f"the workflow '{name}' takes no argument; needed a first one, the task.")
            for key, name in named
            if (found := functions.get(name)) and not (found.names() or found.takes_others or found.takes_anything)]


def _answered(config: dict[str, Any]) -> list[tuple[str, dict]]:
    """Returns (setting, task set) of the sets for which a stage samples responses."""
    return [(f"buffer.explorer_input.{place}", one) for place, one in tasksets(config)
            if place.startswith("eval_") or explores(config)]


def _parts(algorithm: dict[str, Any], functions: Functions) -> Iterator[tuple[str, str, list[Taker | None], dict]]:
    """Returns an algorithm's components that have arguments, in the form of `_named`."""
    for part in _used(algorithm):
        if name := algorithm[part]:
            yield f"algorithm.{part}_args", name, [part_taker(part, name, functions)], algorithm[f"{part}_args"]


def loss_note(config: dict[str, Any], functions: Functions) -> Problem | None:
    """Returns the warning about a loss without advantages in a stage whose settings compute them."""
    algorithm = config["algorithm"]
    name = algorithm["policy_loss_fn"]
    on_rollouts = algorithm["algorithm_type"] not in GIVEN and kind_of(config) in ("rft", "offline")
    if not (on_rollouts and name) or algorithm["advantage_fn"] in CHOOSES_ROWS:
        return None
    taken = loss_columns(algorithm, functions)
    if taken is None or "advantages" in taken:
        return None
    return Problem("algorithm.policy_loss_fn", "takes no advantages: every response that advantage_fn="
                   f"{algorithm['advantage_fn']} keeps has the same weight, whatever its reward.", "Choose another "
                   "loss if that is not meant.", found=name)


def estimate_note(config: dict[str, Any]) -> Problem | None:
    """Returns the warning about a KL loss with zero expected gradient, which does not constrain the policy."""
    algorithm = config["algorithm"]
    if algorithm["kl_loss_fn"] != "k1" or kind_of(config) not in ("rft", "offline"):
        return None
    return Problem("algorithm.kl_loss_fn", "in the mean over tokens that the policy sampled its gradient is 0, so as a "
                   "loss it does not constrain the policy.", "Take k2 or k3, or use it as algorithm.kl_penalty_fn.",
                   found="k1")


def clip_note(config: dict[str, Any], functions: Functions) -> Problem | None:
    """Returns the warning about a loss whose ratio is 1 at every update, so that clipping has no effect."""
    algorithm = config["algorithm"]
    name, given = algorithm["policy_loss_fn"], algorithm["policy_loss_fn_args"]
    if algorithm["algorithm_type"] in GIVEN or kind_of(config) not in ("rft", "offline"):
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


def _used(algorithm: dict[str, Any]) -> list[Problem]:
    """Returns the components that a stage of an algorithm calls."""
    if algorithm["algorithm_type"] in DEMONSTRATED:  # one loss, without arguments
        return []
    return [part for part in PARTS if algorithm["algorithm_type"] not in GIVEN or part not in ON_ROLLOUTS]


def part_taker(part: str, name: str, functions: Functions) -> Taker | None:
    """Returns the `*_args` schema of an algorithm component; it is the same for every KL estimator."""
    if part in ("kl_loss_fn", "kl_penalty_fn"):
        return arguments.KL_ESTIMATORS.get(name, Kl)
    own = functions.get(name)
    return replace(own, required=()) if own else arguments.TABLES[part].get(name)


def reward_taker(name: str, functions: Functions) -> Taker | None:
    """Returns a reward function's parameters except those its caller supplies."""
    own = functions.get(name)
    return own.without(*(batch_parameters(own.required) or own.names()[:2])) if own else arguments.REWARDS.get(name)


def _optional(taker: Taker | None) -> Taker | None:
    """Returns a user's function with all its parameters optional."""
    return replace(taker, required=(), optional=taker.names()) if isinstance(taker, Signature) else taker


def workflow_taker(name: str, functions: Functions) -> Taker | None:
    """Returns a workflow's parameters except the prompt and the task, which its caller supplies."""
    own = functions.get(name)
    return own.without(*own.names()[:1], "task") if own else arguments.WORKFLOWS.get(name)


# settings below `algorithm` that have a corresponding `*_args`
PARTS = ("sample_strategy", "advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")
ON_ROLLOUTS = ("sample_strategy", "advantage_fn", "kl_penalty_fn")
