"""Data and rewards of a Trinity-RFT configuration: implicit defaults, columns, inputs, rewards, a teacher."""

from typing import Any

from ouroboros.commands.bridges import tables, trinity_worlds
from ouroboros.commands.bridges.source import Given
from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Path, Translation, first, places
from ouroboros.commands.bridges.trinity_values import names_of_rewards
from ouroboros.commands.bridges.trinity_whole import ITS_DEFAULT
from ouroboros.commands.bridges.trinity_worlds import REWARD
from ouroboros.pipeline.settings import guide
from ouroboros.pipeline.settings.algorithms import WITH_TEACHER, parts
from ouroboros.pipeline.settings.arguments.experience import UNFIT
from ouroboros.pipeline.settings.data import COLUMNS, WORKFLOWS
from ouroboros.pipeline.settings.train_batch import REPLAY

# the original's key of a column and its default -> our column, of tasks and of demonstrations
OF_TASKS = {"prompt_key": ("prompt", "question"), "response_key": ("response", "answer")}
SHOWN = {"prompt_key": ("prompt", "question"), "response_key": ("response", "solution"),
         "chosen_key": ("chosen", "chosen"), "rejected_key": ("rejected", "rejected")}
ON_EXPERIENCE = ("data_processor", "experience_pipeline", "operators")
FIELDS = ("data_processor", "task_pipeline", "target_fields")
TASKS = {"taskset", "tasksets"}
INPUTS = ("data_processor", "task_pipeline", "inputs")
BUFFER = ("buffer", "trainer_input", "experience_buffer")
EXPLORED = (("buffer", "explorer_input", "taskset"), ("buffer", "explorer_input", "tasksets", 0))
DAPO, ON, FACTOR = "math_dapo_reward", "enable_overlong_penalty", "penalty_factor"
GALLERY, VERIFY = "rm_gallery_reward", "math_verify_reward"
OF_DAPO = (ON, FACTOR, "max_response_length", "cache_length")
STEP = 60  # seconds of a trainer step, by which a cool-down in seconds is counted in steps
DISTILLING = ("on_policy_distill_workflow", "on_policy_distill_math_workflow")


# ----------------------------------------------------------------------------------------------------------------- sets


def say_defaults(made: Translation) -> None:
    """Writes the original's default format and order for each set with a path that does not set them."""
    def say(path: Path, default: str) -> None:
        if first(made.entries, path) is None:  # a stage may differ from the run-wide settings
            made.choose(path, default, ITS_DEFAULT)

    for of_set, formatted in _with_path(made, "explorer_input"):
        if "messages_key" not in formatted:
            for name, (default, _) in OF_TASKS.items():
                say((*of_set, "format", name), default)
        if "eval_tasksets" not in of_set:
            say((*of_set, "data_selector", "selector_type"), "sequential")
    for of_set, formatted in _with_path(made, "trainer_input"):
        if not formatted & {"prompt_type", "prompt_key", "response_key"}:
            say((*of_set, "format", "prompt_type"), "messages")
        if (kind := first(made.entries, (*of_set, "format", "prompt_type"))) and kind.value == "messages":
            say((*of_set, "format", "messages_key"), "message")


def _with_path(made: Translation, section: str) -> list[tuple[Path, set]]:
    """Returns the sets below a section whose files the recipe names, with their format settings, run-wide included."""
    sets = {path[:-1] for path, entry in made.entries.items()
            if path[-1] == "path" and section in path and entry.value is not None}
    return [(of_set, {path[-1] for path in made.entries if path[:-1] in places((*of_set, "format"))})
            for of_set in sorted(sets, key=str)]


def read_by_a_set(made: Translation, given: list[Given], values: dict[Path, Any]) -> list[Given]:
    """What is left to translate once a set reads `data_processor.task_pipeline.inputs`; its own path is left out.

    The original writes what the operators leave of the inputs over the path of the first taskset, or of the experience
    buffer where only that is trained on. Here operators curate the rows of every set, so the set reads the inputs.
    values: of the source; the set's path among them becomes the inputs.
    """
    is_shown = values.get(("mode",)) == "train" and values.get(("algorithm", "algorithm_type")) in ("sft", "dpo")
    of_set = next((of_set for of_set in ((BUFFER,) if is_shown else EXPLORED)
                   if any(path[:len(of_set)] == of_set for path in values)), None)
    inputs = values.get(INPUTS)
    if not inputs or not isinstance(inputs, list) or of_set is None:
        return given
    path, read = (*of_set, "path"), inputs[0] if len(inputs) == 1 else inputs
    own, values[path] = values.get(path), read
    for one in given:
        if one.path == INPUTS:
            made.rename(one, path, read, f"{one.key}: operators curate the rows of every set")
        elif one.path == path and own != read:
            made.leave(one, said("path_of_inputs"))
        elif one.path == path:
            made.kept.append(one)
    return [one for one in given if one.path not in (INPUTS, path)]


def columns(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes the columns for operators under our names; False for any other key, or if all have them.

    Operators curate the rows of tasks, or of demonstrations if there are no tasks.
    """
    names = [str(name) for name in given.value] if isinstance(given.value, list) else []
    if given.path[-3:] != FIELDS or all(name in COLUMNS for name in names):
        return False
    of_tasks = any(TASKS.intersection(path) for path in values)
    ours: dict[str, set[str]] = {}
    for key, (default, name) in (OF_TASKS if of_tasks else SHOWN).items():
        for one in {str(value) for path, value in values.items() if path[-2:] == ("format", key) and (
                    bool(TASKS.intersection(path)) == of_tasks)} or {default}:
            ours.setdefault(one, set()).add(name)
    unclear = next((name for name in names if len(ours.get(name, ())) != 1), None)
    if unclear is None:
        made.rename(given, given.path, [column for name in names for column in ours[name]], f"{', '.join(names)} there")
    else:
        found = " and ".join(sorted(ours.get(unclear, ["no column"])))
        made.leave(given, f"{unclear} is {found} of the sets; needed our names: {', '.join(COLUMNS)}.")
    return True


def replay(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes the cool-down of a replay buffer, seconds there, in trainer steps; False for any other key."""
    if not guide.general(given.key).startswith(f"{REPLAY}."):
        return False
    section, name = given.path[:given.path.index("replay_buffer") + 1], given.path[-1]
    seconds = values.get((*section, "reuse_cooldown_time"))
    if values.get((*section, "enable")) is not True:
        if name == "enable":
            return False
        made.idle.append((given, "disabled there too: replay_buffer.enable is not true."))
    elif seconds is None:
        made.leave(given, said("not_reused"))
    elif name == "reuse_cooldown_time" and isinstance(seconds, int | float) and seconds >= 0:
        steps = max(round(seconds / STEP), 1)
        made.rename(given, given.path, steps, f"{seconds} s there")
        made.note("reuse", seconds=seconds, steps=steps, step=STEP)
    else:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- rewards


def unfit_operator(made: Translation, given: Given, stage: Path, values: dict[Path, Any]) -> bool:
    """Leaves out an operator on experience that does not go with it, and names what takes its place; False for any
    other key. Groups that teach nothing are replaced, as algorithm_type dapo has it."""
    place, key = (*stage, *ON_EXPERIENCE), given.path
    name = values.get((*key[:len(place) + 1], "name")) if key[:len(place)] == place else None
    if name not in UNFIT:
        return False
    if key[len(place) + 1:] != ("name",):
        made.idle.append((given, f"of the operator {name}, which is left out."))
    elif name == "dapo_dynamic_sampling":
        made.rename(given, (*stage, "algorithm", "max_resample_rounds"), parts("dapo")["max_resample_rounds"],
                    f"{name} there: other groups take the place of those that teach nothing")
    else:
        made.leave(given, UNFIT[name])
    return True


def dapo_reward(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes a key of the DAPO reward; False for any other. Right is 1 and wrong -1 there, here 1 and 0."""
    name, of_set = given.path[-1], given.path[:-2]
    if of_gallery(made, given, values):
        return True
    if name == REWARD[-1] and given.value == DAPO:
        with_penalty = ["accuracy_reward", "overlong_penalty"]
        made.rename(given, given.path, with_penalty if _is_on(given.path[:-1], values) else "accuracy_reward",
                    f"{DAPO} there")
        return True
    if given.path[-2:-1] != ("reward_fn_args",) or name not in OF_DAPO or _reward(of_set, values) != DAPO:
        return False
    is_number = isinstance(given.value, (int, float)) and not isinstance(given.value, bool)
    if "eval_tasksets" in of_set[2 if given.path[0] == "stages" else 0:]:
        made.idle.append((given, "an evaluation counts what is solved."))
    elif any(path[-1] == ON and value is not _is_on(of_set, values) for path, value in values.items()
             if path[0] == "stages"):
        made.leave(given, said("penalty_of_a_stage"))
    elif not _is_on(of_set, values):
        made.idle.append((given, "disabled there too: enable_overlong_penalty is not true."))
    elif name == ON:
        made.entries.pop((*of_set, REWARD[-1]), None)
        made.rename(given, (*of_set, REWARD[-1]), ["accuracy_reward", "overlong_penalty"], f"{DAPO} there, with {name}")
    elif name == FACTOR and is_number:
        made.rename(given, given.path, given.value / 2, f"{given.value} there, where wrong is -1, not 0")
    elif name == FACTOR:
        made.leave(given, said("not_halved"))
    else:
        made.keep(given)
    return True


def of_gallery(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes the reward of RM-Gallery that compares answers by math-verify; False for any other key."""
    is_argument = given.path[-2:] == ("reward_fn_args", "reward_name")
    of_set = given.path[:-2] if is_argument else given.path[:-1]
    if not is_argument and (given.path[-1], given.value) != (REWARD[-1], GALLERY):
        return False
    if _reward(of_set, values) != GALLERY or values.get((*of_set, "reward_fn_args", "reward_name")) != VERIFY:
        return False
    if is_argument:
        made.idle.append((given, "accuracy_reward compares answers by math-verify."))
    else:
        made.rename(given, given.path, "accuracy_reward", f"{GALLERY} there, with {VERIFY}")
    return True


def _is_on(of_set: Path, values: dict[Path, Any]) -> bool:
    return first(values, (*of_set, "reward_fn_args", ON)) is True and "eval_tasksets" not in of_set


def _reward(of_set: Path, values: dict[Path, Any]) -> Any:
    """Returns the reward function of a set, or of the section above it."""
    own, section = first(values, (*of_set, REWARD[-1])), of_set[:of_set.index(REWARD[1]) + 1]
    return own if own is not None else first(values, (*section, REWARD[-1]))


def workflows_of(key: str) -> dict[str, str]:
    """The workflows of the original that have another name here; none for a key that names no workflow."""
    named = tables.workflows() if key.endswith("workflow_type") else {}
    return {name: group["to"] for name, group in named.items() if group.get("to", name) != name}


def say_rewards(made: Translation, values: dict[Path, Any]) -> None:
    """Notes that the original's workflows have their own reward and system prompt; ours have none."""
    theirs = dict.fromkeys(str(value) for path, value in values.items() if str(path[-1]).endswith("workflow_type"))
    groups = {name: tables.workflows()[name] for name in theirs if name in tables.workflows()}
    for name, group in groups.items():
        if sentence := group.get("note") or group.get("instead"):
            made.note("workflow", workflow=name, ours=group.get("to", "none here"), sentence=sentence)
    workflows = {path: entry.value for path, entry in made.entries.items() if str(path[-1]).endswith("workflow_type")}
    foreign = dict.fromkeys(str(value) for value in workflows.values() if not (
        value is None or value in (*WORKFLOWS, *groups) or ":" in str(value) or "${" in str(value)))
    for name in theirs:
        if loses := groups.get(name, {}).get("loses", "multi-turn" if name in foreign else ""):
            made.lack(loses, f"workflow {name}")
    if foreign:
        named = any(path[-1] == REWARD[-1] for path in made.entries)
        made.note("foreign_workflow", workflows=", ".join(foreign), reward="" if named else said("name_a_reward"))
    teaching = sorted({str(value) for value in values.values() if value in DISTILLING})
    if teaching and REWARD not in made.entries:
        made.choose(REWARD, "accuracy_reward",
                    f"for reports and evaluations; {teaching[0]} learns from the teacher alone")
    models = made.below("explorer", "auxiliary_models")
    for index, place in enumerate(models if len(models) > 1 else ()):
        made.choose((*place, "name"), f"model_{index}", "several models have names")
    if models and not names_of_rewards(values):
        made.reward_by_model("explorer.auxiliary_models, and no reward function or workflow is named")
    of_sets = [of_set for of_set, _ in _with_path(made, "explorer_input")]
    trinity_worlds.write(made, values, groups, models[:1], of_sets)
    trained = trinity_worlds.of_training(values, of_sets)
    math = sorted((name for name, group in groups.items() if "reward" in group),
                  key=lambda name: (not any(name in one.values() for one in trained), name))
    if not math:
        _without_reward(made)
        return
    if REWARD not in made.entries:
        made.choose(REWARD, groups[math[0]]["reward"], f"the reward of {math[0]}")
    by_answer = any("accuracy_reward" in str(entry.value) for entry in made.entries.values())
    if by_answer:
        made.note("math_workflow", workflows=", ".join(math))


def _without_reward(made: Translation) -> None:
    """Names the reward as lost where tasks are answered and neither a function nor a workflow rewards them."""
    sets = [of_set for of_set, _ in _with_path(made, "explorer_input")]
    silent = [of_set for of_set in sets if first(made.entries, (*of_set, REWARD[-1])) is None and first(
        made.entries, (*of_set[:of_set.index(REWARD[1]) + 1], REWARD[-1])) is None]
    if silent:  # our own default is for countdown
        made.choose(REWARD, "accuracy_reward", "the source names none")
        made.lack("reward", "none is named")


def teacher(made: Translation, given: Given, stage: Path, values: dict[Path, Any]) -> bool:
    """Writes a key of a distillation teacher, there a served auxiliary model; False for any other key."""
    path = given.path[len(stage):]
    distils = any((key[-1] == "algorithm_type" and value in WITH_TEACHER)
                  or (str(key[-1]).endswith("workflow_type") and value in DISTILLING) for key, value in values.items())
    if path[:2] != ("explorer", "auxiliary_models") or len(path) < 4 or not distils:
        return False
    if path[2] != 0:
        made.leave(given, said("another_teacher"), "judge or teacher" if path[3:] == ("model_path",) else "")
    elif path[3:] == ("model_path",):
        made.rename(given, (*stage, "model", "teacher_model_path"), given.value, given.key)
    else:
        made.leave(given, said("served_teacher"))
    return True
