"""Opens engines by type, in this process or several in their own."""

from pathlib import Path

from pipeline.store.errors import pick
from workflows.engines.engine import Engine


def open_engine(
    model: Path, config, end_tokens: list[int], sleeps: bool = False, logs: Path | None = None, adapter=None
) -> Engine:
    """Opens one engine in this process, or several in their own, on a Hugging Face directory.

    config: settings with sections model, explorer, seed. end_tokens: ids that end a response. sleeps: whether `sleep`
    will be called to free the device. logs: directory for process logs; required when explorer.rollout_model.engine_num
    is more than 1. adapter: the element of `model.lora_configs` whose weights `load_weights` loads; None for whole
    models.
    """
    if config.explorer.rollout_model.engine_num == 1:
        return open_one(model, config, end_tokens, sleeps, adapter)
    from workflows.engines.engine_pool import EnginePool

    assert logs is not None, "several engines need a place for their logs"
    return EnginePool(model, config, end_tokens, sleeps, logs, adapter)


def open_one(model: Path, config, end_tokens: list[int], sleeps: bool, adapter) -> Engine:
    """Opens the engine that `explorer.rollout_model.engine_type` names, in this process."""
    opener = pick(ENGINES, config.explorer.rollout_model.engine_type, "explorer.rollout_model.engine_type")
    return opener(model, config, end_tokens, sleeps, adapter)


def _vllm(*arguments) -> Engine:
    from workflows.engines.vllm_engine import VllmEngine

    return VllmEngine(*arguments)


def _transformers(*arguments) -> Engine:
    from workflows.engines.transformers_engine import TransformersEngine

    return TransformersEngine(*arguments)


def _scripted(*arguments) -> Engine:
    from workflows.engines.scripted_engine import ScriptedEngine

    return ScriptedEngine(*arguments)


ENGINES = {"vllm": _vllm, "transformers": _transformers, "scripted": _scripted}
