"""A stage and its identity: the hash of *used* settings, its inputs' identities, and file digests.

Files are the external ones that it reads. The code that its settings name counts too (pipeline/plan/code.py): an edited
reward function, ours or the user's, is a new stage. A stage lives in `store/<name>-<hash>/`. It receives only the
settings in its identity, those marked `how`, and those for monitoring itself (WATCHES): it cannot read what it does not
depend on.
"""

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from pipeline.job.devices import gpus_of_machine
from pipeline.job.shares import held_gpus
from pipeline.job.tasksets import HELD
from pipeline.plan.code import code_of
from pipeline.plan.data import PATHS, SETS
from pipeline.settings.algorithms import PAIR_TYPES
from pipeline.settings.config import Config, users_code, walk
from pipeline.settings.setting import about, at, plain, values_of
from pipeline.settings.unused import without_unused
from pipeline.store import files
from pipeline.store.digests import (
    HubPath,
    digest_code,
    digest_input,
    digest_meaning,
    digests,
)
from pipeline.store.records import FORMAT

SAMPLING = ("model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", "model.dtype",
            "model.temperature", "model.top_p", "model.top_k", "explorer.rollout_model.engine_type",
            "explorer.rollout_model.seed", "explorer.rollout_model.extra_engine_args", "explorer.max_retry_times",
            "explorer.env_vars", "explorer.tool_call_parser",
            "buffer.explorer_input.default_workflow_type", "buffer.explorer_input.default_reward_fn_type",
            "explorer.auxiliary_models")
PROMPTS = ("buffer.explorer_input.system_prompt", "model.custom_chat_template", "model.enable_thinking")
SHOWN = tuple(f"buffer.trainer_input.experience_buffer.{name}" for name in
              ("name", "path", "storage_type", "subset_name", "split", "format"))

EVALUATION = ("seed", "buffer.explorer_input.eval_tasksets", "buffer.explorer_input.default_eval_workflow_type",
              *SAMPLING, *PROMPTS)

# kind -> the settings that enter its identity (a prefix includes everything below it). `how` settings never do.
USES = {
    "tasks": ("seed", "data_processor.task_pipeline.generator", "data_processor.task_pipeline.generator_args",
              "data_processor.task_pipeline.inputs", "data_processor.task_pipeline.split",
              "data_processor.task_pipeline.format",
              *(f"{one}.{name}" for one in SETS for name in ("name", "path", "subset_name", "split", "format"))),
    "curate": ("data_processor.task_pipeline.config_path", "data_processor.task_pipeline.operators",
               "data_processor.task_pipeline.target_fields"),
    "model": ("seed", "model.init", "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len"),
    "train": ("seed", "algorithm.algorithm_type", "algorithm.loss_agg_mode", "algorithm.optimizer",
              "buffer.batch_size", "buffer.train_batch_size", "buffer.total_epochs", "buffer.total_steps",
              *SHOWN, "trainer.grad_clip", "model.dtype", "model.lora_configs",
              "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", *PROMPTS),
    "rft": ("seed", "algorithm", "buffer.batch_size", "buffer.train_batch_size", "buffer.total_epochs",
            "buffer.total_steps", "buffer.explorer_input.taskset", "buffer.explorer_input.tasksets",
            "buffer.trainer_input.experience_buffer.replay_buffer", "buffer.trainer_input.auxiliary_buffers",
            "trainer.grad_clip", "trainer.critic", "trainer.critic_warmup", "model.critic_model_path",
            "model.lora_configs", "synchronizer", "explorer.over_rollout", "explorer.partial_rollout", *SAMPLING,
            *PROMPTS),
    "rollout": ("seed", "algorithm.repeat_times", "algorithm.max_resample_rounds", "algorithm.resample_metric",
                "algorithm.greedy_baseline", "buffer.batch_size", "buffer.total_epochs", "buffer.total_steps",
                "buffer.explorer_input.taskset", "buffer.explorer_input.tasksets", "explorer.over_rollout", *SAMPLING,
                *PROMPTS),
    "scored": ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets",
               "buffer.explorer_input.default_reward_fn_type", "buffer.explorer_input.default_workflow_type",
               "explorer.auxiliary_models", "explorer.max_retry_times", "explorer.env_vars",
               "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", *PROMPTS),
    "offline": ("seed", "algorithm", "buffer.train_batch_size", "buffer.total_epochs", "buffer.total_steps",
                "trainer.grad_clip", "trainer.critic", "trainer.critic_warmup", "model.critic_model_path",
                "model.dtype", "model.lora_configs", "model.temperature", "model.max_prompt_tokens",
                "model.max_response_tokens", "model.max_model_len", *PROMPTS),
    "recorded": (),
    "server": ("explorer.rollout_model.external",),
    "evaluate": EVALUATION,
    "bench": (*EVALUATION, "explorer.bench_steps"),
    "report": ("project", "name"),
}

# additional settings for kind `train` on pairs; demonstrations have one fixed loss
PAIRS_USE = ("algorithm.policy_loss_fn", "algorithm.policy_loss_fn_args", "algorithm.kl_loss_fn",
             "algorithm.kl_loss_fn_args", "algorithm.entropy_loss_fn", "algorithm.entropy_loss_fn_args")

# kind -> settings with which a stage monitors its own work: they change its reports, not its outputs for other
# stages, so they are not in its identity (and a complete stage is not run again to report more).
WATCHES = {
    "rft": ("buffer.explorer_input.eval_tasksets", "buffer.explorer_input.default_eval_workflow_type"),
}

# settings that older stages did not have -> the default under which those keep their identity
LATER = {"explorer.bench_steps": None, "explorer.tool_call_parser": None, "explorer.partial_rollout": False,
         "explorer.over_rollout": {"ratio": 0.0, "wait_after_min": 0.0},
         **{f"{one}.format.{name}": unset for one in (*SETS, "data_processor.task_pipeline")
            for name, unset in (("unsupported", "error"), ("tools_key", "tools"))}}

JUDGES = "explorer.auxiliary_models.*.model_path"
ADAPTERS = "model.lora_configs.*.path"

# settings that name a file or directory whose content enters the identity
EXTERNAL = {
    "tasks": ("data_processor.task_pipeline.inputs", *PATHS),
    "curate": ("data_processor.task_pipeline.config_path",),
    "train": ("buffer.trainer_input.experience_buffer.path", "model.chat_template_path", ADAPTERS),
    "rft": (*PATHS[:2], PATHS[4], JUDGES, "model.chat_template_path", "model.critic_model_path", ADAPTERS),
    "rollout": (*PATHS[:2], JUDGES, "model.chat_template_path"),
    "scored": (*PATHS[:2], JUDGES, "model.chat_template_path"),
    "offline": ("model.chat_template_path", "model.critic_model_path", ADAPTERS),
    "recorded": ("buffer.trainer_input.experience_buffer.path",),
    "evaluate": (PATHS[2], JUDGES, "model.chat_template_path"),
    "bench": (PATHS[2], JUDGES, "model.chat_template_path"),
}

BY_MEANING = ("data_processor.task_pipeline.config_path",)  # YAML files hashed by parsed content, not bytes

# lists of sections, as `a.b.*`
SECTIONS = {key.rsplit(".*.", 1)[0] + ".*" for key, _ in walk() if ".*." in key}

HEAVY = ("train", "rft", "rollout", "scored", "offline", "evaluate", "bench")


@dataclass(frozen=True)
class Stage:
    """One node of the DAG.

    inputs: role -> directory of the stage (or, for role `model`, possibly an external model directory) it reads.
    config: the settings it may read: those of its identity, the `how` and the monitoring settings, nested as before.
    waits: directories of stages that must be complete before it, though it reads nothing of theirs.
    run: project/name of the run that requested it (for metrics and messages; another run may share the stage).
    hub: what it reads of the Hugging Face hub, each id with its commit, for its manifest.
    """

    run: str
    name: str
    kind: str
    identity: str
    root: str
    inputs: dict[str, str]
    config: Config
    waits: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()

    def specification(self) -> dict[str, Any]:
        """Returns the content of its stage.json."""
        return vars(self) | {"config": plain(self.config)}

    @property
    def directory(self) -> str:
        return os.path.normpath(os.path.join(self.root, "store", f"{self.name}-{self.identity}"))

    @property
    def manifest(self) -> str:
        return os.path.join(self.directory, files.MANIFEST)

    @property
    def upstream(self) -> list[str]:
        """Returns the manifests of the stages it waits for."""
        read = dict.fromkeys((*self.inputs.values(), *self.waits))
        return [os.path.join(d, files.MANIFEST) for d in read if files.in_store(d, self.root)]

    @property
    def error(self) -> str:
        """Returns the file of its last failure. (Snakemake deletes a rule's log first: stage.log must be kept.)"""
        return os.path.join(self.directory, "stage.error")

    @property
    def gpus(self) -> int:
        """Returns the GPUs it uses; 0 on a machine without, or with cluster.gpu_per_node=0."""
        there = gpus_of_machine(self.config.cluster.gpu_per_node)
        return held_gpus(self.kind, self.config) if there and self.kind in HEAVY else 0

    @property
    def threads(self) -> int:
        """Returns its CPU threads. Engines and training use the whole machine, so that no two run on it at once; with
        GPUs, they use the same share of its cores as of its GPUs."""
        cores = os.cpu_count() or 1
        if self.gpus:
            there = gpus_of_machine(self.config.cluster.gpu_per_node)
            return max(cores * min(self.gpus, there) // there, 1)
        return cores if self.kind in HEAVY else 1


def uses(kind: str, algorithm_type: str) -> tuple[str, ...]:
    """Returns the settings that enter the identity of a stage of this kind."""
    return (*USES[kind], *(PAIRS_USE if kind == "train" and algorithm_type in PAIR_TYPES else ()))


def received_settings(kind: str, algorithm_type: str) -> tuple[str, ...]:
    """Returns the non-`how` settings that a stage of this kind receives: its identity, the files it
    names, monitoring."""
    return (*uses(kind, algorithm_type), *EXTERNAL.get(kind, ()), *WATCHES.get(kind, ()))


def make_stage(name: str, kind: str, settings: Config, inputs: dict[str, str], root: str, waits=()) -> Stage:
    settings = without_unused(settings)
    paths = EXTERNAL.get(kind, ())  # their content is hashed, not their location
    read = uses(kind, settings.algorithm.algorithm_type)
    in_identity, others = _keys(kind, read)
    used = _select(settings, in_identity)
    external = {key: [digest_meaning(value, name) if key in BY_MEANING else digests(value, root, name)
                      for name, value in values_of(settings, key)] for key in paths}
    external |= {name: digest_code(name) for _, name in users_code(used)}
    upstream = {role: (os.path.basename(d) if files.in_store(d, root) else digest_input(d, root))
                for role, d in inputs.items() if role != HELD}  # those for monitoring, too
    content = {"format": FORMAT, "kind": kind, "settings": _without_defaults(used), "inputs": upstream,
               "external": external, "code": code_of(kind, settings, used)}
    run = f"{settings.project}/{settings.name}"
    named = [*inputs.values(), *(one for key in paths for _, value in values_of(settings, key)
                                 for one in (value if isinstance(value, list) else [value]))]
    hub = tuple(dict.fromkeys(one.pinned for one in named if isinstance(one, HubPath)))
    return Stage(run, name, kind, files.hash_json(content)[:8], root, inputs,
                 Config.partial(_select(settings, in_identity + others)), waits, hub)


def settings_of(kind: str, config: Config | dict) -> dict:
    """Selects the identity's settings from those that a stage receives."""
    return _select(config, _keys(kind, uses(kind, at(config, "algorithm.algorithm_type", "")))[0])


@cache
def _keys(kind: str, read: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Returns the keys in the identity of a stage with these settings, and its `how` and monitoring keys."""
    paths, watched = EXTERNAL.get(kind, ()), WATCHES.get(kind, ())
    leaves = [(key, about(item).how) for key, item in walk() if f"{key}.*" not in SECTIONS]
    return ([key for key, how in leaves if not how and key not in paths and is_below(key, read)],
            [key for key, how in leaves if how or key in paths or is_below(key, watched)])


def is_below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == p or key.startswith(p + ".") for p in prefixes)


def _without_defaults(used: dict) -> dict:
    """Returns the settings of an identity without those of LATER that are at their defaults."""
    for key, default in LATER.items():
        used = _lacking(used, key.split("."), default)
    return used


def _lacking(tree: Any, parts: list[str], default: Any) -> Any:
    """Returns nested settings without a key that is at its default; `*` is every element of a list or mapping."""
    if isinstance(tree, list):
        return [_lacking(one, parts[1:], default) for one in tree]
    if not isinstance(tree, dict):
        return tree
    first, *below = parts
    return {name: _lacking(value, below, default) if below and first in (name, "*") else value
            for name, value in tree.items() if below or (name, value) != (first, default)}


def _select(config: Config | dict, keys: list[str]) -> dict:
    """Returns the part of a configuration with these settings, as a file holds it.

    `*` in a key matches every element of a list or mapping; each is reduced to the selected settings.
    """
    tree: dict = {}
    for key in keys:
        branch = tree
        for part in key.split("."):
            branch = branch.setdefault(part, {})
    return _pruned(config, tree)


def _pruned(value: Any, tree: dict) -> Any:
    """Returns the part of a value whose keys are in a tree of keys; all of it where the tree ends."""
    if not tree:
        return plain(value)
    if isinstance(value, list):
        return [_pruned(element, tree["*"]) for element in value]
    held = dict(value)
    return {key: _pruned(held[key], tree.get("*", tree.get(key))) for key in (held if "*" in tree else tree)}
