"""Opens engines by type, in this process or several in their own."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ouroboros.pipeline.job.devices import planned_gpus, visible_gpus
from ouroboros.pipeline.settings.setting import at
from ouroboros.pipeline.settings.trainer import may_overlap
from ouroboros.pipeline.store.checkpoints import weight_bytes
from ouroboros.pipeline.store.errors import ConfigError, pick
from ouroboros.pipeline.store.model_engine import images_problem
from ouroboros.workflows.protocol.engine import Engine
from ouroboros.workflows.protocol.hugging_face import read_config

RESERVED = 0.1  # of the memory of an engine that shares its GPU: activations, CUDA graphs, CUDA's context
RESERVED_BYTES = 2 << 30  # at least; a 0.5B shape takes 1.2 GiB (benchmarks/gpu_path.md)


def limited(config):
    """Returns the settings by which prompts are made for the engine: a server has its own limits."""
    if config.explorer.rollout_model.engine_type != "openai":
        return config
    from ouroboros.workflows.engines.openai_engine import limits

    return limits(config)


def seeing(config, model: Path, images: bool):
    """Returns the settings of an engine whose requests have images, if they do: vLLM otherwise loads the text's part of
    a model alone. Raises ConfigError for an engine that is not given them, or reads them otherwise than the trainer."""
    settings = config.explorer.rollout_model
    if not images:
        return config
    if settings.engine_type not in ("vllm", "transformers"):
        raise ConfigError(f"explorer.rollout_model.engine_type={settings.engine_type}: there are images, which it is "
                          "not given. Set vllm or transformers.")
    if settings.engine_type == "vllm" and (problem := images_problem(read_config(model).model_type)):
        raise ConfigError(problem)
    return config if settings.engine_type != "vllm" else config.but("explorer.rollout_model", settings.merged({
        "extra_engine_args": {"language_model_only": False} | settings.extra_engine_args}))


def unshown(config, model: Path) -> str | None:
    """Returns why images of agents are not shown. config: of `seeing`."""
    settings = config.explorer.rollout_model
    try:
        seeing(config, model, True)
    except ConfigError as problem:
        return str(problem)
    if settings.engine_type == "vllm" and settings.extra_engine_args.get("language_model_only") is not False:
        return ("tasks have no images, so vLLM reads the text's part of the model alone: set explorer.rollout_model."
                "extra_engine_args={language_model_only: false}")
    return None


@contextmanager
def begin_engines(model: Path, config, logs: Path) -> Iterator[list]:
    """Starts the processes of several engines, for `begun` of `open_engine`: they import their libraries meanwhile.
    Yields none for one engine, which is opened in this process. An error within the block ends them. Arguments: as of
    `open_engine`."""
    if config.explorer.rollout_model.engine_num * (shared_by := engines_per_gpu(config, model)) == 1:
        yield []
        return
    from ouroboros.workflows.engines.engine_pool import begin, ended_on_error

    with ended_on_error(begun := begin(config, shared_by, logs)):
        yield begun


def open_engine(
    model: Path, config, end_tokens: list[int], sleeps: bool = False, logs: Path | None = None, adapter=None,
    device_free: Callable[[], object] = lambda: None, begun: Sequence = (),
) -> Engine:
    """Opens one engine in this process, or several in their own, on a Hugging Face directory.

    config: settings with sections model, explorer, seed. end_tokens: ids that end a response. sleeps: whether `sleep`
    will be called to free the device. logs: directory for process logs; required when explorer.rollout_model.engine_num
    is more than 1. adapter: the element of `model.lora_configs` whose weights `load_weights` loads; None for whole
    models. device_free: returns when the engines may take memory; their libraries are imported before. begun: of
    `begin_engines`, which counted them.
    """
    number = config.explorer.rollout_model.engine_num
    shared_by = len(begun) // number if begun else engines_per_gpu(config, model)
    if number * shared_by == 1:
        import_libraries(config)
        device_free()
        return open_one(model, with_cache(config, model), end_tokens, sleeps, adapter)
    from ouroboros.workflows.engines.engine_pool import EnginePool

    assert logs is not None, "several engines need a place for their logs"
    return EnginePool(model, config, end_tokens, sleeps, logs, adapter, shared_by, device_free, begun=begun)


def engines_per_gpu(config, model: Path) -> int:
    """Returns how many engines share a GPU. 1 on CPU, where engines have their own cores."""
    if not visible_gpus(config.cluster.gpu_per_node):
        return 1
    return config.explorer.rollout_model.on_gpu(weight_bytes(model), (planned_gpus(config.cluster).gib or 0) * 2**30)


def with_cache(config, model: Path):
    """Returns the settings of an engine with the size of its key/value cache, where `kv_cache_mib` gives it, or where
    it shares its GPU with others, with auxiliary models or with a trainer that may train meanwhile.

    Otherwise vLLM measures what its weights and activations leave of its part of the memory, and would count what those
    next to it allocate while it starts. config: with that part as `gpu_memory_utilization`. Raises
    ConfigError when nothing is left.
    """
    settings = config.explorer.rollout_model
    cache = settings.kv_cache_mib
    if settings.engine_type != "vllm" or (
            cache is None and settings.engines_per_gpu in ("auto", 1) and not may_overlap(config)
            and not (at(config, "mode") == "colocate" and config.explorer.auxiliary_models)):
        return config
    import torch

    if not torch.cuda.is_available():
        return config
    total = torch.cuda.get_device_properties(0).total_memory
    if cache is not None:  # vLLM only checks when it starts that gpu_memory_utilization is free
        return config.but("explorer.rollout_model", settings.merged({
            "gpu_memory_utilization": min((cache << 20) / total, settings.gpu_memory_utilization),
            "extra_engine_args": {"kv_cache_memory_bytes": cache << 20}}))
    memory = int(settings.gpu_memory_utilization * total)
    weights = weight_bytes(model) // settings.tensor_parallel_size
    reserved = max(RESERVED_BYTES, int(RESERVED * memory))
    if weights + reserved >= memory:
        gib = [f"{one / 2**30:.1f} GiB" for one in (memory, weights, reserved)]
        raise ConfigError(f"explorer.rollout_model.gpu_memory_utilization: each engine has {gib[0]}, and needs "
                          f"{gib[1]} for weights and {gib[2]} for activations besides its cache. Raise it, or lower "
                          "engines_per_gpu.")
    return config.but("explorer.rollout_model", settings.merged({
        "extra_engine_args": {"kv_cache_memory_bytes": memory - weights - reserved}}))


def import_libraries(config) -> None:
    """Imports what takes long of an engine, in this process."""
    if config.explorer.rollout_model.engine_type == "vllm":
        from ouroboros.workflows.engines.vllm_engine import import_vllm

        import_vllm(config.explorer.rollout_model.batch_invariant)


def open_one(model: Path, config, end_tokens: list[int], sleeps: bool, adapter) -> Engine:
    """Opens the engine that `explorer.rollout_model.engine_type` names, in this process."""
    opener = pick(ENGINES, config.explorer.rollout_model.engine_type, "explorer.rollout_model.engine_type")
    return opener(model, config, end_tokens, sleeps, adapter)


def _vllm(*arguments) -> Engine:
    from ouroboros.workflows.engines.vllm_engine import VllmEngine

    return VllmEngine(*arguments)


def _transformers(*arguments) -> Engine:
    from ouroboros.workflows.engines.transformers_engine import TransformersEngine

    return TransformersEngine(*arguments)


def _openai(*arguments) -> Engine:
    from ouroboros.workflows.engines.openai_engine import OpenAIEngine

    return OpenAIEngine(*arguments)


def _scripted(*arguments) -> Engine:
    from ouroboros.workflows.engines.scripted_engine import ScriptedEngine

    return ScriptedEngine(*arguments)


ENGINES = {"vllm": _vllm, "transformers": _transformers, "openai": _openai, "scripted": _scripted}
