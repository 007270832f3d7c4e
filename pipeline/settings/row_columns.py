"""Which columns of a record the functions of a task set take: read from their sources, which are not imported."""

from collections.abc import Iterable

from ouroboros.pipeline.settings import data
from ouroboros.pipeline.settings.arguments.answers import REWARDS
from ouroboros.pipeline.settings.arguments.binding import bind_reward, bind_workflow
from ouroboros.pipeline.settings.arguments.users import provided
from ouroboros.pipeline.store.signatures import parameters_of


def asked_columns(taskset: data.Taskset, source: data.ExplorerInput, place: str) -> list[str]:
    """Returns the columns that a set keeps of its records, sorted: those of `columns`, and what its reward functions
    and its workflow take by name; binding.EVERY for all. place: as in workflow_of."""
    named = data.reward_functions(taskset, source)
    found = {*taskset.columns} | {one for name in named if name in REWARDS for one in REWARDS[name].columns}
    for name in _own(named):
        found |= {*bind_reward(parameters_of(name), taskset.reward_fn_args).asked()}
    for name in _own([data.workflow_of(taskset, source, place)]):
        own = parameters_of(name)
        found |= {*bind_workflow(own, taskset.workflow_args, provided(own)).asked()}
    return sorted(found)


def _own(names: Iterable[str]) -> list[str]:
    return [name for name in names if ":" in name]
