"""Determines the initial model of each training stage from settings alone."""

from typing import Any

from pipeline.compose.stage_settings import names_model
from pipeline.plan.modes import Line, planned
from pipeline.store.errors import Problem

NO_MODEL = Problem("model.model_path", "no model.", "Set it to a Hugging Face directory, or model.init.enable=true.")


def starts(config: dict[str, Any]) -> dict[str, dict]:
    """Maps training stages to the section `model` of their initial model: its own, that of the stage it
    continues from, or the run's (consistent with pipeline/plan/plan.py)."""
    line, found = Line(config), {}
    for entry in planned(config):
        name = entry["stage_name"]
        earlier = line.begins_with(name)
        own = line.settings[name]["model"] if names_model(entry) else config["model"]
        found[name] = found[earlier] if earlier else own
    return found


def unnamed(config: dict[str, Any]) -> list[Problem]:
    """Returns one problem when a stage has no initial model."""
    lacking = [not start["model_path"] and not start["init"]["enable"] for start in starts(config).values()]
    return [NO_MODEL] if any(lacking) else []
