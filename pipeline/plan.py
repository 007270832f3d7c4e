"""From a configuration to the stages of a run: their order, their identity, their directories.

A stage's identity is the hash of the settings *it uses*, the identities of its inputs and the digests of the external
files it reads and of the code that a setting names: an edited reward function, ours or the user's, is a new stage.
It lives in `store/<name>-<hash>/`; a run is a view, `runs/<project>/<name>/`, of links into the store.
So two runs that agree on a stage share it, nothing is ever overwritten, and a deleted directory is made again.
A stage is handed only the settings in its identity and those marked `how`: it cannot read what it does not depend on.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import files
from pipeline.compose import CONF, effective
from pipeline.config import walk
from pipeline.data_plan import data_settings, has_pool
from pipeline.errors import ConfigError
from pipeline.external import digest_code, digest_tree, digests, users_code, users_model, values_of
from pipeline.records import FORMAT

SAMPLING = ("model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len", "model.dtype",
            "model.temperature", "model.top_p", "model.top_k", "explorer.rollout_model.engine_type",
            "explorer.rollout_model.seed", "explorer.rollout_model.extra_engine_args", "explorer.max_retry_times",
            "buffer.explorer_input.default_workflow_type", "buffer.explorer_input.default_reward_fn_type")
PROMPTS = ("buffer.explorer_input.system_prompt", "model.custom_chat_template", "model.enable_thinking")
SETS = ("buffer.explorer_input.taskset", "buffer.explorer_input.tasksets.*", "buffer.explorer_input.eval_tasksets.*",
        "buffer.trainer_input.experience_buffer")
PATHS = tuple(f"{one}.path" for one in SETS)

# kind -> the settings that enter its identity (a prefix takes everything below it). `how` settings never do.
USES = {
    "tasks": ("seed", "data_processor.task_pipeline.generator", "data_processor.task_pipeline.generator_args",
              "data_processor.task_pipeline.inputs", "data_processor.task_pipeline.split",
              "data_processor.task_pipeline.format",
              *(f"{one}.{name}" for one in SETS for name in ("name", "path", "subset_name", "split", "format"))),
    "curate": ("data_processor.task_pipeline.config_path", "data_processor.task_pipeline.operators",
               "data_processor.task_pipeline.target_fields"),
    "model": ("seed", "model.init", "model.max_prompt_tokens", "model.max_response_tokens", "model.max_model_len"),
    "train": ("seed", "algorithm.algorithm_type", "algorithm.optimizer", "buffer.batch_size", "buffer.train_batch_size",
              "buffer.total_epochs", "buffer.total_steps", "buffer.trainer_input.experience_buffer",
              "trainer.grad_clip", "model.dtype", "model.max_prompt_tokens", "model.max_response_tokens",
              "model.max_model_len", *PROMPTS),
    "rft": ("seed", "algorithm", "buffer.batch_size", "buffer.train_batch_size", "buffer.total_epochs",
            "buffer.total_steps", "buffer.explorer_input.taskset", "buffer.explorer_input.tasksets",
            "trainer.grad_clip", "synchronizer", *SAMPLING, *PROMPTS),
    "evaluate": ("seed", "buffer.explorer_input.eval_tasksets", "buffer.explorer_input.default_eval_workflow_type",
                 *SAMPLING, *PROMPTS),
    "report": ("project", "name"),
}

# settings that name a file or directory whose content enters the identity
EXTERNAL = {
    "tasks": ("data_processor.task_pipeline.inputs", *PATHS),
    "curate": ("data_processor.task_pipeline.config_path",),
    "train": ("buffer.trainer_input.experience_buffer.path", "model.chat_template_path"),
    "rft": (*PATHS[:2], "model.chat_template_path"),
    "evaluate": (PATHS[2], "model.chat_template_path"),
}

# kind -> our files that hold what settings name. What the rest of the code means by its files is records.FORMAT.
CODE = {
    "tasks": ("operators/generate.py", "operators/formats.py"),
    "curate": ("operators/curation.py", "operators/juicer.py", "operators/reward.py"),
    "model": ("stages/model.py",),
    "train": ("operators/loss.py",),
    "rft": ("operators/advantage.py", "operators/loss.py", "operators/reward.py", "workflows/single_turn.py"),
    "evaluate": ("operators/reward.py", "operators/statistics.py", "workflows/single_turn.py"),
}
RUN_WIDE = ("project", "name", "checkpoint_root_dir", "stages")  # say what a run is, not what a stage does

# lists of sections, as `a.b.*`
SECTIONS = {key.rsplit(".*.", 1)[0] + ".*" for key, _ in walk() if ".*." in key}

HEAVY = ("train", "rft", "evaluate")


@dataclass(frozen=True)
class Stage:
    """One node of the DAG.

    inputs: role -> directory of the stage (or, for role `model`, possibly an external model directory) it reads.
    config: the settings it may read: those of its identity and the `how` settings, nested as in the configuration.
    run: project/name of the run that asked for it (for metrics and messages; another run may share the stage).
    """

    run: str
    name: str
    kind: str
    identity: str
    root: str
    inputs: dict[str, str]
    config: dict[str, Any]

    @property
    def directory(self) -> str:
        return os.path.normpath(os.path.join(self.root, "store", f"{self.name}-{self.identity}"))

    @property
    def manifest(self) -> str:
        return os.path.join(self.directory, files.MANIFEST)

    @property
    def upstream(self) -> list[str]:
        """Manifests of the stages it waits for."""
        read = dict.fromkeys(self.inputs.values())
        return [os.path.join(d, files.MANIFEST) for d in read if files.in_store(d, self.root)]

    @property
    def error(self) -> str:
        """Where its last failure is explained. (Snakemake deletes a rule's log first: stage.log must outlive that.)"""
        return os.path.join(self.directory, "stage.error")

    @property
    def threads(self) -> int:
        """CPU threads: engines and training take the whole machine, so that no two of them meet on it."""
        return os.cpu_count() or 1 if self.kind in HEAVY else 1


@dataclass(frozen=True)
class Plan:
    """The stages of one run, in an order in which they could be made."""

    project: str
    name: str
    root: str
    config: dict[str, Any]
    stages: list[Stage]

    @property
    def view(self) -> Path:
        return Path(self.root) / "runs" / self.project / self.name

    @property
    def targets(self) -> list[str]:
        return [s.manifest for s in self.stages]

    def freeze(self) -> None:
        """Writes what the stages read (`stage.json`) and the run's view. Never called by a dry run."""
        from omegaconf import OmegaConf

        for stage in self.stages:
            files.write_json(Path(stage.directory) / "stage.json", dataclasses.asdict(stage))
        frozen = OmegaConf.to_yaml(OmegaConf.create(self.config))
        files.write_atomic(self.view / "config.yaml", lambda temporary: temporary.write_text(frozen))
        rows = [{"name": s.name, "kind": s.kind, "directory": s.directory, "inputs": s.inputs} for s in self.stages]
        files.write_json(self.view / "plan.json", {"project": self.project, "name": self.name, "stages": rows})
        links = self.view / "stages"
        links.mkdir(exist_ok=True)
        for old in links.iterdir():
            old.unlink()
        for stage in self.stages:
            (links / stage.name).symlink_to(os.path.relpath(stage.directory, links))


def make_plan(config: dict[str, Any]) -> Plan:
    """The DAG of a composed configuration.

    tasks -> curate -> the training stages in order, each on the model of the one before -> an evaluation of each ->
    report. Stages that read other data have other tasks and curate. Raises DataError or ModelError when a file that is
    named does not exist.
    """
    made = _Made(os.path.normpath(config["checkpoint_root_dir"]))
    stages = [(o["stage_name"], o, effective(config, o)) for o in config["stages"]]
    # the seed is the run's here: a stage with another one trains otherwise, on the same tasks
    data = {name: made.curated(settings | {"seed": config["seed"]}, _kind(settings), name)
            for name, _, settings in stages or [("", None, config)]}
    held = {name: made.curated(settings | {"seed": config["seed"]}, "evaluate", "eval")
            for name, _, settings in stages if settings["buffer"]["explorer_input"]["eval_tasksets"]}
    model = made.add("model", "model", config, {}) if config["model"]["init"]["enable"] else users_model(config)
    for name, overlay, settings in stages:
        _refuse_unread(overlay, _kind(settings))
        model = made.add(name, _kind(settings), settings, {"tasks": data[name], "model": model})
        if name in held:
            made.add(f"evaluate_{name}", "evaluate", settings,
                     {"tasks": held[name], "trained": data[name], "model": model})
    made.add("report", "report", config, {s.name: s.directory for s in made.stages})
    return Plan(config["project"], config["name"], made.root, config, made.stages)


def _kind(settings: dict) -> str:
    return "train" if settings["algorithm"]["algorithm_type"] == "sft" else "rft"


class _Made:
    """The stages of a plan so far. Every method returns the directory of a stage."""

    def __init__(self, root: str):
        self.root, self.stages = root, []

    def add(self, name: str, kind: str, settings: dict, inputs: dict[str, str]) -> str:
        if any(s.name == name for s in self.stages):
            raise ConfigError(f"two stages are called '{name}'; stage names must differ (reserved: tasks, curate, "
                              "model, report, evaluate_<stage>, tasks_<stage>, curate_<stage>).")
        self.stages.append(_stage(name, kind, settings, inputs, self.root))
        return self.stages[-1].directory

    def curated(self, settings: dict, purpose: str, who: str) -> str:
        """The curated tasks for a purpose (pipeline/data_plan.py): those of another stage when it reads the same.

        They are called by `who` reads them first, or plainly tasks and curate when they have the pool.
        """
        settings = data_settings(settings, purpose)
        taken = {s.name for s in self.stages}
        names = ("", *(f"_{who}{number}" for number in ("", *range(2, 100)) if who))
        suffix = next(n for n in names if not {f"tasks{n}", f"curate{n}"} & taken and (
            n or not who or has_pool(settings)))
        tasks = self._add_once(f"tasks{suffix}", "tasks", settings, {})
        return self._add_once(f"curate{suffix}", "curate", settings, {"tasks": tasks})

    def _add_once(self, name: str, kind: str, settings: dict, inputs: dict[str, str]) -> str:
        new = _stage(name, kind, settings, inputs, self.root)
        same = next((s for s in self.stages if (s.kind, s.identity) == (kind, new.identity)), None)
        return same.directory if same else self.add(name, kind, settings, inputs)


def _refuse_unread(overlay: dict, kind: str) -> None:
    """Raises ConfigError for a setting of one stage that neither it nor its evaluation would ever read."""
    read = (*USES[kind], *USES["evaluate"], "data_processor.task_pipeline")
    how = {key for key, item in walk() if item.metadata["how"]} - set(RUN_WIDE)
    for key in dict(walk()):
        if "*" in key or key in how or _is_below(key, read) or not _has(overlay, key):
            continue
        raise ConfigError(f"stages.{overlay['stage_name']}.{key}: a stage of this kind does not read it, so it would "
                          f"change nothing. Set {key} for the whole run.")


def _has(nest: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(nest, dict) or part not in nest:
            return False
        nest = nest[part]
    return True


def _stage(name: str, kind: str, settings: dict, inputs: dict[str, str], root: str) -> Stage:
    paths = EXTERNAL.get(kind, ())  # their content is hashed, where they lie is not
    used = _select(
        settings, lambda key, item: not item.metadata["how"] and key not in paths and _is_below(key, USES[kind])
    )
    how = _select(settings, lambda key, item: item.metadata["how"] or key in paths)
    external = {key: [digests(value, root, name) for name, value in values_of(settings, key)] for key in paths}
    external |= {file: files.hash_file(CONF.parent / file) for file in CODE.get(kind, ())}
    external |= {name: digest_code(name) for name in users_code(used)}
    upstream = {role: (os.path.basename(d) if files.in_store(d, root) else digest_tree(Path(d), root))
                for role, d in inputs.items()}
    content = {"format": FORMAT, "kind": kind, "settings": used, "inputs": upstream, "external": external}
    run = f"{settings['project']}/{settings['name']}"
    return Stage(run, name, kind, files.hash_json(content)[:8], root, inputs, _merge(used, how))


def _is_below(key: str, prefixes: tuple[str, ...]) -> bool:
    return any(key == p or key.startswith(p + ".") for p in prefixes)


def _select(config: dict, wanted) -> dict:
    """The part of a configuration whose settings satisfy `wanted(key, field)`, nested as before.

    Of a list of sections every element is there, with what is wanted of it.
    """
    chosen: dict = {}
    fields = dict(walk())
    for key, item in fields.items():
        if f"{key}.*" not in SECTIONS and wanted(key, item):
            _place(chosen, config, key.split("."))
    return chosen


def _place(chosen: dict, config: dict, parts: list[str]) -> None:
    """Copies the value of a dotted key; `*` stands for every element of a list."""
    head, *rest = parts
    if rest[:1] == ["*"]:
        elements = chosen.setdefault(head, [{} for _ in config[head]])
        for element, source in zip(elements, config[head], strict=True):
            _place(element, source, rest[1:])
    elif rest:
        _place(chosen.setdefault(head, {}), config[head], rest)
    else:
        chosen[head] = config[head]


def _merge(a: Any, b: Any) -> Any:
    if isinstance(a, dict) and isinstance(b, dict):
        return {**a, **b, **{key: _merge(a[key], b[key]) for key in a.keys() & b.keys()}}
    both = isinstance(a, list) and isinstance(b, list)
    return [_merge(x, y) for x, y in zip(a, b, strict=True)] if both else b
