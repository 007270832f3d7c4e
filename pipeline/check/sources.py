"""Files and directories of rows in a configuration, with the columns each must have."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ouroboros.pipeline.check.reading import rows_at
from ouroboros.pipeline.plan.hub import is_here
from ouroboros.pipeline.settings.arguments.binding import required_columns
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.curation import TaskPipeline
from ouroboros.pipeline.settings.data import EXPERTS, SHOWN, Format, Rows, Taskset, profiled
from ouroboros.pipeline.settings.kinds import Kind
from ouroboros.pipeline.settings.row_columns import asked_columns
from ouroboros.pipeline.settings.setting import at, plain
from ouroboros.pipeline.store.digests import MadePath, below, resolve

POOL = "inputs"  # name for rows that belong to no set
FEATURE = "feature_keys."  # begins the name of a column that a selector reads; its index follows
KEPT = "columns."  # and that of one that functions of its set take; its name follows
RATE = f"{FEATURE}rates."  # and that of one of solve rates
PAIR = ("chosen_key", "rejected_key")  # settings of a format for both responses of a pair


@dataclass(frozen=True)
class Source:
    """A file or directory of rows. name: its set, or inputs. key: the setting that names it. split: of a directory.
    format_key: setting that holds the column names.

    columns: setting below format_key -> column, nested ones dotted, such as ("prompt_key", "question"); those in
    `optional` may be absent. prompt_setting: the setting of the prompt's column, prompt_key or messages_key.
    every_turn: whether every turn of the assistant in a demonstration is trained on. paired: columns without which
    the demonstrated response, solution_key, may not be absent either.
    skips: whether tasks that cannot run here are left out.
    form: its format as JSON, null where its rows are only measured; purpose: task, demonstration or text, as which
    operators/formats.py reads it; allowed: the share of its set that may be rejected; alone: whether it is all of it.
    whole: whether pairs are scored whole, by a reward model.
    """

    name: str
    key: str
    path: str
    split: str
    format_key: str
    columns: tuple[tuple[str, str], ...]
    optional: tuple[str, ...] = ()
    prompt_setting: str = "prompt_key"
    every_turn: bool = False
    paired: tuple[str, ...] = ()
    skips: bool = False
    form: str | None = None
    purpose: str = "task"
    allowed: float = 1.0
    alone: bool = True
    whole: bool = False

    @property
    def label(self) -> str:
        """Returns the setting with the set's name, since an index alone is hard to identify."""
        return self.key if self.name == POOL else f"{self.key} ({self.name})"

    def request(self) -> dict[str, Any]:
        """Returns what the processes that read its rows need of it (stages/preview.py, stages/own_code.py)."""
        return {**asdict(self), "key": self.label, "path": str(resolve(self.path)), "columns": dict(self.columns)}


def sources(config: Config) -> list[Source]:
    """Returns every file or directory that rows are read from."""
    key, settings = "data_processor.task_pipeline", config.data_processor.task_pipeline
    given = config.buffer.trainer_input
    unread = [one for _, one in config.buffer.explorer_input.train_places if one.path is None]
    columns = _columns(settings.format) + _features(unread) + _kept(
        config, [one for one in config.buffer.explorer_input.places if one[1].path is None])
    columns += () if given.experience_buffer.path else _paired(settings.format, config)
    pool = [Source(POOL, f"{key}.inputs.{index}", path, settings.split, f"{key}.format", columns, ("solution_key",),
                   _prompt_setting(settings.format), form=_form(settings.format), alone=len(settings.inputs) == 1)
            for index, path in enumerate(settings.inputs)]
    sets = [(f"buffer.explorer_input.{place}", one,
             _columns(one.format) + _features([one]) + _kept(config, [(place, one)]))
            for place, one in config.buffer.explorer_input.places]  # an evaluation set has no selector
    shown = given.experience_buffer
    if not config.kind.is_offline:  # which reads recorded experience there
        sets.append((SHOWN, shown, _shown(shown.format, config) + _paired(shown.format, config)))
    sets = [(key, one.name, one, columns) for key, one, columns in sets]
    sets += [(f"{EXPERTS}.{name}", name, one, _shown(one.format, config))
             for name, one in given.auxiliary_buffers.items()]
    every = pool + [source for found in sets for source in _files_of(*found)]
    return [replace(source, allowed=config.buffer.max_rejected_ratio, whole=config.algorithm.scores_responses)
            for source in every]


def _features(sets: list[Taskset]) -> tuple[tuple[str, str], ...]:
    """Returns the columns that the selectors of training sets read."""
    keys = dict.fromkeys(key for one in sets for key in one.data_selector.feature_keys if not profiled(key))
    rates = {key for one in sets if one.data_selector.reads_rates for key in one.data_selector.feature_keys}
    return tuple((f"{RATE if key in rates else FEATURE}{index}", key) for index, key in enumerate(keys))


def _kept(config: Config, sets: list[tuple[str, Taskset]]) -> tuple[tuple[str, str], ...]:
    """Returns the columns that functions of sets, with their places, take of a record."""
    source = config.buffer.explorer_input
    found = dict.fromkeys(name for place, one in sets for name in required_columns(asked_columns(one, source, place)))
    return tuple((f"{KEPT}{name}", name) for name in found)


def _shown(columns: Format, config: Config) -> tuple[tuple[str, str], ...]:
    """Returns the columns of a file of demonstrations or plain text."""
    text = config.algorithm.data == "texts" or columns.response_key is None
    return (*_asked(columns), *(() if text else (("solution_key", columns.response_key),)))


def _paired(columns: Format, config: Config) -> tuple[tuple[str, str], ...]:
    """Returns the columns that pair data add; pipeline/settings/combinations.py rejects null."""
    if not config.kind.learns_from_given or not config.algorithm.on_pairs:
        return ()
    keys = (*PAIR, "margin_key") if config.algorithm.scores_responses else PAIR
    return tuple((key, own) for key in keys if (own := getattr(columns, key, None)) is not None)


def _files_of(key: str, name: str, one: Rows, columns: tuple[tuple[str, str], ...]) -> list[Source]:
    """Returns the files and directories of one set; empty when its rows come from the pool."""
    several = isinstance(one.path, list)
    paths = one.path if several else [one.path] if one.path else []
    shown = key.startswith((SHOWN, EXPERTS))
    purpose = "task" if not shown else "demonstration" if one.format.response_key else "text"
    return [Source(name, f"{key}.path" + (f".{i}" if several else ""), below(path, one.subset_name),
                   "train" if isinstance(path, MadePath) else one.split,  # a package's file has its split alone
                   f"{key}.format", columns,
                   ("solution_key",), _prompt_setting(one.format),
                   getattr(one.format, "enable_concatenated_multi_turn", False), _pair_of(key, one.format),
                   getattr(one.format, "unsupported", "") == "skip", _form(one.format), purpose,
                   alone=len(paths) == 1)
            for i, path in enumerate(paths)]


def _pair_of(key: str, columns: Format) -> tuple[str, ...]:
    """Returns the columns of a pair, which take the place of a response, where prompts are no conversations (these may
    end with one); as `needed_keys` of operators/formats.py."""
    alone = key.startswith((SHOWN, EXPERTS)) and columns.prompt_type == "plaintext"
    return (columns.chosen_key or "", columns.rejected_key or "") if alone else ()


def _form(columns: Format) -> str:
    return json.dumps(plain(columns))


def _columns(columns: Format) -> tuple[tuple[str, str], ...]:
    """Returns the required columns of a task file, and the optional ones of a demonstration."""
    return (*_asked(columns), ("response_key", columns.response_key),
            ("solution_key", columns.solution_key or "solution"))


def _asked(columns: Format) -> tuple[tuple[str, str], ...]:
    """Returns the columns that make the prompt, as `needed_keys` of operators/formats.py."""
    system = columns.system_prompt_key
    chosen = [(name, key) for name in ("workflow_key", "reward_fn_key") if (key := getattr(columns, name, None))]
    return (("prompt_key", getattr(columns, _prompt_setting(columns))),
            *((("system_prompt_key", system),) if system is not None else ()), *chosen)


def _prompt_setting(columns: Format) -> str:
    return "messages_key" if columns.prompt_type == "messages" and columns.messages_key else "prompt_key"


def most_rows(config: Config, generated: bool = False) -> int | None:
    """Returns the rows that a stage learns from (tasks, or demonstrations and pairs) before curation; None when not all
    can be counted: not on this machine, a dataset of save_to_disk, or texts that are cut into pieces.

    config: its settings (`recipe.effective`). generated: count generated rows too, of which curation drops
    more.
    """
    kind, pool = config.kind, config.data_processor.task_pipeline
    if kind.explores:
        sets = [one for _, one in config.buffer.explorer_input.train_places]
    elif kind.learns_from_given and config.algorithm.data != "texts":
        sets = [config.buffer.trainer_input.experience_buffer]
    else:
        return None
    made = _generated(pool, kind, config.algorithm.on_pairs) if generated else None
    counts = [_rows_of_set(one, pool, made) for one in sets]
    return None if None in counts else sum(counts)


def _rows_of_set(one: Rows, pool: TaskPipeline, made: int | None) -> int | None:
    """Returns the rows of a set from its own files or the pool. made: rows that a generator provides for it."""
    if one.path is not None:
        named = one.path if isinstance(one.path, list) else [one.path]
        paths, split = [below(path, one.subset_name) for path in named], one.split
    else:
        paths, split = pool.inputs, pool.split
    counts = [rows_at(resolve(path), split) if is_here(path, split) else None for path in paths]
    counts = counts or [made if one.path is None else None]
    return None if None in counts else min(sum(counts), at(one, "limit") or sum(counts))


def _generated(pool: TaskPipeline, kind: Kind, on_pairs: bool) -> int | None:
    """Returns the rows that a generator creates for this kind of stage, faulty ones included; None for an unknown
    generator or non-numeric arguments. Without curation all rows are tasks. on_pairs: whether it trains on pairs."""
    given = [pool.generator_args.get(name) for name in GENERATED.get(pool.generator, ())]
    if not given or any(isinstance(one, bool) or not isinstance(one, int | float) for one in given):
        return None
    tasks, demonstrations, dirt = given
    pairs = pool.generator_args.get("pairs") or 0
    own = (pairs if on_pairs else demonstrations) if kind.learns_from_given else tasks
    curated, every = pool.config_path or pool.operators, tasks + demonstrations + pairs
    return int((own if curated else every) + round(dirt * every))


# generator (operators/generate.py) -> its arguments: number of tasks and demonstrations, share of faulty rows added
GENERATED = {"countdown": ("tasks", "demonstrations", "dirt")}
