"""A stage and its identity: the hash of the settings *it uses*, the identities of its inputs, and the digests of files.

Files are the external ones that it reads and the code that a setting names: an edited reward function, ours or the
user's, is a new stage. A stage lives in `store/<name>-<hash>/`. It is handed only the settings in its identity and
those marked `how`, and those it watches itself by (WATCHES): it cannot read what it does not depend on.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.algorithms import PAIR_TYPES
from pipeline.compose import CONF
from pipeline.config import walk
from pipeline.external import digest_code, digest_tree, digests, users_code
from pipeline.overlays import merge
from pipeline.records import FORMAT

SAMPLING = ("model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", "model.dtype",
            "model.temperature", "model.top_p", "model.top_k", "explorer.rollout_model.engine_type",
            "explorer.rollout_model.seed", "explorer.rollout_model.extra_engine_args", "explorer.max_retry_times",
            "explorer.env_vars",
            "buffer.explorer_input.system_prompt", "buffer.explorer_input.default_workflow_type",
            "buffer.explorer_input.default_reward_fn_type", "explorer.auxiliary_models")

EVALUATION = ("seed", "buffer.explorer_input.eval_tasksets", *SAMPLING)

# kind -> the settings that enter its identity (a prefix takes everything below it). `how` settings never do.
USES = {
    "tasks": ("seed", "data_processor.task_pipeline.generator", "data_processor.task_pipeline.generator_args",
              "data_processor.task_pipeline.inputs", "data_processor.task_pipeline.split",
              "data_processor.task_pipeline.format"),
    "curate": ("data_processor.task_pipeline.config_path",),
    "model": ("seed", "model.init", "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len"),
    "train": ("seed", "algorithm.algorithm_type", "algorithm.loss_agg_mode", "algorithm.optimizer",
              "buffer.batch_size", "buffer.total_epochs", "buffer.total_steps", "buffer.explorer_input.system_prompt",
              "trainer.grad_clip", "model.dtype", "model.max_prompt_tokens", "model.max_response_tokens",
              "model.max_model_len"),
    "rft": ("seed", "algorithm", "buffer.batch_size", "buffer.train_batch_size", "buffer.total_epochs",
            "buffer.total_steps", "buffer.explorer_input.taskset", "trainer.grad_clip", "trainer.critic",
            "trainer.critic_warmup", "model.critic_model_path", "synchronizer", *SAMPLING),
    "rollout": ("seed", "algorithm.repeat_times", "buffer.batch_size", "buffer.total_epochs", "buffer.total_steps",
                "buffer.explorer_input.taskset", *SAMPLING),
    "offline": ("seed", "algorithm", "buffer.train_batch_size", "buffer.total_epochs", "buffer.total_steps",
                "trainer.grad_clip", "trainer.critic", "trainer.critic_warmup", "model.critic_model_path",
                "model.dtype", "model.temperature", "model.max_prompt_tokens", "model.max_response_tokens",
                "model.max_model_len"),
    "evaluate": EVALUATION,
    "bench": EVALUATION,
    "report": ("project", "name"),
}

# what kind `train` reads besides where it trains on pairs; demonstrations have one loss, whatever the run is told
PAIRS_USE = ("algorithm.policy_loss_fn", "algorithm.policy_loss_fn_args", "algorithm.kl_loss_fn",
             "algorithm.kl_loss_fn_args", "algorithm.entropy_loss_fn", "algorithm.entropy_loss_fn_args")

# kind -> settings that a stage is handed to watch itself by, while it works: they change what it says of itself, not
# what it makes for others, so they are not in its identity (and a stage that is complete does not say more).
WATCHES = {
    "rft": ("buffer.explorer_input.eval_tasksets",),
}

JUDGES = "explorer.auxiliary_models.*.model_path"

# settings that name a file or directory whose content enters the identity
EXTERNAL = {
    "tasks": ("data_processor.task_pipeline.inputs",),
    "curate": ("data_processor.task_pipeline.config_path",),
    "rft": ("model.critic_model_path", JUDGES),
    "rollout": (JUDGES,),
    "offline": ("model.critic_model_path",),
    "evaluate": (JUDGES,),
    "bench": (JUDGES,),
}

ADVANTAGES = ("operators/advantage.py", "operators/advantages/action_tokens.py", "operators/advantages/group.py",
              "operators/advantages/query.py", "operators/advantages/steps.py", "operators/advantages/token.py",
              "operators/priority.py", "operators/sampling.py", "operators/shaping.py")
LOSSES = ("operators/aggregation.py", "operators/correction.py", "operators/entropy.py", "operators/kl.py",
          "operators/loss.py", "operators/losses/clipped.py", "operators/losses/demonstrations.py",
          "operators/losses/mixture.py", "operators/losses/preference.py", "operators/losses/ratio.py",
          "operators/losses/weighted.py")

ANSWERING = ("operators/reward.py", "workflows/reward_model.py", "workflows/single_turn.py")

# kind -> our files that hold what settings name. What the rest of the code means by its files is records.FORMAT.
CODE = {
    "tasks": ("operators/generate.py",),
    "curate": ("operators/curation.py", "operators/juicer.py", "operators/reward.py"),
    "model": ("stages/model.py",),
    "train": LOSSES,
    "rft": (*ADVANTAGES, *LOSSES, *ANSWERING),
    "rollout": ANSWERING,
    "offline": (*ADVANTAGES, *LOSSES),
    "evaluate": (*ANSWERING, "operators/statistics.py"),
    "bench": (*ANSWERING, "operators/statistics.py"),
}

HEAVY = ("train", "rft", "rollout", "offline", "evaluate", "bench")


@dataclass(frozen=True)
class Stage:
    """One node of the DAG.

    inputs: role -> directory of the stage (or, for role `model`, possibly an external model directory) it reads.
    config: the settings it may read: those of its identity, the `how` settings and those it watches, nested as before.
    waits: directories of stages that must be complete before it, though it reads nothing of theirs.
    run: project/name of the run that asked for it (for metrics and messages; another run may share the stage).
    """

    run: str
    name: str
    kind: str
    identity: str
    root: str
    inputs: dict[str, str]
    config: dict[str, Any]
    waits: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        return os.path.normpath(os.path.join(self.root, "store", f"{self.name}-{self.identity}"))

    @property
    def manifest(self) -> str:
        return os.path.join(self.directory, files.MANIFEST)

    @property
    def upstream(self) -> list[str]:
        """Manifests of the stages it waits for."""
        return [os.path.join(d, files.MANIFEST) for d in (*self.inputs.values(), *self.waits)
                if files.in_store(d, self.root)]

    @property
    def error(self) -> str:
        """Where its last failure is explained. (Snakemake deletes a rule's log first: stage.log must outlive that.)"""
        return os.path.join(self.directory, "stage.error")

    @property
    def threads(self) -> int:
        """CPU threads: engines and training take the whole machine, so that no two of them meet on it."""
        return os.cpu_count() or 1 if self.kind in HEAVY else 1


def uses(kind: str, algorithm_type: str) -> tuple[str, ...]:
    """The settings that enter the identity of a stage of this kind."""
    return (*USES[kind], *(PAIRS_USE if kind == "train" and algorithm_type in PAIR_TYPES else ()))


def make_stage(name: str, kind: str, settings: dict, inputs: dict[str, str], root: str, waits=()) -> Stage:
    paths = EXTERNAL.get(kind, ())  # their content is hashed, where they lie is not
    read = uses(kind, settings["algorithm"]["algorithm_type"])
    used = _select(settings, lambda key, item: not item.metadata["how"] and key not in paths and is_below(key, read))
    watched = (*paths, *WATCHES.get(kind, ()))
    how = _select(settings, lambda key, item: item.metadata["how"] or key in watched)
    external = {key: digests(_get(settings, key), root) for key in paths}
    external |= {file: files.hash_file(CONF.parent / file) for file in CODE.get(kind, ())}
    external |= {name: digest_code(name) for name in users_code(used)}
    upstream = {role: (os.path.basename(d) if files.in_store(d, root) else digest_tree(Path(d), root))
                for role, d in inputs.items()}
    content = {"format": FORMAT, "kind": kind, "settings": _identifying(used, paths), "inputs": upstream,
               "external": external}
    run = f"{settings['project']}/{settings['name']}"
    return Stage(run, name, kind, files.hash_json(content)[:8], root, inputs, merge(used, how), waits)


def is_below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == p or key.startswith(p + ".") for p in prefixes)


def _select(config: dict, wanted) -> dict:
    """The part of a configuration whose settings satisfy `wanted(key, field)`, nested as before."""
    chosen: dict = {}
    for key, item in walk():
        if "*" not in key and wanted(key, item):
            *parents, leaf = key.split(".")
            target = chosen
            for parent in parents:
                target = target.setdefault(parent, {})
            target[leaf] = _get(config, key)
    return chosen


def _get(config: dict, key: str) -> Any:
    """The value of a key; for one below `*`, the list of its values in all elements."""
    above, star, below = key.partition(".*.")
    for part in above.split("."):
        config = config[part]
    return [_get(element, below) for element in config] if star else config


def _identifying(used: dict, paths: tuple[str, ...]) -> dict:
    """The settings that a stage uses, less what elements of lists say of how it runs and where files lie."""
    left_out = {key for key, item in walk() if "*" in key and (item.metadata["how"] or key in paths)}
    return _without(used, left_out, "")


def _without(value: Any, left_out: set[str], prefix: str) -> Any:
    if isinstance(value, dict):
        return {name: _without(part, left_out, f"{prefix}{name}.") for name, part in value.items()
                if f"{prefix}{name}" not in left_out}
    return [_without(part, left_out, f"{prefix}*.") for part in value] if isinstance(value, list) else value
