"""The code that a stage's results depend on: what its settings name, and the entry points of its kind.

Both count with everything that they use in `operators`, `workflows` and `stages` (pipeline/store/definitions.py). What
starts stages, reads and writes files, logs, reports and declares settings is versioned by records.FORMAT instead.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ouroboros.pipeline.settings.config import Config, users_code
from ouroboros.pipeline.settings.data import ReplayBuffer
from ouroboros.pipeline.settings.declared import TABLES, Advantage, Loss
from ouroboros.pipeline.settings.kinds import PATHS, SETS, Kind
from ouroboros.pipeline.settings.setting import leaves, own_name, values_of
from ouroboros.pipeline.store import files, launch
from ouroboros.pipeline.store.definitions import digest_definitions, start_of, uses_of_file
from ouroboros.pipeline.store.digests import code_files
from ouroboros.pipeline.store.files import HOME
from ouroboros.pipeline.store.project_imports import is_installed

# last part of a setting -> the tables with the functions that it may name; none: its classes, or no code of their own
NAMED = {
    "advantage_fn": (),
    "policy_loss_fn": (),
    "kl_loss_fn": ("operators.kl:KL_ESTIMATORS",),
    "kl_penalty_fn": ("operators.kl:KL_ESTIMATORS",),
    "entropy_loss_fn": ("operators.entropy:ENTROPY_LOSSES",),
    "sample_strategy": ("operators.sampling:SAMPLE_STRATEGIES",),
    "priority_fn": ("operators.priority:PRIORITIES",),
    "generator": ("operators.generate:GENERATORS",),
    "default_reward_fn_type": ("operators.reward:REWARDS", "workflows.rewards:OPENED", "workflows.rewards:ISOLATING"),
    "default_workflow_type": ("workflows.single_turn:WORKFLOWS",),
    "default_eval_workflow_type": ("workflows.single_turn:WORKFLOWS",),
    "engine_type": ("workflows.engines.open:ENGINES",),
    "selector_type": (),  # their code is that of an explorer step; their default arguments count
}

ROWS = {  # what is trained on -> what makes train batches of it
    "demonstrations": ("stages.learner.batches.demonstrations:Demonstrations",),
    "texts": ("stages.learner.batches.texts:Texts",),
    "pairs": ("stages.learner.batches.preferences:Preferences", "stages.learner.reference:References"),
}
OF_SCORES = ("stages.learner.batches.reward_pairs:RewardPairs", "stages.learner.scorer:Scorer")  # of pairs

# what only some settings use: a definition or module -> whether a stage with these settings uses it
OPTIONAL: dict[str, Callable[[Config], Any]] = {
    "operators.correction": lambda settings: settings.algorithm.on_rollouts,
    "operators.columns": lambda settings: any(values_of(settings, f"{one}.columns") for one in SETS[:3]),
    "operators.formats": lambda settings: _reads_files(settings),
    "operators.task_priority": lambda settings: _has_priority(settings),
    "operators.selection": lambda settings: settings.algorithm.top_entropy_quantile < 1,
    "operators.priority": lambda settings: _replay(settings).enable,
    "stages.curation:Curation": lambda settings: settings.data_processor.experience_pipeline.operators,
    "stages.explorer.over_rollout": lambda settings: settings.explorer.over_rollout.ratio,
    "stages.learner.batches.sampling:expert_rows": lambda settings: settings.algorithm.sample_strategy == "mix",
    "stages.learner.critic": lambda settings: (settings.algorithm.scores_responses
                                               or settings.algorithm.has_critic),
    "stages.learner.engine.adapter": lambda settings: settings.model.lora_configs,
    "stages.learner.engine.quantized": lambda settings: settings.model.load_in_4bit,
    "stages.learner.steps:estimated_kl": lambda settings: settings.algorithm.policy_loss_fn_args.get("estimate_kl"),
    "stages.learner.penalty": lambda settings: settings.algorithm.kl_penalty_fn not in (None, "none"),
    "stages.learner.replay:Replay": lambda settings: _replay(settings).enable,
    "stages.learner.engine_teacher": lambda settings: settings.algorithm.has_teacher,
    "stages.learner.served_teacher": lambda settings: settings.algorithm.has_teacher,
    "stages.learner.teacher": lambda settings: settings.algorithm.has_teacher,
    "workflows.attempts.pace": lambda settings: settings.explorer.dynamic_timeout.enable,
    "workflows.attempts.continued:ContinuedEngine": lambda settings: settings.explorer.partial_rollout,
    "workflows.engines.auxiliary": lambda settings: settings.explorer.auxiliary_models,
    "workflows.reward_model": lambda settings: (settings.explorer.auxiliary_models
                                                or settings.algorithm.scores_responses),
}
EXPLORING = {"workflows.attempts.pace"}  # what evaluations, which attempt tasks by the same code, never use


def code_of(kind: Kind, settings: Config, used: list[tuple[str, Any]], users: Iterable[str]) -> list[Any]:
    """Returns what a stage's results depend on: a digest of definitions, and default arguments of named functions.

    settings: all of the stage. used: `leaves` of those in its identity. users: the functions of the user among them.
    """
    last = [(own_name(key), name) for key, name in used]
    stops = {part for part, is_used in OPTIONAL.items() if not is_used(settings)}
    stops |= set() if kind.explores else EXPLORING
    named = [(key, name) for key, name in last if key in NAMED and isinstance(name, str) and ":" not in name
             and not {table.partition(":")[0] for table in NAMED[key][:1]} & stops]
    starts = list(kind.entries)
    if kind.learns_from_given:
        starts += OF_SCORES if settings.algorithm.scores_responses else ROWS[settings.algorithm.data]
        named += [("policy_loss_fn", "sft")] * settings.algorithm.on_given_tokens
    named += _of_rows(settings, {key for key, _ in last})
    starts += [start for key, name in named for start in _definitions(key, name)]
    tables = {table for tables in NAMED.values() for table in tables}
    defaults = {f"{key}={name}": made for key, name in named
                if (made := _defaults(key, name)) or _definitions(key, name)}
    starts += _behind([*users, *filter(None, (made.get("environment_class") for made in defaults.values()))])
    return [digest_definitions(starts, stops | tables, HOME), defaults]


def keep(directory: Path, used: Any) -> None:
    """Copies the user's modules behind what settings name to `code/` of a stage's directory, once: rewards are computed
    again by the functions that a stage had, after they were edited (pipeline/job/rewarding.py)."""
    modules = {module: path for _, name in users_code(leaves(used)) for module, path in code_files(name).items()}
    for module, path in modules.items():
        place = directory.joinpath(launch.CODE, *module.split("."))
        target = place / path.name if path.name == "__init__.py" else place.with_suffix(path.suffix)
        if not is_installed(path) and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_atomic(target, partial(shutil.copyfile, path))


def _behind(names: Iterable[str]) -> Iterator[str]:
    """Yields the definitions of ours behind each `package.module:name`: it itself, or what the user's modules use."""
    for name in names:
        modules = code_files(name)
        if not modules and (start := start_of(name, HOME)):
            yield start
        for module, path in modules.items():
            if path.suffix == ".py" and not is_installed(path):
                yield from uses_of_file(path, module)


def _of_rows(settings: Config, used: set[str]) -> list[tuple[str, str]]:
    """Returns (last part of the setting, name) of every function of ours that rows may name. used: last parts of a
    stage's settings."""
    given, found = settings.buffer.explorer_input, []
    sets = [given.taskset, *given.tasksets, *given.eval_tasksets, settings.data_processor.task_pipeline]
    for key, setting in (("workflow_key", "default_workflow_type"), ("reward_fn_key", "default_reward_fn_type")):
        if setting in used and any(getattr(one.format, key) for one in sets):
            found += [(setting, name) for name in TABLES[setting]]
    return found


def _definitions(key: str, name: str) -> list[str]:
    """Returns the definitions behind a name of ours: its class with the formula, or its entries in tables."""
    model = TABLES.get(key, {}).get(name)
    if model and issubclass(model, Advantage | Loss):
        return [f"{model.__module__}:{model.__name__}"]
    return [f"{table}[{name}]" for table in NAMED[key]]


def _defaults(key: str, name: str) -> dict[str, Any]:
    """Returns the default arguments of a function of ours; none for `none`, whatever its table declares."""
    fields = {} if name == "none" or name not in TABLES.get(key, {}) else TABLES[key][name].model_fields
    return {argument: field.default for argument, field in fields.items() if not field.is_required()}


def _has_priority(settings: Config) -> bool:
    pool = settings.data_processor.task_pipeline
    return bool(pool.priority_weights) or pool.top_k >= 0


def _replay(settings: Config) -> ReplayBuffer:
    return settings.buffer.trainer_input.experience_buffer.replay_buffer


def _reads_files(settings: Config) -> bool:
    paths = ("data_processor.task_pipeline.inputs", *PATHS)
    return any(value for key in paths for _, value in values_of(settings, key))
