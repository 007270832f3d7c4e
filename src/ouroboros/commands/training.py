"""`ouroboros.train`: writes a recipe, and the files that it names, for what was handed over in Python.

conf/recipe/NAME.yaml is a recipe like any other: `ouro run recipe=NAME` runs the same. Rows become a jsonl file in
data/ and functions modules in train_functions/, named after their content: equal ones are one file in every process.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ouroboros.commands.by_source import name_of, write_if_new
from ouroboros.commands.init import data as project_data
from ouroboros.commands.init import foreign
from ouroboros.commands.init.columns import Guess, guess, judged
from ouroboros.commands.init.command import project_name
from ouroboros.commands.init.recipe import facts, on_one_line, rendered
from ouroboros.commands.run.planning import files_here
from ouroboros.pipeline.compose.compose import TITLE, of_stage
from ouroboros.pipeline.settings import algorithms, combinations, schema, secrets
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.data_files import as_meant
from ouroboros.pipeline.store.digests import missing
from ouroboros.pipeline.store.errors import ConfigError, DataError

MARK = "# Written by ouroboros.train; its next call with this name writes it again. To keep changes, copy the file."
INPUT = "buffer.explorer_input"
KINDS = {"demonstrations": "sft", "pairs": "dpo", "texts": "cpt"}  # what an algorithm trains on -> the kind of a Guess
Functions = str | Callable | Sequence[str | Callable]


def write_recipe(model: Any, data: Any, reward: Functions | None, algorithm: Any, steps: int | None, eval_data: Any,
                 sft_data: Any, tools: Functions | None, workflow: str | Callable | None, prompt_key: str | None,
                 response_key: str | None, settings: dict[str, Any]) -> str:
    """Writes conf/recipe/NAME.yaml and the files that it names; returns NAME. Arguments as of `ouroboros.train`."""
    from omegaconf import OmegaConf

    run = {"project": project_name(Path()), "name": "train"} | settings
    if unfit := [*combinations.names(Config.model_construct(project="train", name=str(run["name"])))]:
        raise ConfigError.of(TITLE, unfit)
    file = Path("conf", "recipe", f"{run['name']}.yaml")
    if any(one.exists() and not one.read_text(encoding="utf-8").startswith(MARK) for one in (file, files.HOME / file)):
        raise ConfigError(f'{file} is a recipe that train did not write. Give the run another name="…".')
    path = None if isinstance(model, Mapping) else os.path.expanduser(os.fspath(model))
    sections = {"model": {"model_path": path} if path else model,
                "algorithm": algorithm if isinstance(algorithm, Mapping) else {"algorithm_type": algorithm}}
    kind = KINDS.get(algorithms.facts(sections["algorithm"].get("algorithm_type", "grpo")).data, "rft")
    names = {"reward": _names(reward, "reward"), "tools": _names(tools, "tools"),
             "workflow": None if workflow is None else name_of(workflow, "workflow")}
    keys = {"prompt_key": prompt_key, "response_key": response_key}
    found, said, tested = _guessed(data, sections["model"], kind, bool(names["reward"]), keys, eval_data)
    made = OmegaConf.create(rendered(found, said)["conf/recipe/project.yaml"])
    for note in found.notes:
        print(f"ouro: {note}", file=sys.stderr)
    handed = _handed(names, steps, tested) | _warmup(made, sft_data, said["warmup_lr"])
    for key, value in [*handed.items(), *sections.items(), *run.items()]:
        _set(made, key, value)
    if made.buffer.get("total_steps"):  # which total_epochs does not change
        made.buffer.pop("total_epochs", None)
    plain = OmegaConf.to_container(made)
    if exposed := [*secrets.problems_of(plain), *secrets.leaks(plain)]:
        raise ConfigError.of(TITLE, secrets.without_values(exposed, plain))
    notes = [f"{said['rows']} rows, {said['parameters']}", *map(on_one_line, found.notes)]
    text = "\n".join([MARK, "# @package _global_", *(f"# {note}" for note in notes), OmegaConf.to_yaml(made)])
    files.write_atomic(file, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return run["name"]


def _names(given: Functions | None, key: str) -> list[str]:
    several = [] if given is None else [given] if isinstance(given, str) or callable(given) else [*given]
    return [name_of(one, key if not at else f"{key} {at + 1}") for at, one in enumerate(several)]


def _guessed(data: Any, model: Mapping[str, Any], kind: str, rewarded: bool, keys: dict[str, str | None],
             eval_data: Any) -> tuple[Guess, dict[str, Any], dict[str, Any] | None]:
    """Returns what the rows are, the variables of the template of a recipe, and the set to evaluate on if it is not the
    template's. kind: of the Guess that is needed. rewarded: by functions of the user's."""
    path = stored(data, "data")
    config, drawn = _read(path, model)
    rows = drawn.drawn.rows
    found = judged(rows, **keys) if rewarded and kind == "rft" else guess(rows, named=drawn.drawn.named, **keys)
    if found.kind != kind:
        raise DataError(f"data: the rows are of the kind {found.kind} ({found.notes[0]}), and the algorithm needs "
                        f"{kind}. Give another algorithm=, a reward= for tasks, or name the columns.")
    if found.reward == "reward:score":
        raise ConfigError(f"reward is missing: {found.notes[0]}, and only numbers and formulas have a reward of ours. "
                          "Give reward= a function of (response, answer).")
    tested = _evaluated(eval_data, found, drawn)
    if found.convert:
        path = stored(project_data.kept(found, drawn, "train"), "data")
        drawn = _read(path)[1]
        found.notes = [note.replace(project_data.CONVERTED, path) for note in found.notes]
    found.warmup, drawn.held_out = "", "test" if tested else drawn.held_out
    said = facts(found, drawn, config.model) | {
        "project": "", "path": json.dumps(path), "model": json.dumps(model.get("model_path"))}
    return found, said, tested


def _evaluated(eval_data: Any, found: Guess, drawn: project_data.Data) -> dict[str, Any] | None:
    """Returns the set of eval_data, or of the held-out split of rows that are converted; rows of both are converted as
    those of `data` (`drawn`) are."""
    if eval_data is not None:
        drawn = _read(path := stored(eval_data, "eval_data"))[1]
    elif not (found.convert and found.reward and drawn.held_out):
        return None
    form, split = found.format, drawn.held_out or "train"
    if found.kind != "rft":
        form = judged(drawn.drawn.rows).format
    elif found.convert:
        path = stored(project_data.kept(found, drawn, split), "eval_data")
    return {"name": "test", "path": path, "split": split, "format": form, "repeat_times": 4, "limit": 256}


def _read(path: str, model: Mapping[str, Any] = {}) -> tuple[Config, project_data.Data]:
    """Returns the settings of a model, with its directory, and a sample of rows, which are fetched from the hub."""
    config, problems = schema.read({"model": model, "buffer": {"explorer_input": {"taskset": {"path": path}}}}, Config)
    if problems:
        raise ConfigError.of(TITLE, problems)
    config = files_here(config)
    return config, project_data.read(config.buffer.explorer_input.taskset.path)


def _handed(names: dict[str, Any], steps: int | None, tested: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the settings that arguments of `train` mean, by dotted key. names: of functions. tested: a set."""
    made: dict[str, Any] = {} if steps is None else {"buffer.total_steps": steps}
    rewards, tools, workflow = names["reward"], names["tools"], names["workflow"]
    if rewards:
        made[f"{INPUT}.default_reward_fn_type"] = rewards if rewards[1:] else rewards[0]
    if workflow or tools:
        made[f"{INPUT}.default_workflow_type"] = workflow or "tool_call_workflow"
    if tested:
        made[f"{INPUT}.eval_tasksets"] = [tested]
    if tools:
        made |= {f"{INPUT}.{place}.workflow_args.tools": tools for place in ("taskset", "eval_tasksets.0")}
    return made


def _warmup(made: Any, sft_data: Any, rate: str) -> dict[str, Any]:
    """Returns the stages with one before them that imitates demonstrations. made: the recipe."""
    if sft_data is None:
        return {}
    path = stored(sft_data, "sft_data")
    shown = guess(_read(path)[1].drawn.rows)
    if shown.kind != "sft" or shown.convert:
        raise DataError(f"sft_data: {shown.notes[0]}; needed demonstrations: prompt and completion, or messages.")
    sft = {"stage_name": "sft", "algorithm": {"algorithm_type": "sft", "optimizer": {"lr": float(rate)}},
           "buffer": {"total_epochs": 1, "total_steps": None,  # `steps` are those of the stage after it
                      "trainer_input": {"experience_buffer": {"path": path, "format": shown.format}}}}
    return {"stages": [sft, *map(dict, made.stages)]}


def _set(made: Any, key: str, value: Any) -> None:
    """Sets a dotted key of a recipe, of a stage too; a mapping is merged over what is there. Raises ConfigError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if key.startswith("stages."):
        key, wrong = of_stage([one.stage_name for one in made.stages], key, key)
        if wrong:
            raise ConfigError.of(TITLE, wrong)
    try:
        plain = json.loads(json.dumps(value, default=os.fspath))
        OmegaConf.update(made, key, plain, merge=True, force_add=True)
    except (TypeError, OmegaConfBaseException) as error:
        raise ConfigError(f"{key}: found {value!r} ({error}); needed what a recipe can hold there: numbers, texts, "
                          "lists, dicts.") from error


def stored(data: Any, key: str) -> str:
    """Returns the path of rows: of a path or an id of the hub itself, of others that of a jsonl file of the project,
    named after its content. key: the argument. Raises DataError for what are no rows."""
    if isinstance(data, str | os.PathLike):
        path = Path(named := os.path.expanduser(os.fspath(data)))
        if "://" in named or (path.exists() and not foreign.is_foreign(path)):
            return named
        if not path.exists():
            if len(path.parts) != 2 or path.suffix in (".jsonl", ".parquet") or path.parent.exists():
                raise missing(path, key, named)
            return f"hf://datasets/{named}"
        data = foreign.rows_of(path)
    text = b"".join(_lines(data, key))
    if not text:
        raise DataError(f"{key} has no rows.")
    path = Path("data", f"{key}_{files.hash_text(text.decode())[:8]}.jsonl")
    write_if_new(path, text)
    return str(path)


def _lines(data: Any, key: str) -> Iterator[bytes]:
    for number, row in enumerate(_rows(data, key), 1):
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise DataError(f"{key}, row {number} is {str(row)[:60]!r}; needed a dict from column names to values.")
        try:
            yield _json(dict(row)) + b"\n"
        except (TypeError, ValueError):
            column = next(name for name in row if not _is_json(row[name]))
            raise DataError(f"{key}, row {number}: column {column} holds {str(row[column])[:60]!r}, a "
                            f"{type(row[column]).__name__}; needed what JSON can hold (None for no value).") from None


def _rows(data: Any, key: str) -> Iterable:
    import pyarrow as pa

    if isinstance(data, Mapping):
        raise DataError(f"{key} is a mapping of {', '.join(map(str, [*data][:5]))}; needed rows: one split of a "
                        "dataset, or a list of dicts.")
    if type(data).__module__.partition(".")[0] == "datasets" and getattr(data, "features", None):
        return as_meant(data, data.features.arrow_schema)
    if not hasattr(data, "__arrow_c_stream__"):
        if not isinstance(data, Iterable):
            raise DataError(f"{key} is {data!r}; needed rows: a list of dicts, a table, a dataset, a path.")
        return data
    names = [*getattr(data, "column_names", getattr(data, "columns", ()))]
    if twice := {str(name) for name in names if names.count(name) > 1}:
        raise DataError(f"{key} has several columns named {', '.join(sorted(twice))}; needed different names.")
    try:
        table = pa.table(data.reset_index(drop=True) if hasattr(data, "reset_index") else data)
    except pa.ArrowException as error:
        raise DataError(f"{key} has a column of several types: {' '.join(str(error).split())}") from error
    return as_meant(table.to_pylist(), table.schema)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """A value of a row that JSON lacks: an array or number of numpy, a date, none of pandas."""
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    made = getattr(value, "tolist", None) or getattr(value, "isoformat", None)
    if made is None:
        raise TypeError
    return made()


def _is_json(value: Any) -> bool:
    try:
        return bool(_json(value))
    except (TypeError, ValueError):
        return False
