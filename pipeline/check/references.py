"""Checks that everything a configuration refers to exists: files, models, user code, function arguments."""

import importlib.util
from pathlib import Path

from ouroboros.pipeline.check.sources import sources
from ouroboros.pipeline.check.user_code import of_python
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.config import Config, users_code
from ouroboros.pipeline.settings.kinds import RECIPES
from ouroboros.pipeline.settings.lora import adapter_problem
from ouroboros.pipeline.settings.model import TEACHER, Model
from ouroboros.pipeline.settings.reward_rules import asked_models
from ouroboros.pipeline.settings.setting import values_of
from ouroboros.pipeline.settings.trainer import attention_of
from ouroboros.pipeline.settings.unused import without_unused
from ouroboros.pipeline.store.architecture import DOES, STATES, has_experts, text_part, unpacked, untrainable
from ouroboros.pipeline.store.digests import (
    NEEDED,
    HubPath,
    StageModel,
    address,
    digest_code,
    module_file,
    nothing_at,
    resolve,
)
from ouroboros.pipeline.store.errors import ConfigError, Problem, nearest
from ouroboros.pipeline.store.model_shape import (
    CONFIG,
    absent_model,
    is_classifier,
    plain_config,
    read_config,
    wrong_model,
    wrong_rewriting,
)
from ouroboros.pipeline.store.weights import weights_problem

FILES = ("data_processor.task_pipeline.config_path", RECIPES, "model.chat_template_path", "model.lora_configs.*.path")
AUXILIARY = "explorer.auxiliary_models"
IMAGES = "environment.images"  # base image -> file or directory
OTHER_MODELS = ("model.critic_model_path", f"{AUXILIARY}.*.model_path")


def missing(config: Config, start: Model) -> list[Problem]:
    """Lists what a stage's settings refer to and is missing on this machine.

    start: the section `model` that names its initial model.
    """
    looked = f"does not exist (looked from {Path.cwd()})"
    lines = [Problem(s.label, f"{s.path} {words}") for s in sources(config)
             if not isinstance(s.path, HubPath) and (words := nothing_at(s.path))]
    lines += [Problem(key, f"{path} {address(path) or f'{looked}.'}") for single in FILES
              for key, path in values_of(config, single) if path and not resolve(path).exists()]
    lines += [Problem(f"{IMAGES}.{name}", f"{path} {address(path) or f'{looked}.'}")
              for name, path in config.environment.images.items() if not resolve(path).exists()]
    lines += [Problem(key, f"{path} is {'a directory' if resolve(path).is_dir() else 'no file'}; needed a file.")
              for single in FILES[:3] for key, path in values_of(config, single)
              if path and resolve(path).exists() and not resolve(path).is_file()]
    if start.model_path and not start.init.enable and (absent := absent_model(start.model_path)):
        lines.append(absent)
    lines += [absent_model(path, key) for key, path in _other_models(config) if absent_model(str(resolve(path)))]
    return lines + missing_code(config)


def _other_models(config: Config) -> list[tuple[str, str]]:
    """Returns (setting, path) of the models that a stage reads besides its initial model and its teacher, and that
    no stage of the run makes."""
    return [(key, path) for several in OTHER_MODELS for key, path in values_of(without_unused(config), several)
            if path and not isinstance(path, StageModel)]


def wrong_models(config: Config, start: Model) -> list[Problem]:
    """Lists models on this machine with an unreadable config.json. start: as for `missing`."""
    named = models(config, start)
    found = [line for key, path in named if (line := wrong_model(path, key) or _auxiliary_problem(config, key, path))]
    own = [wrong_rewriting(path, start) for key, path in named if key == "model.model_path" and not found]
    return [*found, *filter(None, own)]


def _auxiliary_problem(config: Config, key: str, path: str) -> Problem | None:
    """Reports an auxiliary model that cannot do what it is asked for. workflows/reward_model.py looks at its weights
    too."""
    if not key.startswith(AUXILIARY) or not (Path(path) / CONFIG).is_file():
        return None
    model = config.explorer.auxiliary_models[int(key.split(".")[2])]
    said, scores = read_config(path, key), is_classifier(path, key)
    held, labels = said.get("architectures"), said.get("id2label")
    named = ", ".join(map(str, held)) if held and isinstance(held, list) else "of no architecture"
    count = len(labels) if isinstance(labels, dict) else 2  # transformers' default
    scoring, judging = asked_models(config)
    only = len(config.explorer.auxiliary_models) == 1
    if scores and model.name in judging:
        return Problem(key, f"judge_reward asks it, and it is {named}, which writes nothing.", found=path)
    if (scores and count != 1) or (not scores and scoring & ({model.name, None} if only else {model.name})):
        return Problem(key, f"it is {named} with {count} labels; needed a sequence classifier with one label "
                       "(…ForSequenceClassification, num_labels 1).", found=path)
    if not scores and config.mode == "colocate":
        return Problem("mode", f"{key} is served by an engine of its own, beside the one that takes turns with the "
                       "trainer.", "Set mode=both.", found="colocate")
    return None


def wrong_weights(config: Config, start: Model) -> list[Problem]:
    """Lists models on this machine whose weights are missing or incomplete. start: as for `missing`."""
    whole = [(key, path) for key, path in models(config, start)  # those of the hub are fetched later, complete
             if not isinstance(path, HubPath) and (Path(path) / CONFIG).is_file() and not wrong_model(path, key)]
    return [line for key, path in whole if (line := weights_problem(path, read_config(path, key), key))]


def models(config: Config, start: Model) -> list[tuple[str, str]]:
    """Returns (setting, path) of every model directory that a stage reads."""
    own = [("model.model_path", start.model_path)] if start.model_path and not start.init.enable else []
    taught = [(TEACHER, config.model.teacher_model_path)] if config.asks_teacher else []
    others = ((key, path if isinstance(path, HubPath) else str(resolve(path))) for key, path in _other_models(config))
    return [(key, path) for key, path in [*own, *taught, *others] if path]


def untrainable_models(config: Config, start: Model, gpus: Gpus) -> list[Problem]:
    """Lists models on this machine that the trainer cannot train or score, or not as trainer.packing says.

    start: as for `missing`. gpus: of the stage; those of other machines are taken to have flash-attn.
    """
    model, kind = config.model, config.kind
    named = [] if start.init.enable else [("model.model_path", start.model_path)]
    named += [(TEACHER, model.teacher_model_path)] if config.asks_teacher else []
    named += values_of(without_unused(config), "model.critic_model_path")
    here = [(key, str(resolve(path))) for key, path in named if path and not absent_model(str(resolve(path)), key)
            and not wrong_model(str(resolve(path)), key)] if kind.trains else []
    read = [(key, path, (plain_config(start) or {}) if key == "model.model_path" else read_config(path, key))
            for key, path in here]
    split = kind.trains and config.trainer.ulysses_sequence_parallel_size > 1
    packs = kind.trains and config.trainer.packing == "packed"
    flash = gpus.declared or importlib.util.find_spec("flash_attn") is not None
    does = {*DOES[attention_of(config.trainer.attention, gpus.any, flash)]} - ({STATES} if split else set()) if (
        packs or split) else set()
    replays = config.algorithm.enable_router_replay and kind.is_online
    return [Problem(key, problem, found=path) for key, path, said in read
            if (problem := untrainable(said, model.longest))] + [
        _packed(config, key, path, obstacle)
        for key, path, said in read
        if (packs or split) and (obstacle := unpacked(said, model.longest, does) or (_latent(said) if split else None))
    ] + [
        Problem("algorithm.enable_router_replay", f"{key}={path} has no experts to choose from.", "Set false.",
                found=True)
        for key, path, said in read if replays and key == "model.model_path" and not has_experts(said)]


def _latent(said: dict) -> str | None:
    """Returns why heads cannot be exchanged between ranks, or None. said: config.json."""
    return "keys and values of its latent attention differ in width (kv_lora_rank)" if text_part(said).get(
        "kv_lora_rank") else None


def _packed(config: Config, key: str, path: str, obstacle: str) -> Problem:
    """Reports a model whose rows cannot be packed, and are to be. obstacle: why."""
    if config.trainer.packing == "packed":
        return Problem("trainer.packing", f"needed auto or rows for {key}={path}: {obstacle}.", found="packed")
    return Problem("trainer.ulysses_sequence_parallel_size", f"splits rows where every layer allows it, and not those "
                   f"of {key}={path}: {obstacle}.", "Set 1.", found=config.trainer.ulysses_sequence_parallel_size)


def missing_code(config: Config) -> list[Problem]:
    """Lists the user's modules that are named and missing on this machine."""
    return [Problem(key, f"'{name}': no such module.{_nearest_module(name)}", NEEDED)
            for name, key in _code(config).items() if not _module(name) and not of_python(name)]


def wrong_adapters(config: Config) -> list[Problem]:
    """Lists adapters on this machine that training cannot continue from."""
    found = ((one, resolve(one.path)) for one in config.model.lora_configs if one.path)
    return [line for one, place in found if place.exists() and (line := adapter_problem(one, place))]


def wrong_code(config: Config) -> list[Problem]:
    """Lists the user's modules that cannot be read, or lack the named function."""
    return [Problem(key, problem) for name, key in _code(config).items() if _module(name) or of_python(name)
            for problem in _code_problem(name)]


def _code(config: Config) -> dict[str, str]:
    """Maps each user function to the first setting that names it."""
    found: dict[str, str] = {}
    for key, name in users_code(config):
        found.setdefault(name, key)
    return found


def _nearest_module(dotted: str) -> str:
    """Says what is in the place of a missing module, or suggests the closest match among the files in and below the
    current directory."""
    name, here = dotted.partition(":")[0], Path.cwd()
    known = {".".join(path.relative_to(here).with_suffix("").parts): path for pattern in ("*.py", "*/*.py")
             for path in here.glob(pattern)}
    if name in known:
        return f" {known[name].relative_to(here)} is there, and is no file."
    return nearest(name, [module for module, path in known.items() if path.is_file()])


def _module(dotted: str) -> Path | None:
    return module_file(dotted.partition(":")[0])


def _code_problem(dotted: str) -> list[str]:
    if of_python(dotted):
        return [f"'{dotted}' is a function of Python itself; needed one of yours, which may call it."]
    try:
        digest_code(dotted)
    except ConfigError as error:
        return [str(error)]
    return []
