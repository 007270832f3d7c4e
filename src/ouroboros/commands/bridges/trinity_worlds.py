"""What comes with a workflow of Trinity-RFT: a world with tasks and a limit of moves, tools, a prompt, a judge."""

from typing import Any

from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Entry, Path, Translation

OF_FILES = ("path", "subset_name", "storage_type", "split", "format")  # of a set
REWARD = ("buffer", "explorer_input", "default_reward_fn_type")
TASKS = ("data_processor", "task_pipeline")
LIMITS = ("max_steps", "env_max_steps", "agent_max_steps")  # the smallest ends an attempt
MOVES = 10  # without one


def write(made: Translation, values: dict[Path, Any], groups: dict[str, dict[str, Any]], models: list[Path],
          of_sets: list[Path]) -> None:
    """Writes what the workflows of a source bring. values: of the source. groups: by name
    (tables/trinity_workflows.yaml). models: the first auxiliary one. of_sets: those with a path."""
    trained = of_training(values, of_sets)
    for name, group in groups.items():
        trains = any(name in one.values() for one in trained)
        given = next((one for one in trained if name in one.values()), trained[0])
        rewards = (None, group.get("prompt_of", given.get(REWARD[-1])))
        if not trains and ("world" in group or "judge" in group):
            made.lack("multi-turn" if "world" in group else "judge or teacher", f"workflow {name} in an evaluation")
            continue
        if "world" in group:
            _play(made, of_sets, group["world"])
            made.choose(REWARD, "accuracy_reward", "the environment's own takes its place")
        for of_set in of_sets:
            for key, value in group.get("arguments", {}).items():
                made.choose((*of_set, "workflow_args", key), value, "its tools")
        prompt = group.get("with_think" if given.get("with_think") else "prompt", group.get("prompt"))
        if prompt and trains and given.get(REWARD[-1]) in rewards:
            made.choose((*REWARD[:-1], "system_prompt"), prompt, "the workflow's own")
        if "use_base" in group and trains and given.get("use_base"):
            made.choose(("model", "custom_chat_template"), group["use_base"], "of use_base")
        for path in [(*of_set, "workflow_args", name) for of_set in of_sets for name in ("with_think", "use_base")]:
            if path[-1] in group and path in made.entries:
                _withdraw(made, path, given)
        if "judge" in group and models:
            _judge(made, models[0], of_sets, group)
        elif "judge" in group:
            made.lack("judge or teacher", f"workflow {name}, and no model of explorer.auxiliary_models")


def of_training(values: dict[Path, Any], of_sets: list[Path]) -> list[dict[str, Any]]:
    """Returns by key what holds for each set to train on, its own before its section's; with no such set, for all."""
    section = REWARD[:-1]
    sets = [one for one in of_sets if "eval_tasksets" not in one]
    own = (*section, *(["default_eval_workflow_type"] if sets or not of_sets else []))  # an evaluation's
    return [{path[-1]: values[path] for path in sorted(values, key=len) if values[path] is not None and path != own
             and (path[:-1] == section or path[:len(one)] == one)} for one in sets or of_sets or [section]]


def _withdraw(made: Translation, path: Path, given: dict[str, Any]) -> None:
    """Removes an argument that the prompt has; where it rewards thoughts, that is lost. given: by key, of training."""
    value = bool(made.entries[path].value)
    thinks = value and path[-1] == "with_think"
    if "eval_tasksets" in path and bool(given.get(path[-1])) != value:
        made.withdraw(path, said("of_an_evaluation"))
    elif thinks:
        made.withdraw(path, said("of_thoughts"))
    else:
        made.withdraw(path, said("of_the_prompt"))
    if thinks and "eval_tasksets" not in path:
        made.lack("reward", "with_think: the form of thoughts")


def _judge(made: Translation, model: Path, of_sets: list[Path], group: dict[str, Any]) -> None:
    """Has an auxiliary model reward attempts, by the group's arguments of judge_reward and the column of rows that is
    its truth; evaluations count what is solved."""
    why = "the workflow's judge"
    made.choose((*model, "name"), "judge", "reward_fn_args name it")
    made.choose(REWARD, "judge_reward", why)
    for of_set in of_sets:
        if "eval_tasksets" in of_set:
            made.choose((*of_set, REWARD[-1]), "accuracy_reward", "an evaluation counts what is solved")
            continue
        for key, value in {"judge_model": made.value(*model, "name"), **group["judge"]}.items():
            made.choose((*of_set, "reward_fn_args", key), value, why)
        if "truth" in group:
            made.entries[(*of_set, "format", "response_key")] = Entry(group["truth"], why)


def _play(made: Translation, of_sets: list[Path], world: dict[str, Any]) -> None:
    """Has every set ask tasks of a generator, split into those to train on and others, and answer them in its world.

    world: environment_class, generator, generator_args. The files of the original hold the seeds of its own games.
    """
    for name in ("generator", "generator_args"):
        made.choose((*TASKS, name), world[name], "tasks of this world")
    split = {"name": "split_by_hash_mapper", "args": {"key": "question", "test_ratio": 0.01}}
    made.choose((*TASKS, "operators"), [split], "tasks to evaluate on")
    for of_set in of_sets:
        arguments = (*of_set, "workflow_args")
        given = {path[-1]: entry.value for path, entry in made.entries.items() if path[:-1] == arguments}
        for path in [path for path in made.entries if path[:len(arguments)] == arguments or (
                path[:len(of_set)] == of_set and path[len(of_set)] in OF_FILES)]:
            if any(one.path == path for one in made.kept):
                made.withdraw(path, said("of_a_world"))
            else:
                del made.entries[path]
        if given.get("is_slippery"):
            made.lack("multi-turn", "is_slippery=true: here a move goes where it is meant to")
        moves = min([given[name] for name in LIMITS if isinstance(given.get(name), int)], default=MOVES)
        for name, value in (("environment_class", world["environment_class"]), ("max_rounds", moves)):
            made.choose((*arguments, name), value, "its world")
        made.choose((*of_set, "split"), "test" if "eval_tasksets" in of_set else "train", "of the generator's tasks")
