"""From a configuration to the stages of a run: which there are, in what order, and what each begins with.

A run is a view, `runs/<project>/<name>/`, of links into the store (plan/identity.py). So two runs that agree on a
stage share it, nothing is ever overwritten, and a deleted directory is made again.
"""

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.compose.stage_settings import effective, names_model
from pipeline.job.tasksets import HELD
from pipeline.plan import hub
from pipeline.plan.data import data_settings
from pipeline.plan.identity import Stage, make_stage
from pipeline.plan.modes import TRAINING, Line, planned
from pipeline.plan.starting_models import NO_MODEL
from pipeline.plan.teacher import KEY, asks_teacher, teacher_stage
from pipeline.store import files
from pipeline.store.errors import ConfigError, ModelError
from pipeline.store.model_shape import absent_model, read_config, room_problem


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
        """Fetches what the stages read of the hub, and writes their `stage.json` and the run's view. Never called by a
        dry run."""
        from omegaconf import OmegaConf

        hub.fetch_missing(self.stages)
        for stage in self.stages:
            files.write_json(Path(stage.directory) / "stage.json", dataclasses.asdict(stage))
        frozen = OmegaConf.to_yaml(OmegaConf.create(hub.frozen(self.config)))
        files.write_atomic(self.view / "config.yaml", lambda temporary: temporary.write_text(frozen))
        rows = [{"name": s.name, "kind": s.kind, "directory": s.directory, "inputs": s.inputs} for s in self.stages]
        pins = {"hub": kept} if (kept := hub.pins(self.config)) else {}
        files.write_json(self.view / "plan.json", {"project": self.project, "name": self.name, "stages": rows, **pins})
        links = self.view / "stages"
        links.mkdir(exist_ok=True)
        for old in links.iterdir():
            old.unlink()
        for stage in self.stages:
            (links / stage.name).symlink_to(os.path.relpath(stage.directory, links))


def make_plan(config: dict[str, Any]) -> Plan:
    """The DAG of a composed configuration.

    tasks -> curate -> the training stages, each on the model of the nearest stage before it that made one -> an
    evaluation of each, and of what the first begins with -> report. Modes: pipeline/plan/modes.py. Raises DataError or
    ModelError when a file that is named does not exist, ConfigError when mode=bench finds a stage untrained.
    """
    made = _Stages(config)
    for entry in planned(config):
        made.add_entry(entry)
    if config["mode"] == "bench":
        _refuse_untrained(made.stages)
    made.add("report", "report", config, {s.name: s.directory for s in made.stages})
    return Plan(config["project"], config["name"], made.root, config, made.stages)


class _Stages:
    """The stages of a plan while it grows."""

    def __init__(self, config: dict):
        self.config = config
        self.root = os.path.normpath(config["checkpoint_root_dir"])
        self.stages: list[Stage] = []
        self.line = Line(config)
        self.models: dict[str, str] = {}  # entry -> directory with the model it makes, or else began with
        self.made: dict[str, tuple[str, ...]] = {}  # entry -> directories of what was made of it, which others wait for
        self.base = ""  # the model that the first entry begins with

    def add(self, name: str, kind: str, settings: dict, inputs: dict[str, str], waits: tuple[str, ...] = ()) -> str:
        """Adds a stage; returns its directory."""
        if any(s.name == name for s in self.stages):
            raise ConfigError(f"two stages are called '{name}': one of them is the run's own. Its names are tasks, "
                              "curate and model (or these with _<stage>), report, evaluate_base, evaluate_<stage>, and "
                              "of each that benches, also one called bench: <bench>_base, <bench>_<stage> and "
                              "<bench>_<stage>_last. Rename yours.")
        self.stages.append(make_stage(name, kind, settings, inputs, self.root, waits))
        return self.stages[-1].directory

    def shared(self, kind: str, settings: dict, inputs: dict[str, str], owner: str) -> str:
        """The directory of the stage of this kind and identity; another one, made for `owner`, bears its name too."""
        wanted = make_stage(kind, kind, settings, inputs, self.root)
        for stage in self.stages:
            if (stage.kind, stage.identity) == (kind, wanted.identity):
                return stage.directory
        return self.add(f"{kind}_{owner}" if any(s.kind == kind for s in self.stages) else kind, kind, settings, inputs)

    def add_entry(self, entry: dict) -> None:
        """One entry of `stages`, with the data and the start that it needs, and the evaluation of what it makes."""
        name, settings, kind = entry["stage_name"], effective(self.config, entry), self.line.kinds[entry["stage_name"]]
        held = bool(settings["buffer"]["explorer_input"]["eval_tasksets"])
        inputs = self._reads(name, kind, settings) | self._teacher(name, settings)
        asked = self.curated(settings, "evaluate", name) if held else ""
        inputs["model"] = start = self._start(entry, settings)
        if not self.models:
            self.base = start
            self._evaluate_base("evaluate_base", settings, asked)
        self.models[name] = start
        if kind == "bench":
            self.made[name] = tuple(self._bench(name, settings, asked))
            return
        if kind == "rft" and settings["explorer"]["eval_interval"]:
            inputs[HELD] = asked
        directory = self.add(name, kind, settings, inputs, self._waits(name, inputs))
        self.made[name] = (directory,)
        if kind in TRAINING:
            self.models[name] = directory
            if held:
                self.evaluated(f"evaluate_{name}", settings, asked, directory, inputs.get("tasks"))

    def _reads(self, name: str, kind: str, settings: dict) -> dict[str, str]:
        """What an entry learns from or is asked: tasks, or experience of a stage before it."""
        if kind == "bench":
            return {}
        if kind == "offline":
            (explored,) = self.made[self.line.explored(name)]
            return {"experience": explored}
        return {"tasks": self.curated(settings, "train" if kind == "train" else "rft", name)}

    def _teacher(self, name: str, settings: dict) -> dict[str, str]:
        """The model that a stage that distils learns from, as its input."""
        if not asks_teacher(settings):
            return {}
        path = settings["model"]["teacher_model_path"]
        stage = teacher_stage(path, self.line, name)
        return {"teacher": self.models[stage] if stage else _model_directory(path, settings["model"], KEY)}

    def curated(self, settings: dict, purpose: str, name: str) -> str:
        """The tasks of a purpose (pipeline/plan/data.py), curated; stages that read the same data share them."""
        # the run's own seed: a stage with another one trains anew, on the same tasks
        data = data_settings({**settings, "seed": self.config["seed"]}, purpose)
        owner = name
        if purpose == "evaluate":
            owner = "eval" if data["buffer"]["explorer_input"]["eval_tasksets"] else "pool"
        if {s.name for s in self.stages} & {f"tasks_{owner}", f"curate_{owner}"}:
            owner = f"{owner}_{name}"
        tasks = self.shared("tasks", data, {}, owner)
        return self.shared("curate", data, {"tasks": tasks}, owner)

    def _waits(self, name: str, inputs: dict[str, str]) -> tuple[str, ...]:
        """What must be complete before an entry though it reads nothing of it."""
        above = (directory for parent in self.line.parents[name] for directory in self.made[parent])
        return tuple(dict.fromkeys(d for d in above if d not in inputs.values()))

    def evaluated(self, name: str, settings: dict, tasks: str, model: str, trained: str | None = None) -> str:
        """The directory of the evaluation of a model: one that there is already, else a stage of this name.

        trained: the tasks that the model learnt from, with which those of the evaluation are compared.
        """
        inputs = {"tasks": tasks, **({"trained": trained} if trained else {}), "model": model}
        wanted = make_stage(name, "evaluate", settings, inputs, self.root)
        same = (s.directory for s in self.stages if (s.kind, s.identity) == ("evaluate", wanted.identity))
        return next(same, None) or self.add(name, "evaluate", settings, inputs)

    def _evaluate_base(self, name: str, settings: dict, tasks: str) -> list[str]:
        if not (settings["explorer"]["eval_on_startup"] and settings["buffer"]["explorer_input"]["eval_tasksets"]):
            return []
        return [self.evaluated(name, settings, tasks, self.base)]

    def _bench(self, name: str, settings: dict, tasks: str) -> list[str]:
        """The evaluation of every checkpoint of the stages before it; returns directories.

        The last checkpoint of a stage is its model, which an `evaluate` stage scores, mostly the one that follows the
        training. Which others there are is known only then: they are one stage, with files for each.
        """
        made = self._evaluate_base(f"{name}_base", settings, tasks)
        for trained in self.line.trained(name):
            model = self.models[trained]
            read = next(s.inputs.get("tasks") for s in self.stages if s.directory == model)
            if not settings["explorer"]["bench_on_latest_checkpoint"]:
                inputs = {"tasks": tasks, "model": model}
                made.append(self.add(f"{name}_{trained}", "bench", settings, inputs, self._waits(name, inputs)))
            made.append(self.evaluated(f"{name}_{trained}_last", settings, tasks, model, read))
        return made

    def _start(self, entry: dict, settings: dict) -> str:
        """The model that a stage begins with: one it names itself, else that of a stage before it, else the run's."""
        name = entry["stage_name"]
        if earlier := self.line.begins_with(name):
            return self.models[earlier]
        if names_model(entry):
            return self._model(settings, name)
        start = {**settings, "model": self.config["model"], "seed": self.config["seed"]}
        return self._model(start, name, settings["model"])

    def _model(self, settings: dict, owner: str, limits: dict | None = None) -> str:
        """limits: the section `model` that says how long sequences are, when it is another one."""
        if settings["model"]["init"]["enable"]:
            return self.shared("model", settings, {}, owner)
        return _model_directory(settings["model"]["model_path"], limits or settings["model"])


def _refuse_untrained(stages: list[Stage]) -> None:
    """Raises ConfigError when a run that only evaluates would have to train first."""
    lacking = [s for s in stages if s.kind in TRAINING and not files.is_complete(s.directory)]
    if lacking:
        found = ", ".join(f"{s.name} ({s.directory})" for s in lacking)
        raise ConfigError(f"mode=bench trains nothing, and not complete is: {found}. Run the same words without "
                          "mode=bench first.")


def _model_directory(path: str | None, limits: dict, key: str = "model.model_path") -> str:
    """A Hugging Face directory of the user's, named by `key`. limits: the section `model` of who will use it."""
    if not path:
        raise ConfigError(NO_MODEL)
    if absent := absent_model(path, key):
        raise ModelError(absent)
    if not any((Path(path) / n).is_file() for n in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise ModelError(f"{key}={path}: the model has no tokenizer (tokenizer.json or "
                         "tokenizer_config.json); copy the tokenizer files of the base model there.")
    room = read_config(path, key).get("max_position_embeddings")
    problem = room_problem(path, limits, room, key)
    if problem:
        raise ConfigError(problem)
    return path
