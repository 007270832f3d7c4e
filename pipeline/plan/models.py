"""The initial model and the teacher of each stage, determined from settings alone.

`model.teacher_model_path` names a Hugging Face directory, or a stage above that trains: then its model. Like the
initial model it is an input of the stage, so its content, not its path, is part of the identity.
"""


from pipeline.compose.stage_settings import names_model
from pipeline.plan.modes import Line, planned
from pipeline.settings.algorithms import WITH_TEACHER
from pipeline.settings.config import Config
from pipeline.settings.model import Model
from pipeline.store.errors import Problem

KEY = "model.teacher_model_path"
NO_MODEL = Problem("model.model_path", "no model.", "Set it to a Hugging Face directory, or model.init.enable=true.")


def initial_models(config: Config) -> dict[str, Model]:
    """Maps stages to the section `model` of their initial model: its own, that of the stage it continues from, or the
    run's (consistent with pipeline/plan/plan.py)."""
    line, found = Line(config), {}
    for entry in planned(config):
        name = entry["stage_name"]
        earlier = line.begins_with(name)
        own = line.settings[name].model if names_model(entry) else config.model
        found[name] = found[earlier] if earlier else own
    return found


def missing_model(config: Config) -> list[Problem]:
    """Returns one problem when a stage has no initial model."""
    servers = Line(config).servers()
    lacking = [not one.model_path and not one.init.enable for name, one in initial_models(config).items()
               if name not in servers]
    return [NO_MODEL] if any(lacking) else []


def asks_teacher(settings: Config) -> bool:
    """Returns whether a stage with these effective settings trains on a teacher's outputs."""
    return settings.kind.learns_from_rollouts and settings.algorithm.advantage_fn in WITH_TEACHER


def teacher_stage(path: str, line: Line, name: str) -> str | None:
    """Returns the stage above `name` that `model.teacher_model_path` names; None for a path."""
    above = list(line.kinds)[: list(line.kinds).index(name)]
    return path if path in above else None


def teacher_model(config: Config, name: str, initial: dict[str, Model]) -> Model | None:
    """Returns the section `model` with the architecture of a stage's teacher; None without a teacher.

    initial: of `initial_models`; a stage keeps the architecture of its initial model.
    """
    line = Line(config)
    settings = line.settings[name]
    path = settings.model.teacher_model_path
    if not asks_teacher(settings) or not path:
        return None
    stage = teacher_stage(path, line, name)
    return initial[stage] if stage else Model.model_construct(
        model_path=path, trust_remote_code=settings.model.trust_remote_code)
