"""Workflows of Trinity-RFT that play in a world which is here too: its environment, its tasks, its limit of moves."""

from typing import Any

from ouroboros.commands.bridges.tables import said
from ouroboros.commands.bridges.translation import Path, Translation

OF_FILES = ("path", "subset_name", "storage_type", "split", "format")  # of a set
TASKS = ("data_processor", "task_pipeline")
LIMITS = ("max_steps", "env_max_steps", "agent_max_steps")  # the smallest ends an attempt
MOVES = 10  # without one


def play(made: Translation, of_sets: list[Path], world: dict[str, Any]) -> None:
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
