"""The files and directories of rows that a configuration names, with the columns that each is to have."""

from dataclasses import dataclass
from typing import Any

from pipeline.plan.modes import kind_of
from pipeline.settings.algorithms import PAIR_TYPES
from pipeline.settings.data import EXPERTS, SHOWN, eval_places, train_places
from pipeline.store.digests import below

POOL = "inputs"  # what rows of no set are called
PAIR = ("chosen_key", "rejected_key")  # settings of a format, for both responses of a pair


@dataclass(frozen=True)
class Source:
    """A file or directory of rows. name: of its set, or inputs. key: the setting that names it. split: of a directory.
    format_key: of its columns.

    columns: setting below format_key -> column, dotted into structs, such as ("prompt_key", "question"); `optional`
    ones may be absent.
    """

    name: str
    key: str
    path: str
    split: str
    format_key: str
    columns: tuple[tuple[str, str], ...]
    optional: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """The setting with the name of the set, which an index alone does not tell."""
        return self.key if self.name == POOL else f"{self.key} ({self.name})"


def sources(config: dict[str, Any]) -> list[Source]:
    """Every file or directory that rows are read from."""
    key, settings = "data_processor.task_pipeline", config["data_processor"]["task_pipeline"]
    given = config["buffer"]["trainer_input"]
    columns = _columns(settings["format"])
    columns += () if given["experience_buffer"]["path"] else _paired(settings["format"], config)
    pool = [Source(POOL, f"{key}.inputs.{index}", path, settings["split"], f"{key}.format", columns, ("solution_key",))
            for index, path in enumerate(settings["inputs"])]
    sets = [(f"buffer.explorer_input.{place}", one, _columns(one["format"])) for place, one in tasksets(config)]
    shown = given["experience_buffer"]
    sets.append((SHOWN, shown, _shown(shown["format"], config) + _paired(shown["format"], config)))
    sets += [(f"{EXPERTS}.{name}", {**one, "name": name}, _shown(one["format"], config))
             for name, one in given["auxiliary_buffers"].items()]
    return pool + [source for key, one, columns in sets for source in _files_of(key, one, columns)]


def _shown(columns: dict, config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What a file of demonstrations has, or one of plain text."""
    prompt, text = ("prompt_key", _prompt_key(columns)), config["algorithm"]["algorithm_type"] == "cpt"
    return (prompt,) if text or columns["response_key"] is None else (prompt, ("solution_key", columns["response_key"]))


def _paired(columns: dict, config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What rows have besides that a stage reads as pairs; null is refused by pipeline/check/data_rules.py."""
    if kind_of(config) != "train" or config["algorithm"]["algorithm_type"] not in PAIR_TYPES:
        return ()
    return tuple((key, columns[key]) for key in PAIR if columns[key] is not None)


def tasksets(config: dict[str, Any]) -> list[tuple[str, dict]]:
    """(place below buffer.explorer_input, settings) of every set to train on or to evaluate on."""
    explorer = config["buffer"]["explorer_input"]
    return [*train_places(explorer), *eval_places(explorer)]


def _files_of(key: str, one: dict, columns: tuple[tuple[str, str], ...]) -> list[Source]:
    """The files and directories of one set; none when it takes its rows from the pool."""
    several = isinstance(one["path"], list)
    paths = one["path"] if several else [one["path"]] if one["path"] else []
    return [Source(one["name"], f"{key}.path" + (f".{i}" if several else ""),
                   below(path, one["subset_name"]), one["split"], f"{key}.format", columns,
                   ("solution_key",)) for i, path in enumerate(paths)]


def _columns(columns: dict) -> tuple[tuple[str, str], ...]:
    """What a file of tasks must have, and a demonstration that it may have."""
    return (("prompt_key", _prompt_key(columns)), ("response_key", columns["response_key"]),
            ("solution_key", columns["solution_key"] or "solution"))


def _prompt_key(columns: dict) -> str:
    return (columns["prompt_type"] == "messages" and columns["messages_key"]) or columns["prompt_key"]
