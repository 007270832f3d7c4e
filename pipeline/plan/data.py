"""The data settings a stage depends on: those that determine the `tasks` and `curate` stages before it.

A changed evaluation set therefore leaves the training unchanged, a changed rft set leaves the warmup, and stages that
read the same data share one `tasks` and one `curate`.
"""

from collections.abc import Sequence

from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import AuxiliaryBuffer, ExperienceBuffer, TaskFormat, Taskset, profiled
from ouroboros.pipeline.settings.images import paths_of_sets
from ouroboros.pipeline.settings.kinds import SHOWN_ROWS, TASK_ROWS, TEST_ROWS
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.settings.train_batch import expert_buffer
from ouroboros.pipeline.store.images import keys

NO_POOL = {"generator": None, "generator_args": {}, "inputs": [], "split": "train", "format": TaskFormat()}


def data_settings(settings: Config, rows: str, scored: Sequence[Config] = ()) -> Config:
    """Returns the settings without the sets that a stage does not read, or that have no files themselves.

    rows: those it reads (`Kind.rows`): demonstrations, pairs or texts; tasks, with the expert rows that it mixes in;
    evaluation sets. scored: stages of the run that may reward again what is sampled for these.
    The pool (generator or inputs) remains if one of its sets takes rows from it; the seed matters only to a
    generator.
    """
    pool, buffer = settings.data_processor.task_pipeline, settings.buffer
    source, shown = buffer.explorer_input, buffer.trainer_input.experience_buffer
    reads = {SHOWN_ROWS: [shown], TASK_ROWS: _asking([settings, *scored], False), TEST_ROWS: _asking([settings], True)}
    own = [one for one in reads[rows] if one.path is not None]
    if rows == TASK_ROWS:  # what an earlier stage measured of tasks is not read with them
        own = [one.but("data_selector.feature_keys", _of_records([one])) for one in own]
    experts = _experts(settings) if rows == TASK_ROWS else {}
    alone = rows == TASK_ROWS and not source.tasksets
    if all(one.path is not None for one in [*reads[rows], *experts.values()]):
        pool = pool.model_copy(update=NO_POOL)
    source = source.model_copy(update={
        "taskset": own[0] if alone and own else _of_pool([] if rows == SHOWN_ROWS else reads[rows], rows == TASK_ROWS),
        "tasksets": own if rows == TASK_ROWS and not alone else [],
        "eval_tasksets": own if rows == TEST_ROWS else [],
    })
    shown = own[0] if rows == SHOWN_ROWS and own else ExperienceBuffer()
    if rows == SHOWN_ROWS and own and settings.algorithm.data == "texts":  # whose prompts are the whole text
        shown = shown.but("format.response_key", None)
    given = buffer.trainer_input.model_copy(update={
        "experience_buffer": shown,
        "auxiliary_buffers": {name: one for name, one in experts.items() if one.path is not None}})
    return settings.model_copy(update={
        "seed": settings.seed if pool.generator else 0,
        "buffer": buffer.model_copy(update={"explorer_input": source, "trainer_input": given}),
        "data_processor": settings.data_processor.but("task_pipeline", pool),
    })


def environments(data: Config, root: str) -> list[str]:
    """Returns the hashes of what the Harbor tasks of these settings (of `data_settings`) have images built of."""
    source = data.buffer.explorer_input
    own = any(one.path is not None for one in (source.taskset, *source.tasksets, *source.eval_tasksets))
    return keys(paths_of_sets(data.buffer), data.environment.images, root) if own else []


def _asking(stages: Sequence[Config], held_out: bool) -> list[Taskset]:
    """Returns the sets of the first stage, each with the columns that functions of any stage take of its records.
    held_out: the evaluation sets, else the training sets."""
    sources = [settings.buffer.explorer_input for settings in stages]
    sets = [one.eval_places if held_out else one.train_places for one in sources]
    asked = [(one.name, asked_columns(one, source, place)) for source, several in zip(sources, sets, strict=True)
             for place, one in several]
    return [one.but("columns", sorted({column for name, several in asked if name == one.name for column in several}))
            for _, one in sets[0]]


def _of_pool(sets: Sequence[Taskset], selects: bool) -> Taskset:
    """Returns what reading the pool needs to know of the sets that take rows from it: which columns they read. selects:
    whether their selectors read features."""
    several = [one for one in sets if one.path is None]
    return Taskset().but("data_selector.feature_keys", _of_records(several if selects else [])).but(
        "columns", sorted({column for one in several for column in one.columns}))


def _of_records(sets: Sequence[Taskset]) -> list[str]:
    """Returns the features of sets that are read with their tasks."""
    return list(dict.fromkeys(key for one in sets for key in one.data_selector.feature_keys if not profiled(key)))


def _experts(settings: Config) -> dict[str, AuxiliaryBuffer]:
    """Returns the auxiliary buffer that a stage mixes rows from, by name; empty without one."""
    algorithm, buffers = settings.algorithm, settings.buffer.trainer_input.auxiliary_buffers
    if algorithm.sample_strategy != "mix" or not settings.kind.is_online:
        return {}
    name = expert_buffer(algorithm)
    return {name: buffers[name]}
