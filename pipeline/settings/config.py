"""Every setting: its type, meaning, unit, bounds and default, in one place.

The names are those of the Trinity-RFT configuration guide. `conf/` holds choices of values, never a key that is not
declared here. A setting with `how=True` says how a stage runs (devices, memory, logs), not what it makes: it does not
enter the stage's identity, so changing it re-runs nothing.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from pipeline.settings import combinations
from pipeline.settings.algorithm import ADVANTAGES, KL_ESTIMATORS, POLICY_LOSSES, Algorithm
from pipeline.settings.data import REWARDS, WORKFLOWS, DataProcessor, ExplorerInput, TrainerInput
from pipeline.settings.explorer import AuxiliaryModel, Explorer
from pipeline.settings.model import Init, Lora, Model, longest_sequence, resolve_dtype
from pipeline.settings.setting import Section, Unreadable, section, setting
from pipeline.settings.trainer import Synchronizer, Trainer
from pipeline.store.errors import Problem

__all__ = ["ADVANTAGES", "KL_ESTIMATORS", "POLICY_LOSSES", "REWARDS", "WORKFLOWS", "AuxiliaryModel", "Config", "Init",
           "Lora", "longest_sequence", "resolve_dtype", "walk"]


class Cluster(Section):
    node_num: int = setting(1, "machines", ge=1, le=1, how=True)
    gpu_per_node: int | None = setting(None, "use at most so many of the visible GPUs; null: all", ge=0, how=True)
    gpu_memory_gib: float | None = setting(None, "memory of one GPU, by which `ouro config check` judges a plan; null: "
                                           "that of the visible ones, GiB", gt=0, how=True)


class Buffer(Section):
    batch_size: int = setting(32, "tasks per explorer step", ge=1)
    train_batch_size: int | None = setting(None, "experiences per optimizer step (sft: demonstrations); null: an "
                                                 "explorer step's (sft: batch_size)", ge=1)
    total_epochs: int = setting(1, "passes over the tasks; ignored when total_steps is set", ge=1)
    total_steps: int | None = setting(None, "optimizer steps of the stage (mode=explore: explorer steps)", ge=1)
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)


class Monitor(Section):
    monitor_type: str = setting("mlflow", "where metrics go", choices=("mlflow", "tensorboard", "wandb", "none"),
                                how=True)
    monitor_args: dict[str, Any] = setting({}, "mlflow: uri; wandb: base_url; secrets: the environment", how=True)


class Log(Section):
    level: str = setting("INFO", "least severe level written", choices=("DEBUG", "INFO", "WARNING", "ERROR"), how=True)


class Sweep(Section):
    max_points: int = setting(64, "points of `ouro run -m` above which it asks to be told so", ge=1, how=True)


class Config(Section):
    project: str = setting("ouroboros", "first part of runs/<project>/<name>")
    name: str = setting("run", "second part of runs/<project>/<name>")
    mode: str = setting("both", "both: explorer and trainer side by side; colocate: they take turns on the same "
                                "devices; explore: the explorer alone, no model is made; train: the trainer alone, on "
                                "what an earlier stage explored (sft: as always); bench: no training, every checkpoint "
                                "kept of the stages before is evaluated",
                        choices=("both", "colocate", "explore", "train", "bench"), how=True)
    continue_from_checkpoint: bool = setting(
        True, "a stage that was cut off goes on from its last checkpoint; false: what it left is deleted and it begins "
              "anew (stages that are complete stay)", how=True)
    verify: str = setting(
        "hash", "how a stage compares its inputs, and its own files when it resumes, with what was written: hash, "
                "every byte; size, their sizes only (tables are compared by hash whenever they are read)",
        choices=("hash", "size"), how=True)
    checkpoint_root_dir: str = setting(".", "directory that holds store/ and runs/", how=True)
    ignore_validator_suggestions: bool = setting(False, "a GPU memory estimate over the limit is only a warning",
                                                 how=True)
    seed: int = setting(1, "of everything random", ge=0)
    algorithm: Algorithm = section(Algorithm)
    model: Model = section(Model)
    cluster: Cluster = section(Cluster)
    buffer: Buffer = section(Buffer)
    explorer: Explorer = section(Explorer)
    trainer: Trainer = section(Trainer)
    synchronizer: Synchronizer = section(Synchronizer)
    monitor: Monitor = section(Monitor)
    data_processor: DataProcessor = section(DataProcessor)
    log: Log = section(Log)
    sweep: Sweep = section(Sweep)
    stages: list[dict[str, Any]] = setting(
        [], "training stages: stage_name, after, and whatever differs from the settings above, merged key by key; "
            "none: one stage")

    @property
    def kind(self) -> str:
        """Returns the kind of stage that these are the settings of."""
        return combinations.kind_of(self.mode, self.algorithm.algorithm_type)

    def broken_rules(self, above: str = "") -> Iterator[Problem]:
        idle: tuple[str, ...] = ()
        with contextlib.suppress(Unreadable):
            idle = () if self.kind in combinations.TRAINING else ("algorithm.optimizer.", "trainer.")
        yield from (problem for problem in super().broken_rules(above) if not problem.key.startswith(idle))
        for each in combinations.RULES:
            with contextlib.suppress(Unreadable):
                yield from each(self)


# settings that identify a run and configure no stage
RUN_WIDE = ("project", "name", "checkpoint_root_dir", "stages", "sweep")


def elements(kind: Any) -> type[Section] | None:
    """Returns the section type of a list's elements or a mapping's values; None for any other type."""
    *_, element = get_args(kind) if get_origin(kind) in (list, dict) else (None,)
    return element if is_section(element) else None


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


@cache
def walk(kind: type[Section] = Config) -> tuple[tuple[str, FieldInfo], ...]:
    """Yields (dotted key, field) of every setting below `kind`, in order; of lists and mappings under `key.*`."""
    return tuple(_walk(kind, ""))


def _walk(kind: type[Section], prefix: str):
    for name, field in kind.model_fields.items():
        key = prefix + name
        if is_section(field.annotation):
            yield from _walk(field.annotation, key + ".")
        else:
            yield key, field
            if element := elements(field.annotation):
                yield from _walk(element, key + ".*.")
