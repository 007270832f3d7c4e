"""The model that each training stage begins with, from settings alone."""

from typing import Any

from pipeline.modes import planned
from pipeline.overlays import before, effective, names_model

NO_MODEL = "no model: set model.model_path to a Hugging Face directory, or model.init.enable=true."


def starts(config: dict[str, Any]) -> dict[str, dict]:
    """Training stage -> the section `model` that names the model it begins with: its own, or that of the stage before
    it, or the run's (as pipeline/plan.py finds it). A stage behind one that there is not counts as the first.
    """
    found: dict[str, dict] = {}
    for entry in planned(config):
        parents = before(entry, list(found))
        first = parents[0] if isinstance(parents, list) and parents else None
        if names_model(entry):
            found[entry["stage_name"]] = effective(config, entry)["model"]
        else:
            known = isinstance(first, str) and first in found
            found[entry["stage_name"]] = found[first] if known else config["model"]
    return found


def unnamed(config: dict[str, Any]) -> list[str]:
    """One line when a stage would begin with a model that nothing names."""
    lacking = [not start["model_path"] and not start["init"]["enable"] for start in starts(config).values()]
    return [NO_MODEL] if any(lacking) else []
