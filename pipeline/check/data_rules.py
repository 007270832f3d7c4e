"""Rules on where rows come from: sets without a source, or without a split that anything makes."""

from collections.abc import Iterator

from ouroboros.pipeline.settings import declared
from ouroboros.pipeline.settings.arguments.worlds import World
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import (
    EXPERTS,
    INPUT,
    PIPELINE,
    SHOWN,
    ExplorerInput,
    Taskset,
    eval_places,
    train_places,
)
from ouroboros.pipeline.store.errors import Problem


def without_rows(c: Config) -> list[Problem]:
    """Lists sets of a stage without rows; a run with no data at all: check/stage_rules.py."""
    return [*([] if no_file(c) else rowless(c)), *_without_split(c), *_of_turns(c)]


def _train_sets(source: ExplorerInput) -> list[tuple[str, Taskset]]:
    return [(f"{INPUT}.{place}", taskset) for place, taskset in train_places(source)]


def _eval_sets(source: ExplorerInput) -> list[tuple[str, Taskset]]:
    return [(f"{INPUT}.{place}", taskset) for place, taskset in eval_places(source)]


def _without_split(c: Config) -> list[Problem]:
    """Lists sets that need a split of the pool that nothing creates: without curation all rows are training tasks.

    Judged per training stage only.
    """
    pool = c.data_processor.task_pipeline
    if c.stages or pool.config_path or pool.operators or not (pool.generator or pool.inputs):
        return []
    buffer = c.buffer.trainer_input.experience_buffer
    wanted = []
    if c.kind.learns_from_given and c.algorithm.data != "texts" and buffer.path is None:  # texts: combinations.py
        wanted.append((SHOWN, "pairs" if c.algorithm.on_pairs else "demonstrations"))
    wanted += [(key, "tasks of split test") for key, one in _eval_sets(c.buffer.explorer_input)
               if one.path is None and one.split == "test"]
    return [Problem(f"{key}.path", f"is not set, and of the rows of {PIPELINE} none are {what}: without curation "
                    f"nothing splits them.", f"Set {PIPELINE}.config_path to a recipe with split_by_hash_mapper "
                    "(conf/data_juicer/), or the path.") for key, what in wanted]


def _of_turns(c: Config) -> Iterator[Problem]:
    """Yields buffers of the pool's demonstrations with the wrong number of trained turns: a generator of a world makes
    conversations, whose last reply is the same in all; other rows of the pool are one turn, or end with the one that is
    trained on."""
    if c.stages:
        return
    pool, given = c.data_processor.task_pipeline, c.buffer.trainer_input
    talks = pool.generator in declared.GENERATORS and issubclass(declared.GENERATORS[pool.generator], World)
    buffers = [(SHOWN, given.experience_buffer)] if c.algorithm.data == "demonstrations" else []
    for key, one in buffers + [(f"{EXPERTS}.{name}", one) for name, one in given.auxiliary_buffers.items()]:
        place, every = f"{key}.format.enable_concatenated_multi_turn", one.format.enable_concatenated_multi_turn
        if one.path is not None or every == talks:
            continue
        why, advice = (f"of files (path), or of a generator of conversations; the rows of {PIPELINE} are others.",
                       "Leave it out.")
        if talks:
            why, advice = (f"the demonstrations of generator={pool.generator} are conversations that end with the same "
                           "reply, and no other would be trained on.", "Set true.")
        yield Problem(place, why, advice, found=every)


def no_file(c: Config) -> bool:
    """Returns whether no set of a stage names a file."""
    source, given = c.buffer.explorer_input, c.buffer.trainer_input
    sets = [given.experience_buffer, *given.auxiliary_buffers.values()]
    return all(one.path is None for one in [*sets, *(one for _, one in [*_train_sets(source), *_eval_sets(source)])])


def rowless(c: Config) -> list[Problem]:
    """Returns the sets of a stage without a row source; other rules cover buffers of pairs and texts."""
    pool = c.data_processor.task_pipeline
    if pool.generator or pool.inputs:
        return []
    source, buffer = c.buffer.explorer_input, c.buffer.trainer_input.experience_buffer
    kind = c.kind
    trained = [(SHOWN, buffer)] if kind.learns_from_given and c.algorithm.data == "demonstrations" else []
    if kind.explores:
        trained = _train_sets(source)
    experts = []
    if kind.is_online and c.algorithm.sample_strategy == "mix":
        experts = list(c.buffer.trainer_input.auxiliary_buffers.items())
    trained += [(f"{EXPERTS}.{name}", one) for name, one in experts]
    return [Problem(f"{key}.path", f"is not set, and {PIPELINE} has neither generator nor inputs to take rows from.",
                    "Set one." + (_as_demonstrations(source) if key == SHOWN else ""))
            for key, taskset in [*trained, *_eval_sets(source)] if taskset.path is None]


def _as_demonstrations(source: ExplorerInput) -> str:
    """Returns the setting that trains on the solutions of the first set of tasks that has files, or an empty text."""
    for _, one in _train_sets(source):
        if one.path is not None and (columns := one.format).prompt_type == "plaintext":
            columns = f"{{prompt_key: {columns.prompt_key}, response_key: {columns.solution_key or 'solution'}}}"
            return (f" Where the tasks have solutions, below trainer_input: experience_buffer: {{path: {one.path}, "
                    f"format: {columns}}}")
    return ""
