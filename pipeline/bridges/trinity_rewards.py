"""Rewards of a Trinity-RFT configuration: what a workflow of the original brings by itself, and its DAPO reward."""

from typing import Any

from pipeline.bridges import trinity_teacher
from pipeline.bridges.source import Given
from pipeline.bridges.translation import Entry, Path, Translation, first, places
from pipeline.settings.data import WORKFLOWS

SOURCE = ("buffer", "explorer_input")
REWARD = (*SOURCE, "default_reward_fn_type")
DAPO = "math_dapo_reward"
ON, FACTOR = "enable_overlong_penalty", "penalty_factor"
UNHALVED = "needed a number, to halve it: there wrong is -1, here 0. Write half of what it stands for."
OF_DAPO = (ON, FACTOR, "max_response_length", "cache_length")


def translated(made: Translation, given: Given, values: dict[Path, Any]) -> bool:
    """Writes a key of the reward of DAPO; False for any other. Right is 1 and wrong -1 there, here 1 and 0."""
    name, size = given.path[-1], 2 if given.path[0] == "stages" else 0
    if name == "default_reward_fn_type" and given.value == DAPO:
        made.rename(given, given.path, _functions(given.path[:-1], values), f"{DAPO} there")
        return True
    of_set = given.path[:-2]
    if given.path[-2:-1] != ("reward_fn_args",) or name not in OF_DAPO or _reward(of_set, values) != DAPO:
        return False
    if "eval_tasksets" in of_set[size:]:
        made.idle.append((given, "an evaluation counts what is solved."))
    elif not _is_on(of_set, values) and name == ON and _is_on(of_set[size:], values) and _inherits(of_set):
        made.rename(given, (*of_set, "reward_fn_args", FACTOR), 0.0, f"{name} is {given.value} there")
    elif not _is_on(of_set, values):
        made.idle.append((given, "off there too: enable_overlong_penalty is not true."))
    elif name == ON:
        path = (*of_set, "default_reward_fn_type")
        made.entries.pop(path, None)
        made.rename(given, path, ["accuracy_reward", "overlong_penalty"], f"{DAPO} there, with {name}")
        _take_over(made, of_set, values)
    elif name == FACTOR and isinstance(given.value, (int, float)):
        made.rename(given, given.path, given.value / 2, f"{given.value} there, where wrong is -1, not 0")
    elif name == FACTOR:
        made.leave(given, UNHALVED)
    else:
        made.keep(given)
    return True


def _inherits(of_set: Path) -> bool:
    """Whether it is a stage's set that has what the same set of all says."""
    return len(places(of_set)) > 1


def _take_over(made: Translation, of_set: Path, values: dict[Path, Any]) -> None:
    """The arguments of the same set of all, for a stage that alone has the penalty: there they are without effect."""
    if not _inherits(of_set) or _is_on(of_set[2:], values):
        return
    for name in OF_DAPO[1:]:
        path = (*of_set, "reward_fn_args", name)
        own, of_all = (values.get(place) for place in places(path))
        if own is not None or of_all is None:
            continue
        if name == FACTOR and not isinstance(of_all, (int, float)):
            made.leave(Given(path, of_all, 0), UNHALVED)
        else:
            made.choose(path, of_all / 2 if name == FACTOR else of_all, f"{of_all} in the settings of all")


def _functions(of_set: Path, values: dict[Path, Any]) -> str | list[str]:
    """The reward functions of a set, or of the section of all, that names the reward of DAPO itself."""
    return ["accuracy_reward", "overlong_penalty"] if _is_on(of_set, values) else "accuracy_reward"


def _is_on(of_set: Path, values: dict[Path, Any]) -> bool:
    return first(values, (*of_set, "reward_fn_args", ON)) is True and "eval_tasksets" not in of_set


def _reward(of_set: Path, values: dict[Path, Any]) -> Any:
    """The reward that a set names, or the section above it."""
    own, section = first(values, (*of_set, REWARD[-1])), of_set[:of_set.index(SOURCE[1]) + 1]
    return own if own is not None else first(values, (*section, REWARD[-1]))


def say(made: Translation, values: dict[Path, Any]) -> None:
    """A workflow of the original brings a reward and a system prompt of its own; ours brings none."""
    _say_foreign(made)
    trinity_teacher.say_reward(made, values)
    if ("explorer", "auxiliary_models", 0, "model_path") in made.entries:
        made.reward_by_model("explorer.auxiliary_models, and no reward function or workflow is named")
    math = sorted({str(value) for path, value in values.items() if str(path[-1]).endswith("workflow_type")
                   and str(value).startswith(("math_workflow", "math_boxed_workflow", "async_math_"))})
    if not math:
        return
    if REWARD not in made.entries:
        made.choose(REWARD, "accuracy_reward", f"the reward of {math[0]}, without its share for the format")
    asked = any(path[-1] == "system_prompt" and value for path, value in values.items())
    form = "" if asked else (", which also asks for a form of answer: write that into buffer.explorer_input."
                             "system_prompt")
    by_answer = (" accuracy_reward compares the final answer (after ####, boxed, or the last number) with the truth."
                 if any("accuracy_reward" in str(entry.value) for entry in made.entries.values()) else "")
    made.chosen.append(f"simple_workflow stands for {', '.join(math)}{form}.{by_answer}")


def _say_foreign(made: Translation) -> None:
    """Workflows that are code of the original, or written for it."""
    foreign = dict.fromkeys(str(entry.value) for path, entry in made.entries.items()
                            if str(path[-1]).endswith("workflow_type") and not _is_ours(entry))
    if not foreign:
        return
    named = REWARD in made.entries or any(path[-1] == REWARD[-1] for path in made.entries)
    reward = "" if named else (" If it rewarded by itself, name a function in buffer.explorer_input."
                               "default_reward_fn_type too: none is named.")
    made.chosen.append(f"{', '.join(foreign)}: code for Trinity-RFT's classes, which is not here. Write the workflow "
                       f"as a function of yours, package.module:function, and name that.{reward}")


def _is_ours(entry: Entry) -> bool:
    value = entry.value
    return value is None or value in WORKFLOWS or ":" in str(value) or "${" in str(value)
