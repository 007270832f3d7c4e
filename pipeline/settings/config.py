"""Every setting: its type, meaning, unit, bounds and default, in one place.

The names are those of the Trinity-RFT configuration guide. `conf/` holds choices of values, never a key that is not
declared here. A setting with `how=True` says how a stage runs (devices, memory, logs), not what it makes: it does not
enter the stage's identity, so changing it re-runs nothing.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from operator import attrgetter
from typing import Any, Self

from pydantic import ValidationError, field_validator
from pydantic.fields import FieldInfo

from ouroboros.pipeline.settings import combinations
from ouroboros.pipeline.settings.algorithm import ADVANTAGES, KL_ESTIMATORS, POLICY_LOSSES, Algorithm
from ouroboros.pipeline.settings.arguments.base import LONGEST
from ouroboros.pipeline.settings.curation import DataProcessor
from ouroboros.pipeline.settings.data import REWARDS, WORKFLOWS, ExplorerInput, TrainerInput
from ouroboros.pipeline.settings.explorer import AuxiliaryModel, Explorer
from ouroboros.pipeline.settings.images import Environments, Images
from ouroboros.pipeline.settings.kinds import FROM_GIVEN, KINDS, MODES, ONLINE, WHAT_MODES_DO, Kind, completed
from ouroboros.pipeline.settings.model import Init, Lora, Model, longest_sequence, resolve_dtype
from ouroboros.pipeline.settings.setting import (
    Absent,
    Section,
    at,
    elements,
    is_section,
    own_name,
    plain,
    put,
    section,
    setting,
)
from ouroboros.pipeline.settings.trainer import Synchronizer, Trainer
from ouroboros.pipeline.store.errors import Problem

__all__ = ["ADVANTAGES", "KL_ESTIMATORS", "POLICY_LOSSES", "REWARDS", "WORKFLOWS", "AuxiliaryModel", "Config", "Init",
           "Lora", "longest_sequence", "resolve_dtype", "walk"]


class Slurm(Section):
    partition: str | None = setting(None, "partition of the jobs; null: the cluster's default", how=True)
    account: str | None = setting(None, "account that the jobs are charged to; null: the user's default", how=True)
    qos: str | None = setting(None, "quality of service of the jobs", how=True)
    constraint: str | None = setting(None, "features that the nodes must have, such as `a100|h100`", how=True)
    gpu_model: str | None = setting(None, "type of the GPUs, as `sinfo -o %G` names it", how=True)
    runtime: int | None = setting(None, "time limit of a job, minutes; null: the partition's default. A stage saves "
                                        "and stops before the limit, and `ouro run` submits it again", ge=1, how=True)
    mem: float | None = setting(None, "host memory of a job per node, GiB; null: estimated", gt=0, how=True)
    cpus: int | None = setting(None, "cores of a job per node; null: with GPUs the same share of a node's cores as of "
                                     "its GPUs, else all", ge=1, how=True)
    nodes: str | None = setting(None, "names of the nodes to use, such as `gpu[01-04]`; null: any", how=True)
    exclusive: bool = setting(False, "no other job runs on the nodes", how=True)
    setup_lines: list[str] = setting([], "shell lines before a stage's command, such as `module load cuda`", how=True)
    container: str | None = setting(None, "command that runs a stage's command in a container, such as `apptainer exec "
                                          "--nv image.sif`; null: none", how=True)
    submit: str = setting("heavy", "stages that are submitted as jobs; heavy: those that load a model, the others run "
                                   "where the command runs; all: every stage", choices=("heavy", "all"), how=True)


class Cluster(Section):
    node_num: int = setting(1, "nodes of a job of SLURM; ranks and engines are spread evenly", ge=1, how=True)
    gpu_per_node: int | None = setting(None, "use at most this number of the visible GPUs; null: all", ge=0, how=True)
    gpu_memory_gib: float | None = setting(None, "memory of one GPU, by which `ouro config check` judges a plan; null: "
                                           "that of the visible ones, GiB", gt=0, how=True)
    slurm: Slurm = section(Slurm)


class Buffer(Section):
    acts = "never"
    batch_size: int = setting(32, "tasks per explorer step", ge=1)
    train_batch_size: int | None = setting(None, "experiences per optimizer step (sft: demonstrations); null: an "
                                                 "explorer step's (sft: batch_size)", ge=1)
    total_epochs: int = setting(1, "passes over the tasks; ignored when total_steps is set", ge=1)
    total_steps: int | None = setting(None, "optimizer steps of the stage (mode=explore: explorer steps)", ge=1)
    max_rejected_ratio: float = setting(0.1, "share of a set's records that cannot be used above which its curation "
                                             "stops; those left out by format.unsupported=skip do not count", ge=0,
                                        le=1, how=True)
    explorer_input: ExplorerInput = section(ExplorerInput)
    trainer_input: TrainerInput = section(TrainerInput)


class Monitor(Section):
    monitor_type: str = setting("mlflow", "where metrics go", how=True,
                                choices=("mlflow", "tensorboard", "wandb", "trackio", "none"))
    monitor_args: dict[str, Any] = setting({}, "arguments of the monitor; mlflow: uri; wandb: base_url; trackio: "
                                               "server_url, space_id; secrets come from the environment", how=True)
    rollouts_interval: int = setting(0, "explorer steps from one table of sampled rollouts to the next that the "
                                        "monitor is sent; 0: none", ge=0, how=True)


class Log(Section):
    level: str = setting("INFO", "least severe level written", choices=("DEBUG", "INFO", "WARNING", "ERROR"), how=True)
    grace_seconds: float = setting(60.0, "time for a checkpoint of the last whole step when a stage is asked to end "
                                         "(Ctrl-C, SIGTERM, ouro stop), seconds", ge=0, le=LONGEST, how=True)


class Sweep(Section):
    max_points: int = setting(64, "number of points above which `ouro run -m` needs this setting to be raised", ge=1,
                              how=True)


class Config(Section):
    _said: tuple[str, ...] = ()
    said = property(attrgetter("_said"), doc="keys of the recipe that are no settings, and hold in any case (guide.py)")

    project: str = setting("ouroboros", "first part of runs/<project>/<name>")
    name: str = setting("run", "second part of runs/<project>/<name>")
    mode: str = setting("both", f"what a stage does; {WHAT_MODES_DO}", choices=tuple(MODES), how=True)
    continue_from_checkpoint: bool = setting(
        True, "a stage that was cut off resumes at its last checkpoint; false: where a stage that explores or trains "
              "was begun before, `ouro run` makes all of them again, next to these, as the run NAME_TIME with "
              "repetition=TIME", how=True)
    repetition: int | None = setting(
        None, "number of a run that repeats another: stages that explore or train are made again next to those with "
              "equal settings and another number", ge=0, acts="never")
    verify: str = setting(
        "hash", "how a stage compares its inputs, and its own files when it resumes, with what was written: hash, "
                "every byte; size, their sizes only (tables are compared by hash whenever they are read)",
        choices=("hash", "size"), how=True)
    checkpoint_root_dir: str = setting(".", "directory that holds store/ and runs/", how=True)
    ignore_validator_suggestions: bool = setting(False, "a GPU memory estimate over the limit is only a warning",
                                                 how=True)
    seed: int = setting(1, "seed of everything random", ge=0, acts="never")
    algorithm: Algorithm = section(Algorithm)
    model: Model = section(Model)
    cluster: Cluster = section(Cluster)
    buffer: Buffer = section(Buffer)
    explorer: Explorer = section(Explorer)
    trainer: Trainer = section(Trainer)
    synchronizer: Synchronizer = section(Synchronizer)
    monitor: Monitor = section(Monitor)
    data_processor: DataProcessor = section(DataProcessor)
    environment: Environments = section(Environments)
    images: Images = section(Images)
    log: Log = section(Log)
    sweep: Sweep = section(Sweep)
    changes: dict[str, dict[str, Any]] = setting(
        {}, "trainer step -> dotted key: value; settings that a training stage has after that step; the table of "
            "docs/branches.md names those that can change", acts="never")
    stages: list[dict[str, Any]] = setting(
        [], "training stages: stage_name, after, and whatever differs from the settings above, merged key by key; "
            "none: one stage")

    @field_validator("changes")
    @classmethod
    def _typed(cls, given: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Reads values as their settings do; one that cannot be read stays, and check/judge.py reports it."""
        for values in given.values():
            for key, value in values.items():
                with contextlib.suppress(ValidationError):
                    values[key] = plain(at(cls.model_validate(put({}, key, value)), key))
        return given

    @classmethod
    def of_stage(cls, kind: str, settings: dict[str, Any]) -> Self:
        """Returns the settings that a stage of this kind may read, from its stage.json; reading any other raises
        Absent."""
        return cls.partial(completed(KINDS[kind], settings))

    def say(self, keys: Iterable[str]) -> None:
        """Sets `said`."""
        self._said = tuple(keys)

    @cached_property
    def kind(self) -> Kind:
        """Returns the kind of stage that these are the settings of."""
        return self.of_mode if self.only_evaluates or self.algorithm.on_rollouts else FROM_GIVEN

    @cached_property
    def of_mode(self) -> Kind:
        """Returns the kind where the stage learns from rollouts; an unknown mode is reported by its setting."""
        return MODES.get(self.mode, ONLINE)

    @cached_property
    def only_evaluates(self) -> bool:
        return self.of_mode.evaluates

    @cached_property
    def asks_server(self) -> bool:
        """Returns whether these are the settings of a stage whose tasks the model of a server answers."""
        return (self.kind.evaluates or (self.kind.explores and not self.kind.trains)) and (
            self.explorer.rollout_model.engine_type == "openai")

    @cached_property
    def makes_policy(self) -> bool:
        """Returns whether a stage with these settings trains a model that writes, and no reward model."""
        return self.kind.trains and not self.algorithm.scores_responses

    @cached_property
    def asks_teacher(self) -> bool:
        """Returns whether a stage with these settings trains on a teacher's outputs."""
        return self.kind.learns_from_rollouts and self.algorithm.has_teacher

    @property
    def own_teacher(self) -> AuxiliaryModel | None:
        """Returns the auxiliary model whose engine answers for a teacher; None for a copy or a server."""
        name = None if self.model.teacher_url is not None else self.model.teacher_name
        return next((one for one in self.explorer.auxiliary_models if one.name == name), None) if name else None

    def broken_rules(self, above: str = "") -> Iterator[Problem]:
        used = self
        with contextlib.suppress(Absent):
            if not self.kind.trains:
                used = self.without("algorithm.optimizer").without("trainer")
        yield from super(Config, used).broken_rules(above)
        yield from combinations.broken(self)


# settings of a run that no stage has its own value of
RUN_WIDE = ("project", "name", "checkpoint_root_dir", "continue_from_checkpoint", "stages", "sweep")
ITS_OWN = ("stage_name", "after")  # keys of an entry of `stages` that are not settings


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


# keys whose value may be package.module:function
USERS_CODE = ("algorithm_type", "default_workflow_type", "default_eval_workflow_type", "default_reward_fn_type",
              "advantage_fn", "policy_loss_fn", "kl_loss_fn", "kl_penalty_fn", "entropy_loss_fn")
TOOLS = ("workflow_args.tools", "workflow_args.environment_class")  # so do these arguments
INDEX = re.compile(r"\.\d+$")
OPERATOR = re.compile(r"experience_pipeline\.operators\.\d+\.name$")


def users_code(found: Iterable[tuple[str, Any]]) -> list[tuple[str, str]]:
    """Returns (dotted key, `package.module:function`) of every function of the user that settings name. found: of
    `leaves`."""
    return [(INDEX.sub("", key), name) for key, name in found
            if (own_name(key) in USERS_CODE or INDEX.sub("", key).endswith(TOOLS) or OPERATOR.search(key))
            and isinstance(name, str) and ":" in name]
