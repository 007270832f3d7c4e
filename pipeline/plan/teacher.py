"""Determines the teacher of a distilling stage.

`model.teacher_model_path` names a Hugging Face directory, or a stage above that trains: then its model. Like the
initial model it is an input of the stage, so its content, not its path, is part of the identity.
"""

from typing import Any

from pipeline.plan.modes import Line, kind_of
from pipeline.settings.algorithms import WITH_TEACHER

KEY = "model.teacher_model_path"


def asks_teacher(settings: dict[str, Any]) -> bool:
    """Returns whether a stage with these settings (`overlays.effective`) trains on a teacher's outputs."""
    return kind_of(settings) in ("rft", "offline") and settings["algorithm"]["advantage_fn"] in WITH_TEACHER


def teacher_stage(path: str, line: Line, name: str) -> str | None:
    """Returns the stage above `name` that `model.teacher_model_path` names; None for a path."""
    above = list(line.kinds)[: list(line.kinds).index(name)]
    return path if path in above else None


def teacher_model(config: dict[str, Any], name: str, starts: dict[str, dict]) -> dict[str, Any] | None:
    """Returns the section `model` with the architecture of a stage's teacher; None without a teacher.

    starts: stage -> the section `model` of its initial model, whose architecture it keeps.
    """
    line = Line(config)
    settings = line.settings[name]
    path = settings["model"]["teacher_model_path"]
    if not asks_teacher(settings) or not path:
        return None
    stage = teacher_stage(path, line, name)
    return starts[stage] if stage else {"model_path": path, "init": {"enable": False}}
