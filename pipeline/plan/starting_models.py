"""The model that each training stage begins with, from settings alone."""

from typing import Any

from pipeline.compose.stage_settings import names_model
from pipeline.plan.modes import Line, planned

NO_MODEL = "no model: set model.model_path to a Hugging Face directory, or model.init.enable=true."


def starts(config: dict[str, Any]) -> dict[str, dict]:
    """Training stage -> the section `model` that names the model it begins with: its own, or that of the stage whose
    model it goes on with, or the run's (as pipeline/plan/plan.py finds it).
    """
    line, found = Line(config), {}
    for entry in planned(config):
        name = entry["stage_name"]
        earlier = line.begins_with(name)
        own = line.settings[name]["model"] if names_model(entry) else config["model"]
        found[name] = found[earlier] if earlier else own
    return found


def unnamed(config: dict[str, Any]) -> list[str]:
    """One line when a stage would begin with a model that nothing names."""
    lacking = [not start["model_path"] and not start["init"]["enable"] for start in starts(config).values()]
    return [NO_MODEL] if any(lacking) else []
