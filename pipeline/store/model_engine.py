"""Whether the installed vLLM runs a model's architecture, read from its list of models, without its import."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.store.architecture import unpacked
from pipeline.store.errors import Problem

OTHER = "Set explorer.rollout_model.engine_type=transformers, which generates with transformers itself."


def engine_problem(config: dict[str, Any], longest: int) -> Problem | None:
    """Reports a model that vLLM cannot read here. config: config.json. longest: tokens of the longest row.

    Families that vLLM does not list run by its transformers backend, which does attention alone. Nothing where vLLM is
    not installed: the nodes may have it.
    """
    named, known = config.get("architectures") or [], _listed()
    if not known or not named:
        return None
    if not known.intersection(named) and (obstacle := unpacked(config, longest)):
        return Problem("explorer.rollout_model.engine_type", f"the installed vLLM does not list {named[0]}, and its "
                       f"transformers backend does attention alone: {obstacle}.", OTHER, found="vllm")
    if isinstance(config.get("text_config"), dict) and importlib.util.find_spec("torchvision") is None:
        return Problem("explorer.rollout_model.engine_type", f"vLLM reads a model with a tower ({named[0]}) only where "
                       "torchvision is installed.", f"Install the torchvision of this torch, or: {OTHER}", found="vllm")
    return None


@cache
def _listed() -> frozenset[str]:
    """Returns the architectures that vLLM has, without those that it had, or nothing without vLLM."""
    package = importlib.util.find_spec("vllm")
    if package is None or package.origin is None:
        return frozenset()
    file = Path(package.origin).parent / "model_executor" / "models" / "registry.py"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return frozenset(re.findall(r'^    "(\w+)": \(', text, re.M))
