"""Repositories of the Hugging Face hub that a configuration names: the commit and local files of each; and GGUF files.

A model is named `org/name[@revision]`, rows `hf://datasets/org/name[@revision][/file]`. Planning replaces each id by
the path of its snapshot in huggingface_hub's cache and fetches small files alone (configuration, tokenizer). The rest
is fetched when a run starts, before its first job (`fetch_missing`); stages are offline. A run keeps the commits that
it began with (`hub` in plan.json): what is pushed later changes no run, until `ouro run --update-hub`.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ouroboros.pipeline.plan.identity import Stage
from ouroboros.pipeline.plan.packaged_tasks import with_tasks
from ouroboros.pipeline.plan.repositories import DATASETS, SCHEME, fetch, lacking, require_whole, snapshot
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.kinds import PATHS, TASKS
from ouroboros.pipeline.settings.setting import at, put, values_of
from ouroboros.pipeline.store import files, gguf
from ouroboros.pipeline.store.digests import HubPath, resolve
from ouroboros.pipeline.store.errors import OuroError, StageError
from ouroboros.pipeline.store.packages import package_of

PINS = "OURO_HUB_PINS"  # variable by which `ouro run` passes its pins to snakemake: run -> id -> commit
MODELS = ("model.model_path", "model.critic_model_path", "model.teacher_model_path",
          "explorer.auxiliary_models.*.model_path", "model.lora_configs.*.path")
ROWS = ("data_processor.task_pipeline.inputs", *PATHS)
ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@\S+)?")
SIBLINGS: dict[str, str] = {}  # id -> commit pinned by a point of the sweep, reused for its new points


# ---------------------------------------------------------------------------------------- ids -> paths, while planning


def located(config: Config, ask: bool = True, update: bool = False) -> tuple[Config, list[str]]:
    """Returns the configuration with local directories for hub ids and GGUF files, and files for tasks of packages; one
    line for each that has none.

    ask: whether to query the hub for what the cache lacks, and to read GGUF files that have no directory yet. update:
    query again for what the run has pinned, too.
    """
    if not any(is_id(name, key) or package_of(name) for key, name in named(config)):
        return config, []
    pins = {} if update else SIBLINGS | pinned(config)
    failed: dict[str, str] = {}  # id -> the line about it, prefixed with the first setting that names it

    def place(value: Any, key: str) -> Any:
        if isinstance(value, list):
            return [path for one in value for path in _several(place(one, key))]
        if value in failed or not is_id(value, key):
            return value
        try:
            if gguf.is_named(value, key):
                return gguf.directory(value, config.checkpoint_root_dir, config.model.dtype, ask)
            return snapshot(value, key in MODELS, pins.get(value), ask, update)
        except OuroError as error:
            failed[value] = f"{key}={value}: {error}"
            return value

    config, problems = with_tasks(_each(config, place))
    return config, [*failed.values(), *problems]


def is_id(value: Any, key: str) -> bool:
    """Returns whether a setting's value names a hub repository or a GGUF file. An existing path is not an id."""
    if not isinstance(value, str) or isinstance(value, HubPath):
        return False
    return value.startswith(SCHEME) or gguf.is_named(value, key) or bool(
        key in MODELS and ID.fullmatch(value) and not resolve(value).exists())


def about_paths(config: Config, lines: Iterable[str]) -> list[str]:
    """Lists problems of paths only, each once: `located` reports an id without a path."""
    about = [words for key, name in named(config) if is_id(name, key) or package_of(name)
             for words in (f"={name}: ", f": {name} ")]
    return [line for line in dict.fromkeys(lines) if not any(words in line for words in about)]


def named(config: Config) -> list[tuple[str, Any]]:
    """Returns (setting, path or id) of every model and every file or directory of rows in a configuration."""
    return [(key, one) for section in (config, *config.stages) for key in (*MODELS, *ROWS)
            for _, value in values_of(section, key) for one in _several(value)]


def _several(value: Any) -> list:
    return value if isinstance(value, list) else [value]


def _each(config: Config, change: Callable[[Any, str], Any]) -> Config:
    """Applies change(value, key) to each setting in MODELS and ROWS, stages included; returns the configuration."""
    def within(section: Config | dict) -> Config | dict:
        for key in (*MODELS, *ROWS):
            for place, value in values_of(section, key):
                section = put(section, place, change(value, key))
        return section

    return within(config).but("stages", [within(entry) for entry in config.stages])


# ------------------------------------------------------------------------------------------------- what a run has kept


def pinned(config: Config) -> dict[str, str]:
    """Returns id -> commit as pinned by a run, or by the `ouro run` that starts it."""
    launched = json.loads(os.environ.get(PINS, "{}")).get(f"{config.project}/{config.name}")
    view = Path(config.checkpoint_root_dir) / "runs" / config.project / config.name / "plan.json"
    if launched is not None or not view.exists():
        return launched or {}
    try:
        return files.read_json(view).get("hub", {})
    except StageError as error:  # it is made again; the commits in it are kept by the stages too, without their ids
        kept = {one for spec in view.parent.glob("stages/*/stage.json") for one in files.read_json(spec).get("hub", [])}
        if kept:
            raise StageError(f"{error} It then takes the newest commits, unless the recipe names those that the run "
                             f"had: {', '.join(sorted(kept))}") from error
        return {}


def agree(configs: list[Config]) -> None:
    """Applies the pins of other points of a sweep to those without pins."""
    for config in configs:
        SIBLINGS.update({name: commit for name, commit in pinned(config).items() if name not in SIBLINGS})


def pins(config: Config) -> dict[str, str]:
    """Returns id -> commit of a located configuration."""
    return {path.asked: path.commit for _, path in named(config) if isinstance(path, HubPath)}


def frozen(config: Config) -> Config:
    """Returns a located configuration with ids, each with its commit, for paths."""
    def name(value: Any, key: str) -> Any:
        return [name(one, key) for one in value] if isinstance(value, list) else getattr(value, "pinned", value)

    return _each(config, name)


def plans_of(planned: Any) -> list:
    """Returns the plans of a sweep, or the plan itself."""
    return [point.plan for point in planned.points] if hasattr(planned, "points") else [planned]


def variable(planned: Any) -> dict[str, str]:
    """Returns the environment variable by which a plan or sweep passes its pins to snakemake."""
    kept = {f"{plan.project}/{plan.name}": pins(plan.config) for plan in plans_of(planned)}
    return {PINS: json.dumps(kept)} if any(kept.values()) else {}


# ------------------------------------------------------------------------------------- what is fetched, before any job


def missing(stages: Iterable[Stage]) -> dict[str, dict[str, int]]:
    """Maps repository and commit to the files, with sizes, that incomplete stages read and the cache lacks."""
    found: dict[str, dict[str, int]] = {}
    for _, path, subset, split in _unmade(stages):
        repository = path.pinned.partition("@")[0] + f"@{path.commit}"
        found.setdefault(repository, {}).update(lacking(path, subset, split))
    return {name: files_of_it for name, files_of_it in found.items() if files_of_it}


def is_here(path: str, split: str) -> bool:
    """Returns whether rows are local or in the hub cache."""
    try:
        return not (isinstance(path, HubPath) and lacking(path, split=split))
    except OuroError:  # reported when the plan is checked
        return False


def _unmade(stages: Iterable[Stage]) -> Iterator[tuple[Stage, HubPath, str | None, str]]:
    """Yields each incomplete stage with what it reads from the hub."""
    for stage in stages:
        if stage.hub and not files.is_complete(stage.directory):
            yield from ((stage, *one) for one in _read_by(stage))


def _read_by(stage: Stage) -> Iterator[tuple[HubPath, str | None, str]]:
    """Returns (path, subset, split) of what a stage reads from the hub."""
    found = [(value, None, "") for value in stage.inputs.values()]
    for key in stage.kind.external:
        section, _, last = key.rpartition(".")
        if key in MODELS or stage.kind == TASKS:
            found += [(path, at(one, "subset_name"), at(one, "split", ""))
                      for _, one in values_of(stage.config, section) for path in _several(getattr(one, last))]
    yield from (one for one in found if isinstance(one[0], HubPath))


def fetch_missing(stages: Iterable[Stage]) -> None:
    """Fetches what incomplete stages read from the hub, and compares all of it with the hub's hashes.

    Makes no request if nothing is missing.
    """
    for repository, names in missing(stages).items():
        fetch(repository, names)
    for stage, *read in _unmade(stages):
        require_whole(*read, stage.root)


def downloads(stages: list[Stage]) -> dict[str, list]:
    """Returns the pending downloads of stages as facts (repository, sentence); their rows are `unjudged` before."""
    try:
        found = missing(stages)
    except OuroError as error:
        return {"problems": [str(error)]}
    return {"facts": [(name.removeprefix(DATASETS).partition("@")[0], f"{sum(sizes.values()) / 1e9:.2f} GB in "
                       f"{len(sizes)} file(s), at commit {name.rpartition('@')[2][:12]}")
                      for name, sizes in found.items()],
            "unjudged": [f"rows of {name}: not downloaded yet." for name in found if name.startswith(DATASETS)]}
