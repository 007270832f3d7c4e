"""Turns a configuration into the stages of a run, their order, and each stage's inputs.

A run is a view, `runs/<project>/<name>/`, of links into the store (plan/identity.py). Two runs that agree on a
stage therefore share it, nothing is ever overwritten, and a deleted directory is created again.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job import policies, trunks
from ouroboros.pipeline.job.tasksets import HELD, PROFILE
from ouroboros.pipeline.plan import code, hub
from ouroboros.pipeline.plan.data import data_settings, environments
from ouroboros.pipeline.plan.identity import Stage, make_stage
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.data import profiled
from ouroboros.pipeline.settings.kinds import (
    CURATE,
    EVALUATE,
    IMAGES,
    MODEL,
    QUANTIZED,
    RECORDED,
    REPORT,
    SERVER,
    TASKS,
    TEST_ROWS,
    Kind,
)
from ouroboros.pipeline.settings.model import NO_MODEL, TEACHER, Model
from ouroboros.pipeline.settings.setting import plain
from ouroboros.pipeline.store import files
from ouroboros.pipeline.store.digests import StageModel
from ouroboros.pipeline.store.errors import ConfigError, ModelError
from ouroboros.pipeline.store.model_shape import absent_model, read_config, rewritten, room_problem

LIMITS = ("max_prompt_tokens", "max_response_tokens", "max_model_len")  # of sequences, tokens


@dataclass(frozen=True)
class Plan:
    """The stages of one run, in executable order. overrides: which compose its configuration, where they are known.
    expected: of a check, what its stages will take (pipeline/check/report.py). continued: (stage, words) of each that
    takes steps of another one, or would but for a reason that is named."""

    project: str
    name: str
    root: str
    config: Config
    stages: list[Stage]
    overrides: tuple[str, ...] | None = None
    expected: tuple[tuple, ...] = ()
    continued: tuple[tuple[str, str], ...] = ()

    @cached_property
    def view(self) -> Path:
        return Path(self.root) / "runs" / self.project / self.name

    @property
    def targets(self) -> list[str]:
        return [s.manifest for s in self.stages]

    def freeze(self) -> None:
        """Fetches the stages' hub files, and writes their `stage.json` and the run's view. Not called by dry runs."""
        from omegaconf import OmegaConf

        hub.fetch_missing(self.stages)
        for stage in self.stages:
            files.write_json_if_new(Path(stage.directory) / "stage.json", stage.specification())
            trunks.enter(Path(stage.directory), stage.trunk)
            if stage.kind.explores:
                code.keep(Path(stage.directory), stage.config)
        frozen = OmegaConf.to_yaml(OmegaConf.create(plain(hub.frozen(self.config))))
        files.write_atomic(self.view / "config.yaml", lambda temporary: temporary.write_text(frozen, encoding="utf-8"))
        rows = [{"name": s.name, "kind": s.kind, "directory": s.directory, "inputs": s.inputs} for s in self.stages]
        pins = {"hub": kept} if (kept := hub.pins(self.config)) else {}
        words = {} if self.overrides is None else {"overrides": self.overrides}
        files.write_json(self.view / "plan.json",
                         {"project": self.project, "name": self.name, "stages": rows, **pins, **words})
        links = self.view / "stages"
        links.mkdir(exist_ok=True)
        for old in links.iterdir():
            old.unlink()
        for stage in self.stages:
            (links / stage.name).symlink_to(os.path.relpath(stage.directory, links))


def make_plan(config: Config) -> Plan:
    """Returns the DAG of a composed configuration.

    tasks -> curate -> the training stages, each on the model of the nearest predecessor that trains -> an evaluation of
    each, and of the first one's initial model -> report. Modes: compose/recipe.py. Raises DataError or ModelError
    when a named file does not exist, ConfigError when mode=bench finds a stage untrained.
    """
    made = _Stages(Recipe.of(config))
    for name in made.recipe.settings:
        made.add_entry(name)
    if config.only_evaluates:
        _refuse_untrained(made.stages)
    made.add(make_stage(REPORT, REPORT, config, {s.name: s.directory for s in made.stages}, made.root))
    return Plan(config.project, config.name, made.root, config, made.stages)


class _Stages:
    """The stages of a plan under construction."""

    def __init__(self, recipe: Recipe):
        self.recipe, self.config = recipe, recipe.run
        self.root = os.path.normpath(self.config.checkpoint_root_dir)
        self.stages: list[Stage] = []
        self.models: dict[str, str] = {}  # entry -> directory of the policy it trains, or else starts from
        self.made: dict[str, tuple[str, ...]] = {}  # entry -> directories derived from its output; others wait
        self.base = ""  # the first entry's initial model

    def add(self, stage: Stage) -> str:
        """Adds a stage; returns its directory."""
        if any(s.name == stage.name for s in self.stages):
            raise ConfigError(f"two stages are called '{stage.name}': one of them is the run's own. Its names are "
                              "images, tasks, curate, model and quantized (or these with _<stage>), report, "
                              "evaluate_base, evaluate_<stage>, and of each that benches, also one called bench: "
                              "<bench>_base, <bench>_<stage> and <bench>_<stage>_last. Rename yours.")
        self.stages.append(stage)
        return stage.directory

    def reused(self, name: str, kind: Kind, settings: Config, inputs: dict[str, str]) -> str:
        """Returns the directory of the stage of this kind and identity; adds it, with this name, if it is new."""
        wanted = make_stage(name, kind, settings, inputs, self.root)
        same = (s.directory for s in self.stages if (s.kind, s.identity) == (kind, wanted.identity))
        return next(same, None) or self.add(wanted)

    def shared(self, kind: Kind, settings: Config, inputs: dict[str, str], owner: str) -> str:
        """Does the same for a stage named after its kind, and its owner if there are others of the kind."""
        return self.reused(f"{kind}_{owner}" if any(s.kind == kind for s in self.stages) else kind, kind, settings,
                           inputs)

    def add_entry(self, name: str) -> None:
        """Adds a stage of the recipe, with its data, its initial model, and the evaluation of its result."""
        settings, kind = self._with_models(self.recipe.settings[name]), self.recipe.kinds[name]
        held = bool(settings.buffer.explorer_input.eval_tasksets)
        inputs = self._reads(name, kind, settings) | self._teacher(name, settings)
        asked = self.curated(settings, TEST_ROWS, name) if held else ""
        if settings.asks_server:
            server = self.shared(SERVER, settings, {}, name)
            inputs["model"] = server
            self.made[name] = (self.evaluated(f"{name}_server", settings, asked, server) if kind.evaluates else
                               self.add(make_stage(name, kind, settings, inputs, self.root,
                                                   self._waits(name, inputs))),)
            return
        start = self._start(name, settings)
        inputs.setdefault("model", start)
        answering = self._answering(name, settings, kind)
        if not self.base and (settings.makes_policy or not kind.trains):
            self.base = start
            self._evaluate_base("evaluate_base", answering, asked)
        self.models[name] = start
        if kind.evaluates:
            self.made[name] = tuple(self._bench(name, settings, asked))
            return
        if kind.watches and settings.explorer.eval_interval:
            inputs[HELD] = asked
        if kind.trains and settings.model.load_in_4bit:
            inputs["model"] = self._quantized(name, settings.model, inputs["model"])
        directory = self.add(make_stage(name, kind, settings, inputs, self.root, self._waits(name, inputs)))
        self.made[name] = (directory,)
        if settings.makes_policy:
            self.models[name] = directory
            if held:
                self.evaluated(f"evaluate_{name}", answering, asked, directory, inputs.get("tasks"))

    def _with_models(self, settings: Config) -> Config:
        """Returns settings whose auxiliary models are directories, where they are stages above."""
        models = [one if not isinstance(one.model_path, StageModel) else one.but(
            "model_path", StageModel(self.made[one.model_path][0], one.model_path.scores))
            for one in settings.explorer.auxiliary_models]
        return settings.but("explorer.auxiliary_models", models) if models else settings

    def _answering(self, name: str, settings: Config, kind: Kind) -> Config:
        """Returns the settings by which a stage's model is evaluated. The token limits of a stage that learns from
        given responses are those of its data, so its model answers within those of the first exploring stage after it,
        whose scores are compared with its own."""
        after = (other for other, of in self.recipe.kinds.items()
                 if of.explores and name in self.recipe.ancestors[other])
        first = next(after, None) if kind.learns_from_given else None
        if first is None:
            return settings
        model = self.recipe.settings[first].model
        return settings.merged({"model": {key: getattr(model, key) for key in LIMITS}})

    def _reads(self, name: str, kind: Kind, settings: Config) -> dict[str, str]:
        """Returns the training or exploration inputs of an entry: tasks, or experience, of a predecessor or
        recorded."""
        if kind.evaluates:
            return {}
        if "experience" in kind.reads:
            source = self.recipe.source[name]
            (explored,) = self.made[source] if source else (self.shared(RECORDED, settings, {}, name),)
            return {"experience": explored} | (self._explored_with(explored) if "tasks" in kind.reads else {})
        sets = settings.buffer.explorer_input.train_places if kind.explores else ()
        measured = [found[0] for _, one in sets for key in one.data_selector.feature_keys if (found := profiled(key))]
        return {"tasks": self.curated(settings, kind.rows, name)} | {
            f"{PROFILE}{stage}": self.made[stage][0] for stage in measured}

    def _explored_with(self, directory: str) -> dict[str, str]:
        """Returns the tasks of a stage that explored, and the model whose tokenizer it used."""
        inputs = next(s.inputs for s in self.stages if s.directory == directory)
        return {role: inputs[role] for role in ("tasks", "model")}

    def _teacher(self, name: str, settings: Config) -> dict[str, str]:
        """Returns the teacher model of a distilling stage, as its input."""
        if not settings.asks_teacher:
            return {}
        stage, path = self.recipe.teacher_stage(name), settings.model.teacher_model_path
        return {"teacher": self.models[stage] if stage else _model_directory(path, settings.model, TEACHER)}

    def curated(self, settings: Config, rows: str, name: str) -> str:
        """Returns the curated rows that a stage reads (`Kind.rows`); stages that read the same data share them."""
        # the run's own seed: a stage with another seed retrains on the same tasks
        data = data_settings(settings.but("seed", self.config.seed), rows, [
            one for one in self.recipe.settings.values() if one.kind.only_rewards])
        owner = name
        if rows == TEST_ROWS:
            owner = "eval" if data.buffer.explorer_input.eval_tasksets else "pool"
        if {s.name for s in self.stages} & {f"tasks_{owner}", f"curate_{owner}"}:
            owner = f"{owner}_{name}"
        images = {"images": self.shared(IMAGES, data, {}, owner)} if environments(data, self.root) else {}
        tasks = self.shared(TASKS, data, images, owner)
        return self.shared(CURATE, data, {"tasks": tasks}, owner)

    def _waits(self, name: str, inputs: dict[str, str]) -> tuple[str, ...]:
        """Returns what must be complete before an entry that does not read it."""
        above = (directory for parent in self.recipe.parents[name] for directory in self.made[parent])
        return tuple(dict.fromkeys(d for d in above if d not in inputs.values()))

    def evaluated(self, name: str, settings: Config, tasks: str, model: str, trained: str | None = None) -> str:
        """Returns the directory of a model's evaluation: an existing one, else a stage of this name.

        trained: the tasks that the model was trained on, compared with the evaluation's tasks.
        """
        inputs = {"tasks": tasks, **({"trained": trained} if trained else {}), "model": model}
        return self.reused(name, EVALUATE, settings, inputs)

    def _evaluate_base(self, name: str, settings: Config, tasks: str) -> list[str]:
        if not (settings.explorer.eval_on_startup and settings.buffer.explorer_input.eval_tasksets):
            return []
        return [self.evaluated(name, settings, tasks, self.base)]

    def _bench(self, name: str, settings: Config, tasks: str) -> list[str]:
        """Evaluates every checkpoint of the stages before it; returns directories.

        The last checkpoint of a stage is its model, scored by an `evaluate` stage, usually the one after the
        training. The other checkpoints are only known at that time: one stage evaluates them, with files for each.
        """
        made = self._evaluate_base(f"{name}_base", settings, tasks)
        for trained in self.recipe.trained(name):
            model = self.models[trained]
            read = next(s.inputs.get("tasks") for s in self.stages if s.directory == model)
            if not settings.explorer.bench_on_latest_checkpoint and _has_some(Path(model), settings):
                inputs = {"tasks": tasks, "model": model}
                made.append(self.add(make_stage(f"{name}_{trained}", settings.kind, settings, inputs, self.root,
                                                self._waits(name, inputs))))
            made.append(self.evaluated(f"{name}_{trained}_last", settings, tasks, model, read))
        _refuse_lacking(settings, [Path(self.models[trained]) for trained in self.recipe.trained(name)])
        return made

    def _start(self, name: str, settings: Config) -> str:
        """Returns the initial model of a stage: its own, else that of a predecessor, else the run's."""
        if earlier := self.recipe.begins_with[name]:
            return self.models[earlier]
        if name in self.recipe.own_models:
            return self._model(settings, name)
        start = settings.model_copy(update={"model": self.config.model, "seed": self.config.seed})
        return self._model(start, name, settings.model)

    def _quantized(self, name: str, model: Model, start: str) -> str:
        """Returns the directory of a stage's initial model as its 4 bits have it, in the type that is trained in.

        Raises ConfigError for one that was trained in 4 bits: what its adapter added is mostly less than they resolve.
        """
        above = self.recipe.begins_with[name]
        while above and not (self.recipe.settings[above].model.load_in_4bit and self.recipe.kinds[above].trains):
            above = self.recipe.begins_with[above]
        if above:
            raise ConfigError(f"stages.{name}.model.load_in_4bit=true: the stage begins with what '{above}' trained in "
                              "4 bits, most of which 4 bits of the merged weights would round away. Set it to false "
                              f"for one of the two stages, or set stages.{name}.model.model_path.")
        own = Model(dtype=model.dtype, trust_remote_code=model.trust_remote_code)
        return self.shared(QUANTIZED, self.config.model_copy(update={"model": own}), {"model": start}, name)

    def _model(self, settings: Config, owner: str, limits: Model | None = None) -> str:
        """Returns a model's directory. limits: the section `model` that limits sequences, if a different one."""
        if settings.model.init.enable:
            return self.shared(MODEL, settings, {}, owner)
        path = _model_directory(settings.model.model_path, limits or settings.model, own=settings.model)
        return self.shared(MODEL, settings, {"base": path}, owner) if settings.model.rewrites else path


def _refuse_untrained(stages: list[Stage]) -> None:
    """Raises ConfigError when a run that only evaluates would have to train first."""
    lacking = [s for s in stages if s.kind.trains and not files.is_complete(s.directory)]
    if lacking:
        found = ", ".join(f"{s.name} ({s.directory})" for s in lacking)
        raise ConfigError(f"mode=bench trains nothing, and not complete is: {found}. Run the same words without "
                          "mode=bench first.")


def _model_directory(path: str | None, limits: Model, key: str = "model.model_path", own: Model | None = None) -> str:
    """Returns a user's Hugging Face directory, named by `key`. limits: the section `model` of its consumer. own: the
    one whose model_path it is, which may override keys of its config.json."""
    if not path:
        raise ConfigError(NO_MODEL)
    if absent := absent_model(path, key):
        raise ModelError(absent)
    if not any((Path(path) / n).is_file() for n in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise ModelError(f"{key}={path}: the model has no tokenizer (tokenizer.json or "
                         "tokenizer_config.json); copy the tokenizer files of the base model there.")
    found = rewritten(path, own) if own else read_config(path, key)
    room = found.get("max_position_embeddings")
    problem = room_problem(path, limits, room, key)
    if problem:
        raise ConfigError(problem)
    return path


def _has_some(trained: Path, settings: Config) -> bool:
    """Returns whether a training stage keeps the weights of a step to evaluate, or is not complete yet."""
    asked = settings.explorer.bench_steps
    return asked is None or not files.is_complete(trained) or bool({*asked} & {*policies.scorable(trained)})


def _refuse_lacking(settings: Config, trained: list[Path]) -> None:
    """Raises ConfigError for a step to evaluate whose weights no training stage keeps."""
    if settings.explorer.bench_steps is None or not all(map(files.is_complete, trained)):
        return
    able = {stage.name: policies.scorable(stage) for stage in trained}
    lacking = sorted({*settings.explorer.bench_steps}.difference(*able.values()))
    if lacking:
        kept = "; ".join(f"{name}: {', '.join(map(str, steps))}" for name, steps in able.items())
        absent = ", ".join(map(str, lacking))
        raise ConfigError(f"explorer.bench_steps: no stage keeps the weights of {absent}. Kept are those of {kept}. "
                          "synchronizer.keep=all keeps every version that a stage publishes.")
