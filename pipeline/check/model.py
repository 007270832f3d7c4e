"""Rules on models: whether they are there and whole, what the trainer can do with them, teachers, auxiliary models."""

import importlib.util
from pathlib import Path
from typing import Any

from ouroboros.pipeline.compose.recipe import Recipe
from ouroboros.pipeline.job.devices import Gpus
from ouroboros.pipeline.settings.algorithms import OF_SCORES, WITH_TEACHER
from ouroboros.pipeline.settings.config import Config
from ouroboros.pipeline.settings.lora import adapter_problem
from ouroboros.pipeline.settings.model import NO_MODEL, TEACHER, Model
from ouroboros.pipeline.settings.reward_rules import asked_models
from ouroboros.pipeline.settings.setting import values_of
from ouroboros.pipeline.settings.trainer import attention_of
from ouroboros.pipeline.settings.unused import without_unused
from ouroboros.pipeline.store.architecture import (
    DOES,
    STATES,
    has_code,
    has_experts,
    text_part,
    unpacked,
    untrainable,
    windowed,
)
from ouroboros.pipeline.store.digests import HubPath, StageModel, resolve
from ouroboros.pipeline.store.errors import Problem, nearest
from ouroboros.pipeline.store.model_shape import (
    CONFIG,
    absent_model,
    is_classifier,
    plain_config,
    read_config,
    room_problem,
    split_problem,
    wrong_model,
    wrong_rewriting,
)
from ouroboros.pipeline.store.packable import unknown_type
from ouroboros.pipeline.store.weights import weights_problem

AUXILIARY = "explorer.auxiliary_models"
OTHER_MODELS = ("model.critic_model_path", f"{AUXILIARY}.*.model_path")
KEY = "model.trust_remote_code"


def broken_models(recipe: Recipe, elsewhere: bool = False) -> list[Problem]:
    """Lists models and adapters on this machine that cannot be used. elsewhere: the run is for another
    machine, where the weights may be complete."""
    stages = ((settings, recipe.models[name]) for name, settings in recipe.settings.items())
    return list(dict.fromkeys(line for settings, start in stages for line in (
        *wrong_models(settings, start), *wrong_adapters(settings),
        *([] if elsewhere else wrong_weights(settings, start)))))


def of_stage(config: Config, start: Model, teacher: Model | None, plain: dict[str, Any] | None,
             gpus: Gpus) -> dict[str, list]:
    """Returns what is wrong with the models of a stage, or remarkable. start, teacher: the sections `model` that name
    its initial model and its teacher. plain: config.json of the first, where it is here."""
    (problems, warnings), sizes = remote_code(config, start, teacher), []
    if plain:
        trainer, engine = config.trainer, config.explorer.rollout_model
        sizes = [room_problem(start.model_path, config.model, plain.get("max_position_embeddings")),
                 *(split_problem(plain, key, parts) for key, parts, divides in (
                     ("explorer.rollout_model.tensor_parallel_size", engine.tensor_parallel_size, gpus.any),
                     ("trainer.ulysses_sequence_parallel_size", trainer.ulysses_sequence_parallel_size,
                      config.kind.trains)) if divides)]
    window = None if plain is None or start.init.enable else windowed(text_part(plain), config.model.longest)
    return {"problems": [*untrainable_models(config, start, gpus), *sizes, *problems], "warnings": warnings,
            "facts": [("attention", f"{window}.")] if window else []}


def other_models(config: Config) -> list[tuple[str, str]]:
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
    scoring, judging = _asked(config, model.name)
    if scores and judging:
        return Problem(key, f"judge_reward asks it, and it is {named}, which writes nothing.", found=path)
    if (scores and count != 1) or (not scores and scoring):
        return Problem(key, f"it is {named} with {count} labels; needed a sequence classifier with one label "
                       "(…ForSequenceClassification, num_labels 1).", found=path)
    if not scores and config.mode == "colocate" and model is not config.own_teacher:
        return Problem("mode", f"{key} is served by a second engine, in addition to the one that takes turns with the "
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
    others = ((key, path if isinstance(path, HubPath) else str(resolve(path))) for key, path in other_models(config))
    return [(key, path) for key, path in [*own, *taught, *others] if path]


def untrainable_models(config: Config, start: Model, gpus: Gpus) -> list[Problem]:
    """Lists models on this machine that the trainer cannot train or score, or not as trainer.packing says.

    start: as for `missing`. gpus: of the stage; those of other machines are taken to have flash-attn.
    """
    model, kind = config.model, config.kind
    named = [] if start.init.enable else [("model.model_path", start.model_path)]
    named += [(TEACHER, model.teacher_model_path)] if config.asks_teacher else []
    named += values_of(without_unused(config), "model.critic_model_path")
    placed = [(key, path if key == "model.model_path" else str(resolve(path))) for key, path in named if path]
    here = [(key, path) for key, path in placed if not absent_model(path, key) and not wrong_model(path, key)]
    read = [(key, path, (plain_config(start) or {}) if key == "model.model_path" else read_config(path, key))
            for key, path in here if kind.trains]
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
        if (packs or split) and (obstacle := unpacked(said, model.longest, does) or (
            "keys and values of its latent attention differ in width (kv_lora_rank)"
            if split and text_part(said).get("kv_lora_rank") else None))
    ] + [
        Problem("algorithm.enable_router_replay", f"{key}={path} has no experts to choose from.", "Set false.",
                found=True)
        for key, path, said in read if replays and key == "model.model_path" and not has_experts(said)]


def _packed(config: Config, key: str, path: str, obstacle: str) -> Problem:
    """Reports a model whose rows cannot be packed, and are to be. obstacle: why."""
    if config.trainer.packing == "packed":
        return Problem("trainer.packing", f"needed auto or rows for {key}={path}: {obstacle}.", found="packed")
    return Problem("trainer.ulysses_sequence_parallel_size", f"splits rows where every layer allows it, and not those "
                   f"of {key}={path}: {obstacle}.", "Set 1.", found=config.trainer.ulysses_sequence_parallel_size)


def wrong_adapters(config: Config) -> list[Problem]:
    """Lists adapters on this machine that training cannot continue from."""
    found = ((one, resolve(one.path)) for one in config.model.lora_configs if one.path)
    return [line for one, place in found if place.exists() and (line := adapter_problem(one, place))]


def remote_code(config: Config, start: Model, teacher: Model | None) -> tuple[list[Problem], list[Problem]]:
    """Lists problems, and what running code means, for the models that a stage reads: its initial one, its teacher, its
    critic and the auxiliary ones, for which one switch holds. start, teacher: the sections `model` that name them."""
    used = without_unused(config)
    named = [path for key in OTHER_MODELS for _, path in values_of(used, key) if path]
    others = [*([teacher.model_path] if teacher and not teacher.init.enable else []), *named]
    trust = {"trust_remote_code": config.model.trust_remote_code}
    models = [start, *(Model.model_construct(model_path=str(resolve(one)), **trust) for one in dict.fromkeys(others)
                       if one and not isinstance(one, HubPath))]
    here = [(plain, one) for one in models if (plain := plain_config(one))]
    with_code = [(plain, one) for plain, one in here if plain.get("auto_map")] or here[:1]
    return ([problem for plain, one in here if (problem := untrusted(plain, one))],
            [note for plain, one in with_code if (note := trusted(plain, one))])


def untrusted(config: dict[str, Any], start: Model) -> Problem | None:
    """Reports a model that transformers has no code for, and whose own may not be run. config: config.json. start: the
    section `model` that names it."""
    if start.trust_remote_code or not has_code(config) or not unknown_type(str(config.get("model_type", ""))):
        return None
    return Problem(KEY, f"transformers has no code for model_type {config['model_type']} of {start.model_path}, whose "
                   f"directory has its own ({_files(start)}). It would run with your rights.",
                   f"Read it, and set {KEY}=true, or take another model.", found=False)


def trusted(config: dict[str, Any], start: Model) -> Problem | None:
    """Says what running a model's own code means."""
    if not start.trust_remote_code:
        return None
    if not config.get("auto_map"):
        return Problem(KEY, f"changes nothing: config.json of {start.model_path} names no code (auto_map).", found=True)
    return Problem(KEY, f"tokenizer, trainer and engine run {_files(start)} of {start.model_path} with your rights, "
                   "also where transformers has code for the model.", found=True)


def _files(start: Model) -> str:
    names = sorted(file.name for file in Path(start.model_path or "").glob("*.py"))
    return ", ".join(names[:4]) + ", …" * (len(names) > 4) if names else "of another repository"


def missing_model(recipe: Recipe) -> list[Problem]:
    """Returns one problem when a stage has no initial model."""
    servers = [name for name, settings in recipe.settings.items() if settings.asks_server]
    return [NO_MODEL] if any(not one.model_path and not one.init.enable for name, one in recipe.models.items()
                             if name not in servers) else []


def unfit_teachers(recipe: Recipe) -> list[Problem]:
    """Lists teachers that are missing, cannot be one, or that nobody asks. Stages must have valid names and order."""
    found, given = [], recipe.run.model.teacher_model_path
    asking = {name: settings for name, settings in recipe.settings.items() if settings.asks_teacher}
    for name, settings in asking.items():
        path, function = settings.model.teacher_model_path, settings.algorithm.advantage_fn
        if not path:
            found.append(Problem("algorithm.advantage_fn", "needs the log-probs of a teacher.", f"Set {TEACHER} to a "
                                 "Hugging Face directory with the policy's tokenizer, or to the name of a stage above "
                                 "that trains.", found=function, stages=[name]))
        elif path == recipe.models[name].model_path:
            found.append(Problem(TEACHER, "is the model that the stage begins with, so there is nothing to learn from "
                                 "it: every gradient is 0.", "Name another one.", found=path, stages=[name]))
        elif (taught_by := recipe.teacher_stage(name)) and not recipe.kinds[taught_by].trains:
            found.append(Problem(TEACHER, f"that stage makes no model (mode={recipe.settings[path].mode}); needed one "
                                 "that trains, or a Hugging Face directory.", found=path, stages=[name]))
    if given and not asking:
        found.append(Problem(TEACHER, "no stage asks a teacher.", f"Choose algorithm.advantage_fn="
                             f"{' or '.join(WITH_TEACHER)}, or leave it out.", found=given))
    return found


def unfit_models(recipe: Recipe) -> list[Problem]:
    """Lists auxiliary models that are stages above and cannot do what they are asked for, and teachers that write
    nothing. Stages must have valid names and order."""
    found = []
    for name, settings in recipe.settings.items():
        for place, one in enumerate(settings.explorer.auxiliary_models):
            if isinstance(one.model_path, StageModel) and (words := _unfit(recipe, settings, one)):
                found.append(Problem(f"explorer.auxiliary_models.{place}.model_path", *words, found=str(one.model_path),
                                     stages=[name]))
        if settings.asks_teacher and (taught_by := recipe.teacher_stage(name)) and (
                recipe.settings[taught_by].algorithm.scores_responses):
            found.append(Problem(TEACHER, "that stage trains a reward model, which has no log-probs of tokens; needed "
                                 "one that trains a policy.", found=taught_by, stages=[name]))
    return found


def _unfit(recipe: Recipe, settings, model) -> tuple[str, str] | None:
    """Returns what is wrong with an auxiliary model of a stage, and what to do."""
    path, (scoring, judging) = model.model_path, _asked(settings, model.name)
    if not recipe.kinds[path].trains:
        return f"that stage makes no model (mode={recipe.settings[path].mode}).", "Name one that trains."
    if path.scores and judging:
        return "judge_reward asks it, and that stage trains a reward model, which writes nothing.", "Name a policy."
    if not path.scores and scoring:
        return ("reward_model asks it, and that stage trains no reward model.",
                f"Name one with algorithm_type={' or '.join(OF_SCORES)}.")
    if not path.scores and settings.mode == "colocate" and model is not settings.own_teacher:
        return "it is served by a second engine, in addition to the one that takes turns with the trainer.", (
            "Set mode=both.")
    return None


def _asked(config: Config, name: str | None) -> tuple[bool, bool]:
    """Returns whether reward_model, and whether judge_reward, asks the auxiliary model of a name."""
    scoring, judging = asked_models(config)
    only = len(config.explorer.auxiliary_models) == 1
    return name in scoring or (only and None in scoring), name in judging


def absent_teacher(recipe: Recipe, model: Model | None) -> Problem | None:
    """Reports a teacher's architecture directory that does not exist."""
    if model is None or model.init.enable or not model.model_path:
        return None
    absent = absent_model(model.model_path, TEACHER)
    meant = nearest(model.model_path, recipe.kinds)
    return absent.but(do=f"Nor is it a stage above.{meant}") if absent and meant else absent
